"""New segments are on disk, with their names, before anything depends on that."""

from __future__ import annotations

import errno
import os
from typing import Any

from pubsub.store.commits import log_writer
from pubsub.store.segments.log_directory import LogDirectory
from tests.unit.logs import LogCase, numbered
from tests.unit.raising import raised
from tests.unit.upkeep_log import Log


class NameTests(LogCase):
    """A loss of power removes a file whose name is not on disk, with all of its records"""

    def setUp(self) -> None:
        super().setUp()
        self.patch(log_writer, "SEGMENT_BYTES", 1)
        self.opened = self.log()
        self.durable: set[str] = set()
        self.error = 0
        real = os.fsync

        def fsync(file: int) -> None:
            if self.error:
                raise OSError(self.error, os.strerror(self.error))
            real(file)
            if file == self.opened.directory.file:
                self.durable = set(self.names())

        self.patch(os, "fsync", fsync)

    def commit(self, number: int) -> None:
        """Write a message to a segment of its own, and sync."""
        self.opened.commit(numbered(number, number + 1), sync=True)

    def test_they_are_synced_with_the_first_messages(self) -> None:
        for number in range(3):
            self.commit(number)
            assert self.durable == set(self.names())

    def test_they_are_synced_later_if_that_fails(self) -> None:
        self.error = errno.EIO
        assert raised(OSError, self.commit, 0).errno == errno.EIO
        self.error = 0
        # The write is repeated, or another sync is due first.
        self.opened.sync()
        assert self.durable == set(self.names())
        assert len(self.names()) == 2


class SizeTests(LogCase):
    """A segment ends also when it has many records"""

    def test_the_number_of_its_records(self) -> None:
        self.patch(log_writer, "_SEGMENT_RECORDS", 10)
        log = self.log()
        for number in range(25):
            log.commit(numbered(number, number + 1))
        log.sync()
        # The record that ends one comes in addition.
        assert all(one.index.records <= 11 for one in log.catalog.segments)
        assert len(log.catalog.segments) == 3
        found, damaged = log.read()
        assert [one.offset for one in found] == [*range(25)]
        assert not damaged


class RewriteTests(LogCase):
    """A rewritten segment takes the place of others"""

    def test_the_others_are_removed_when_it_is_on_disk(self) -> None:
        self.patch(LogDirectory, "free_bytes", lambda _: (2**40, 2**40))
        log = Log(self.path)
        self.addCleanup(log.close)
        for number in range(100):
            log.put(("a", b"%d" % number))
        log.seal()
        calls: list[tuple[str, str]] = []

        def record(owner: Any, name: str) -> None:
            real = getattr(owner, name)

            def call(first: Any, *given: Any, **named: Any) -> Any:
                about = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else first
                calls.append((name, os.path.basename(about)))
                return real(first, *given, **named)

            self.patch(owner, name, call)

        for name in ("pwritev", "fdatasync", "rename", "fsync", "unlink"):
            record(os, name)
        old, _ = log.directory.segments()
        log.rest()
        new, _ = log.directory.segments()
        assert new != old
        calls = [one for one in calls if "index" not in one[1] and one[1] != "reserve"]
        written = [number for number, one in enumerate(calls) if one == ("pwritev", new + ".new")]
        assert calls[written[-1] + 1 :] == [
            ("fdatasync", new + ".new"),
            ("rename", new + ".new"),
            ("fsync", self.path.name),
            ("unlink", old),
        ]
