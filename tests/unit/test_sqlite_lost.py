"""Committed messages that are lost: they are reported, and their offsets not assigned again."""

from __future__ import annotations

import shutil
from pathlib import Path

from pubsub.store.committed_position import CommittedPosition
from pubsub.store.retention import RetentionLimits
from tests.unit.fakes import batch_of
from tests.unit.stores import StoreCase, keep_everything, sql


class LostEndTests(StoreCase):
    """The file is restored to an earlier state"""

    @property
    def note(self) -> Path:
        return Path(f"{self.path}-end")

    async def lose(self) -> None:
        """A history of ten messages that has lost twenty more."""
        await self.put(batch_of([b"old"] * 10, "a"))
        await self.store.close()
        saved = self.path.with_name("saved")
        shutil.copy(self.path, saved)
        self.open()
        await self.put(batch_of([b"gone"] * 20, "b"))
        await self.store.close()
        shutil.copy(saved, self.path)

    async def test_it_is_reported_whatever_topic_is_read(self) -> None:
        await self.lose()
        self.open()
        assert (self.store.first_offset, self.store.next_offset) == (0, 30)
        for topics in (None, frozenset({"a"}), frozenset({"b"}), frozenset({"never"})):
            page = await self.store.read(0, topics, 10**6)
            assert page.damaged == ((10, 30),)
            assert page.next_offset == 30
        page = await self.store.read(25, None, 10**6)
        assert page.damaged == ((25, 30),)

    async def test_what_comes_next_has_new_offsets(self) -> None:
        await self.lose()
        self.open()
        await self.put(batch_of([b"new"], "a"))
        page = await self.store.read(0, None, 10**6)
        assert [(b.offset, b.payloads()[0]) for b in page.batches] == [(0, b"old"), (30, b"new")]

    async def test_it_is_reported_once_and_stays_so(self) -> None:
        await self.lose()
        for _ in range(2):
            self.open()
            page = await self.store.read(0, None, 10**6)
            assert page.damaged == ((10, 30),)
            await self.store.close()
        self.open()
        assert sql(self.path, "SELECT base, count FROM blocks") == [(0, 10), (10, 20)]

    async def test_it_expires_with_the_messages_of_its_time(self) -> None:
        await self.lose()
        store = self.open(keep_everything(retention=(RetentionLimits("*", seconds=60),)))
        await store._thread.run(store._writer.tidy)
        # The messages are old, but the loss was found just now.
        assert sql(self.path, "SELECT base FROM blocks") == [(10,)]
        page = await store.read(0, None, 10**6)
        assert page.damaged == ((10, 30),)
        sql(self.path, "UPDATE blocks SET last = 1 WHERE base = 10")
        more = True
        while more:
            _, more = await store._thread.run(store._writer.tidy)
        assert sql(self.path, "SELECT base FROM blocks") == []
        page = await store.read(0, None, 10**6)
        assert page.damaged == ()

    async def test_a_new_log_in_its_place_is_another(self) -> None:
        await self.lose()
        self.path.unlink()
        self.open()
        assert self.store.next_offset == 0
        await self.put(batch_of([b"new"]))
        await self.reopen()
        assert self.store.next_offset == 1

    async def test_a_note_that_is_damaged_or_missing_says_nothing(self) -> None:
        await self.lose()
        lost = self.path.read_bytes()
        noted = self.note.read_bytes()
        flipped = noted[:-1] + bytes([noted[-1] ^ 1])
        for note in (b"", noted[:-1], flipped, bytes(len(noted))):
            self.path.write_bytes(lost)
            self.note.write_bytes(note)
            self.open()
            assert self.store.next_offset == 10
            await self.store.close()
        self.open()

    async def test_the_number_of_the_next_offset_is_damaged(self) -> None:
        await self.put(batch_of([b"x"] * 10))
        await self.store.close()
        self.note.unlink()
        sql(self.path, "UPDATE state SET next = 3")
        self.open()
        assert self.store.next_offset == 10
        page = await self.store.read(0, None, 10**6)
        assert page.damaged == ()

    async def test_a_note_that_cannot_be_written_stops_nothing(self) -> None:
        position: CommittedPosition = self.store._writer.position
        file, position._file = position._file, -1
        await self.put(batch_of([b"x"]))
        assert self.store.committed == 1
        position._file = file


class IndexTests(StoreCase):
    """The index and the blocks contradict each other"""

    async def blocks(self) -> None:
        for number in range(3):
            self.store.append(batch_of([b"%d" % number] * 5, "a"))
            await self.one_each(batch_of([b"%d" % number] * 5, "b"))

    async def damaged(self, statement: str) -> tuple[tuple[int, int], ...]:
        await self.blocks()
        await self.store.close()
        sql(self.path, statement)
        self.open()
        page = await self.store.read(0, None, 10**6)
        return page.damaged

    async def test_a_block_is_not_in_the_index(self) -> None:
        assert await self.damaged("DELETE FROM contents WHERE base = 10") == ((10, 20),)

    async def test_it_has_a_topic_that_the_block_has_not(self) -> None:
        sql(self.path, "INSERT INTO topics (name) VALUES ('c')")
        damage = await self.damaged(
            "UPDATE contents SET topic = (SELECT id FROM topics WHERE name = 'c') "
            "WHERE base = 10 AND topic = (SELECT id FROM topics WHERE name = 'a')"
        )
        assert damage == ((10, 20),)

    async def test_it_has_a_topic_that_is_none(self) -> None:
        damage = await self.damaged(
            "UPDATE contents SET topic = 99 "
            "WHERE base = 10 AND topic = (SELECT id FROM topics WHERE name = 'a')"
        )
        assert damage == ((10, 20),)

    async def test_a_name_has_changed(self) -> None:
        damage = await self.damaged("UPDATE topics SET name = 'z' WHERE name = 'a'")
        assert damage == ((0, 10), (10, 20), (20, 30))
