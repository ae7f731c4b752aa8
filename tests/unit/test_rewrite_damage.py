"""Rewriting beside damage: missing messages stay reported, and others stay readable."""

from __future__ import annotations

from pubsub.store import log_writer, rewrite
from pubsub.store.expired_messages import ExpiredMessages, grain_of
from pubsub.store.upkeep import Upkeep
from tests.unit.logs import Log, LogCase, numbered


class NeighbourTests(LogCase):
    """Small segments with one among them that is damaged or missing"""

    def make(self) -> list[str]:
        """Make a log of segments of ten messages; return the names of those with messages."""
        self.patch(log_writer, "SEGMENT_BYTES", 1)
        log = self.log()
        for number in range(9):
            log.commit(numbered(10 * number, 10 * number + 10))
        log.sync()
        log.close()
        return self.names()[1:]

    def maintain(self) -> Log:
        """Do all steps of upkeep that there are."""
        self.patch(rewrite, "_NEIGHBOURS", 3)
        log = self.log()
        expired = ExpiredMessages(log.catalog, ())
        upkeep = Upkeep(
            log.directory, log.catalog, log.metadata, log.writer, expired, 0, grain_of(())
        )
        for _ in range(200):
            upkeep.step(0)
        return log

    def check(self, lost: range) -> None:
        """Check the readable messages, also with the next broker."""
        log = self.maintain()
        for _ in range(2):
            found, damaged = log.read()
            assert [one.offset for one in found] == [n for n in range(90) if n not in lost]
            assert damaged == [(lost.start, lost.stop)]
            log.kill()
            log = self.log()

    def test_a_damaged_segment_is_not_left_out(self) -> None:
        name = self.make()[4]
        data = bytearray((self.path / name).read_bytes())
        data[data.index(b"40414243")] ^= 1
        (self.path / name).write_bytes(data)
        self.check(range(40, 50))

    def test_a_missing_segment_stays_reported(self) -> None:
        (self.path / self.make()[4]).unlink()
        self.check(range(40, 50))
