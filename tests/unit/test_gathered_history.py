"""Gathered messages, of several senders and perhaps several topics, in the history."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.routing.batch import Batch
from pubsub.http_api.reading.stream_formats import batches_of
from pubsub.kernel import Columns, Senders
from pubsub.store.memory_store import MemoryStore
from tests.unit.fakes import batch_of
from tests.unit.logs import RUN, StoreCase

Sent = Sequence[tuple[str, bytes, bytes]]
"""Topic, sender and payload of each message."""

SENT: Sent = [
    ("a", b"me", b"0"), ("b", b"you", b""), ("a", b"me", b"22"), ("a", b"me", b"33"),
    ("b", b"me", b"4"), ("c", b"", b"55555"),
]  # fmt: skip
TOPICS = "abc"


def gathered(sent: Sent, sequence: int = 5) -> tuple[Batch, Senders]:
    """Return messages as they are gathered, and their senders."""
    names = tuple(dict.fromkeys(topic for topic, _, _ in sent))
    rows = [(key, len(list(some))) for key, some in groupby(sent, itemgetter(0, 1))]
    counts = array("I", [count for _, count in rows]).tobytes()
    columns = Columns.of([one[2] for one in sent], [names.index(one[0]) for one in sent])
    return Batch(names, columns, 9, sequence, b"", "cafe"), (counts, tuple(k[1] for k, _ in rows))


def found_in(batches: Iterable[Batch]) -> list[tuple[int, str, bytes, bytes]]:
    """Return offset, topic, sender and payload of each message."""
    found = []
    for batch in batches:
        assert batch.sequence - 5 == batch.offset - 1
        for _, run in batch.runs():
            found += [
                (run.offset + at, run.topic, run.sender, payload)
                for at, payload in enumerate(run.payloads())
            ]
    return found


def expected(sent: Sent = SENT) -> list[tuple[int, str, bytes, bytes]]:
    """Return what ``found_in`` returns for ``sent``, which begin at offset 1."""
    return [(offset, *one) for offset, one in enumerate(sent, 1)]


class DiskTests(StoreCase):
    """A history in a directory"""

    async def append(self) -> None:
        self.store.append(batch_of([b"before"], sequence=4))
        self.store.append(*gathered(SENT))
        await self.stored()

    async def check(self) -> None:
        for offset in range(1, 7):
            for topics in (None, frozenset("a"), frozenset("bc"), frozenset("abcd")):
                page = await self.store.read(offset, topics, 10**6)
                wanted = [
                    one for one in expected() if one[0] >= offset and one[1] in (topics or TOPICS)
                ]
                assert found_in(page.batches) == wanted
                assert page.next_offset == 7
        parcel = await self.store.read_parcel(1, 7, None, 10**6)
        assert found_in(list(batches_of(parcel))) == expected()

    async def test_from_memory_and_from_disk(self) -> None:
        await self.append()
        await self.check()
        self.forget_recent()
        await self.check()
        await self.reopen()
        await self.check()

    async def test_topics_that_have_ended(self) -> None:
        await self.append()
        self.store.forget("b")
        kept = [one for one in expected() if one[1] != "b"]
        assert found_in((await self.store.read(1, None, 10**6)).batches) == kept
        await self.stored()
        self.forget_recent()
        assert found_in((await self.store.read(1, None, 10**6)).batches) == kept

    async def test_messages_are_counted_for_their_topics(self) -> None:
        await self.append()
        await self.reopen()
        counts = await self.store.topics_in(1, 7)
        assert {topic: count for topic, (count, _) in counts.items()} == {"a": 3, "b": 2, "c": 1}


class MemoryTests(SynchronousTestCase):
    """A history in memory"""

    @given(
        st.lists(
            st.tuples(
                st.sampled_from(TOPICS),
                st.sampled_from([b"", b"me", b"you"]),
                st.binary(max_size=3),
            ),
            min_size=1,
            max_size=12,
        ),
        st.integers(1, 13),
        st.sampled_from([None, "a", "bc", "abc"]),
        st.sampled_from(["", "a", "ab"]),
    )
    def test_any_part_of_any_messages(
        self, sent: Sent, offset: int, topics: str | None, ended: str
    ) -> None:
        store = MemoryStore(100, 10**6)
        store.open(RUN)
        store.append(batch_of([b"before"], sequence=4))
        store.append(*gathered(sent))
        for topic in ended:
            store.forget(topic)
        wanted = None if topics is None else frozenset(topics)
        page = self.successResultOf(store.read(offset, wanted, 10**6))
        assert found_in(page.batches) == [
            one
            for one in expected(sent)
            if one[0] >= offset and one[1] in (topics or TOPICS) and one[1] not in ended
        ]
