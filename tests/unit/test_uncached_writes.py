"""Large records that do not stay in the page cache."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from mmap import PAGESIZE

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.server.broker_settings import BROKER_SETTINGS
from pubsub.settings import read_all
from pubsub.store.log_options import options_of
from pubsub.store.segments import uncached_writes
from pubsub.store.segments.uncached_writes import LARGE, RecordWriter, first_of, has_uncached_writes
from tests.unit.fakes import scratch
from tests.unit.raising import raised

FLAG = 0x80
START = 5000
"""Where records begin: within a page."""


def record(length: int) -> list[bytes | memoryview]:
    """Return a record of several buffers."""
    data = os.urandom(length)
    return [data[:100], b"", memoryview(data)[100:]]


class WriteTests(SynchronousTestCase):
    """RecordWriter, on a kernel that has such writes"""

    def setUp(self) -> None:
        self.patch(uncached_writes, "has_uncached_writes", lambda system, release: True)  # type: ignore[no-untyped-call]
        self.path = scratch(self) / "segment"
        self.file = os.open(self.path, os.O_RDWR | os.O_CREAT)
        self.addCleanup(os.close, self.file)
        self.calls: list[tuple[int, int, int]] = []
        """The position, the number of bytes and the flags of each write."""
        self.error: int | None = None
        """The error of writes with the flag."""
        self.share = 1
        """The part of the bytes that a write with the flag writes is 1 of this number."""
        self.real = os.pwritev
        self.patch(os, "pwritev", self.pwritev)  # type: ignore[no-untyped-call]

    def pwritev(self, file: int, buffers: Sequence[bytes], position: int, flags: int = 0) -> int:
        data = b"".join(buffers)
        self.calls.append((position, len(data), flags))
        if flags and self.error is not None:
            raise OSError(self.error, os.strerror(self.error))
        if flags:
            data = data[: len(data) // self.share]
        return self.real(file, [data], position)

    def write(self, records: RecordWriter, length: int = LARGE, parts: int = 1) -> None:
        """Write a record, and compare the file with it."""
        buffers = [part for _ in range(parts) for part in record(length // parts)]
        records.write(self.file, buffers, START, length)
        assert self.path.read_bytes()[START:] == b"".join(buffers)

    def test_the_last_page_stays_in_the_cache(self) -> None:
        self.write(RecordWriter(uncached=True))
        whole = (START + LARGE) // PAGESIZE * PAGESIZE - START
        assert self.calls == [(START, whole, FLAG), (START + whole, LARGE - whole, 0)]

    def test_a_record_that_ends_with_a_page(self) -> None:
        length = 2 * LARGE - START
        self.write(RecordWriter(uncached=True), length)
        assert self.calls == [(START, length, FLAG)]

    def test_more_buffers_than_one_call_takes(self) -> None:
        self.write(RecordWriter(uncached=True), LARGE, parts=1024)
        assert [flags for *_, flags in self.calls] == [FLAG, 0]

    def test_small_records_stay_in_the_cache(self) -> None:
        self.write(RecordWriter(uncached=True), LARGE - 1)
        assert self.calls == [(START, LARGE - 1, 0)]

    def test_it_can_be_turned_off(self) -> None:
        self.write(RecordWriter(uncached=False))
        assert self.calls == [(START, LARGE, 0)]

    def test_a_file_system_without_it(self) -> None:
        for number in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            self.error = number
            records = RecordWriter(uncached=True)
            self.write(records)
            self.write(records)
            assert [flags for *_, flags in self.calls] == [FLAG, 0, 0]
            assert self.calls[1:] == [(START, LARGE, 0)] * 2
            self.calls.clear()

    def test_a_full_disk(self) -> None:
        self.error = errno.ENOSPC
        records = RecordWriter(uncached=True)
        error = raised(OSError, records.write, self.file, record(LARGE), START, LARGE)
        assert error.errno == errno.ENOSPC
        self.error = None
        self.write(records)
        assert self.calls[1][2] == FLAG

    def test_a_write_of_a_part(self) -> None:
        self.share = 3
        self.write(RecordWriter(uncached=True))
        written = ((START + LARGE) // PAGESIZE * PAGESIZE - START) // 3
        assert self.calls[1:] == [(START + written, LARGE - written, 0)]

    def test_the_kernel_itself(self) -> None:
        """Whatever this kernel and this file system have, the file is complete."""
        self.patch(os, "pwritev", self.real)  # type: ignore[no-untyped-call]
        for length in (LARGE, LARGE + 1, 3 * LARGE):
            self.write(RecordWriter(uncached=True), length)


class SupportTests(SynchronousTestCase):
    """The kernels and the setting with which it is used"""

    def test_releases(self) -> None:
        for release in ("6.16", "6.16.0-rc1", "6.18.44-cloud", "7.0.1", "10.2"):
            assert has_uncached_writes("Linux", release), release
        for release in ("6.15.9", "6.14.0", "5.19", "4.4.0", "", "unknown", "x6.18"):
            assert not has_uncached_writes("Linux", release), release
        assert not has_uncached_writes("Darwin", "24.0.0")

    def test_the_setting(self) -> None:
        for wanted in (True, False):
            settings = read_all(BROKER_SETTINGS, {"tuning": wanted})
            assert options_of(settings).uncached is wanted

    @given(st.lists(st.binary(max_size=5)), st.data())
    def test_the_first_bytes(self, buffers: list[bytes], data: st.DataObject) -> None:
        whole = b"".join(buffers)
        size = data.draw(st.integers(0, len(whole)))
        assert b"".join(first_of(buffers, size)) == whole[:size]
