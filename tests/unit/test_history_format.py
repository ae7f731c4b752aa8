"""``docs/history-format.md``: its dump, its tables and its reader against the code."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.routing.batch import Batch
from pubsub.kernel import Columns
from pubsub.store.metadata import metadata
from pubsub.store.metadata.metadata_tables import CREATE
from pubsub.store.segments.segment import SEGMENT_HEAD_BYTES, SegmentHead
from pubsub.store.segments.segment_scan import is_sealed, scan
from tests.histories import START, damage, history
from tests.unit.fakes import scratch
from tests.unit.format_readers import PAGE, fenced, read_as_documented, read_by_the_code

MOST_LINES = 100


def dumped() -> bytes:
    """Return the bytes of the dump, each line of which is where it says."""
    data = b""
    for line in filter(None, fenced("text").splitlines()):
        assert int(line[:5]) == len(data), line
        data += bytes.fromhex(line[7:54])
    return data


class ReaderTests(SynchronousTestCase):
    """The reader reads the same as the code"""

    def setUp(self) -> None:
        self.path = scratch(self) / "history"
        mixed = Columns.of([b"%d" % number * (number % 5) for number in range(30)], [0, 2, 1] * 10)
        with history(self.path) as log:
            log.put("a", [b"x" * 10] * 5, headers=[{"k": b"v", "é": b"\xff"}, {}] * 2 + [{}])
            log.put("ended", [b"gone", b""])
            log.end("ended")
            log.store("tokens", "key", b"value")
            log.put_all(
                [
                    Batch(("a", "b", "été"), mixed, 0, 0, b"\xff", "nsd"),
                    log.batch("ended", [b"new", b"newer"], sender=b""),
                ]
            )
        with history(self.path, START + 10**6) as log:
            for number in range(10):
                log.put("bc"[number % 2], [b"%d" % number] * number or [b""])

    def test_a_history(self) -> None:
        found = read_as_documented(self.path)
        assert found == read_by_the_code(self.path)
        assert len(found) == 83
        assert found[0][5] == {"k": b"v", "é": b"\xff"}

    def test_expired_messages(self) -> None:
        with history(self.path) as log:
            log.metadata.set_horizons([("[bc]", 50), ("*", 10)])
        found = read_as_documented(self.path)
        assert found == read_by_the_code(self.path)
        assert 20 < len(found) < 80

    def test_damage(self) -> None:
        damage(self.path, 7)
        found = read_as_documented(self.path)
        assert found == read_by_the_code(self.path)
        assert len(found) == 51

    def test_its_length(self) -> None:
        assert len(fenced("python").splitlines()) <= MOST_LINES


class DumpTests(SynchronousTestCase):
    """The dump is a segment"""

    def test_its_records(self) -> None:
        data = dumped()
        path = scratch(self) / "segment"
        path.write_bytes(data)
        with path.open("rb") as file:
            head = SegmentHead.decode(data)
            assert head.encode() == data[:SEGMENT_HEAD_BYTES]
            found = list(scan(file.fileno(), SEGMENT_HEAD_BYTES, head.salt))
            assert is_sealed(file.fileno(), len(data), head.salt) == 5
        assert sum(one.head.length for one in found) == len(data) - SEGMENT_HEAD_BYTES
        assert [len(one.operations()) for one in found] == [1, 2, 0]
        assert found[1].block().topics() == {"cafe/7", "news"}

    def test_the_tables_of_the_metadata(self) -> None:
        assert fenced("sql") == CREATE.lstrip()
        assert f"0x{metadata.APPLICATION:x}" in PAGE.read_text()
