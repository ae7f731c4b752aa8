"""The choice of the kernel by the environment."""

from __future__ import annotations

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.build_info import check_kernel_choice
from pubsub.errors import ConfigurationError


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
