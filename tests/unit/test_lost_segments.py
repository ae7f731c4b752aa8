"""Reads of a log whose files were removed beside the broker that writes it."""

from __future__ import annotations

from pathlib import Path

from pubsub.store.catalog.catalog import Catalog
from pubsub.store.commits import log_writer
from pubsub.store.reading.log_reader import offset_at, read_page, topics_in
from tests.unit.logs import LogCase, StoreCase, messages, numbered
from tests.unit.raising import raised

LEFT = [*range(20), *range(30, 50)]


def remove(path: Path, catalog: Catalog, base: int) -> None:
    """Remove the files of the segment that has messages from ``base`` on."""
    name = next(one.name for one in catalog.segments if one.base == base < one.stop)
    for one in catalog.segments:
        one.release()
    catalog._records.clear()
    for file in path.glob(name.removesuffix(".log") + ".*"):
        file.unlink()


class StoreTests(StoreCase):
    """Readers get the messages of the other segments, and the range that is missing"""

    async def test_a_segment_that_was_removed(self) -> None:
        self.patch(log_writer, "SEGMENT_BYTES", 1)
        await self.reopen()
        for number in range(5):
            await self.put(numbered(10 * number, 10 * number + 10))
        self.forget_recent()
        remove(self.path, self.store._catalog, 20)
        for topics in (None, frozenset("t"), frozenset(["other"])):
            page = await self.store.read(0, topics, 10**6)
            assert page.damaged == ((20, 30),)
            assert page.next_offset == 50
            shown = LEFT if topics is None or "t" in topics else []
            assert [one.offset for one in messages(page.batches)] == shown
        assert (await self.store.read(25, None, 10**6)).damaged == ((25, 30),)
        parcel = await self.store.read_parcel(10, 28, None, 10**6)
        assert (parcel.start, parcel.stop, parcel.damaged) == (10, 28, (20, 28))
        assert self.store._catalog.damage.ranges(0) == [(20, 30)]


class LogTests(LogCase):
    """Times and topics; readers that do not know who has removed a segment"""

    def setUp(self) -> None:
        super().setUp()
        self.patch(log_writer, "SEGMENT_BYTES", 1)
        log = self.log()
        for number in range(5):
            log.commit(numbered(10 * number, 10 * number + 10), sync=True)
        self.catalog = log.catalog

    def test_topics(self) -> None:
        whole = topics_in(self.catalog, 0, 20)["t"], topics_in(self.catalog, 30, 50)["t"]
        remove(self.path, self.catalog, 20)
        found = topics_in(self.catalog, 0, 50)["t"]
        assert found == tuple(map(sum, zip(*whole, strict=True)))

    def test_a_time(self) -> None:
        remove(self.path, self.catalog, 20)
        # There the missing range is reported to a reader.
        self.catalog.low = 22
        assert offset_at(self.catalog, 1) == 22

    def test_a_segment_that_this_process_has_replaced(self) -> None:
        remove(self.path, self.catalog, 20)
        next(one for one in self.catalog.segments if one.base == 20).removed = True
        for read in (self.pages, self.times):
            # The reader tries again, with the segments that there are then.
            raised(FileNotFoundError, read)

    def test_another_process(self) -> None:
        remove(self.path, self.catalog, 20)
        self.catalog.is_written = False
        for read in (self.pages, self.times):
            raised(FileNotFoundError, read)

    def pages(self) -> None:
        """Read everything."""
        read_page(self.catalog, 0, None, 10**6)

    def times(self) -> None:
        """Look for the first message of the missing segment."""
        self.catalog.low = 20
        offset_at(self.catalog, 1)
