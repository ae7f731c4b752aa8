"""``pubsub history`` with an output that fails: a full disk, or a reader that has ended."""

from __future__ import annotations

import os
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import TextIO
from unittest.mock import patch

from pubsub.commands.command import main
from pubsub.store.migration import sqlite_migration
from tests import sqlite_histories
from tests.unit.history_case import HistoryCase


class OutputTests(HistoryCase):
    def full(self) -> TextIO:
        return os.fdopen(os.open("/dev/full", os.O_WRONLY), "w")

    def ended(self) -> TextIO:
        source, target = os.pipe()
        os.close(source)
        return os.fdopen(target, "w")

    def run_to(self, output: TextIO, *arguments: str) -> tuple[int, str]:
        """Return the exit code, and standard error."""
        errors = StringIO()
        self.addCleanup(output.close)
        with redirect_stdout(output), redirect_stderr(errors):
            code = main(["history", *arguments])
        # Nothing of it is left to be written when it is closed.
        with open(os.devnull, "w") as discarded:
            os.dup2(discarded.fileno(), output.fileno())
        return code, errors.getvalue()

    def test_a_full_disk_of_the_output_is_not_that_of_the_history(self) -> None:
        store = f"--store=log:{self.path}"
        self.segments()[1].with_suffix(".index").unlink()
        for action in ("check", "dump", "repair"):
            assert self.run_to(self.full(), action, store) == (
                1, "pubsub: No space left on device\n",
            )  # fmt: skip

    def test_a_repair_goes_on(self) -> None:
        for output, code in ((self.full, 1), (self.ended, 0)):
            for path in self.segments()[:2]:
                path.with_suffix(".index").unlink()
            (self.path / "metadata.db").write_bytes(b"")
            assert self.run_to(output(), "repair", f"--store=log:{self.path}")[0] == code
            self.assert_fine()

    def test_a_migration_goes_on(self) -> None:
        old = self.directory / "old.db"
        for number, (output, code) in enumerate(((self.full, 1), (self.ended, 0))):
            new = self.directory / f"new-{number}"
            if not number:
                with sqlite_histories.history(old) as found:
                    for text in range(5):
                        found.put("a", [b"%d" % text])
            with patch.object(sqlite_migration, "_REPORT_SECONDS", 0):
                given = ("migrate", str(old), f"--store=log:{new}")
                assert self.run_to(output(), *given)[0] == code
            assert self.run_on("check", path=new)[0] == 0
