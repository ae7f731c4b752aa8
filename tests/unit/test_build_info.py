"""The version, and the choice of the kernel by the environment."""

from __future__ import annotations

import importlib.metadata
from unittest.mock import Mock

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.build_info import check_kernel_choice, version
from pubsub.errors import ConfigurationError


class VersionTests(SynchronousTestCase):
    """The version that is shown"""

    def shown(self, installed: object) -> str:
        self.patch(importlib.metadata, "distribution", installed)  # type: ignore[no-untyped-call]
        version.cache_clear()
        self.addCleanup(version.cache_clear)
        return version()

    def test_the_commit_of_a_build(self) -> None:
        """It is not that of the code in an editable installation."""
        for origin, expected in (
            (None, "0.2.0+202611272011.ge48c0827"),
            ('{"url": "file:///x", "dir_info": {}}', "0.2.0+202611272011.ge48c0827"),
            ('{"url": "file:///x", "dir_info": {"editable": true}}', "0.2.0"),
        ):
            found = Mock(version="0.2.0+202611272011.ge48c0827")
            found.read_text.return_value = origin
            assert self.shown(lambda name, found=found: found) == expected

    def test_nothing_is_installed(self) -> None:
        error = importlib.metadata.PackageNotFoundError
        assert self.shown(Mock(side_effect=error)) == "unknown"


class KernelChoiceTests(SynchronousTestCase):
    """PUBSUB_KERNEL"""

    def test_known_values_and_none(self) -> None:
        check_kernel_choice({})
        for choice in ("", "compiled", "interpreted"):
            check_kernel_choice({"PUBSUB_KERNEL": choice})

    def test_another_value_is_an_error(self) -> None:
        for choice in ("bogus", "Interpreted", "0"):
            with pytest.raises(ConfigurationError, match=f"PUBSUB_KERNEL: there is no .*{choice}"):
                check_kernel_choice({"PUBSUB_KERNEL": choice})
