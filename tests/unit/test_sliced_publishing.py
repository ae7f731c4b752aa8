"""Publishing in slices: batches of many runs over HTTP take several ticks, whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.publishing import sliced_publishing
from pubsub.broker.publishing.sliced_publishing import UNITS, PublishSteps, SlicedPublishing
from pubsub.broker.topic_space.topic_lifecycle import TOPICS
from pubsub.errors import HistoryUnavailable
from pubsub.store.memory_store import MemoryStore
from tests.unit.fakes import Lines, Reader, Transport
from tests.unit.slice_ticks import Ticks
from tests.unit.web import WebClient, WebHouse
from tests.unit.writing_case import WritingCase, table


class SlicingStore(MemoryStore):
    """``slices`` has the messages that were appended in each slice; ``calls`` run between them."""

    def __init__(self) -> None:
        super().__init__(100_000, 2**30)
        self.slices: list[int] = []
        self.calls: dict[int, Callable[[], object]] = {}
        self.begun = self.ended = 0
        self.trouble_at_start: str | None = None
        self.finish: Callable[[], None] = lambda: None

    def begin_commit(self, finish: Callable[[], None]) -> None:
        """See ``IStore``."""
        if self.trouble_at_start is not None:
            raise HistoryUnavailable(self.trouble_at_start)
        assert self.begun == self.ended, "two commits at once"
        self.begun += 1
        self.finish = finish

    @contextmanager
    def continuing(self) -> Iterator[None]:
        """See ``IStore``."""
        assert self.begun == self.ended + 1
        before = self.next_offset
        yield
        self.slices.append(self.next_offset - before)
        self.calls.pop(len(self.slices), lambda: None)()

    def end_commit(self) -> None:
        """See ``IStore``."""
        self.ended += 1


class TicksTests(SynchronousTestCase):
    """The ticks that a publication takes"""

    def setUp(self) -> None:
        self.ticks = Ticks()
        self.store = SlicingStore()
        router: Any = SimpleNamespace(gate=SimpleNamespace(shut=False))
        self.router = router
        self.publishing = SlicedPublishing(
            self.store, router, lambda call: self.ticks.waiting.append(call)
        )
        self.done: list[int] = []

    def publication(self, steps: int, units: int = 1) -> PublishSteps:
        """This number of steps."""
        for step in range(steps):
            self.done.append(step)
            yield units

    def test_a_small_one_takes_one_tick(self) -> None:
        done = self.publishing.publish(self.publication(UNITS - 1))
        assert self.successResultOf(done) is None
        assert (self.store.begun, self.store.ended, self.ticks.waiting) == (1, 1, [])

    def test_a_tick_has_a_bounded_number_of_units(self) -> None:
        done = self.publishing.publish(self.publication(1000, units=3))
        assert len(self.done) == UNITS // 3
        for number in range(2, 11):
            assert not done.called
            self.ticks.turn()
            assert len(self.done) == number * UNITS // 3
        self.ticks.turn()
        assert self.successResultOf(done) is None
        assert self.store.ended == 1
        assert not self.ticks.waiting

    def test_it_waits_for_outboxes_that_are_written_to(self) -> None:
        self.publishing.publish(self.publication(2 * UNITS))
        self.router.gate.shut = True
        for _ in range(5):
            self.ticks.turn()
        assert len(self.done) == UNITS
        self.router.gate.shut = False
        self.ticks.turn()
        assert len(self.done) == 2 * UNITS

    def test_it_can_be_finished_at_once(self) -> None:
        done = self.publishing.publish(self.publication(10 * UNITS))
        self.store.finish()
        assert self.successResultOf(done) is None
        assert (len(self.done), self.store.ended) == (10 * UNITS, 1)
        self.ticks.turn()
        self.store.finish()
        assert self.store.ended == 1

    def test_it_does_not_begin_while_the_history_cannot_be_written(self) -> None:
        self.store.trouble_at_start = "the disk is full"
        with pytest.raises(HistoryUnavailable, match="full"):
            self.publishing.publish(self.publication(1))
        assert self.done == []

    def test_an_error_ends_the_commit(self) -> None:
        def fail() -> PublishSteps:
            yield UNITS
            raise ZeroDivisionError

        done = self.publishing.publish(fail())
        self.ticks.turn()
        self.failureResultOf(done, ZeroDivisionError)  # type: ignore[no-untyped-call]
        assert self.store.ended == 1


class ManySendersTests(WritingCase):
    """Commits of batches with many senders"""

    def setUp(self) -> None:
        self.store = SlicingStore()
        self.house = WebHouse(store=self.store)
        self.patch(sliced_publishing, "UNITS", 50)  # type: ignore[no-untyped-call]
        self.broker = self.house.broker

    def begin(self, count: int, batch: int = 0, query: str = "q", topic: str = "a") -> WebClient:
        """Commit a batch of messages with a sender each; return the client that has."""
        senders = [b"s%d" % number for number in range(count)]
        data = table([topic] * count, senders, key=pa.array(senders, pa.binary()))
        id = self.stage(data, batch=batch, query=query).json["part"]
        client = self.house.connect()
        client.ask("POST", "/v1/commit", {"query": query, "batch": batch, "parts": [id]})
        return client

    def subscribe(self, name: str) -> Transport:
        """Return the transport of a subscriber of this topic."""
        transport = Transport()
        transport.outbox = self.house.listener.outbox(transport, Reader())
        self.broker.router.subscribe(transport.outbox, self.broker.topics.create(name), Lines())
        return transport

    def test_a_tick_has_a_bounded_number_of_runs(self) -> None:
        answer = self.begin(320).answer().json
        assert answer == {"first": 0, "next": 320, "messages": 320, "duplicate": False}
        assert self.store.slices == [50] * 6 + [20]
        assert (self.store.begun, self.store.ended) == (1, 1)
        rows = self.house.get("/v1/history?start=0").rows
        assert [row["key"] for row in rows] == [b"s%d" % number for number in range(320)]
        assert self.house.body_bytes == 0

    def test_a_run_counts_its_subscribers(self) -> None:
        transport = self.subscribe("a")
        self.begin(200)
        # The last one looks for topics that have ended.
        assert self.store.slices == [25] * 8 + [0]
        self.house.pass_time(1)
        assert transport.data == b"".join(b"s%d\n" % number for number in range(200))

    def test_others_publish_meanwhile(self) -> None:
        transport = self.subscribe("a")
        self.store.calls[2] = lambda: self.house.publish("a", b"other")
        answer = self.begin(100).answer().json
        assert answer == {"first": 0, "next": 101, "messages": 100, "duplicate": False}
        self.house.pass_time(1)
        lines = [b"s%d" % number for number in range(100)]
        lines.insert(50, b"other")
        assert transport.data.splitlines() == lines == self.values()

    def test_the_end_of_the_topic_meanwhile(self) -> None:
        topics = self.broker.topics
        before = self.subscribe("a")
        found: list[Transport] = []

        def end() -> None:
            self.broker.topic_lifecycle.end(topics.named("a"))
            found.append(self.subscribe("a"))

        self.store.calls[2] = end
        assert self.begin(100).answer().json["messages"] == 100
        self.house.pass_time(1)
        assert before.data.splitlines() == [b"s%d" % number for number in range(50)]
        # As if the topic had ended before the batch.
        assert found[0].data.splitlines() == [b"s%d" % number for number in range(50, 100)]
        assert topics.named("a").hosted
        assert dict(self.store.items(TOPICS)) == {"a": b""}

    def test_a_topic_that_has_ended_at_the_end_of_the_batch(self) -> None:
        topics = self.broker.topics
        self.store.calls[2] = lambda: self.broker.topic_lifecycle.end(topics.named("a"))
        assert self.begin(100).answer().status == 200
        assert topics.named("a").hosted

    def test_no_room_for_a_topic_that_has_ended(self) -> None:
        topics = self.broker.topics

        def end() -> None:
            self.broker.topic_lifecycle.end(topics.named("a"))
            topics.limit = 0

        self.store.calls[2] = end
        assert self.begin(100).answer().json["messages"] == 100
        assert self.store.next_offset == 100

    def test_a_topic_that_another_broker_hosts_meanwhile(self) -> None:
        def claim() -> None:
            self.broker.topics.named("a").upstream = object()  # type: ignore[assignment]

        self.store.calls[2] = claim
        assert self.begin(100).answer().json["messages"] == 100
        assert len(self.values()) == 100

    def test_the_second_commit_waits_for_its_turn(self) -> None:
        clients: list[WebClient] = []
        self.store.calls[1] = lambda: clients.append(self.begin(60, query="r", topic="b"))
        first = self.begin(120)
        assert first.answer().json["first"] == 0
        assert clients[0].answer().json == {
            "first": 120, "next": 180, "messages": 60, "duplicate": False
        }  # fmt: skip
        assert (self.store.begun, self.store.ended) == (2, 2)

    def test_the_same_commit_again_meanwhile(self) -> None:
        clients: list[WebClient] = []

        def again() -> None:
            client = self.house.connect()
            client.ask("POST", "/v1/commit", {"query": "q", "batch": 0, "parts": []})
            clients.append(client)

        self.store.calls[1] = again
        first = self.begin(120).answer().json
        assert clients[0].answer().json == {**first, "duplicate": True}

    def test_a_client_that_leaves_meanwhile(self) -> None:
        senders = pa.array([b"%d" % number for number in range(100)], pa.binary())
        part = self.stage(table(["a"] * 100, [b""] * 100, key=senders)).json["part"]
        client = self.house.connect()
        self.store.calls[1] = client.stream.lose
        client.ask("POST", "/v1/commit", {"query": "q", "batch": 0, "parts": [part]})
        assert self.store.next_offset == 100
        assert self.commit(part).json["duplicate"] is True

    def test_a_broker_that_stops_meanwhile(self) -> None:
        sizes: list[int] = []

        def finish() -> None:
            self.store.finish()
            sizes.append(self.store.next_offset)

        # Not within a slice, from which the store cannot be closed.
        self.store.calls[1] = lambda: self.house.clock.callLater(0, finish)
        assert self.begin(500).answer().json["messages"] == 500
        assert sizes == [500]

    def test_a_history_that_cannot_be_written(self) -> None:
        self.store.trouble_at_start = "the disk is full"
        assert self.begin(100).answer().error == (503, "history-unavailable")
        assert "a" not in self.broker.topics
        assert self.store.next_offset == 0
        self.store.trouble_at_start = None
        assert self.begin(100).answer().status == 200
