"""Standard input of ``pubsub pub`` that another program has made non-blocking, or that fails."""

from __future__ import annotations

import errno
import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from pubsub.commands.command import main
from tests.unit.client_case import CAFE, ClientCase

PARTS = (b"one\ntw", b"o\n", b"three")


class WaitingInputTests(ClientCase):
    @contextmanager
    def standard_input(self) -> Iterator[None]:
        """A pipe that gets each part when the command has read, in vain, after the one before."""
        source, target = os.pipe()
        os.set_blocking(source, False)
        waits = threading.Semaphore(0)
        wait = select.select

        def waiting(*arguments: Any) -> Any:
            waits.release()
            return wait(*arguments)

        def write() -> None:
            for part in PARTS:
                waits.acquire(timeout=60)
                os.write(target, part)
            waits.acquire(timeout=60)
            os.close(target)

        writer = threading.Thread(target=write)
        writer.start()
        with (
            patch("pubsub.commands.pub._STDIN", source),
            patch.object(select, "select", waiting),
        ):
            yield
        # One that did not wait leaves it waiting.
        for _ in PARTS:
            waits.release()
        writer.join()
        os.close(source)

    def published(self, *arguments: str) -> list[bytes]:
        with (
            self.standard_input(),
            patch("pubsub.commands.pub.sys.stdin") as stdin,
            self.stdout(self.directory / "out"),
        ):
            stdin.isatty.return_value = False
            assert main(["pub", "a", *arguments, *CAFE]) == 0
        return [payload for _, payload, _ in self.client.published]

    def test_lines(self) -> None:
        assert self.published() == [b"one", b"two", b"three"]

    def test_a_message(self) -> None:
        assert self.published("--file=-") == [b"".join(PARTS)]

    def test_lines_of_many_reads(self) -> None:
        """The thread waits until its lines are taken."""
        sent = [bytes([97 + number % 26]) * (number % 1000) for number in range(2000)]
        code, _, err = self.run_it("pub", "a", *CAFE, stdin=b"\n".join(sent).decode())
        assert (code, err) == (0, "")
        assert [payload for _, payload, _ in self.client.published] == sent
        self.client.published.clear()
        self.run_it("pub", "a", "-n700", *CAFE, stdin=b"\n".join(sent).decode())
        assert [payload for _, payload, _ in self.client.published] == sent[:700]

    @contextmanager
    def reads(self, *results: bytes | Exception) -> Iterator[None]:
        """Reads have these results. The threads of earlier tests, which may go on, get the end."""
        earlier, rest = threading.enumerate(), iter(results)

        def read(*_: object) -> bytes:
            found = b"" if threading.current_thread() in earlier else next(rest)
            if isinstance(found, Exception):
                raise found
            return found

        with patch.object(os, "read", read):
            yield

    def test_what_was_read_before_an_error_is_published(self) -> None:
        with self.reads(b"1\n2\n3", OSError(errno.EIO, "Input/output error")):
            code, _, err = self.run_it("pub", "a", *CAFE)
        assert (code, err) == (1, "pubsub: Input/output error\n")
        assert [payload for _, payload, _ in self.client.published] == [b"1", b"2"]
        assert self.client.flushed == 2

    def test_an_error_in_the_thread_that_reads(self) -> None:
        """Nothing else would end the command."""
        with self.reads(MemoryError()):
            code, _, err = self.run_it("pub", "a", *CAFE)
        assert (code, err) == (1, "pubsub: the memory is not sufficient; ask for less at a time\n")
