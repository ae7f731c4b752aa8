"""Messages that a crash leaves in the journal are in the file after the next start."""

from __future__ import annotations

import shutil
from pathlib import Path

from twisted.logger import capturedLogs

from pubsub.store.journal import SUFFIXES
from tests.unit.fakes import batch_of
from tests.unit.stores import JournalCase


class LeftTests(JournalCase):
    """After a crash"""

    async def test_what_is_older_is_not_taken_for_the_rest(self) -> None:
        for number in range(6):
            await self.commit(batch_of([b"%d" % number * 50] * (6 - number)))
            await self.filed()
        await self.commit(batch_of([b"last"]))
        found, damaged = await self.after(self.crashed())
        assert found == await self.read(nbytes=10**6)
        assert damaged == ()

    async def test_another_logs_journal_says_nothing_of_this_one(self) -> None:
        await self.commit(batch_of([b"theirs"] * 3))
        path = self.crashed()
        for file in path.parent.glob(f"{path.name}*"):
            if not file.name.endswith(SUFFIXES):
                file.unlink()
        assert await self.after(path) == ([], ())

    async def test_a_journal_that_is_missing_is_reported(self) -> None:
        await self.commit(batch_of([b"1"]))
        await self.filed()
        await self.commit(batch_of([b"2"]), batch_of([b"3"]))
        path = self.crashed()
        for ending in SUFFIXES:
            Path(f"{path}{ending}").unlink()
        with capturedLogs() as events:
            found, damaged = await self.after(path)
        assert [m.payload for m in found] == [b"1"]
        assert damaged == ((1, 3),)
        assert [(e["first"], e["last"]) for e in events if "missing" in e["log_format"]] == [(1, 2)]

    async def test_what_is_missing_before_it_is_reported_and_the_rest_is_there(self) -> None:
        await self.commit(batch_of([b"1"]))
        await self.filed()
        early = self.crashed()
        await self.commit(batch_of([b"2"]), batch_of([b"3"]))
        await self.filed()
        await self.commit(batch_of([b"4"]))
        late = self.crashed()
        for ending in ("", "-wal", "-shm"):
            shutil.copy(f"{early}{ending}", f"{late}{ending}")
        Path(f"{late}{SUFFIXES[1]}").unlink()
        with capturedLogs():
            found, damaged = await self.after(late)
        assert [(m.offset, m.payload) for m in found] == [(0, b"1"), (3, b"4")]
        assert damaged == ((1, 3),)
