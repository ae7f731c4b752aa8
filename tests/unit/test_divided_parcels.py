"""Blocks of many MiB, of which a stream of the history encodes a part at a time."""

from __future__ import annotations

from itertools import pairwise

from twisted.trial.unittest import SynchronousTestCase

from pubsub.http_api.reading.stream_formats import batches_of
from pubsub.store.reading.log_reader import read_parcel
from pubsub.store.records.parcel import Parcel
from tests.unit.big_house import ALL
from tests.unit.fakes import scratch
from tests.unit.upkeep_log import Log
from tests.unit.web import WebHouse


def rows(parcel: Parcel) -> list[tuple[int, str, bytes]]:
    """Return the messages of a parcel: offset, topic and payload."""
    return [
        (run.offset + place, run.topic, payload)
        for batch in batches_of(parcel)
        for _, run in batch.runs()
        for place, payload in enumerate(run.payloads())
    ]


class DividedTests(SynchronousTestCase):
    """The parts of a parcel"""

    def parcel(self, start: int, stop: int, *topics: str) -> Parcel:
        """Return that of a range of a history with blocks of 2, 40 and 3 messages."""
        log = Log(scratch(self) / "history")
        self.addCleanup(log.close)
        for count in (2, 40, 3):
            log.put(*[("ab"[place % 2], bytes([place]) * 1000) for place in range(count)])
        return read_parcel(log.catalog, start, stop, frozenset(topics) or None, 2**20)

    def test_they_follow_one_another_and_have_all_messages(self) -> None:
        for start, stop in ((0, 45), (1, 44), (5, 30), (2, 42)):
            for topics in ((), ("b",)):
                parcel = self.parcel(start, stop, *topics)
                parts = list(parcel.divided(4000))
                assert parts[0].start == parcel.start
                assert parts[-1].stop == parcel.stop
                assert all(one.stop == two.start for one, two in pairwise(parts))
                assert [row for part in parts for row in rows(part)] == rows(parcel) != []
                assert max(len(rows(part)) for part in parts) <= 4

    def test_a_parcel_that_is_not_much_larger_stays_whole(self) -> None:
        parcel = self.parcel(0, 45)
        assert parcel.nbytes == 45_000
        assert list(parcel.divided(22_500)) == [parcel]

    def test_damage_is_in_the_last_one(self) -> None:
        whole = self.parcel(0, 45)
        parcel = Parcel(0, 50, 0, whole.blocks, (45, 50))
        parts = list(parcel.divided(1000))
        assert [part.damaged for part in parts if part.damaged] == [(45, 50)]
        assert parts[-1].damaged
        assert parts[-1].stop == 50


class StreamTests(SynchronousTestCase):
    """A block of 12 MB that a client reads"""

    def house(self) -> WebHouse:
        house = WebHouse()
        house.publish("a", *[b"%c" % (97 + place) * 1_000_000 for place in range(12)])
        return house

    def test_a_part_at_a_time_waits_for_the_client(self) -> None:
        house = self.house()
        client = house.connect()
        client.stream.stop_reading()
        client.ask("GET", ALL)
        house.pass_time(3)
        assert 0 < len(client.stream.buffered) < 6_000_000
        client.stream.read()
        house.pass_time(1)
        answer = client.answer()
        assert answer.complete
        assert [row["value"][:1] for row in answer.rows] == [b"%c" % one for one in b"abcdefghijkl"]

    def test_the_block_is_charged_while_it_is_read(self) -> None:
        house = self.house()
        before = house.broker.memory.used
        client = house.connect()
        client.stream.stop_reading()
        client.ask("GET", ALL)
        house.pass_time(3)
        assert house.broker.memory.used - before > 12_000_000
        client.stream.lose()
        house.pass_time(1)
        assert house.broker.memory.used == before
