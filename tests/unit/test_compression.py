"""Compressed segments: upkeep makes them once, and they are read in every way as others are."""

from __future__ import annotations

import random
import sys
from contextlib import closing
from pathlib import Path

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.store.maintenance.log_check import LogCheck
from pubsub.store.maintenance.log_dump import dump
from pubsub.store.reading.log_view import LogView
from pubsub.store.records.compression import compressed, decompressed
from pubsub.store.upkeep.retention_limits import RetentionLimits
from tests.unit.fakes import scratch
from tests.unit.format_readers import read_as_documented, read_by_the_code
from tests.unit.upkeep_log import Log

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


class FrameTests(SynchronousTestCase):
    """Frames of Zstandard"""

    def test_what_was_compressed_is_returned(self) -> None:
        for size in (200, 5000, 131072, 131073, 3 * 1024**2):
            data = (b"%d " % size * size)[:size]
            packed = compressed(data)
            assert packed is not None
            assert decompressed(packed) == decompressed(memoryview(packed)) == data

    def test_a_frame_without_the_size_of_its_content(self) -> None:
        data = b"some text " * 50_000
        stream = zstd.ZstdCompressor()
        packed = stream.compress(data[:1000]) + stream.compress(data[1000:]) + stream.flush()
        assert decompressed(packed) == data

    def test_a_frame_that_is_cut_off(self) -> None:
        packed = compressed(b"x" * 300_000)
        assert packed is not None
        with pytest.raises(zstd.ZstdError):
            decompressed(packed[:-1])


class CompressionTests(SynchronousTestCase):
    """A log of which upkeep compresses the segments"""

    def setUp(self) -> None:
        self.path = scratch(self) / "log"

    def open(self, *limits: RetentionLimits, compress: bool = True) -> Log:
        """Return the log."""
        log = Log(self.path, *limits, compress=compress)
        self.addCleanup(self.close, log)
        self.log = log
        return log

    def close(self, log: Log) -> None:
        """Close a log that is still open."""
        if log is self.log and log.writer._open is not None:
            log.close()

    def fill(self, log: Log) -> None:
        """Write a segment of 200 similar messages to two topics, and begin another."""
        for number in range(100):
            log.put(("a", b"%d" % number * 100), ("b", b"x" * 500), headers={"k": b"v"})
        log.end("b")
        log.put(("b", b"new"))
        log.seal()

    def sizes(self) -> dict[str, int]:
        """Return the sizes of the segments."""
        return {one.name: one.stat().st_size for one in sorted(self.path.glob("*.log"))}

    def test_segments_are_compressed_once_and_are_read_as_before(self) -> None:
        log = self.open(compress=False)
        self.fill(log)
        log.rest()
        before, plain = log.read(), self.sizes()
        log.close()
        log = self.open()
        log.rest()
        first = min(self.sizes())
        assert first not in plain
        assert self.sizes()[first] < plain[min(plain)] / 4
        assert log.read() == before
        assert log.read("b") == [one for one in before if one[1] == "b"]
        log.close()
        assert len(before) == 101
        assert read_as_documented(self.path) == read_by_the_code(self.path)
        assert [(one[0], one[2], one[6]) for one in read_by_the_code(self.path)] == before
        for compress in (True, False):
            log = self.open(compress=compress)
            log.rest()
            assert min(self.sizes()) == first
            log.close()

    def test_incompressible_records_stay_as_they_are(self) -> None:
        log = self.open()
        noise = random.Random(1)
        for _ in range(20):
            log.put(("a", noise.randbytes(5000)))
        log.seal()
        (plain, _) = self.sizes().values()
        before = log.read()
        log.rest()
        first, (name, size) = before, next(iter(self.sizes().items()))
        assert size <= plain
        assert log.catalog.segments[0].compressed
        log.rest()
        assert next(iter(self.sizes())) == name
        assert log.read() == first

    def test_compressed_segments_expire_and_are_rewritten(self) -> None:
        log = self.open()
        self.fill(log)
        log.rest()
        log.end("a")
        log.rest()
        assert [(topic, payload) for _, topic, payload in log.read()] == [("b", b"new")]

    def test_the_commands_read_them(self) -> None:
        log = self.open()
        self.fill(log)
        log.rest()
        log.close()
        view = LogView(self.path)
        try:
            records = list(dump(view, payloads=True))
        finally:
            view.close()
        flags = [record["flags"] for record in records]
        assert ["compressed"] in flags
        assert ["sealed", "compressed"] in flags
        messages = [one for record in records for one in record.get("messages", ())]
        assert [one["topic"] for one in messages] == ["a"] * 100 + ["b"]
        assert messages[0]["headers"]
        assert problems(self.path) == []


def problems(path: Path) -> list[str]:
    """Return the findings of the check of a log."""
    with closing(LogCheck(path)) as found:
        return list(found.problems())
