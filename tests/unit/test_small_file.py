"""Files that settings and options name: other kinds of files, and files that are too large."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from math import inf
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.credentials.password_file import read_password_file
from pubsub.broker.credentials.secret_files import (
    read_denied,
    read_key_set,
    read_public_key,
    read_secret,
)
from pubsub.errors import ConfigurationError
from pubsub.protocols.spot.security import SETTINGS
from pubsub.small_file import MOST_BYTES
from pubsub.wire.server_tls import read_certificates
from pubsub.wire.text_file import read_text
from tests.unit.fakes import scratch
from tests.unit.raising import raised

_CURVE = next(one.kind for one in SETTINGS if one.name == "curve-secret-file")
_READERS: dict[str, Callable[[str], object]] = {
    "secret": lambda path: read_secret("a", path, "HS256", inf, allow_weak=False),
    "public key": lambda path: read_public_key("a", path, inf),
    "key set": lambda path: read_key_set("a", path, inf),
    "denied": read_denied,
    "passwords": read_password_file,
    "certificate": lambda path: read_certificates("tls-cert", path),
    "curve": _CURVE.parse,
}


class SettingFileTests(SynchronousTestCase):
    """The files of the broker's settings"""

    def setUp(self) -> None:
        self.directory = scratch(self)

    def refusals(self, path: Path) -> set[str]:
        """Return the errors of all readers, without the part before the path."""
        found = set()
        for read in _READERS.values():
            error = raised(Exception, read, str(path))
            assert isinstance(error, ConfigurationError | ValueError)
            found.add(str(error).partition(f"{path}: ")[2].partition(";")[0])
        return found

    def test_a_fifo(self) -> None:
        path = self.directory / "fifo"
        os.mkfifo(path)
        assert self.refusals(path) == {"not a regular file"}

    def test_a_directory(self) -> None:
        assert self.refusals(self.directory) == {"Is a directory"}

    def test_a_device_without_an_end(self) -> None:
        assert self.refusals(Path("/dev/zero")) == {"not a regular file"}

    def test_a_large_file(self) -> None:
        path = self.directory / "large"
        path.touch()
        os.truncate(path, MOST_BYTES + 1)
        assert self.refusals(path) == {"more than 16,777,216 bytes"}


class TextTests(SynchronousTestCase):
    """read_text, for the options of commands"""

    def setUp(self) -> None:
        self.path = scratch(self) / "text"

    def test_line_breaks_are_those_of_text(self) -> None:
        self.path.write_bytes("ä\r\nb\rc\n".encode())
        assert read_text(self.path) == "ä\nb\nc\n"

    def test_a_pipe_of_the_shell(self) -> None:
        os.mkfifo(self.path)
        writer = threading.Thread(target=self.path.write_bytes, args=(b"key\n",))
        writer.start()
        self.addCleanup(writer.join)
        assert read_text(self.path) == "key\n"

    def test_a_device_without_an_end(self) -> None:
        assert "more than 16,777,216 bytes" in str(raised(OSError, read_text, "/dev/zero"))
