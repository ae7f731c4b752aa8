"""Queue keys that a broker waits for before it takes messages of their topics."""

from __future__ import annotations

from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.history.awaited_keys import AwaitedKeys
from pubsub.backplane.history.replica_stream import StreamAway
from pubsub.backplane.memory_engine.memory_state import MemoryBucket, MemoryState
from pubsub.backplane.topics.topic_entry import DELETED, TopicEntry, encode, key_of
from tests.unit.replicas import ReplicaCase
from tests.unit.shared_numbers import numbers

KEYED = TopicEntry("1", key=bytes(96))


class _Keys:
    """The queue keys of a broker: ``proofs`` by topic."""

    def __init__(self) -> None:
        self.proofs: dict[str, bytes | None] = {}

    def proof(self, topic: str) -> bytes | None:
        return self.proofs.get(topic, b"")


class WaitingTests(SynchronousTestCase):
    """How long a key is waited for"""

    def setUp(self) -> None:
        self.clock, self.keys, self.bucket = Clock(), _Keys(), MemoryBucket()
        self.clock.advance(10**6)
        self.state = MemoryState(self.bucket, lambda call: None)
        self.is_complete, self.questions = True, 0
        self.awaited = AwaitedKeys(cast(Any, self.keys), self.clock, self.clock.seconds)
        self.awaited.follow(cast(Any, self), lambda: self.is_complete)

    def get(self, key: str) -> Deferred[Any]:
        """See ``ISharedState``."""
        self.questions += 1
        return self.state.get(key)

    def arrive(self, age: float = 0.0, name: str = "t") -> Deferred[None]:
        """Begin to wait for the key of a topic, with messages that are ``age`` seconds old."""

        async def wait(waited: Deferred[Any]) -> Any:
            return await waited

        timestamp = round((self.clock.seconds() - age) * 10**6)
        return Deferred.fromCoroutine(self.awaited.arrive([name], timestamp, wait))

    def put(self, entry: TopicEntry, name: str = "t") -> None:
        """Set the value of the topic in the shared state."""
        self.bucket.write(key_of(name), encode(entry))

    def pass_time(self, seconds: float) -> None:
        """Let the time pass."""
        self.clock.pump([0.05] * round(seconds / 0.05))

    def test_a_key_that_is_here(self) -> None:
        for proof in (b"proof", None):
            self.keys.proofs["t"] = proof
            self.successResultOf(self.arrive())
        assert self.questions == 0

    def test_a_state_that_is_read_at_the_same_time(self) -> None:
        self.is_complete = False
        done = self.arrive(age=3600)
        self.pass_time(1)
        assert not done.called
        self.keys.proofs["t"] = None
        self.pass_time(0.1)
        self.successResultOf(done)

    def test_a_state_that_is_never_complete(self) -> None:
        self.is_complete = False
        done = self.arrive(age=3600)
        self.pass_time(5.1)
        error = self.failureResultOf(done, StreamAway)  # type: ignore[no-untyped-call]
        assert "has not given the queue keys" in str(error.value)

    def test_a_key_that_is_not_applied_yet(self) -> None:
        self.put(KEYED)
        done = self.arrive(age=3600)
        self.pass_time(4)
        assert not done.called
        self.pass_time(1.1)
        # The messages are not given up.
        self.failureResultOf(done, StreamAway)  # type: ignore[no-untyped-call]
        done = self.arrive(age=3600)
        self.keys.proofs["t"] = b"proof"
        self.pass_time(0.1)
        self.successResultOf(done)

    def test_a_topic_whose_broker_shares_it_later(self) -> None:
        done = self.arrive()
        self.pass_time(1)
        assert not done.called
        self.put(KEYED)
        self.pass_time(1)
        assert not done.called
        self.keys.proofs["t"] = b"proof"
        self.pass_time(0.1)
        self.successResultOf(done)

    def test_old_messages_of_topics_that_have_ended(self) -> None:
        self.put(KEYED.ended(DELETED), "a")
        self.put(TopicEntry("1"), "b")
        self.bucket.write(key_of("c"), b"junk")
        for name in "abcd":
            self.successResultOf(self.arrive(age=3600, name=name))
        assert self.questions == 4
        # They are remembered.
        for name in "abcd":
            self.successResultOf(self.arrive(age=3600, name=name))
        assert self.questions == 4

    def test_new_messages_of_a_topic_without_a_shared_key(self) -> None:
        done = self.arrive()
        self.pass_time(5.1)
        self.successResultOf(done)
        # It is asked for again, but not waited for each time.
        before = self.questions
        self.successResultOf(self.arrive())
        assert self.questions == before + 1
        self.pass_time(61)
        done = self.arrive()
        self.pass_time(4)
        assert not done.called
        self.pass_time(1.1)
        self.successResultOf(done)

    def test_a_key_that_is_shared_after_a_topic_had_none(self) -> None:
        self.successResultOf(self.arrive(age=3600))
        self.put(KEYED)
        done = self.arrive()
        self.pass_time(1)
        assert not done.called
        self.keys.proofs["t"] = b"proof"
        self.pass_time(0.1)
        self.successResultOf(done)

    def test_a_state_that_is_away(self) -> None:
        self.bucket.apart.add(self.state)
        self.failureResultOf(self.arrive(age=3600), StreamAway)  # type: ignore[no-untyped-call]

    def test_the_memory_of_topics_without_a_key(self) -> None:
        for number in range(10_001):
            self.successResultOf(self.arrive(age=3600, name=f"t{number}"))
        assert len(self.awaited._absent) == 1


class HistoryTests(ReplicaCase):
    """A shared history whose messages come before the keys"""

    async def test_messages_that_come_first(self) -> None:
        here = self.node()
        keyed = here.broker.topics.create("keyed")
        here.broker.queue_keys.close(keyed, b"key", "me", "here")
        here.publish("keyed", *numbers(0, 3))
        here.publish("t", b"3")
        await self.settled(here)
        there = self.node()
        is_complete: list[bool] = []
        bucket = MemoryBucket()
        state = MemoryState(bucket, lambda call: None)
        there.history.keys.follow(state, lambda: bool(is_complete))
        turns = iter(range(50))
        await self.until(lambda: next(turns, None) is None)
        assert await there.payloads() == []
        there.broker.queue_keys.close(there.broker.topics.create("keyed"), b"key", "me", "there")
        is_complete.append(True)
        await self.settled(here, there)
        assert await there.messages() == await here.messages()
        assert there.broker.counters.refusals["backplane", "wrong-queue-key"] == 0

    async def test_the_engine_leaves_while_a_key_is_waited_for(self) -> None:
        here, there = self.node(), self.node()
        there.history.keys.follow(MemoryState(MemoryBucket(), lambda call: None), lambda: False)
        await self.settled(here, there)
        keyed = here.broker.topics.create("keyed")
        here.broker.queue_keys.close(keyed, b"key", "me", "here")
        here.publish("keyed", b"0")
        await self.settled(here)
        self.log.leave()
        self.log.come_back()
        there.broker.queue_keys.close(there.broker.topics.create("keyed"), b"key", "me", "there")
        await self.settled(here, there)
        assert await there.payloads() == [b"0"]
