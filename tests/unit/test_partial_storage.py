"""Reads of several topics of which some are stored and others are not."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.delivery.slow_policy import SlowPolicy
from pubsub.broker.routing import gathered_routing
from pubsub.broker.routing.batch import Batch
from pubsub.broker.routing.combination_cache import PastCombinations
from pubsub.broker.routing.dispatcher import Dispatcher
from pubsub.broker.routing.passing_mix import passing_mix
from pubsub.broker.routing.router import Router
from pubsub.broker.topic_space.durability import Durability
from pubsub.broker.topic_space.topics import Topic
from pubsub.interfaces import IStore
from pubsub.kernel import Columns
from tests.profiles import examples
from tests.unit.fakes import Lines, Transport
from tests.unit.http_follower import PATH, Follower
from tests.unit.let_go_case import KIB, LetGoCase
from tests.unit.mixed_wires import NUMBERS, STEPS, WANTED, CafeWire, RheosWire, Step, Wire, outcome
from tests.unit.web import WebHouse
from tests.unit.web_sockets import SocketClient, connected, mixed

UNSTORED = (2, 4)
"""Numbers of the topics that are not stored."""
Read = list[int]
FORMS: tuple[dict[str, object], ...] = (
    {},
    {"binary": True},
    {"batches": True},
    {"batches": True, "mixed": True},
)
"""The forms in which a subscriber of a WebSocket gets messages."""


def numbered(case: SynchronousTestCase, store: IStore) -> list[tuple[int, int, str, bytes]]:
    """Return the offset, the number, the topic and the payload of each message in the history."""
    page = case.successResultOf(store.read(0, None, 2**30))
    return [
        (batch.offset + at, batch.sequence + at, batch.topics[index], payload)
        for batch in page.batches
        for at, (index, payload) in enumerate(
            zip(batch.columns.indexes(), batch.payloads(), strict=True)
        )
    ]


class SameTests(SynchronousTestCase):
    """Nothing but the work is different from messages that are published topic by topic"""

    @examples(1)
    @given(st.sampled_from((CafeWire, RheosWire)), st.booleans(), WANTED, STEPS)
    def test_clients_and_the_history_get_the_same(
        self,
        make: Callable[[], Wire],
        is_past: bool,
        wanted: list[set[int]],
        steps: list[Step],
    ) -> None:
        made: list[Wire] = []

        def partly_stored() -> Wire:
            wire = make()
            for number in NUMBERS:
                topic = wire.house.broker.topics.create(wire.name(number))
                if number in UNSTORED:
                    topic.set_durability(Durability.NONE)
            made.append(wire)
            return wire

        found = []
        for together in (False, True):
            with (
                patch.object(PastCombinations, "note", lambda past, key: is_past),
                patch.object(Dispatcher, "stores_parts", together),
            ):
                result = outcome(partly_stored, wanted, steps)
            found.append((result, numbered(self, made[-1].house.store)))
        assert found[0] == found[1]


class OffsetTests(SynchronousTestCase):
    """The offsets of what is routed run by run"""

    def test_runs_of_stored_topics_have_the_offsets_of_their_messages(self) -> None:
        wire = CafeWire()
        topics = [wire.house.broker.topics.create(wire.name(number)) for number in (1, 2, 3)]
        topics[1].set_durability(Durability.NONE)
        for wanted in ({1}, {2}, {3}, {1, 2}):
            wire.reader(wanted)
        routed: list[tuple[Topic, int]] = []
        real = Router.add

        def add(
            router: Router, audience: Any, data: bytes, count: int, offset: int, source: Any
        ) -> None:
            routed.append((source, offset))
            real(router, audience, data, count, offset, source)

        mix = passing_mix(wire.house.broker.router, topics)
        assert mix is not None
        columns = Columns.of([b"%d" % n for n in range(5)], [0, 1, 1, 2, 0])
        # Subscribers of several topics are not taken apart.
        with patch.object(Router, "add", add), patch.object(gathered_routing, "_AUDIENCES", 0):
            wire.house.broker.dispatcher.publish_mixed(mix, columns, b"me", "cafe")
            offsets = [offset for source, offset in routed if source in (topics[0], topics[2])]
            assert sorted(set(offsets)) == [0, 1, 2]
            assert [each[0] for each in numbered(self, wire.house.store)] == [0, 1, 2]
            routed.clear()
            for topic in topics:
                topic.set_durability(Durability.NONE)
            wire.house.broker.dispatcher.publish_mixed(mix, columns, b"me", "cafe")
        assert {offset for _, offset in routed} == {3}


class ListTests(SynchronousTestCase):
    """The topics that the history lists with each row"""

    def test_a_row_names_its_own_topics_alone(self) -> None:
        house = WebHouse()
        names = [f"t{number}" for number in range(24)]
        for number, name in enumerate(names):
            topic = house.broker.topics.create(name)
            if number % 4 == 1:
                topic.set_durability(Durability.NONE)
        publisher = connected(house)
        for _ in range(2):
            mixed(publisher, names, [(name, name.encode()) for name in names])
        page = self.successResultOf(house.store.read(0, None, 2**20))
        assert [batch.count for batch in page.batches] == 2 * [1, *[3] * 5, 2]
        for batch in page.batches:
            own = [batch.topics[index].encode() for index in batch.columns.indexes()]
            assert own == batch.payloads()
            assert len(batch.topics) == batch.count


class PartTests(SynchronousTestCase):
    """The offsets of parts of a batch"""

    @given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.frozensets(st.integers(0, 4)))
    def test_they_leave_out_the_messages_that_are_not_stored(
        self, indexes: list[int], unstored: frozenset[int]
    ) -> None:
        payloads = [b"%d" % place for place in range(len(indexes))]
        columns = Columns.of(payloads, indexes)
        batch = Batch(tuple("abcde"), columns, 1, 100, b"", "toy", offset=50, unstored=unstored)
        before = [
            sum(index not in unstored for index in indexes[:place])
            for place in range(len(indexes) + 1)
        ]
        for start in range(len(indexes)):
            part = batch.slice(start, len(indexes))
            assert (part.offset, part.sequence) == (50 + before[start], 100 + start)
            again = part.slice(1, part.count)
            assert again.offset == 50 + before[start + 1]
        runs = list(batch.runs())
        for _, run in runs:
            place = int(run.payloads()[0])
            assert (run.offset, run.sequence) == (50 + before[place], 100 + place)
        some = [(index, run) for index, run in runs if index in unstored]
        assert list(batch.runs(unstored)) == some

    def test_all_have_the_next_offset_if_none_is_stored(self) -> None:
        columns = Columns.of([b"a", b"b", b"c"], [0, 1, 0])
        batch = Batch(("a", "b"), columns, 1, 100, b"", "toy", offset=50, has_place=False)
        counts = array("I", [1, 2]).tobytes()
        parts = [
            batch.slice(1, 3),
            *batch.numbered(),
            *[run for _, run in batch.runs()],
            *batch.by_sender((counts, (b"ada", b"bob"))),
        ]
        assert {part.offset for part in parts} == {50}
        assert len(parts) == 7


class FullTests(LetGoCase):
    """A subscriber that is let go because of messages that are not stored, as memory is full"""

    def test_it_gets_the_next_ones_that_are(self) -> None:
        self.news.set_durability(Durability.NONE)
        bob = self.subscriber(self.news, self.sport, self.chat, policy=SlowPolicy())
        other = self.subscriber()
        # Another one cannot get them, so they are routed run by run.
        self.broker.router.subscribe(self.box(other), self.news, Lines(limit=1))
        self.box(bob).pause()
        mix = passing_mix(self.broker.router, [self.news, self.chat])
        assert mix is not None
        self.broker.memory.limit = self.broker.memory.used + 1
        columns = Columns.of([bytes(3 * KIB)] * 40, [0, 1] * 20)
        assert self.publisher.publish_mixed(mix, columns) is not None
        self.advance(1)
        for number in range(5):
            self.publish(self.sport, b"%d" % number)
        self.broker.memory.limit = 0
        self.read_all(bob)
        self.publish(self.sport, b"5")
        assert self.numbers(bob) == [b"s%d" % number for number in range(6)]
        assert ("sport", "expired") not in self.drops()


class BehindTests(LetGoCase):
    """A subscriber that is slow at times gets every message that is stored, once, in order"""

    def read(self, mixed: Callable[..., Any], read: Read, number: int) -> None:
        """Publish messages to news, sport and chat, whose places are in ``read``."""
        topics = [self.news, self.sport, self.chat]
        used = sorted(set(read))
        mix = mixed(self.broker.router, [topics[place] for place in used])
        payloads = [b"%d." % (number + at) + b"." * 300 for at in range(len(read))]
        indexes = [mix.topics.index(topics[place]) for place in read]
        assert self.publisher.publish_mixed(mix, Columns.of(payloads, indexes)) is not None
        self.advance(1)

    @examples(2)
    @given(
        st.booleans(),
        st.lists(
            st.one_of(
                st.sampled_from(("pause", "drain")),
                st.lists(st.integers(0, 2), min_size=2, max_size=6).filter(
                    lambda r: {0, 2} <= {*r}
                ),
            ),
            max_size=15,
        ),
    )
    def test_a_subscriber(self, is_passing: bool, steps: list[str | Read]) -> None:
        self.setUp()
        bob = self.subscriber(self.news, self.sport, self.chat)
        wanted: list[bytes] = []
        for step in steps:
            if step == "pause":
                self.box(bob).pause()
            elif step == "drain":
                self.read_all(bob)
            else:
                assert isinstance(step, list)
                wanted += [
                    b"nsc"[at : at + 1] + b"%d" % (len(wanted) + i) for i, at in enumerate(step)
                ]
                self.read(passing_mix if is_passing else mix_of, step, len(wanted) - len(step))
        self.drain(bob)
        found = self.numbers(bob)
        assert [one for one in found if one[:1] != b"c"] == [w for w in wanted if w[:1] != b"c"]
        # Those that are not stored are lost while the subscriber is behind.
        chat = [one for one in found if one[:1] == b"c"]
        assert chat == sorted(set(chat), key=lambda one: int(one[1:]))
        if not self.drops():
            assert found == wanted

    def drain(self, bob: Transport) -> None:
        for _ in range(10):
            self.read_all(bob)
        assert self.box(bob).cursor is None


def mix_of(router: Any, topics: list[Topic]) -> Any:
    return router.mix(topics)


class RowTests(SynchronousTestCase):
    """The offsets that subscribers over HTTP are told"""

    @examples(2)
    @given(st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=30), max_size=4))
    def test_they_are_those_of_the_history(self, reads: list[Read]) -> None:
        house = WebHouse()
        topics = [house.broker.topics.create(name) for name in "abc"]
        topics[1].set_durability(Durability.NONE)
        publisher, *clients = [connected(house) for _ in range(1 + len(FORMS))]
        for client, form in zip(clients, FORMS, strict=True):
            for name in "abc":
                client.ask("subscribe", topic=name, **form)
        lines = Follower(house, PATH + "?topic=b&topic=c&follow=1")
        events = Follower(house, PATH + "?topic=b&topic=c&follow=1", Accept="text/event-stream")
        events.events()
        # The first of them is routed in another way than those that follow.
        for read in (list(range(3)), list(range(3)), *reads):
            mixed(publisher, list("abc"), [("abc"[place], b"x") for place in read])
        stored = {
            row["message_id"]: row["offset"]
            for row in house.get("/v1/history?start=0&format=jsonl").lines
        }
        data = [json.loads(one["data"]) for one in events.events()]
        told = [offsets_of(client) for client in clients]
        for rows in (lines.rows(), data):
            told.append({row["message_id"]: row["offset"] for row in rows})
        for found in told:
            assert stored == {id: found.get(id) for id in stored}
            # A message that is not stored is not taken for a later one that is.
            assert found == {id: stored.get(id) for id in found}


def offsets_of(client: SocketClient) -> dict[str, int | None]:
    """Return the offset of each message of a subscriber, by its id; None without one."""
    heads = [one for one in client.pull() if "message" in one]
    heads += [json.loads(one[4 : 4 + int.from_bytes(one[:4], "big")]) for one in client.binary]
    found: dict[str, int | None] = {}
    for head in heads:
        row = head.get("message") or head["batch"]
        count = len(row.get("sizes", "1"))
        first = UUID(row["message_id"]).int
        offsets: Sequence[int | None] = [None] * count
        if row["offset"] is not None:
            offsets = row.get("offsets") or range(row["offset"], row["offset"] + count)
        found.update({str(UUID(int=first + at)): offset for at, offset in enumerate(offsets)})
    return found
