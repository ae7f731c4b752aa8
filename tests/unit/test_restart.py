"""A restart: a broker is stopped and another started on the same files."""

from __future__ import annotations

from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from pubsub.broker.topic_space.durability import Durability
from pubsub.store.log_options import LogOptions
from pubsub.store.log_store import LogStore
from tests.unit import fast_wire as wire
from tests.unit.fakes import scratch
from tests.unit.fast_wire import (
    COLLISION,
    CREATE,
    DURABLE,
    EXCLUSIVE,
    NO_TOPIC,
    OTHER,
    OWNER,
    READER,
    SUBSCRIBE,
    WRONG_KEY,
    Fast,
)
from tests.unit.streams import logged


class RestartCase(TestCase):
    """fast beside rheos, over a history on disk"""

    def setUp(self) -> None:
        self.path = scratch(self) / "history"
        self.fast = self.start()

    def start(self, **top: Any) -> Fast:
        """Return a broker on the file."""
        store = LogStore(self.path, reactor, LogOptions(interval=0.0, retention=()))
        given = {name.replace("_", "-"): value for name, value in top.items()}
        fast = Fast(self, also={"rheos": {}}, top=given, store=store)
        fast.start()
        self.fast = fast
        return fast

    async def restart(self, **top: Any) -> Fast:
        """Stop the broker and start another."""
        await self.stop()
        return self.start(**top)

    def stop(self) -> Deferred[None]:
        """Disconnect the clients, and stop."""
        for client in tuple(self.fast.broker.clients):
            client.abort("the test stops")
        self.fast.turn()
        return self.fast.broker.stopService()

    def tearDown(self) -> Deferred[None]:  # type: ignore[override]
        return self.stop()

    def answer(self, sends: bytes) -> bytes:
        """Return the reply to a new client of fast."""
        return self.fast.client(sends).take()


class TopicTests(RestartCase):
    """Topics after a restart"""

    async def test_a_topic_keeps_its_key(self) -> None:
        self.fast.client(wire.create(OWNER))
        await self.restart()
        # The key is known as a hash only, until a client presents it.
        for _ in range(2):
            assert self.answer(wire.subscribe(wire.grant(key="k2"))) == wire.error(
                SUBSCRIBE, WRONG_KEY
            )
            assert self.answer(wire.subscribe(READER)) == b""

    async def test_a_topic_keeps_a_rotated_key(self) -> None:
        self.fast.client(wire.create(OWNER) + wire.rotate(OWNER, b"k2"))
        await self.restart()
        assert self.answer(wire.subscribe(READER)) == wire.error(SUBSCRIBE, WRONG_KEY)
        assert self.answer(wire.subscribe(wire.grant(key="k2"))) == b""

    async def test_the_key_may_be_rotated_again(self) -> None:
        self.fast.client(wire.create(OWNER))
        fast = await self.restart()
        fast.client(wire.rotate(OWNER, b"k3"))
        await self.restart()
        assert self.answer(wire.subscribe(wire.grant(key="k3"))) == b""

    async def test_an_exclusive_topic_ends_with_the_process(self) -> None:
        self.fast.client(wire.create(OWNER, flags=EXCLUSIVE))
        fast = await self.restart()
        assert self.answer(wire.subscribe(READER)) == wire.error(SUBSCRIBE, NO_TOPIC)
        fast.client(wire.create(wire.grant(key="other")))
        assert self.answer(wire.subscribe(READER)) == wire.error(SUBSCRIBE, WRONG_KEY)

    async def test_an_id_still_stands_for_the_topic_that_was_created_first(self) -> None:
        first, second = (
            wire.publish(OWNER, b"x", topic=wire.TWINS),
            wire.create(OTHER, wire.TWIN),
        )
        fast = self.fast
        fast.client(wire.create(OWNER, wire.ONE))
        for flags in (0, DURABLE):
            for name in (wire.TWIN, "other"):
                fast.broker.topics.create(name)
            fast.client(wire.create(OWNER, wire.ONE, flags))
            assert self.answer(second) == wire.error(CREATE, COLLISION, wire.TWINS)
            fast = await self.restart()
            assert self.answer(second) == wire.error(CREATE, COLLISION, wire.TWINS)
            assert self.answer(first) == b""
        # The first one ends.
        fast.broker.topic_lifecycle.end(fast.broker.topics.named(wire.ONE))
        fast.client(second)
        fast.broker.topics.create(wire.ONE)
        fast = await self.restart()
        assert self.answer(wire.create(OWNER, wire.ONE)) == wire.error(
            CREATE, COLLISION, wire.TWINS
        )
        assert self.answer(wire.publish(OTHER, b"x", topic=wire.TWINS)) == b""

    async def test_a_topic_stays_durable(self) -> None:
        self.fast.client(wire.create(OWNER, flags=DURABLE) + wire.create(OWNER, "gossip"))
        fast = await self.restart()
        found = {topic.name: topic.durability for topic in fast.broker.topics}
        assert found == {
            "$SYS/stats": Durability.NONE,
            "news": Durability.SYNC,
            "gossip": Durability.ASYNC,
        }

    async def test_topics_beyond_the_limit_are_reported(self) -> None:
        self.fast.client(wire.create(OWNER) + wire.create(OWNER, "gossip"))
        await self.stop()
        lines = logged(self)
        fast = self.start(max_topics=1)
        own, kept = fast.broker.topics
        assert own.name == "$SYS/stats"
        (left_out,) = {"news", "gossip"} - {kept.name}
        assert [line for line in lines if repr(left_out) in line]
