"""The client side of spot (§7): peers, the topics they host, and their failures."""

from __future__ import annotations

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.clients.peers import CONNECTED, LOST, peers_of
from pubsub.broker.delivery.slow_policy import PAUSE, SlowPolicy
from pubsub.broker.topic_space.topic_registry import TOPIC_BYTES
from pubsub.protocols.spot.cluster import Cluster
from pubsub.protocols.spot.peer_url import parse_peer
from pubsub.protocols.spot.topic_copies import COPIES
from tests.unit import nsd_lines
from tests.unit.brokers import (
    QUERY,
    World,
    message,
    publish,
    subscribe,
    unsubscribe,
)
from tests.unit.fakes import START
from tests.unit.streams import House, logged

B, C = "tcp://b:7073", "tcp://c:7073"
PING = b"\x04\x0f\x04PING\0\0"
UNREACHABLE = ("spot", "topic-unreachable")


def refusals(house: House) -> dict[tuple[str, str], int]:
    """Return the refusals of a broker."""
    return dict(house.broker.counters.refusals)


class PairTests(SynchronousTestCase):
    """A broker ``a`` that knows ``b``, which hosts the topic ``t``"""

    def setUp(self) -> None:
        self.world = World()
        self.b = self.world.house("b")
        self.host = self.world.client(self.b, b"DEALER", publish(b"t", b"first"))
        self.a = self.world.house("a", "b", cafe={"channels": "1:t"}, nsd={})
        (self.cable,) = self.world.cables
        self.cable.take()

    def test_it_is_a_peer(self) -> None:
        (peer,) = peers_of(self.a.broker.listeners[0].shared)
        assert (peer.state, peer.topic_count) == (CONNECTED, 1)

    def test_a_peer_that_cannot_be_reached_is_lost(self) -> None:
        world = World()
        house = world.house("x", "nowhere")
        (peer,) = peers_of(house.broker.listeners[0].shared)
        world.clock.advance(1)
        assert (peer.state, peer.topic_count) == (LOST, 0)
        figures = house.broker.statistics.snapshot()
        assert figures["peers"] == {"connected": 0, "connecting": 0, "lost": 1}

    def test_it_asks_for_the_list_of_topics(self) -> None:
        topic = self.a.broker.topics.named("t")
        assert topic.upstream is not None
        assert not topic.hosted
        assert self.b.broker.topics.named("t").hosted

    def test_reserved_topics_are_not_shared(self) -> None:
        far = self.world.house("far", spot={"grant": "$SYS/*"})
        far.broker.topics.create("$SYS/theirs")
        asker = self.world.client(far)
        asker.send(QUERY)
        assert b"$SYS/theirs" in asker.take()
        near = self.world.house("near", "far")
        assert QUERY in self.world.cables[-1].take()
        assert "$SYS/theirs" not in near.broker.topics

    def test_it_repeats_the_query_every_ten_seconds(self) -> None:
        self.world.advance(9)
        assert QUERY not in self.cable.take()
        self.world.advance(2)
        assert QUERY in self.cable.take()
        self.world.client(self.b, b"DEALER", publish(b"u", b"x"))
        self.world.advance(10)
        assert self.a.broker.topics.named("u").upstream is not None

    def expire_topics(self) -> None:
        """Have topics expire at ``a``, and end those of ``b`` that begin with ``short/``."""
        settings = {"topic-expiry": 60, "identity-expiry": 0, "resume-window": 60}
        self.a.listeners["spot"].unused_names.reconfigure(settings)
        far = self.b.listeners["spot"]
        for topic in list(far.topics.with_prefix(b"short/")):
            far.topic_lifecycle.end(topic)

    def short_topics(self) -> set[str]:
        """Return those of their names that ``a`` knows."""
        return {topic.name for topic in self.a.broker.topics.with_prefix(b"short/")}

    def test_unused_topics_that_their_host_no_longer_has_expire(self) -> None:
        self.world.client(self.b, b"DEALER", *(publish(b"short/%d" % n, b"x") for n in range(9)))
        reader = self.world.client(self.a, b"DEALER", subscribe(b"short/8"))
        self.world.advance(11)
        near = self.a.broker
        used, remote = near.memory.used, near.topics.named("short/0")
        assert remote.upstream is not None
        self.expire_topics()
        self.world.advance(200)
        # One that is hosted still, and one with a reader here.
        assert self.short_topics() == {"short/8"}
        assert near.memory.used == used - 8 * TOPIC_BYTES
        (peer,) = peers_of(near.listeners[0].shared)
        assert peer.topic_count == 2
        reader.stream.lose()
        self.world.advance(200)
        assert self.short_topics() == set()
        # It comes back as any other topic.
        self.world.client(self.b, b"DEALER", publish(b"short/0", b"x"))
        self.world.advance(11)
        again = near.topics.named("short/0")
        assert again.upstream is not None
        assert again is not remote

    def test_they_stay_if_messages_or_a_failure_of_the_host_come_first(self) -> None:
        self.world.client(self.b, b"DEALER", publish(b"short/1", b"x"), publish(b"short/2", b"x"))
        self.world.advance(11)
        self.expire_topics()
        self.world.advance(50)
        self.world.client(self.a, b"DEALER", publish(b"short/1", b"again"))
        assert self.b.broker.topics.named("short/1").hosted
        self.world.crash("b")
        self.world.advance(300)
        assert self.short_topics() == {"short/1", "short/2"}

    def test_a_long_list_is_taken_in_slices(self) -> None:
        names = [b"many/%04d" % number for number in range(500)]
        listed = message(b"", b"\x05", (500).to_bytes(4, "little"), *names)
        self.cable.near.feed(listed + publish(names[-1], b"x"))
        topics = self.a.broker.topics
        assert 0 < len(list(topics.with_prefix(b"many/"))) < 500
        self.a.turn()
        assert all(topic.upstream is not None for topic in topics.with_prefix(b"many/"))
        assert len(list(topics.with_prefix(b"many/"))) == 500

    def test_publications_go_to_the_host_only(self) -> None:
        reader = self.world.client(self.b, b"DEALER", subscribe(b"t"))
        before = self.a.store.next_offset
        self.world.client(self.a, b"DEALER", publish(b"t", b"x") + publish(b"t", b"y"))
        self.world.settle()
        assert self.cable.take() == publish(b"t", b"x") + publish(b"t", b"y")
        assert reader.take() == publish(b"t", b"x") + publish(b"t", b"y")
        assert self.a.store.next_offset == before
        assert self.a.broker.counters.published == 2

    def test_the_first_reader_subscribes_and_the_last_unsubscribes(self) -> None:
        one = self.world.client(self.a, b"DEALER", subscribe(b"t"))
        assert self.cable.take() == subscribe(b"t")
        two = self.world.client(self.a, b"DEALER", subscribe(b"*"))
        assert self.cable.take() == b""
        self.host.send(publish(b"t", b"x"))
        self.world.settle()
        assert [one.take(), two.take()] == [publish(b"t", b"x")] * 2
        one.send(unsubscribe(b"t"))
        assert self.cable.take() == b""
        two.stream.lose()
        self.world.settle()
        assert self.cable.take() == unsubscribe(b"t")
        assert not self.b.broker.topics.named("t").groups
        again = self.world.client(self.a, b"DEALER", subscribe(b"t"))
        assert self.cable.take() == subscribe(b"t")
        self.host.send(publish(b"t", b"again"))
        self.world.settle()
        assert again.take() == publish(b"t", b"again")

    def test_a_publisher_receives_its_own_message_once(self) -> None:
        client = self.world.client(self.a, b"DEALER", subscribe(b"t"))
        client.send(publish(b"t", b"mine"))
        self.world.settle()
        assert client.take() == publish(b"t", b"mine")

    def test_received_messages_are_stored_with_their_origin(self) -> None:
        self.world.client(self.a, b"DEALER", subscribe(b"t"))
        self.host.send(publish(b"t", b"x"))
        self.world.settle()
        page = self.successResultOf(self.a.store.read(0, None, 1000))
        (batch,) = page.batches
        assert (batch.payloads(), batch.sender, batch.protocol) == ([b"x"], B.encode(), "spot")
        assert self.a.broker.counters.published == 0

    def test_an_identity_of_nsd_reads_it(self) -> None:
        client = self.a.connect("nsd")
        client.send(b'{"_class":"SubscribeRequest","identity":"ada","channel":"t"}\n')
        self.world.settle()
        read = message(b"", b"\x08", b"t", b"", bytes(8))
        assert self.cable.take().startswith(read + subscribe(b"t"))
        client.send(b'{"_class":"UnsubscribeRequest","identity":"ada","channel":"t"}\n')
        self.world.settle()
        assert self.cable.take() == unsubscribe(b"t")

    def test_unrequested_messages_are_ignored(self) -> None:
        self.cable.near.feed(publish(b"t", b"x") + publish(b"u", b"x"))
        assert self.a.store.next_offset == 0

    def test_invalid_replies_are_counted_as_eproto(self) -> None:
        for request in (QUERY, subscribe(b"t"), unsubscribe(b"t"), message(b"x")):
            self.cable.near.feed(request)
        assert refusals(self.a) == {("spot", "eproto"): 4}

    def test_messages_too_large_for_the_peer(self) -> None:
        self.a.listeners["spot"].settings = {
            **self.a.listeners["spot"].settings, "max-message": 4,
        }  # fmt: skip
        self.world.client(self.a, b"DEALER", publish(b"t", b"12345"))
        assert refusals(self.a) == {("spot", "too-large"): 1}
        self.world.client(
            self.a, b"DEALER", publish(b"t", b"1") + publish(b"t", b"12345") + publish(b"t", b"1")
        )
        assert self.a.broker.counters.drops == {(B, "t", "too-large"): 1}
        assert self.cable.take() == publish(b"t", b"1") * 2

    # A lost connection

    def test_publishing_to_an_unreachable_topic_is_refused(self) -> None:
        self.world.crash("b")
        client = self.world.client(self.a, b"DEALER", publish(b"t", b"x") * 3)
        assert refusals(self.a) == {UNREACHABLE: 3}
        assert not client.closed
        cafe = self.a.connect("cafe")
        cafe.send(bytes.fromhex("fe ca 01 02 00 00 00 01 00 fe ca 10 02 00 00 00 01 78"))
        assert cafe.take().endswith(bytes.fromhex("fe ca ff 01 00 00 00 02"))
        nsd = self.a.connect("nsd")
        nsd.send(
            b'{"_class":"OpenRequest","identity":"t"}\n{"_class":"PublishRequest","identity":"t",'
            b'"message":{"_class":"Message","from":"","when":0,"body":""}}\n'
        )
        assert b"NO SUCH CHANNEL: t" in nsd.take()

    def test_nothing_is_confirmed_without_a_connection(self) -> None:
        topic, found = self.a.broker.topics.named("t"), list[bool]()
        assert topic.upstream is not None
        self.world.crash("b")
        topic.upstream.when_confirmed(topic, found.append)
        assert found == [False]

    def test_subscriptions_are_restored_with_the_connection(self) -> None:
        self.host.send(publish(b"u", b"first"))
        self.world.advance(11)
        reader = self.world.client(self.a, b"DEALER", subscribe(b"t"), subscribe(b"u"))
        self.world.crash("b")
        b = self.world.restart("b")
        self.world.advance(1)
        sent = self.world.cables[-1].take()
        assert sent.endswith(QUERY)
        again = publish(b"t", b"again") + publish(b"u", b"again")
        for name in (b"t", b"u"):
            assert sent.count(subscribe(name)) == 1
        self.world.client(b, b"DEALER", again)
        assert reader.take() == again

    def test_the_next_publication_makes_the_peer_host_it_again(self) -> None:
        self.world.crash("b")
        b = self.world.restart("b")
        self.world.advance(1)
        self.world.client(self.a, b"DEALER", publish(b"t", b"x"))
        assert b.broker.topics.named("t").hosted
        assert b.broker.counters.published == 1

    def test_unconfirmed_messages_are_counted(self) -> None:
        client = self.world.client(self.a, b"DEALER", publish(b"t", b"x") * 3)
        self.world.advance(3)
        assert PING + (3).to_bytes(8, "big") in self.cable.take()
        self.cable.is_cut = True
        client.send(publish(b"t", b"x") * 2)
        self.world.crash("b")
        assert self.a.broker.counters.drops == {(B, "*", "unconfirmed"): 2}

    def test_queued_messages_are_counted_once(self) -> None:
        self.cable.near.stop_reading()
        client = self.world.client(self.a)
        big = b"\x01\x00\x01\x01\x01\x01\x01t\x02" + (60_000).to_bytes(8, "big") + bytes(60_000)
        for _ in range(4):
            client.send(big)
        self.world.crash("b")
        assert self.a.broker.counters.dropped == 4
        assert {key[2] for key in self.a.broker.counters.drops} == {"unconfirmed", "disconnected"}

    def test_a_silent_peer_is_disconnected(self) -> None:
        self.world.advance(60)
        assert self.cable.link.is_open
        self.cable.is_cut = True
        self.world.advance(6)
        assert self.cable.link.is_open
        self.world.advance(2)
        assert not self.cable.link.is_open
        assert self.cable.near.aborted

    def test_a_peer_that_does_not_read_is_still_heard(self) -> None:
        self.cable.far.protocol.hold("a slow subscriber")
        self.world.advance(20)
        assert self.cable.link.is_open

    def test_silence_does_not_count_while_the_link_is_not_read(self) -> None:
        self.cable.link.hold("a slow subscriber")
        self.world.advance(20)
        assert self.cable.link.is_open

    def test_a_late_reply_is_counted_and_used(self) -> None:
        self.cable.far.protocol.hold("busy")
        self.world.client(self.b, b"DEALER", publish(b"u", b"x"))
        self.world.advance(14)
        assert refusals(self.a) == {("spot", "query-timeout"): 1}
        self.cable.far.protocol.release("busy")
        self.world.advance(1)
        assert self.a.broker.topics.named("u").upstream is not None

    def test_a_slow_local_reader_holds_the_link(self) -> None:
        self.a.listeners["spot"].slow = SlowPolicy(PAUSE)
        reader = self.world.client(self.a, b"DEALER", subscribe(b"t"))
        reader.stream.stop_reading()
        big = b"\x01\x00\x01\x01\x01\x01\x01t\x02" + (2**20).to_bytes(8, "big") + bytes(2**20)
        for _ in range(4):
            self.host.send(big)
            self.world.settle()
        assert self.cable.near.paused
        reader.stream.read()
        self.world.settle()
        assert not self.cable.near.paused


class BackoffTests(SynchronousTestCase):
    """Reconnecting"""

    def test_it_waits_longer_each_time(self) -> None:
        world = World()
        world.house("a", "b")
        for _ in range(20 * 64):
            world.clock.advance(1 / 64)
            world.clock.advance(0)
        waits = [round(y - x, 1) for x, y in zip(world.attempts, world.attempts[1:], strict=False)]
        assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]

    def test_success_resets_the_delay(self) -> None:
        world = World()
        house = world.house("a", "b")
        world.advance(10)
        world.house("b")
        world.advance(5)
        world.attempts.clear()
        world.crash("b")
        now = world.clock.seconds()
        world.clock.advance(0.1)
        assert world.attempts == [now + 0.1]
        self.successResultOf(house.broker.stopService())
        world.advance(10)
        assert len(world.attempts) == 1

    def test_peers(self) -> None:
        assert parse_peer("tcp://b.example:7073") == ("b.example", 7073)
        assert parse_peer("tcp://[::1]:1") == ("::1", 1)
        for text in (
            "b:7073",
            "tcp://b",
            "tcp://b:0",
            "tcp://b:65536",
            "tcp://:1",
            "udp://b:1",
            "",
        ):
            with pytest.raises(ValueError, match="expected tcp://HOST:PORT"):
                parse_peer(text)


class HostTests(SynchronousTestCase):
    """The host of a topic when there are several candidates"""

    def setUp(self) -> None:
        self.world = World()

    def test_a_local_topic_is_hosted_locally(self) -> None:
        b = self.world.house("b")
        self.world.client(b, b"DEALER", publish(b"t", b"x"))
        a = self.world.house("a")
        self.world.client(a, b"DEALER", publish(b"t", b"x"))
        a2 = self.world.house("a2", "b")
        assert a2.broker.topics.named("t").upstream is not None
        self.world.client(a2, b"DEALER", publish(b"own", b"x"))
        self.world.client(b, b"DEALER", publish(b"own", b"x"))
        self.world.advance(11)
        assert a2.broker.topics.named("own").upstream is None
        assert a2.broker.topics.named("own").hosted

    def test_a_topic_with_two_hosts_is_reported_once_while_it_exists(self) -> None:
        lines = logged(self)
        b = self.world.house("b")
        a = self.world.house("a", "b")
        for house in (a, b):
            self.world.client(house, b"DEALER", publish(b"own", b"x"))
        self.world.advance(31)
        assert len([line for line in lines if "it is hosted here too" in line]) == 1
        a.broker.topics.remove(a.broker.topics.named("own"))
        self.world.client(a, b"DEALER", publish(b"own", b"x"))
        self.world.advance(31)
        assert len([line for line in lines if "it is hosted here too" in line]) == 2

    def test_a_topic_with_two_hosts_is_shown_until_one_deletes_it(self) -> None:
        b = self.world.house("b")
        a = self.world.house("a", "b")
        for house in (a, b):
            self.world.client(house, b"DEALER", publish(b"own", b"x"))
        shown = a.broker.statistics.snapshot
        for host in (a, b):
            self.world.client(host, b"DEALER", publish(b"own", b"x"))
            self.world.advance(11)
            assert shown()["twice_hosted"]["topics"] == 1
            assert shown()["twice_hosted"]["example"][0] == "own"
            host.broker.topics.remove(host.broker.topics.named("own"))
            self.world.advance(11)
            assert shown()["twice_hosted"] == {"topics": 0, "example": None}
            if host is a:
                a.broker.topics.remove(a.broker.topics.named("own"))
                b.broker.topics.remove(b.broker.topics.named("own"))
                self.world.advance(11)
                self.world.client(a, b"DEALER", publish(b"own", b"x"))

    def test_two_addresses_of_one_broker_are_no_two_hosts(self) -> None:
        lines = logged(self)
        self.world.houses["also-b"] = b = self.world.house("b")
        a = self.world.house("a", "b", "also-b")
        subscriber = self.world.client(a, b"DEALER", subscribe(b"t"))
        self.world.client(b, b"DEALER", publish(b"t", b"x"), publish(b"u", b"x"))
        self.world.advance(31)
        assert not [line for line in lines if "delete it at one" in line]
        assert len([line for line in lines if "is the same broker as" in line]) == 1
        publisher = self.world.client(a, b"DEALER")
        publisher.send(publish(b"t", b"y"))
        self.world.settle()
        assert subscriber.take() == publish(b"t", b"y")

    def test_the_first_to_host_it_keeps_it(self) -> None:
        for name in ("b", "c"):
            house = self.world.house(name)
            self.world.client(house, b"DEALER", publish(b"t", b"x"))
        a = self.world.house("a", "b", "c")
        reader = self.world.client(a, b"DEALER", subscribe(b"t"))
        for name in ("b", "c"):
            self.world.client(self.world.houses[name], b"DEALER", publish(b"t", name.encode()))
        assert reader.take() == publish(b"t", b"b")

    def test_another_peer_takes_over_a_topic_forgotten_by_its_host(self) -> None:
        b, c = self.world.house("b"), self.world.house("c")
        self.world.client(b, b"DEALER", publish(b"t", b"x"))
        a = self.world.house("a", "b", "c", nsd={})
        nsd = a.connect("nsd")
        nsd.send(nsd_lines.subscribe("ada", "t"))
        self.world.settle()
        nsd.send(nsd_lines.unsubscribe("ada", "t"))
        assert len(list(a.store.items(COPIES))) == 1
        self.world.crash("b")
        self.world.client(c, b"DEALER", publish(b"t", b"x"))
        self.world.advance(12)
        self.world.client(a, b"DEALER", publish(b"t", b"x"))
        assert refusals(a) == {UNREACHABLE: 1}
        self.world.restart("b")
        self.world.advance(22)
        reader = self.world.client(a, b"DEALER", subscribe(b"t"))
        self.world.client(c, b"DEALER", publish(b"t", b"of c"))
        assert reader.take() == publish(b"t", b"of c")
        # Nothing is known of it as a topic of the first one.
        assert [key for key, _ in a.store.items(COPIES)] == [f'["{C}", "t"]']
        self.world.crash("b")
        b = self.world.restart("b")
        self.world.advance(12)
        assert "t" not in b.broker.topics

    def test_a_broker_does_not_forward_to_a_third(self) -> None:
        c = self.world.house("c")
        self.world.client(c, b"DEALER", publish(b"t", b"x"))
        b = self.world.house("b", "c")
        node = b.connect("spot")
        body = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x06X-Node\0\0\0\x0f" + b"0" * 15
        node.send(
            b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(48)
            + bytes([4, len(body)]) + body + subscribe(b"t") + publish(b"t", b"y")
        )  # fmt: skip
        node.take()
        self.world.settle()
        assert refusals(b) == {UNREACHABLE: 2}
        assert c.broker.counters.published == 1
        node.send(QUERY)
        assert node.take() == message(b"", b"\x05", bytes(4))

    def test_an_unused_channel_has_no_host(self) -> None:
        b = self.world.house("b", cafe={})
        a = self.world.house("a", "b", cafe={})
        assert not any(topic.upstream for topic in a.broker.topics)
        cafe = b.connect("cafe")
        cafe.send(bytes.fromhex("fe ca 01 02 00 00 00 07 00 fe ca 10 02 00 00 00 07 78"))
        self.world.advance(11)
        assert [t.name for t in a.broker.topics if t.upstream is not None] == ["cafe/7"]

    def test_a_restarted_broker_does_not_take_over(self) -> None:
        b = self.world.house("b")
        self.world.client(b, b"DEALER", publish(b"t", b"x"))
        a = self.world.house("a")
        early = self.world.client(a)
        cluster = Cluster(a.listeners["spot"], lambda: 0.0, self.world.reach)
        cluster.join(B)
        early.stream.feed(publish(b"t", b"too early"))
        assert refusals(a) == {UNREACHABLE: 1}
        self.world.settle()
        self.world.client(a, b"DEALER", publish(b"t", b"x") + publish(b"own", b"x"))
        assert refusals(a) == {UNREACHABLE: 1}
        assert b.broker.counters.published == 2
        assert a.broker.topics.named("own").hosted

    def test_each_of_several_peers_is_asked_first(self) -> None:
        a = self.world.house("a")
        cluster = Cluster(a.listeners["spot"], lambda: 0.0, self.world.reach)
        for peer in (B, C):
            self.world.house(peer[6:7])
            cluster.join(peer)
        self.world.clock.advance(0)
        self.world.cables[1].far.protocol.hold("busy")
        self.world.settle()
        self.world.client(a, b"DEALER", publish(b"t", b"x"))
        assert refusals(a) == {UNREACHABLE: 1}
        self.world.cables[1].far.protocol.release("busy")
        self.world.settle()
        self.world.client(a, b"DEALER", publish(b"t", b"x"))
        assert refusals(a) == {UNREACHABLE: 1}

    def test_no_client_waits_for_an_unreachable_peer(self) -> None:
        a = self.world.house("a", "b")
        self.world.client(a, b"DEALER", publish(b"t", b"x"))
        assert a.broker.topics.named("t").hosted

    def test_no_client_waits_for_a_peer_that_does_not_reply(self) -> None:
        a = self.world.house("a")
        self.world.house("b")
        cluster = Cluster(a.listeners["spot"], lambda: 0.0, self.world.reach)
        cluster.join(B)
        self.world.clock.advance(0)
        self.world.cables[0].far.protocol.hold("busy")
        self.world.settle()
        client = self.world.client(a, b"DEALER", publish(b"t", b"x"))
        assert refusals(a) == {UNREACHABLE: 1}
        # Longer than query-timeout, and less than the time for a handshake.
        self.world.advance(3)
        client.send(publish(b"t", b"x"))
        assert a.broker.topics.named("t").hosted
        # Nor for the next connections.
        for number in range(20):
            self.world.advance(2)
            client.send(publish(b"%d" % number, b"x"))
        assert refusals(a)[UNREACHABLE] == 1

    def test_subscribing_does_not_host(self) -> None:
        b = self.world.house("b")
        a = self.world.house("a", "b")
        reader = self.world.client(a, b"DEALER", subscribe(b"t"))
        assert not a.broker.topics.named("t").hosted
        self.world.client(b, b"DEALER", publish(b"t", b"x"))
        self.world.advance(11)
        self.world.client(b, b"DEALER", publish(b"t", b"y"))
        assert reader.take() == publish(b"t", b"y")

    def test_it_does_not_connect_to_itself(self) -> None:
        a = self.world.house("a", "a")
        # The topic is this broker's own at once, and not after the end of the connection.
        self.world.client(a, b"DEALER", publish(b"t", b"x"))
        assert a.broker.topics.named("t").hosted
        self.world.advance(30)
        assert len(self.world.attempts) == 1
        assert self.world.attempts[0] == START

    def test_messages_flow_in_both_directions(self) -> None:
        a = self.world.house("a", "b")
        b = self.world.house("b", "a")
        self.world.client(a, b"DEALER", publish(b"of a", b"x"))
        self.world.client(b, b"DEALER", publish(b"of b", b"x"))
        self.world.advance(12)
        readers = [self.world.client(h, b"SUB", message(b"\x01")) for h in (a, b)]
        for house in (a, b):
            for topic in (b"of a", b"of b"):
                self.world.client(house, b"PUB", message(topic, b"x"))
        wanted = sorted([message(b"of a", b"x"), message(b"of b", b"x")] * 2)
        for reader in readers:
            data = reader.take()
            size = len(wanted[0])
            assert sorted(data[i : i + size] for i in range(0, len(data), size)) == wanted
