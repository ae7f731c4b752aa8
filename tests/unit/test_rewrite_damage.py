"""Rewriting beside damage: missing messages stay reported, and others stay readable."""

from __future__ import annotations

from contextlib import closing

from pubsub.store.commits import log_writer
from pubsub.store.maintenance.log_check import LogCheck
from pubsub.store.upkeep import rewrite
from pubsub.store.upkeep.expired_messages import ExpiredMessages, grain_of
from pubsub.store.upkeep.upkeep import Upkeep
from tests.unit.logs import OTHER_BOOT, Log, LogCase, numbered


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

    def maintain(self, compress: bool = False) -> Log:
        """Do all steps of upkeep that there are."""
        self.patch(rewrite, "_NEIGHBOURS", 3)
        log = self.log()
        expired = ExpiredMessages(log.catalog, ())
        upkeep = Upkeep(
            log.directory,
            log.catalog,
            log.metadata,
            log.writer,
            expired,
            0,
            grain_of(()),
            compress,
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

    def test_the_neighbours_of_a_damaged_segment_are_rewritten(self) -> None:
        name = self.make()[3]
        data = bytearray((self.path / name).read_bytes())
        data[data.index(b"30313233")] ^= 1
        (self.path / name).write_bytes(data)
        log = self.maintain()
        bounds = [(one.base, one.stop) for one in log.catalog.segments if one.base < one.stop]
        assert bounds == [(0, 30), (30, 40), (40, 90)]
        log.kill()

    def test_a_missing_segment_stays_reported(self) -> None:
        (self.path / self.make()[4]).unlink()
        self.check(range(40, 50))

    def test_messages_that_a_power_loss_has_lost_stay_reported(self) -> None:
        log = self.log()
        log.commit(numbered(0, 10))
        log.kill()
        self.boot = OTHER_BOOT
        log = self.log()
        assert log.recovered.lost is not None
        start, stop = log.recovered.lost
        for number in range(100):
            log.commit(numbered(stop + number, stop + number + 1))
        log.close()
        log = self.log()
        log.commit(numbered(stop + 100, stop + 110))
        log.close()
        log = self.maintain()
        joined, _ = log.catalog.segments
        assert (joined.base, joined.stop) == (0, stop + 110)
        assert joined.index.records < 10
        log.kill()
        # Rewritten once more: other messages are beside the missing ones now.
        log = self.maintain(compress=True)
        assert log.catalog.segments[0].compressed
        for _ in range(2):
            found, damaged = log.read()
            assert [one.offset for one in found] == [*range(10), *range(stop, stop + 110)]
            assert damaged == [(start, stop)]
            log.kill()
            with closing(LogCheck(self.path)) as check:
                assert not list(check.problems())
                assert check.lost == [(start, stop)]
            log = self.log()
