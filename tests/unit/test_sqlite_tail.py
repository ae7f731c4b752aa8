"""The block at the end of the history, which small commits write anew with what they add."""

from __future__ import annotations

from pubsub.store import writer
from pubsub.store.retention import Limits
from pubsub.store.schema import COMMITS, NEXT
from tests.unit.fakes import batch_of
from tests.unit.stores import StoreCase, keep_everything, sql

BLOCKS = "SELECT base, count FROM blocks"
INDEX = "SELECT base, name, count, bytes FROM contents JOIN topics ON id = topic ORDER BY 1, 2"


class TailTests(StoreCase):
    """Commits one by one"""

    async def know(self) -> None:
        """Have two topics be known, as what is new is no small commit."""
        await self.one_each(batch_of([b"first"], "a"), batch_of([b"first"], "b"))

    async def test_they_go_on_with_the_last_block(self) -> None:
        await self.know()
        for number in range(5):
            await self.put(batch_of([b"%d" % number, b""], "ab"[number % 2]))
        assert sql(self.path, BLOCKS) == [(0, 1), (1, 1), (2, 10)]
        assert sql(self.path, INDEX)[2:] == [(2, "a", 6, 3), (2, "b", 4, 2)]
        assert sql(self.path, NEXT) == [(12,)]
        assert await self.read(cold=True) == await self.read()
        found = await self.read(2, ["b"], cold=True)
        assert [(m.offset, m.payload) for m in found] == [(4, b"1"), (5, b""), (8, b"3"), (9, b"")]

    async def test_lengths_headers_and_senders_are_each_messages_own(self) -> None:
        await self.know()
        await self.put(batch_of([b"1", b"22"], "a", [{"k": b"v"}, {}]))
        await self.put(batch_of([b"333"], "b"))
        await self.put(batch_of([b"", b"4"], "a", [{}, {"l": b"w"}]))
        assert sql(self.path, BLOCKS)[2:] == [(2, 5)]
        assert await self.read(cold=True) == await self.read()

    async def test_a_full_one_is_left_as_it_is(self) -> None:
        await self.know()
        size = writer.TAIL_BYTES // 3
        for _ in range(5):
            await self.put(batch_of([bytes(size)], "a"))
        assert sql(self.path, BLOCKS)[2:] == [(2, 2), (4, 2), (6, 1)]
        await self.put(batch_of([bytes(writer.TAIL_BYTES)], "a"))
        await self.put(batch_of([b"x"], "a"))
        assert sql(self.path, BLOCKS)[4:] == [(6, 1), (7, 1), (8, 1)]
        assert await self.read(cold=True) == await self.read()

    async def test_several_full_ones_become_one(self) -> None:
        await self.know()
        size = writer.TAIL_BYTES // 2
        for number in range(writer.TAILS):
            await self.put(batch_of([b"%x" % number * size], "ab"[number % 2], [{"n": b"x"}]))
        assert len(sql(self.path, BLOCKS)) == 2 + writer.TAILS
        await self.put(batch_of([b"-" * size], "a"))
        await self.put(batch_of([b"last"], "b"))
        half = writer.TAILS // 2
        assert sql(self.path, BLOCKS)[2:] == [(2, writer.TAILS), (2 + writer.TAILS, 2)]
        assert sql(self.path, INDEX)[2:4] == [
            (2, "a", half, half * size),
            (2, "b", half, half * size),
        ]
        assert await self.read(cold=True) == await self.read()
        found = await self.read(0, ["b"], cold=True)
        assert found == [m for m in await self.read() if m.topic == "b"]

    async def test_what_is_new_or_ends_is_not_put_to_it(self) -> None:
        await self.know()
        await self.put(batch_of([b"x"], "a"))
        await self.put(batch_of([b"x"], "new"))
        await self.put(batch_of([b"x"], "a"))
        assert sql(self.path, BLOCKS)[2:] == [(2, 1), (3, 1), (4, 1)]
        self.store.forget("a")
        await self.put(batch_of([b"again"], "a"))
        await self.put(batch_of([b"x"], "b"))
        assert sql(self.path, BLOCKS)[4:] == [(4, 1), (5, 1), (6, 1)]
        assert [m.payload for m in await self.read(0, ["a"], cold=True)] == [b"again"]

    async def test_what_housekeeping_has_seen_is_left_as_it_is(self) -> None:
        await self.know()
        await self.put(batch_of([b"x"], "a"))
        await self.store._thread.run(self.store._writer.tidy)
        await self.put(batch_of([b"x"], "a"))
        assert sql(self.path, BLOCKS)[2:] == [(2, 1), (3, 1)]

    async def test_a_commit_that_fails_adds_nothing_and_is_made_up_for(self) -> None:
        await self.know()
        await self.put(batch_of([b"good"], "a"))
        connection = self.store._writer.connection
        connection.execute("DROP TRIGGER committed")
        self.store.append(batch_of([b"late"], "a"))
        assert not await self.stored()
        assert sql(self.path, BLOCKS)[2:] == [(2, 1)]
        connection.executescript(f"DROP VIEW commits; {COMMITS}")
        await self.until(lambda: self.store.committed == 4)
        await self.put(batch_of([b"later"], "a"))
        assert sql(self.path, BLOCKS)[2:] == [(2, 1), (3, 2)]
        found = await self.read(2, cold=True)
        assert [m.payload for m in found] == [b"good", b"late", b"later"]

    async def test_each_message_counts_for_retention_once(self) -> None:
        await self.reopen(keep_everything(retention=(Limits("*", messages=6),)))
        await self.know()
        for _ in range(5):
            await self.put(batch_of([b"x"], "a"))
        await self.store._thread.run(self.store._writer.tidy)
        # Seven messages: one too many, and the oldest is by itself.
        assert sql(self.path, BLOCKS) == [(1, 1), (2, 5)]

    async def test_the_log_goes_on_though_its_last_block_has_expired(self) -> None:
        await self.reopen(keep_everything(retention=(Limits("*", seconds=0),)))
        await self.know()
        await self.put(batch_of([b"x"], "a"))
        more = True
        while more:
            _, more = await self.store._thread.run(self.store._writer.tidy)
        assert sql(self.path, BLOCKS) == []
        assert sql(self.path, NEXT) == [(3,)]
        await self.reopen()
        assert self.store.next_offset == 3
