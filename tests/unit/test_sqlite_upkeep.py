"""What the durable history does by itself: checks after a crash, and expiry."""

from __future__ import annotations

from pubsub.store import damage_check, maintenance
from pubsub.store.retention import RetentionLimits
from tests.unit.fakes import batch_of
from tests.unit.stores import StoreCase, keep_everything, sql
from tests.unit.streams import logged
from tests.unit.test_sqlite_keeping import aged

TAIL, MANY = 4, 10
"""Blocks that are checked before the broker starts, and blocks of the file."""


class CheckTests(StoreCase):
    """The check of the file after a broker that did not stop in order"""

    async def crashed(self, *damaged: int) -> list[str]:
        """A crash with ``MANY`` blocks of a message each, some damaged; the lines logged since."""
        self.patch(damage_check, "TAIL", TAIL)  # type: ignore[no-untyped-call]
        await self.one_each(*(batch_of([b"%d" % number]) for number in range(MANY)))
        await self.store.close()
        sql(self.path, "UPDATE state SET clean = 0")
        for base in damaged:
            sql(self.path, "UPDATE blocks SET payloads = x'ff' WHERE base = ?", base)
        lines = logged(self)
        self.open()
        return lines

    async def test_all_blocks_are_checked(self) -> None:
        lines = await self.crashed()
        await self.until(lambda: any("0 blocks are damaged" in line for line in lines))
        assert not reports(lines)

    async def test_damage_anywhere_is_reported_and_the_rest_can_be_read(self) -> None:
        lines = await self.crashed(1, MANY - 1)
        # The newest blocks are checked before the broker starts.
        assert len(reports(lines)) == 1
        await self.until(lambda: any("1 blocks are damaged" in line for line in lines))
        assert len(reports(lines)) == 2
        page = await self.store.read(0, None, 10**6)
        assert page.damaged == ((1, 2), (MANY - 1, MANY))
        assert sum(batch.count for batch in page.batches) == MANY - 2


def reports(lines: list[str]) -> list[str]:
    """The lines that report a damaged block."""
    return [line for line in lines if line.startswith("history: damaged")]


class ExpiryTests(StoreCase):
    """The rounds once a second"""

    async def test_messages_expire_without_being_asked_for(self) -> None:
        self.patch(maintenance, "TIDY", 0.01)  # type: ignore[no-untyped-call]
        await self.reopen(keep_everything(retention=(RetentionLimits("*", seconds=60),)))
        await self.one_each(aged(b"old", seconds=300), aged(b"new"))
        await self.until(lambda: self.store.first_offset == 1)
        assert [m.offset for m in await self.read(cold=True)] == [1]
