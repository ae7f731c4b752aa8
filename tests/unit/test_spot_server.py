"""The server side of spot beyond its vectors: time limits, counters, access, settings (§2, §5)."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.routing.router import Router
from pubsub.broker.topic_space.provisional_topics import ProvisionalTopics
from pubsub.broker.topic_space.topic_registry import TOPIC_BYTES
from pubsub.errors import ConfigurationError
from pubsub.plugin import installed_protocols
from pubsub.protocols.spot.prefixes import Prefixes
from pubsub.protocols.spot.subscriptions import Subscriptions
from pubsub.protocols.spot.zmtp import Command, encode_command, encode_message
from pubsub.server.command_line import make_options
from pubsub.server.configuration import CommandLine, merge
from tests.unit.brokers import QUERY, message, publish, ready, subscribe, unsubscribe
from tests.unit.fakes import recheck_all
from tests.unit.spot_house import house, join
from tests.unit.streams import Client, House


class TimeTests(SynchronousTestCase):
    """Time limits"""

    def test_the_handshake_has_a_time_limit(self) -> None:
        home = house(handshake_seconds=3)
        for sent in (b"", ready(b"DEALER")[:64], ready(b"DEALER")[:-1]):
            client = home.connect("spot")
            if sent:
                client.send(sent)
            home.clock.advance(2.9)
            assert not client.closed
            home.clock.advance(0.2)
            assert client.closed
        assert home.broker.counters.refusals == {("spot", "handshake-timeout"): 3}

    def test_after_the_handshake_there_is_no_limit(self) -> None:
        home = house(handshake_seconds=3)
        client = join(home)
        home.start()
        home.advance(1000)
        assert not client.closed

    def test_a_peer_is_held_to_its_time_to_live(self) -> None:
        home = house()
        home.start()
        client = join(home, b"SUB", b"\x04\x07\x04PING\x00\x1e")
        home.advance(3)
        client.send(b"\x04\x07\x04PING\x00\x1e")
        home.advance(3)
        assert not client.closed
        home.advance(2)
        assert client.closed
        assert home.broker.counters.refusals == {("spot", "heartbeat"): 1}


class IdleTests(SynchronousTestCase):
    """What an idle connection takes"""

    def test_it_gets_no_attributes_later(self) -> None:
        """The attributes of its class would no longer share their names."""
        place = house()
        join(place, b"DEALER", subscribe(b"a"))
        (connection,) = place.broker.clients
        before = set(vars(connection))
        connection.sweep(place.clock.seconds())
        assert set(vars(connection)) == before


class RefusalTests(SynchronousTestCase):
    """Refusals are counted by reason"""

    def test_each_message_is_counted(self) -> None:
        home = house(allow_publish="a")
        client = join(home, b"DEALER", publish(b"b", b"x") * 5)
        assert home.broker.counters.refusals == {("spot", "not-authorized"): 5}
        assert "b" not in home.broker.topics
        assert not client.closed

    def test_they_are_reported_to_clients_that_request_it(self) -> None:
        home = house(allow_publish="a")
        client = home.connect("spot")
        client.send(ready(b"DEALER", refusals=True))
        assert b"\x0aX-Refusals\0\0\0\x011" in client.take()
        client.send(publish(b"b", b"x") + publish(b"a", b"x") + b"\x04\x08\x04PING\0\0a")
        report = b"\7REFUSED\0\0\0\1\x0enot-authorizedb"
        assert client.take() == bytes([4, len(report)]) + report + b"\x04\x06\x04PONGa"
        other = join(home, b"DEALER", publish(b"b", b"x"))
        assert other.take() == b""

    def test_origins_of_more_than_255_bytes_are_malformed(self) -> None:
        home = house()
        client = join(home, b"DEALER", encode_message([b"\x01", b"o" * 255, b"t", b"x"]))
        client.send(encode_message([b"\x01", b"o" * 256, b"t", b"x"]) * 9)
        assert home.broker.counters.refusals == {("spot", "eproto"): 9}
        assert home.broker.counters.published == 1
        assert not client.closed
        client.send(encode_message([b"", b"\x01", b"o" * 2**20, b"t", b"x"]))
        assert home.broker.counters.refusals == {("spot", "eproto"): 10}
        assert client.closed

    def test_prefixes_of_more_than_255_bytes_are_malformed(self) -> None:
        home = house()
        long = b"p" * 256
        before = home.broker.memory.used
        for kind, requests in (
            (b"DEALER", encode_message([b"", b"\x02", long + b"*"])),
            (b"SUB", encode_message([b"\x01" + long])),
            (b"SUB", encode_command(Command(b"SUBSCRIBE", long))),
        ):
            client = join(home, kind, requests)
            assert not client.closed
            client.stream.lose()
        assert home.broker.counters.refusals == {("spot", "eproto"): 3}
        assert home.broker.memory.used == before

    def test_origins_cost_no_more_than_their_charge_and_are_given_up(self) -> None:
        home = house()
        memory = home.broker.memory
        client = join(home)
        before = memory.used
        for number in range(150):
            origin = b"%03d" % number + b"o" * 252
            client.send(encode_message([b"\x01", origin, b"t", b"x"]) * 2)
        charged = memory.used - before - TOPIC_BYTES
        assert 150 * 2000 < charged < 150 * 3000
        memory.limit = memory.used
        memory.add(0)
        assert memory.used == before + TOPIC_BYTES
        client.send(encode_message([b"\x01", b"me", b"t", b"y"]))
        assert home.broker.counters.published == 301

    def test_prefixes_and_names_are_charged_until_they_end(self) -> None:
        home = house()
        memory = home.broker.memory
        before = memory.used
        for kind, requests, ended in (
            (b"DEALER", [subscribe(b"%03d*" % n) for n in range(300)], unsubscribe(b"007*")),
            (b"DEALER", [subscribe(b"%03d" % (n % 2)) for n in range(300)], unsubscribe(b"001")),
            (b"SUB", [message(b"\x01%03d" % n) for n in range(300)], message(b"\x00" + b"007")),
        ):
            client = join(home, kind, *requests)
            own = memory.used - before
            client.send(ended)
            each = own - (memory.used - before)
            assert each >= 700
            client.send(requests[7] * 2)
            assert memory.used == before + own
            client.stream.lose()
            before = TOPIC_BYTES * len(home.broker.topics)
            assert memory.used == before

    def test_no_more_prefixes_at_the_memory_bound(self) -> None:
        home = house()
        client = join(home)
        home.broker.memory.limit = home.broker.memory.used
        client.send(subscribe(b"a*"))
        assert home.broker.counters.refusals == {("spot", "memory"): 1}

    def test_a_publication_that_is_refused_leaves_no_topic(self) -> None:
        home = house(rate_messages=1)
        reader = join(home, b"DEALER", subscribe(b"*"))
        client = join(home, b"DEALER", publish(b"a", b"1"))
        client.send(publish(b"b", b"2") + publish(b"a", b"2"))
        assert home.broker.counters.refusals == {("spot", "rate-limited"): 2}
        assert "b" not in home.broker.topics
        assert reader.take() == publish(b"a", b"1")
        home.clock.advance(2)
        client.send(publish(b"b", b"3"))
        assert reader.take() == publish(b"b", b"3")

    def test_a_publication_that_is_refused_keeps_no_topic_of_others(self) -> None:
        """It would count in max-topics for ever."""
        for rate, published in ((1, False), (9, True)):
            home = house(rate_messages=rate)
            topics = home.broker.topics
            client = join(home, b"DEALER", publish(b"a", b"1"))
            needed = ProvisionalTopics(topics, home.broker.router)
            for _ in needed.add(("b",)):
                pass
            client.send(publish(b"b", b"2"))
            for _ in needed.withdraw():
                pass
            assert ("b" in topics) is published

    def test_messages_over_the_rate_are_counted(self) -> None:
        home = house(rate_messages=3)
        reader = join(home, b"DEALER", subscribe(b"t"))
        join(home, b"PUB", message(b"t", b"x") * 5)
        assert reader.take() == publish(b"t", b"x") * 3
        assert home.broker.counters.refusals == {("spot", "rate-limited"): 2}

    def test_a_connection_over_the_quota_is_closed(self) -> None:
        home = house(max_connections=1)
        join(home)
        client = home.connect("spot")
        assert client.closed
        assert client.take() == b""

    def test_topics_over_the_limit_are_counted(self) -> None:
        home = House({"spot": {}}, top={"max-topics": 1})
        client = join(home, b"DEALER", publish(b"a", b"") + publish(b"b", b"") + subscribe(b"c"))
        assert home.broker.counters.refusals == {("spot", "limit-reached"): 2}
        client.send(QUERY)
        assert client.take() == message(b"", b"\x05", b"\x01\0\0\0", b"a")

    def test_a_pattern_covers_readable_topics(self) -> None:
        home = house(allow_subscribe="a*")
        reader = join(home, b"SUB", message(b"\x01"))
        join(home, b"DEALER", publish(b"a", b"x") + publish(b"b", b"x"))
        assert reader.take() == message(b"a", b"x")
        assert home.broker.counters.refusals == {("spot", "not-authorized"): 1}

    def test_a_revoked_subscription_can_be_repeated(self) -> None:
        home = house()
        listener = home.listeners["spot"]
        reader = join(home, b"DEALER", subscribe(b"t"))
        listener.reconfigure({**listener.settings, "allow-subscribe": ()})
        assert recheck_all(home.broker.router, home.broker.topics) == (0, 1)
        listener.reconfigure({**listener.settings, "allow-subscribe": ("*",)})
        join(home, b"DEALER", publish(b"t", b"x"))
        assert reader.take() == b""
        reader.send(subscribe(b"t") + publish(b"t", b"y"))
        assert reader.take() == publish(b"t", b"y")

    def test_topics_of_a_pattern_that_were_revoked_can_be_subscribed_again(self) -> None:
        home = house()
        listener = home.listeners["spot"]
        dealer = join(home, b"DEALER", subscribe(b"t*"))
        plain = join(home, b"SUB", message(b"\x01t"))
        client = join(home, b"DEALER", publish(b"t", b"1"))
        assert dealer.take() == publish(b"t", b"1")
        assert plain.take() == message(b"t", b"1")
        listener.reconfigure({**listener.settings, "allow-subscribe": ()})
        assert recheck_all(home.broker.router, home.broker.topics) == (0, 2)
        listener.reconfigure({**listener.settings, "allow-subscribe": ("*",)})
        client.send(publish(b"t", b"2"))
        assert dealer.take() == plain.take() == b""
        dealer.send(subscribe(b"t*") * 2)
        plain.send(message(b"\x01t") * 2)
        client.send(publish(b"t", b"3"))
        assert dealer.take() == publish(b"t", b"3")
        assert plain.take() == message(b"t", b"3")


class SenderTests(SynchronousTestCase):
    """The sender of a message"""

    def senders(self, home: House) -> list[bytes]:
        page = self.successResultOf(home.store.read(0, None, 10_000))
        return [batch.sender for batch in page.batches]

    def named(self, home: House, identity: bytes) -> Client:
        client = home.connect("spot")
        plain = ready(b"DEALER")
        body = plain[66:] + b"\x08Identity\0\0\0" + bytes([len(identity)]) + identity
        client.send(plain[:64] + bytes([4, len(body)]) + body)
        return client

    def test_the_sender_is_the_identity_or_the_origin(self) -> None:
        home = house()
        client = self.named(home, b"me")
        client.send(publish(b"t", b"x") + message(b"", b"\x01", b"you", b"t", b"x"))
        client.send(message(b"\x01", b"", b"t", b"x"))
        assert self.senders(home) == [b"me", b"you", b""]
        assert client.protocol.label.startswith("me@192.0.2.1:")

    def test_small_reads_of_several_topics(self) -> None:
        home = house()
        clients = [self.named(home, name) for name in (b"me", b"you")]
        own = publish(b"t", b"x") + publish(b"u", b"x")
        sent = b"".join(message(b"", b"\x01", b"it", topic, b"x") for topic in (b"t", b"u"))
        clients[0].send(publish(b"t", b"x"))
        for data in (own, sent) * 3:
            for client in clients:
                client.send(data)
        home.advance(0)
        page = self.successResultOf(home.store.read(1, None, 10_000))
        senders = [one for batch in page.batches for one in [batch.sender] * batch.count]
        assert senders == ([b"me"] * 2 + [b"you"] * 2 + [b"it"] * 4) * 3


class EndTests(SynchronousTestCase):
    """Disconnected clients"""

    def test_they_hold_nothing(self) -> None:
        home = house()
        for kind, request in (
            (b"DEALER", subscribe(b"t") + subscribe(b"t*")),
            (b"SUB", message(b"\x01") + message(b"\x01t")),
            (b"PUB", message(b"t", b"x")),
        ):
            join(home, kind, request).stream.lose()
        assert not home.broker.topics.named("t").groups
        join(home, b"DEALER", publish(b"t2", b"x"))
        assert not home.broker.topics.named("t2").groups

    def test_an_incomplete_frame_is_discarded(self) -> None:
        home = house()
        client = join(home, b"DEALER", publish(b"t", b"x") * 3 + publish(b"t", b"xyz")[:-1])
        client.stream.lose()
        assert home.broker.counters.published == 3

    def test_messages_of_one_read_are_one_batch(self) -> None:
        home = house()
        client = join(home, b"DEALER", publish(b"t", b"x"))
        client.send(publish(b"t", b"y") * 1000)
        page = self.successResultOf(home.store.read(0, None, 10_000))
        assert [batch.count for batch in page.batches] == [1, 1000]

    def test_unsubscribing_from_an_ended_topic(self) -> None:
        home = house()
        client = join(home, b"DEALER", subscribe(b"t"))
        home.broker.topic_lifecycle.end(home.broker.topics.named("t"))
        client.send(unsubscribe(b"t") + QUERY)
        assert client.take() == message(b"", b"\x05", bytes(4))

    def test_a_client_that_is_evicted_while_it_subscribes(self) -> None:
        """Messages that wait are delivered before a subscription begins."""
        home = house()
        join(home, b"DEALER", publish(b"news", b"x"))
        used = home.broker.memory.used
        client = join(home)

        def evict(*given: object, **named: object) -> None:
            if not client.closed:
                client.protocol.evict("too slow")

        with patch.object(Router, "complete", evict):
            client.send(subscribe(b"news"))
        home.turn()
        assert client.closed
        assert home.broker.memory.used == used


class SettingTests(SynchronousTestCase):
    """--peer, and the list in the file"""

    def peers(self, *options: str) -> tuple[str, ...]:
        made = make_options({"spot": installed_protocols()["spot"]})
        made.parseOptions(list(options))
        (listener,) = made.config.listeners
        found: tuple[str, ...] = listener.settings["peers"]
        return found

    def test_none(self) -> None:
        assert self.peers() == ()

    def test_repeated(self) -> None:
        found = self.peers("--peer=tcp://b:1", "--peer", "tcp://c:2", "--peer=tcp://b:1")
        assert found == ("tcp://b:1", "tcp://c:2")

    def test_invalid_addresses_are_refused(self) -> None:
        with pytest.raises(
            SystemExit, match="peers: expected tcp://HOST:PORT or tls://HOST:PORT, not 'b:1'"
        ):
            self.peers("--peer=b:1")

    def test_in_the_file(self) -> None:
        protocols = {"spot": installed_protocols()["spot"]}
        for listed in (["tcp://b:1", "tcp://c:2"], "tcp://b:1, tcp://c:2"):
            config = merge(protocols, CommandLine(), {"spot": {"peers": listed}})
            assert config.listeners[0].settings["peers"] == ("tcp://b:1", "tcp://c:2")
        with pytest.raises(ConfigurationError, match="expected tcp://HOST:PORT"):
            merge(protocols, CommandLine(), {"spot": {"peers": [7]}})


class OrderTests(SynchronousTestCase):
    """The order of messages: within a topic live, and over all topics in the history"""

    def test_topics_in_turn_are_ordered_live_and_in_the_history(self) -> None:
        home = house()
        reader = join(home, b"DEALER", subscribe(b"a") + subscribe(b"b"))
        client = join(home, b"DEALER", publish(b"a", b"0") + publish(b"b", b"0"))
        reader.take()
        client.send(b"".join(publish(b"ab"[n % 2 :][:1], b"%03d" % n) for n in range(100)))
        found = reader.take()
        size = len(publish(b"a", b"000"))
        messages = [found[at : at + size] for at in range(0, len(found), size)]
        for topic, first in ((b"a", 0), (b"b", 1)):
            wanted = [publish(topic, b"%03d" % n) for n in range(first, 100, 2)]
            assert [m for m in messages if m[7:8] == topic] == wanted
        page = self.successResultOf(home.store.read(2, None, 1_000_000))
        stored = [data for batch in page.batches for data in batch.payloads()]
        assert stored == [b"%03d" % n for n in range(100)]

    def test_one_topic_from_several_origins(self) -> None:
        home = house()
        reader = join(home, b"DEALER", subscribe(b"t"))
        client = join(home)
        for _ in range(2):
            client.send(
                b"".join(
                    message(b"", b"\x01", b"you" if n % 3 else b"me", b"t", b"%03d" % n)
                    + publish(b"u", b"x")
                    for n in range(50)
                )
            )
            assert reader.take() == b"".join(publish(b"t", b"%03d" % n) for n in range(50))
        page = self.successResultOf(home.store.read(0, frozenset("t"), 10_000))
        senders = [(b.sender, data) for b in page.batches for data in b.payloads()]
        assert senders[:3] == [(b"me", b"000"), (b"you", b"001"), (b"you", b"002")]

    def test_a_publication_of_one_socket_type_is_invalid_for_another(self) -> None:
        home = house()
        join(home, b"PUB", message(b"\x01", b"x"))
        client = join(home, b"DEALER", message(b"\x01", b"x") * 2)
        assert home.broker.counters.refusals == {("spot", "eproto"): 2}
        assert home.broker.counters.published == 1
        assert not client.closed

    def test_a_subscription_between_publications(self) -> None:
        home = house()
        client = join(home, b"DEALER", publish(b"t", b"0"))
        client.send(
            publish(b"t", b"1") * 2
            + subscribe(b"t")
            + publish(b"t", b"2") * 2
            + unsubscribe(b"t")
            + publish(b"t", b"3")
        )
        assert client.take() == publish(b"t", b"2") * 2


class PaceTests(SynchronousTestCase):
    """Requests whose replies are large (§3.3)"""

    def test_a_query_over_many_topics_is_answered_in_slices(self) -> None:
        home = house()
        names = [b"t%06d" % number for number in range(10_000)]
        for name in names:
            home.broker.topics.create(name)
        client = join(home)
        client.stream.feed(QUERY + publish(b"u", b"x"))
        assert client.take() == b""
        assert home.broker.memory.used > 10_000 * len(names[0])
        before = home.broker.memory.used
        home.pump()
        assert client.take() == message(b"", b"\x05", (10_000).to_bytes(4, "little"), *names)
        assert home.broker.counters.published == 1
        # Only the memory of the topic u was added.
        assert home.broker.memory.used < before

    def test_replies_wait_until_they_are_read(self) -> None:
        home = house()
        names = [b"%0200d" % number for number in range(1000)]
        client = join(home, b"DEALER", b"".join(publish(name, b"") for name in names))
        client.stream.stop_reading()
        client.send(QUERY * 100)
        home.pump()
        assert len(client.stream.buffered) < 300_000
        client.stream.read()
        home.pump(200)
        answer = message(b"", b"\x05", (1000).to_bytes(4, "little"), *names)
        assert client.take() == answer * 100

    def test_many_topics_are_joined_and_left_in_slices(self) -> None:
        home = house()
        for number in range(1001):
            home.broker.topics.create(f"t{number}")
        client = join(home)
        for request, readers in ((subscribe(b"t*"), 1), (unsubscribe(b"t*"), 0)):
            before = home.broker.counters.published
            client.stream.feed(request + publish(b"u", b"x"))
            assert home.broker.counters.published == before
            assert len(home.broker.slices) == 1
            home.pump()
            assert home.broker.counters.published == before + 1
            assert len(home.broker.slices) == 0
            read = [len(topic.groups) for topic in home.broker.topics if topic.name != "u"]
            assert read == [readers] * 1001

    def test_one_that_fails_ends_the_connection(self) -> None:
        """It would wait for the end of its request forever."""
        home = house()
        for number in range(1001):
            home.broker.topics.create(f"t{number}")
        client = join(home)
        client.stream.feed(subscribe(b"t*") + publish(b"u", b"x"))
        assert len(home.broker.slices) == 1
        with patch.object(Subscriptions, "join", side_effect=MemoryError("no memory")):
            home.pump()
        assert len(self.flushLoggedErrors(MemoryError)) == 1  # type: ignore[no-untyped-call]
        assert client.stream.aborted
        assert len(home.broker.slices) == 0
        client.stream.lose()
        home.pump()
        assert home.broker.counters.connections == 0

    def test_the_end_of_a_prefix_looks_at_its_topics_only(self) -> None:
        home = house()
        for number in range(5000):
            home.broker.topics.create(f"{number:04}")
        prefixes = [b"%04d" % number for number in range(1, 1000)]
        client = join(home, b"DEALER", b"".join(subscribe(prefix + b"*") for prefix in prefixes))
        home.pump(200)
        seen: list[bytes] = []
        cover = Prefixes.cover

        def count(prefixes: Prefixes, name: bytes) -> bool:
            seen.append(name)
            return cover(prefixes, name)

        self.patch(Prefixes, "cover", count)  # type: ignore[no-untyped-call]
        client.stream.feed(unsubscribe(b"0007*") + publish(b"u", b"x"))
        assert home.broker.counters.published == 1
        # The prefix itself, and the only topic that has it.
        assert seen == [b"0007"] * 2

    def test_work_ends_with_its_connection(self) -> None:
        home = house()
        for number in range(1001):
            home.broker.topics.create(f"t{number}")
        client = join(home)
        client.stream.feed(subscribe(b"t*"))
        client.stream.lose()
        home.pump()
        assert len(home.broker.slices) == 0
        assert not any(topic.groups for topic in home.broker.topics)

    def test_a_lost_connection_cancels_waiting_queries(self) -> None:
        home = house()
        client = join(home)
        client.stream.feed(QUERY * 2)
        client.stream.lose()
        home.pump()
        assert not home.clock.getDelayedCalls()
