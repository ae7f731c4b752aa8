"""Files that are replaced, and new directories: what is synced, and in which order."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.durable_names import make_directory, replace_text, sync_names
from pubsub.pipeline.jobs.replay import ReplayProgress, ReplaySettings
from tests.unit.fakes import scratch


class DurableNamesTests(SynchronousTestCase):
    """What a loss of power must not undo is synced"""

    def setUp(self) -> None:
        self.path = scratch(self).resolve()
        self.calls: list[tuple[str, str]] = []
        for name in ("fsync", "replace"):
            self.watch(name, getattr(os, name))

    def watch(self, name: str, real: Callable[..., Any]) -> None:
        """Note each call of a function of ``os``."""

        def call(first: int | Path, *others: Any) -> None:
            path = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else str(first)
            self.calls.append((name, os.path.relpath(path, self.path)))
            real(first, *others)

        self.patch(os, name, call)  # type: ignore[no-untyped-call]

    def test_a_text_is_on_disk_before_it_has_its_name(self) -> None:
        path = self.path / "state.json"
        for text in ("one", "two"):
            replace_text(path, text)
            assert path.read_text() == text
        assert self.calls == 2 * [
            ("fsync", "state.new"),
            ("replace", "state.new"),
            ("fsync", "."),
        ]

    def test_the_progress_of_a_replay(self) -> None:
        settings = ReplaySettings("t", 0, None, "", None, None, 1)
        progress = ReplayProgress(str(self.path / "checkpoint"), settings)
        self.calls.clear()
        progress.save(1)
        assert self.calls[0] == ("fsync", "checkpoint/replay.new")
        assert ReplayProgress(str(self.path / "checkpoint"), settings).next == 1

    def test_new_directories(self) -> None:
        make_directory(self.path / "a" / "b", mode=0o700)
        assert self.calls == [("fsync", "a"), ("fsync", ".")]
        assert (self.path / "a" / "b").stat().st_mode & 0o777 == 0o700
        make_directory(self.path / "a")
        assert len(self.calls) == 2

    def test_a_directory_that_cannot_be_listed(self) -> None:
        def refuse(*_: object) -> None:
            raise PermissionError

        self.patch(os, "open", refuse)  # type: ignore[no-untyped-call]
        sync_names(self.path)
        assert self.calls == []
