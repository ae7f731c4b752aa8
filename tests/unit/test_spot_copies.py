"""Topics that another broker hosts, read from the history of this one (spot §7.8)."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.topic_space.durability import Durability
from pubsub.protocols.spot.broker_commands import (
    EPOCH,
    HistoryPage,
    Read,
)
from pubsub.protocols.spot.history_pages import HistoryPages
from pubsub.protocols.spot.peer_connection import PeerConnection
from pubsub.protocols.spot.topic_copies import COPIES
from pubsub.store.memory_store import MemoryStore
from tests.unit import nsd_lines
from tests.unit.brokers import World, publish, subscribe
from tests.unit.nsd_lines import NOTHING, SUCCESS, bodies
from tests.unit.streams import Client


def names(first: int, stop: int) -> list[str]:
    return [str(number) for number in range(first, stop)]


def long_publish(topic: bytes, size: int) -> bytes:
    """Return PUBLISH with a long frame."""
    head = publish(topic, b"")[:-2]
    return head + b"\x02" + size.to_bytes(8, "big") + b"." * size


class CopyCase(SynchronousTestCase):
    """A broker ``a`` that knows ``b``, which hosts the topic ``t`` with the messages 0 to 4"""

    def setUp(self) -> None:
        self.world = World()
        self.b = self.world.house("b")
        self.host = self.world.client(self.b, b"DEALER")
        self.published = 0
        self.publish(5)
        self.start()

    def start(self, **options: Any) -> None:
        """Start ``a``."""
        self.a = self.world.house("a", "b", nsd={}, **options)
        self.cable = self.world.cables[-1]

    def publish(self, count: int, carry: bool = True) -> None:
        """Publish at the host, with a message of another topic after each."""
        for number in range(self.published, self.published + count):
            self.host.send(publish(b"t", b"%d" % number) + publish(b"other", b"x"))
        self.published += count
        if carry:
            self.world.settle()

    def subscribe(self) -> Client:
        """Return a client of nsd whose identity reads ``t``."""
        client = self.a.connect("nsd")
        client.send(nsd_lines.subscribe("ada", "t"))
        assert client.take() == SUCCESS
        return client

    def get(self, client: Client, after: int = 0) -> list[str]:
        """Return the bodies of a Get."""
        client.send(nsd_lines.get("ada", after))
        self.world.settle()
        self.a.pump()
        return bodies(client.take())

    def reconnect(self) -> None:
        """Wait for a new connection."""
        self.world.advance(1)
        self.cable = self.world.cables[-1]


class GetTests(CopyCase):
    """Get at a broker that does not host the channel"""

    def test_messages_before_the_subscription(self) -> None:
        assert self.get(self.subscribe()) == names(0, 5)

    def test_messages_after_the_subscription(self) -> None:
        client = self.subscribe()
        self.world.settle()
        self.publish(3)
        assert self.get(client) == names(0, 8)
        self.publish(3, carry=False)
        assert self.get(client) == names(0, 11)

    def test_messages_published_while_the_connection_was_broken(self) -> None:
        client = self.subscribe()
        assert self.get(client) == names(0, 5)
        self.cable.snap()
        self.publish(4)
        assert self.get(client) == names(0, 5)
        self.reconnect()
        assert self.get(client) == names(0, 9)
        self.publish(1)
        assert self.get(client) == names(0, 10)

    def test_messages_cut_off_on_their_way(self) -> None:
        client = self.subscribe()
        self.world.settle()
        self.cable.is_cut = True
        self.publish(4)
        self.cable.snap()
        self.reconnect()
        self.publish(1)
        assert self.get(client) == names(0, 10)

    def test_several_clients_that_wait_for_the_same_messages(self) -> None:
        clients = [self.subscribe() for _ in range(3)]
        self.world.settle()
        self.publish(2, carry=False)
        for client in clients:
            client.send(nsd_lines.get("ada"))
        self.world.settle()
        self.a.pump()
        assert [bodies(client.take()) for client in clients] == [names(0, 7)] * 3

    def test_pages_that_go_no_further_are_not_asked_for_again(self) -> None:
        asked: list[int] = []

        def page(pages: HistoryPages, request: Read) -> Deferred[HistoryPage]:
            asked.append(request.offset)
            after = 5 if len(asked) > 10 else 0
            return succeed(HistoryPage(b"t", b"e", 0, after, 5, [0], [b"again"]))

        with patch.object(HistoryPages, "_page", page):
            assert self.get(self.subscribe()) == []
        assert len(asked) <= 2

    def test_an_acknowledged_message_is_stored(self) -> None:
        client = self.a.connect("nsd")
        client.send(nsd_lines.open_("t"))
        self.world.settle()
        client.take()
        client.send(nsd_lines.publish("t", "mine") + nsd_lines.get("t"))
        self.world.settle()
        self.a.pump()
        success, answer = client.take().splitlines(keepends=True)
        assert success == SUCCESS
        assert bodies(answer) == [*names(0, 5), "mine"]

    def test_a_later_get_has_only_new_messages(self) -> None:
        client = self.subscribe()
        self.get(client)
        end = self.a.store.next_offset
        self.publish(2)
        assert self.get(client, end) == names(5, 7)

    def test_long_histories_are_copied_in_pages(self) -> None:
        for number in range(10):
            self.host.send(publish(b"t", b"%d" % number + b"." * 200))
        for _ in range(20):
            self.host.send(b"".join(long_publish(b"t", 100_000) for _ in range(3)))
        self.world.settle()
        found = self.get(self.subscribe())
        assert len(found) == 75
        assert found[:5] == names(0, 5)

    def test_a_host_that_is_gone_does_not_hold_the_get(self) -> None:
        client = self.subscribe()
        self.get(client)
        self.world.crash("b")
        assert self.get(client) == names(0, 5)

    def test_a_host_that_does_not_reply_in_time_does_not_hold_the_get(self) -> None:
        client = self.subscribe()
        self.get(client)
        self.publish(1)
        self.cable.far.stream.feed = lambda data: None  # type: ignore[method-assign]
        client.send(nsd_lines.get("ada"))
        self.world.advance(5)
        assert client.take() == b""
        self.world.advance(30)
        assert bodies(client.take())[:5] == names(0, 5)

    def test_a_topic_that_the_host_does_not_store(self) -> None:
        self.b.broker.topics.named("t").set_durability(Durability.NONE)
        client = self.subscribe()
        self.world.settle()
        self.publish(2)
        assert self.get(client) == names(5, 7)

    def test_a_topic_that_the_host_stores_no_more(self) -> None:
        client = self.subscribe()
        self.get(client)
        self.b.broker.topics.named("t").set_durability(Durability.NONE)
        self.publish(1)
        self.publish(2)
        assert self.get(client) == [*names(0, 5), *names(6, 8)]
        (drop,) = self.a.broker.counters.drops.items()
        assert drop == ((self.cable.link.label, "t", "not-copied"), 1)
        (copy,) = self.a.store.items(COPIES)
        assert json.loads(copy[1])["live_from"] == -1

    def stop_storing(self, client: Client) -> list[str]:
        """Copy, and let the host store the topic no more; return the messages that were read."""
        self.get(client)
        self.b.broker.topics.named("t").set_durability(Durability.NONE)
        # The first is delivered while the copy has not ended.
        self.publish(1)
        self.publish(2)
        return [*names(0, 5), *names(6, 8)]

    def store_again(self) -> None:
        self.b.broker.topics.named("t").set_durability(Durability.ASYNC)

    def test_a_topic_that_the_host_stores_again(self) -> None:
        client = self.subscribe()
        before = self.stop_storing(client)
        self.store_again()
        self.publish(2)
        assert self.get(client) == [*before, *names(8, 10)]
        for number in range(10, 14):
            self.publish(1)
            assert self.get(client) == [*before, *names(8, number + 1)]
        self.publish(2, carry=False)
        assert self.get(client) == [*before, *names(8, 16)]
        self.cable.snap()
        self.publish(1)
        self.reconnect()
        assert self.get(client) == [*before, *names(8, 17)]

    def test_a_topic_that_the_host_stores_only_later(self) -> None:
        self.b.broker.topics.named("t").set_durability(Durability.NONE)
        client = self.subscribe()
        self.world.settle()
        self.publish(2)
        assert self.get(client) == names(5, 7)
        self.store_again()
        self.publish(2)
        assert self.get(client) == names(5, 9)

    def test_a_topic_that_the_host_stores_again_while_it_is_away(self) -> None:
        client = self.subscribe()
        before = self.stop_storing(client)
        assert self.get(client) == before
        self.cable.snap()
        self.store_again()
        self.publish(2)
        self.reconnect()
        assert self.get(client) == [*before, *names(8, 10)]

    def test_after_a_restart_of_this_broker(self) -> None:
        before = self.stop_storing(self.subscribe())
        self.cable.snap()
        store = self.a.store
        self.store_again()
        self.publish(2)
        self.start(store=store)
        client = self.a.connect("nsd")
        self.world.settle()
        assert self.get(client) == [*before, *names(8, 10)]

    def test_a_topic_that_is_closed_at_the_host(self) -> None:
        listener = self.b.listeners["spot"]
        listener.reconfigure({**listener.settings, "allow-subscribe": ()})
        client = self.subscribe()
        client.send(nsd_lines.get("ada"))
        self.world.settle()
        assert client.take() == NOTHING

    def test_a_peer_that_does_not_know_the_command(self) -> None:
        assert isinstance(self.cable.link, PeerConnection)
        del self.cable.link.handshake.metadata[EPOCH.lower()]
        client = self.subscribe()
        self.world.settle()
        self.publish(2)
        assert self.get(client) == names(5, 7)


class SubscriberTests(CopyCase):
    """Live subscribers of a topic that is copied"""

    def live(self) -> Client:
        return self.world.client(self.a, b"DEALER", subscribe(b"t"))

    def test_they_receive_each_new_message_once(self) -> None:
        early = self.live()
        self.publish(2)
        client = self.subscribe()
        self.world.settle()
        late = self.live()
        self.publish(2)
        wanted = [publish(b"t", b"%d" % number) for number in range(5, 9)]
        assert early.take() == b"".join(wanted)
        assert late.take() == b"".join(wanted[2:])
        assert self.get(client) == names(0, 9)

    def test_subscribers_receive_the_messages_of_a_broken_connection(self) -> None:
        client, live = self.subscribe(), self.live()
        self.cable.snap()
        self.publish(2)
        self.reconnect()
        self.publish(1)
        assert live.take() == b"".join(publish(b"t", b"%d" % number) for number in range(5, 8))
        assert self.get(client) == names(0, 8)

    def test_messages_stored_before_are_not_duplicated(self) -> None:
        self.live()
        self.publish(3)
        assert self.a.store.next_offset == 3
        assert self.get(self.subscribe()) == names(0, 8)

    def test_messages_stored_before_come_once_if_the_host_was_gone(self) -> None:
        self.live()
        self.publish(3)
        self.cable.snap()
        client = self.subscribe()
        found = self.get(client)
        end = self.a.store.next_offset
        self.reconnect()
        assert found + self.get(client, end) == names(0, 8)


class RestartTests(CopyCase):
    """The copy continues after a restart"""

    def test_of_this_broker(self) -> None:
        assert self.get(self.subscribe()) == names(0, 5)
        self.cable.snap()
        store = self.a.store
        assert isinstance(store, MemoryStore)
        assert len(list(store.items(COPIES))) == 1
        self.publish(2)
        # That of another broker, which hosts a topic of this name, is not taken.
        store.put(COPIES, '["tcp://c:7073", "t"]', b'{"epoch":"x","offset":99,"live_from":0}')
        end = store.next_offset
        self.start(store=store)
        client = self.a.connect("nsd")
        self.world.settle()
        assert self.get(client, end) == names(5, 7)
        assert self.get(client) == names(0, 7)

    def test_of_a_host_that_has_lost_its_history(self) -> None:
        client = self.subscribe()
        assert self.get(client) == names(0, 5)
        self.world.crash("b")
        self.b = self.world.restart("b")
        self.b.store.epoch = "another"
        self.host = self.world.client(self.b, b"DEALER")
        self.publish(2)
        self.world.advance(15)
        self.cable = self.world.cables[-1]
        assert self.get(client) == names(0, 7)

    def test_of_a_host_that_has_lost_the_topic(self) -> None:
        client = self.subscribe()
        assert self.get(client) == names(0, 5)
        self.world.crash("b")
        self.b = self.world.restart("b")
        self.b.store.epoch = "another"
        # Twice, as the subscription of this broker makes the other one host the topic again.
        for _ in range(2):
            self.world.advance(15)
            assert self.get(client) == names(0, 5)
        self.host = self.world.client(self.b, b"DEALER")
        self.publish(2)
        assert self.get(client) == names(0, 7)
        assert len(list(self.a.store.items(COPIES))) == 1

    def test_of_a_host_with_an_older_state_of_its_history(self) -> None:
        client = self.subscribe()
        before = self.b.store.epoch
        assert self.get(client) == names(0, 5)
        self.cable.snap()
        # The last two messages are others than those that were copied.
        parting = 6
        self.b.store.epoch = "another"
        self.publish(2)

        def continuation(_store: MemoryStore, epoch: str, offset: int) -> int:
            return min(offset, parting) if epoch == before else offset

        with patch.object(MemoryStore, "continuation", continuation):
            self.reconnect()
            assert self.get(client) == [*names(0, 5), *names(3, 7)]
            self.publish(1)
            assert self.get(client) == [*names(0, 5), *names(3, 8)]
