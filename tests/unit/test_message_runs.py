"""Messages that another run of a broker has numbered keep their ids in the history."""

from __future__ import annotations

from dataclasses import replace

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.routing.batch import Batch, message_id
from pubsub.http_api.reading.stream_formats import batches_of
from pubsub.store.memory_store import MemoryStore
from pubsub.store.reading.run_log import RunLog
from pubsub.store.records.record import Operation, Put
from pubsub.store.records.stored_runs import RunRecord, payloads_of
from tests.unit.commit_disk import Disk
from tests.unit.fakes import batch_of, mixed_batch
from tests.unit.logs import RUN, StoreCase, runs_of

OTHER, THIRD = 0x123456789ABCDEF, 0xFEDCBA987654321


def of_run(run: int, sequence: int, *payloads: bytes) -> Batch:
    """Return messages that ``run`` has numbered."""
    return replace(batch_of(payloads, sequence=sequence), run=run)


def batches() -> list[Batch]:
    """Return messages of this run and of others, in turns."""
    mixed = mixed_batch([("a", b"4"), ("b", b"5")], ("a", "b"))
    return [
        of_run(0, 7, b"0", b"1"),
        of_run(OTHER, 3, b"2"),
        of_run(OTHER, 70, b"3"),
        replace(mixed, run=THIRD, sequence=9),
        of_run(0, 8, b"6"),
    ]


def ids(found: list[Batch]) -> list[tuple[int, bytes, str]]:
    """Return offset, payload and id of each message."""
    return [
        (one.offset + at, payload, str(message_id(one.run or RUN, one.sequence + at)))
        for batch in found
        for one in batch.parts()
        for at, payload in enumerate(one.payloads())
    ]


EXPECTED = [
    (offset, b"%d" % offset, str(message_id(run, sequence)))
    for offset, (run, sequence) in enumerate(
        [(RUN, 7), (RUN, 8), (OTHER, 3), (OTHER, 70), (THIRD, 9), (THIRD, 10), (RUN, 8)]
    )
]


class IdTests(StoreCase):
    """Ids of stored messages"""

    async def test_from_memory_and_from_disk(self) -> None:
        for one in batches():
            self.store.append(one)
        await self.stored()
        for _ in range(2):
            assert ids((await self.store.read(0, None, 10**6)).batches) == EXPECTED
            parcel = await self.store.read_parcel(0, 7, None, 10**6)
            assert ids(list(batches_of(parcel))) == EXPECTED
            self.forget_recent()
        await self.reopen()
        assert ids((await self.store.read(0, None, 10**6)).batches) == EXPECTED

    async def test_in_a_store_in_memory(self) -> None:
        store = MemoryStore(100, 10**6)
        store.open(RUN)
        for one in batches():
            store.append(one)
        assert ids((await store.read(0, None, 10**6)).batches) == EXPECTED
        assert ids(list(batches_of(await store.read_parcel(0, 7, None, 10**6)))) == EXPECTED


class CommitTests(SynchronousTestCase):
    """Records of a group: a process can be killed between two of them"""

    def pieces(self, disk: Disk) -> list[tuple[bytes, list[Operation]]]:
        found: list[tuple[int, int, list[RunRecord], list[Operation]]]
        found = disk.commits._group.pieces(0)
        return [(b"".join(map(payloads_of, runs)), list(puts)) for _, _, runs, puts in found]

    def test_values_are_in_the_record_of_their_messages(self) -> None:
        disk = Disk()
        own, first, more, last, end = runs_of(batches(), RunLog(2**62, 2**30))
        disk.commits.add(own)
        disk.commits.put("t", "own", b"1")
        for record, value in ((first, b"first"), (more, b"more"), (last, b"last")):
            disk.commits.hold(0)
            disk.commits.put("t", "at", value)
            disk.commits.add(record)
            disk.commits.release()
        disk.commits.add(end)
        disk.commits.put("t", "own", b"2")
        assert self.pieces(disk) == [
            (b"01", [Put("t", "own", b"1")]),
            (b"23", [Put("t", "at", b"more")]),
            (b"45", [Put("t", "at", b"last")]),
            (b"6", [Put("t", "own", b"2")]),
        ]

    def test_values_that_follow_their_messages(self) -> None:
        disk = Disk()
        own, first, _, last, _ = runs_of(batches(), RunLog(2**62, 2**30))
        disk.commits.add(own)
        for record, value in ((first, b"first"), (last, b"last")):
            disk.commits.hold(0)
            disk.commits.add(record)
            disk.commits.put("t", "at", value)
            disk.commits.release()
        pieces = [operations for _, operations in self.pieces(disk)]
        assert pieces == [[], [Put("t", "at", b"first")], [Put("t", "at", b"last")]]
