"""The base class of tests of brokers that share a history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.memory_engine.memory_state import MemoryBucket, MemoryState
from pubsub.backplane.topics.leases import Leases
from pubsub.backplane.topics.shared_topics import SharedTopics
from pubsub.backplane.topics.topic_entry import TopicEntry, decode, key_of
from pubsub.store.memory_store import MemoryStore
from tests.contract.drivers.spot import Spot
from tests.unit.fast_wire import (
    Fast,
)

_Result = TypeVar("_Result")


class LastingStore(MemoryStore):
    """A store whose tables the next run finds, as it does those of a history on disk."""

    durable = True

    def when_written(self, call: Callable[[bool], None]) -> None:
        call(True)


class Threads:
    """Runs slow calls at once, or later: with ``run`` if ``waits``."""

    def __init__(self) -> None:
        self.waits = False
        self._calls: list[Callable[[], None]] = []

    def __call__(self, call: Callable[[], _Result]) -> Deferred[_Result]:
        if not self.waits:
            return succeed(call())
        done: Deferred[_Result] = Deferred()
        self._calls.append(lambda: done.callback(call()))
        return done

    def run(self) -> None:
        calls, self._calls = self._calls, []
        for call in calls:
            call()


class Broker(Fast):
    """A broker with fast, spot, rheos and nsd, and its view of the bucket."""

    def __init__(self, case: SharedCase, store: LastingStore | None = None, **top: object) -> None:
        kept = LastingStore(1000, 2**20) if store is None else store
        named: dict[str, Any] = {name.replace("_", "-"): value for name, value in top.items()}
        grants = {"grant": ["news"]}
        super().__init__(case, also={"spot": grants}, store=kept, top=named)
        self.kept = kept
        self.state = MemoryState(case.bucket, lambda call: self.clock.callLater(0, call))
        self.threads = Threads()
        self.leases = Leases(self.state, self.clock, self.clock.seconds, seconds=60)
        self.shared = SharedTopics(self.broker, self.state, self.clock, self.threads, self.leases)
        self.shared.setServiceParent(self.broker)  # type: ignore[no-untyped-call]
        self.start()

    def names(self) -> list[str]:
        """The topics that clients have made."""
        return sorted(topic.name for topic in self.broker.topics if topic.name[0] != "$")

    def use(self, name: str) -> None:
        """Create a topic by a message of spot."""
        spot = Spot(self)
        publisher = spot.publisher()
        publisher.send(spot.publish(publisher, b"x", topic=name))

    def figure(self, name: str) -> float:
        return self.shared.figures()[name]

    def stop(self) -> None:
        self.broker.stopService()
        self.state._bucket.states.remove(self.state)


class SharedCase(SynchronousTestCase):
    """Brokers at one bucket"""

    def setUp(self) -> None:
        self.bucket = MemoryBucket()
        self.brokers: list[Broker] = []

    def start(self, store: LastingStore | None = None, **top: object) -> Broker:
        broker = Broker(self, store, **top)
        self.brokers.append(broker)
        self.settle()
        return broker

    def two(self) -> tuple[Broker, Broker]:
        return self.start(), self.start()

    def stop(self, broker: Broker) -> LastingStore:
        self.brokers.remove(broker)
        broker.stop()
        return broker.kept

    def settle(self, turns: int = 6) -> None:
        for _ in range(turns):
            for broker in self.brokers:
                broker.pump(4)

    def entry(self, name: str) -> TopicEntry:
        return decode(self.bucket.entries[key_of(name)].value)

    def late_answers(self, broker: Broker) -> list[tuple[Deferred[int], Deferred[int]]]:
        """Hold back the answers to changes of ``broker`` from now on."""
        put, late = broker.state.put, list[tuple[Deferred[int], Deferred[int]]]()

        def slow(*change: Any) -> Deferred[int]:
            answer: Deferred[int] = Deferred()
            late.append((put(*change), answer))
            return answer

        self.patch(broker.state, "put", slow)  # type: ignore[no-untyped-call]
        return late

    def answer(self, late: list[tuple[Deferred[int], Deferred[int]]]) -> None:
        """Give the answers that were held back."""
        assert late
        for done, answer in late:
            done.chainDeferred(answer)
        late.clear()
        self.settle()
