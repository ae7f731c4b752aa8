"""Topics that were copied from one broker, and are hosted by another one now (spot §7.8)."""

from __future__ import annotations

import json
from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.stored_rows import read_row
from pubsub.broker.topic_space.durability import Durability
from pubsub.protocols.spot.broker_commands import EPOCH
from pubsub.protocols.spot.peer_connection import PeerConnection
from pubsub.protocols.spot.topic_copies import COPIES
from pubsub.store.memory_store import MemoryStore
from tests.unit import nsd_lines
from tests.unit.brokers import World, publish, subscribe
from tests.unit.nsd_lines import SUCCESS, bodies
from tests.unit.streams import Client, House

FROM_B = ["b0", "b1"]
FROM_C = ["c0", "c1"]


class MovedTopicTests(SynchronousTestCase):
    """A broker ``a`` that has copied ``t`` from ``b``, which loses it; then ``c`` hosts it"""

    def setUp(self) -> None:
        self.world = World()
        self.b, self.c = self.world.house("b"), self.world.house("c")
        self.publish(self.b, *FROM_B)
        self.start()
        self.reader = self.a.connect("nsd")
        self.ask(nsd_lines.subscribe("ada", "t"))
        assert self.get() == FROM_B

    def start(self, store: MemoryStore | None = None) -> None:
        """Start ``a``."""
        self.a = self.world.house("a", "b", "c", nsd={}, store=store)

    def publish(self, house: House, *payloads: str) -> None:
        self.world.client(house, b"DEALER", *(publish(b"t", one.encode()) for one in payloads))

    def ask(self, request: bytes) -> None:
        """Send a request of nsd, which succeeds."""
        self.reader.send(request)
        self.world.settle()
        assert self.reader.take() == SUCCESS

    def get(self) -> list[str]:
        """Return the bodies of a Get."""
        self.reader.send(nsd_lines.get("ada"))
        self.world.settle()
        self.a.pump()
        return bodies(self.reader.take())

    def host_at_c(self, *payloads: str) -> None:
        """Have ``c`` host the topic, with ``payloads``."""
        self.world.crash("b")
        self.publish(self.c, *payloads)

    def learn(self) -> None:
        """Wait until ``a`` has the list of a ``b`` without the topic, and that of ``c``.

        A subscription would make ``b`` host it again.
        """
        self.ask(nsd_lines.unsubscribe("ada", "t"))
        self.world.restart("b")
        self.world.advance(22)

    def move(self, *payloads: str) -> None:
        """Have ``c`` host the topic, and subscribe there."""
        self.host_at_c(*payloads)
        self.learn()
        self.ask(nsd_lines.subscribe("ada", "t"))

    def live(self) -> Client:
        return self.world.client(self.a, b"DEALER", subscribe(b"t"))

    def hosts(self) -> list[str]:
        """Return the brokers of which there are copies."""
        return sorted(json.loads(key)[0][6] for key, _ in self.a.store.items(COPIES))

    def test_what_was_copied_before_stays(self) -> None:
        self.move(*FROM_C)
        assert self.get() == FROM_B + FROM_C
        self.publish(self.c, "c2")
        assert self.get() == [*FROM_B, *FROM_C, "c2"]
        assert self.hosts() == ["c"]

    def test_subscribers_receive_new_messages_once(self) -> None:
        self.move(*FROM_C)
        live = self.live()
        self.publish(self.c, "c2")
        assert live.take() == publish(b"t", b"c2")
        assert self.get() == [*FROM_B, *FROM_C, "c2"]

    def test_without_readers_of_the_history(self) -> None:
        self.host_at_c(*FROM_C)
        self.learn()
        live = self.live()
        self.publish(self.c, "c2")
        assert live.take() == publish(b"t", b"c2")
        self.ask(nsd_lines.subscribe("ada", "t"))
        assert self.get() == [*FROM_B, *FROM_C, "c2"]

    def test_after_a_restart_without_the_earlier_host(self) -> None:
        self.host_at_c(*FROM_C)
        store = self.a.store
        assert isinstance(store, MemoryStore)
        self.a.broker.stopService()
        self.a = self.world.house("a", "c", nsd={}, store=store)
        self.world.advance(12)
        self.reader = self.a.connect("nsd")
        assert self.get() == FROM_B + FROM_C
        # If the earlier one is a peer again, its copy continues.
        assert self.hosts() == ["b", "c"]

    def test_another_address_of_the_same_host(self) -> None:
        store = self.a.store
        assert isinstance(store, MemoryStore)
        for key, row in list(store.items(COPIES)):
            store.delete(COPIES, key)
            store.put(COPIES, key.replace("tcp://b:", "tcp://earlier-b:"), row)
        self.a.broker.stopService()
        self.publish(self.b, "b2")
        self.start(store)
        self.world.advance(12)
        self.reader = self.a.connect("nsd")
        assert self.get() == [*FROM_B, "b2"]
        live = self.live()
        self.publish(self.b, "b3")
        assert live.take() == publish(b"t", b"b3")
        assert self.get() == [*FROM_B, "b2", "b3"]

    def test_copies_are_read_once_for_all_hosts(self) -> None:
        store = self.a.store
        assert isinstance(store, MemoryStore)
        self.a.broker.stopService()
        with patch("pubsub.protocols.spot.topic_copies.read_row", wraps=read_row) as read:
            self.start(store)
        assert read.call_count == 1
        self.world.advance(12)
        self.reader = self.a.connect("nsd")
        self.publish(self.b, "b2")
        assert self.get() == [*FROM_B, "b2"]

    def test_a_copy_that_has_not_begun(self) -> None:
        self.host_at_c(*FROM_C)
        self.learn()
        self.world.crash("c")
        self.ask(nsd_lines.subscribe("ada", "t"))
        assert self.get() == FROM_B
        self.world.down.discard("c")
        self.world.advance(12)
        assert self.get() == FROM_B + FROM_C

    def test_a_new_host_that_does_not_store_the_topic(self) -> None:
        self.c.broker.topics.create("t").set_durability(Durability.NONE)
        self.move(*FROM_C)
        live = self.live()
        self.publish(self.c, "c2")
        assert self.get() == [*FROM_B, "c2"]
        self.c.broker.topics.named("t").set_durability(Durability.ASYNC)
        self.publish(self.c, "c3")
        assert live.take() == publish(b"t", b"c2") + publish(b"t", b"c3")
        assert self.get()[:3] == [*FROM_B, "c2"]

    def test_a_new_host_that_does_not_know_the_command(self) -> None:
        links = (cable.link for cable in self.world.cables)
        link = next(one for one in links if one.peer == "tcp://c:7073")
        assert isinstance(link, PeerConnection)
        del link.handshake.metadata[EPOCH.lower()]
        self.move(*FROM_C)
        self.publish(self.c, "c2")
        assert self.get() == [*FROM_B, "c2"]
        self.publish(self.c, "c3")
        assert self.get() == [*FROM_B, "c2", "c3"]
