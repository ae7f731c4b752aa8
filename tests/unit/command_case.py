"""The base class of tests of commands."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import sys
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase

from pubsub.commands.command import main
from tests.unit.fakes import START, scratch


class CommandCase(SynchronousTestCase):
    """Runs the command in this process."""

    def setUp(self) -> None:
        self.directory = scratch(self)

    def run_it(self, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
        """Return exit code, standard output and standard error."""
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            patch.object(sys, "stdin", io.StringIO(stdin)),
            patch("time.time", lambda: START),
        ):
            try:
                code = main(arguments)
            except SystemExit as end:
                code = int(end.code or 0)
        return code, out.getvalue(), err.getvalue()

    def file(self, name: str, content: bytes) -> str:
        path = self.directory / name
        path.write_bytes(content)
        path.chmod(0o600)
        return str(path)

    def one_line(self, *arguments: str) -> str:
        """Return the one line on standard error of a command that fails."""
        code, out, err = self.run_it(*arguments)
        assert (code, out) == (1, "")
        assert err.startswith("pubsub: ")
        assert err.count("\n") == 1
        return err


def file_steps(work: Callable[[], object]) -> list[str]:
    """Return the steps of ``work`` that a loss of power concerns, in order."""
    steps: list[str] = []
    fsync, renames = os.fsync, {name: getattr(os, name) for name in ("rename", "replace")}

    def sync(file: int) -> None:
        is_directory = stat.S_ISDIR(os.fstat(file).st_mode)
        steps.append("sync of a directory" if is_directory else "sync of a file")
        fsync(file)

    def renamed(name: str, *paths: Any) -> None:
        steps.append("rename")
        renames[name](*paths)

    with (
        patch("os.fsync", sync),
        patch("os.rename", partial(renamed, "rename")),
        patch("os.replace", partial(renamed, "replace")),
    ):
        work()
    return steps
