"""rheos's client ids: the destination of deliveries, expiry, limits, revocation."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.credentials.identity import CERTIFICATE, SOCKET, Identity
from pubsub.protocols.rheos.client_ids import CLIENT_BYTES, SUBSCRIPTION_BYTES
from pubsub.wire.known_heads import HEAD_BYTES
from tests.unit import rheos_wire as wire
from tests.unit.fakes import recheck_all
from tests.unit.rheos_wire import ALICE, BOB, CAROL, FAILED, Rheos
from tests.unit.streams import Client


class OwnerTests(SynchronousTestCase):
    """An id belongs to the identity that was first to prove itself with it"""

    def setUp(self) -> None:
        self.rheos = Rheos()
        self.carol = self.rheos.connect("rheos")
        self.carol.send(wire.create(CAROL))
        self.carol.take()

    def proved(self, name: str, proof: str = CERTIFICATE) -> Client:
        client = self.rheos.connect("rheos")
        client.protocol.identify(Identity(name, proof, host="192.0.2.1"))
        return client

    def said(self, payload: bytes) -> bytes:
        """Publish as carol; return the response that subscribers get."""
        self.carol.send(wire.publish(CAROL, payload))
        self.carol.take()
        return wire.response(CAROL, payload)

    def test_others_cannot_use_it(self) -> None:
        alice = self.proved("alice")
        alice.send(wire.subscribe(ALICE))
        assert alice.take() == wire.topic_ack()
        for other in (
            self.proved("mallory"),
            self.proved("alice", SOCKET),
            self.rheos.connect("rheos"),
        ):
            for request in (
                wire.subscribe(ALICE),
                wire.publish(ALICE, b"x"),
                wire.create(ALICE, b"else"),
            ):
                other.send(request)
                assert other.take() == FAILED
            other.send(wire.publish(BOB, b"y") + wire.publish(ALICE, b"x", name=b"void"))
            assert other.take()[-18:] == FAILED
            alice.take()
            assert self.said(b"1") == alice.take()
            assert other.take() == b""
        # Twice for bob as well: the id belongs to mallory now.
        assert self.rheos.broker.counters.refusals["rheos", "not-authorized"] == 14
        assert "else" not in self.rheos.broker.topics

    def test_its_owner_may_move_and_return(self) -> None:
        first, second = self.proved("alice"), self.proved("alice")
        first.send(wire.subscribe(ALICE))
        second.send(wire.publish(ALICE, b"x"))
        second.take()
        assert self.said(b"1") == second.take()
        for client in (first, second):
            client.stream.lose()
        stranger, again = self.proved("mallory"), self.proved("alice")
        stranger.send(wire.subscribe(ALICE))
        assert stranger.take() == FAILED
        self.said(b"2")
        again.send(wire.publish(ALICE, b"y"))
        again.take()
        assert self.said(b"3") == again.take()

    def test_it_is_free_when_it_is_forgotten(self) -> None:
        alice, other = self.proved("alice"), self.proved("other")
        alice.send(wire.subscribe(ALICE))
        alice.stream.lose()
        self.rheos.clock.advance(61)
        other.send(wire.subscribe(ALICE))
        assert other.take() == wire.topic_ack()

    def test_a_proved_identity_takes_it_from_anonymous_clients(self) -> None:
        """Ids are no secret: a client that has seen one could otherwise keep its owner away."""
        squatters, alice = [self.rheos.connect("rheos") for _ in range(2)], self.proved("alice")
        for squatter in squatters:
            squatter.send(wire.subscribe(ALICE))
            assert squatter.take() == wire.topic_ack()
        alice.send(wire.publish(ALICE, b"x"))
        alice.take()
        assert self.said(b"1") == alice.take()
        for squatter in squatters:
            assert squatter.take() == b""
            squatter.send(wire.publish(ALICE, b"forged"))
            assert squatter.take() == FAILED
        alice.stream.lose()
        self.said(b"2")
        for squatter in squatters:
            assert squatter.take() == b""
            squatter.stream.lose()


class PlaceTests(SynchronousTestCase):
    """rheos §4.2: deliveries go to the latest connection of an id"""

    def setUp(self) -> None:
        self.rheos = Rheos()
        self.carol = self.rheos.connect("rheos")
        self.sent = 0

    def say(self) -> bytes:
        """Publish as carol; return the response that subscribers get."""
        self.sent += 1
        payload = b"%d" % self.sent
        self.carol.send(wire.publish(CAROL, payload))
        assert len(wire.message_ids(self.carol.take())) == 1
        return wire.response(CAROL, payload)

    def test_the_first_request_on_a_new_connection_moves_them(self) -> None:
        first = self.rheos.reader(ALICE)
        second = self.rheos.connect("rheos")
        assert self.say() == first.take()
        for request in (
            wire.create(ALICE),
            wire.publish(ALICE, b"x"),
            wire.subscribe(ALICE, b"void"),
        ):
            second.send(request)
            assert second.take()[:1] == b"\xac"
            assert self.say() == second.take()
            assert first.take() == b""

    def test_later_requests_on_the_older_one_do_not_move_them_back(self) -> None:
        first, second = self.rheos.reader(ALICE), self.rheos.reader(ALICE)
        first.send(wire.publish(ALICE, b"x") + wire.subscribe(ALICE))
        assert first.take()[18:] == wire.topic_ack()
        assert self.say() == second.take()
        assert first.take() == b""

    def test_earlier_messages_go_to_the_old_connection(self) -> None:
        first = self.rheos.reader(ALICE)
        second = self.rheos.connect("rheos")
        self.carol.stream.feed(wire.publish(CAROL, b"before"))
        second.stream.feed(wire.create(ALICE))
        self.carol.stream.feed(wire.publish(CAROL, b"after"))
        self.rheos.turn()
        assert first.take() == wire.response(CAROL, b"before")
        assert second.take() == FAILED + wire.response(CAROL, b"after")

    def test_the_end_of_an_older_connection_changes_nothing(self) -> None:
        first, second = self.rheos.reader(ALICE), self.rheos.reader(ALICE)
        first.stream.lose()
        assert self.say() == second.take()

    def test_they_move_back_when_the_latest_ends(self) -> None:
        readers = [self.rheos.reader(ALICE) for _ in range(4)]
        readers[1].stream.lose()
        for index in (3, 2):
            readers[index].stream.lose()
            assert self.say() == readers[index - 1 if index == 3 else 0].take()

    def test_a_topic_shared_by_ids_moves_with_the_last_of_them(self) -> None:
        shared = self.rheos.reader(ALICE)
        shared.send(wire.subscribe(BOB))
        shared.take()
        alice = self.rheos.reader(ALICE)
        said = self.say()
        assert (shared.take(), alice.take()) == (said, said)
        bob = self.rheos.reader(BOB)
        said = self.say()
        assert (shared.take(), alice.take(), bob.take()) == (b"", said, said)
        bob.stream.lose()
        assert self.say() == shared.take()

    def test_the_same_id_on_another_listener_is_another_client(self) -> None:
        other = self.rheos.factories["rheos"].__class__(self.rheos.listener)
        first = self.rheos.reader(ALICE)
        self.rheos.factories["rheos"] = other
        second = self.rheos.reader(ALICE)
        said = self.say()
        assert (first.take(), second.take()) == (said, said)


class OwnMessageTests(SynchronousTestCase):
    """rheos §5.3: to every subscriber except the publisher"""

    def test_the_others_share_one_encoding(self) -> None:
        rheos = Rheos()
        readers = [rheos.reader(client) for client in (ALICE, BOB, CAROL)]
        topic = rheos.broker.topics.named("news")
        assert len(topic.groups) == 1
        readers[0].send(wire.publish(ALICE, b"1", b"2"))
        assert len(wire.message_ids(readers[0].take())) == 2
        assert [r.take() for r in readers[1:]] == [wire.response(ALICE, b"1", b"2")] * 2
        assert len(topic.groups) == 1
        assert rheos.broker.counters.delivered == 4

    def test_order_is_kept_within_a_tick(self) -> None:
        rheos = Rheos()
        readers = {client: rheos.reader(client) for client in (ALICE, BOB, CAROL)}
        for number, client in enumerate((ALICE, BOB, BOB, CAROL, ALICE)):
            readers[client].stream.feed(wire.publish(client, b"%d" % number))
        rheos.turn()
        said = [(ALICE, b"0"), (BOB, b"1"), (BOB, b"2"), (CAROL, b"3"), (ALICE, b"4")]
        for client, reader in readers.items():
            own = [sender for sender, _ in said].count(client)
            wanted = b"".join(wire.response(s, p) for s, p in said if s != client)
            data = reader.take()
            # Acknowledgments are between the messages, in the order of the reads.
            for one in [data[at : at + 18] for at in range(len(data)) if data[at] == 0xAC][:own]:
                data = data.replace(one, b"", 1)
            assert data == wanted

    def test_it_gets_none_on_any_connection(self) -> None:
        rheos = Rheos()
        alice = rheos.reader(ALICE)
        other = rheos.connect("rheos")
        other.send(wire.create(BOB) + wire.publish(BOB, b"bob"))
        assert alice.take() == wire.response(BOB, b"bob")
        other.take()
        # From now on that is her latest connection.
        other.send(wire.publish(ALICE, b"alice"))
        assert len(wire.message_ids(other.take())) == 1
        assert alice.take() == b""

    def test_other_encodings_are_not_affected(self) -> None:
        rheos = Rheos(also={"cafe": {"channels": "1:news"}})
        alice = rheos.reader(ALICE)
        bob = rheos.connect("cafe")
        bob.send(bytes.fromhex("fe ca 02 03 00 00 00 01 01 00"))
        rheos.clock.advance(0.02)
        bob.take()
        alice.send(wire.publish(ALICE, b"hi"))
        assert bob.take().endswith(b"hi")
        assert len(wire.message_ids(alice.take())) == 1

    def test_a_refused_message_leaves_the_subscription(self) -> None:
        rheos = Rheos(rate_messages=1)
        alice, bob = rheos.reader(ALICE), rheos.reader(BOB)
        alice.send(wire.publish(ALICE, b"1", b"2") + wire.publish(ALICE, b"3"))
        assert alice.take()[18:] == FAILED * 2
        bob.take()
        bob.send(wire.publish(BOB, b"4"))
        assert alice.take() == wire.response(BOB, b"4")

    def test_a_slow_publisher_keeps_holding_the_others(self) -> None:
        rheos = Rheos(slow_consumer="pause", slow_bytes="256K")
        alice, bob = rheos.reader(ALICE), rheos.connect("rheos")
        alice.stream.stop_reading()
        while not bob.stream.paused:
            bob.send(wire.publish(BOB, bytes(30_000)))
        topic = rheos.broker.topics.named("news")
        blockers = set(topic.blockers)
        assert blockers
        alice.stream.feed(wire.publish(ALICE, b"own"))
        rheos.turn()
        assert topic.blockers == blockers
        assert bob.stream.paused

    def test_a_publisher_over_its_limit_is_evicted_while_it_publishes(self) -> None:
        rheos = Rheos(slow_bytes="100K", slow_consumer="disconnect")
        alice, other, bob = rheos.reader(ALICE), rheos.reader(CAROL), rheos.connect("rheos")
        alice.stream.stop_reading()
        bob.send(wire.publish(BOB, bytes(60_000), bytes(60_000)))
        # Collected in the tick in which she publishes herself: above her limit.
        bob.stream.feed(wire.publish(BOB, bytes(60_000), bytes(60_000)))
        published = rheos.broker.counters.published
        alice.stream.feed(
            wire.publish(ALICE, b"own") + wire.publish(CAROL, b"x") + wire.subscribe(ALICE)
        )
        rheos.turn()
        assert alice.stream.aborted
        # Nothing that follows in the same read is delivered.
        assert rheos.broker.counters.published == published + 1
        assert not rheos.refused("refused")
        assert other.take().endswith(wire.response(ALICE, b"own"))
        topic = rheos.broker.topics.named("news")
        assert [len(group) for group in topic.groups.values()] == [1]
        rheos.advance(61)
        assert len(rheos.clients) == 2


class KeptTests(SynchronousTestCase):
    """rheos §4.3: without a connection, for the resume window"""

    def test_an_id_that_reconnects_in_time_continues(self) -> None:
        rheos = Rheos()
        rheos.reader(ALICE).stream.lose()
        bob = rheos.connect("rheos")
        bob.send(wire.publish(BOB, b"missed"))
        rheos.advance(59.5)
        alice = rheos.connect("rheos")
        alice.send(wire.create(ALICE))
        assert alice.take() == FAILED
        bob.send(wire.publish(BOB, b"hi"))
        assert alice.take() == wire.response(BOB, b"hi")
        rheos.advance(120)
        bob.send(wire.publish(BOB, b"ho"))
        assert alice.take() == wire.response(BOB, b"ho")

    def test_after_the_window_it_is_removed(self) -> None:
        rheos = Rheos(top={"resume-window": 5})
        used = rheos.broker.memory.used
        rheos.reader(ALICE).stream.lose()
        assert len(rheos.clients) == 1
        assert rheos.broker.memory.used == used + CLIENT_BYTES + SUBSCRIPTION_BYTES
        rheos.advance(5)
        assert len(rheos.clients) == 0
        assert rheos.broker.memory.used == used
        assert not rheos.clock.getDelayedCalls()

    def test_an_id_without_subscriptions_is_removed_at_once(self) -> None:
        rheos = Rheos()
        used = rheos.broker.memory.used
        alice = rheos.connect("rheos")
        alice.send(wire.publish(ALICE, b"hi"))
        alice.stream.lose()
        assert len(rheos.clients) == 0
        assert rheos.broker.memory.used == used + HEAD_BYTES

    def test_it_is_removed_early_to_make_room(self) -> None:
        rheos = Rheos(top={"max-sessions": 2})
        for client in (ALICE, BOB):
            rheos.reader(client).stream.lose()
            rheos.advance(1)
        carol = rheos.reader(CAROL)
        assert len(rheos.clients) == 2
        bob = rheos.connect("rheos")
        bob.send(wire.create(BOB))
        carol.send(wire.publish(CAROL, b"hi"))
        assert bob.take() == FAILED + wire.response(CAROL, b"hi")
        alice = rheos.connect("rheos")
        alice.send(wire.create(ALICE))
        assert alice.take() == FAILED
        assert rheos.refused("limit-reached") == 1
        rheos.advance(61)
        assert len(rheos.clients) == 2

    def test_an_id_that_another_broker_has_before_it_is_lost_here(self) -> None:
        rheos = Rheos()
        rheos.broker.topics.create("sport")
        used = rheos.broker.memory.used
        alice = rheos.reader(ALICE, "news", "sport")
        client = rheos.clients._clients[ALICE]
        lost = rheos.clients.lose(client)
        next(lost)
        for _ in (*rheos.clients.lose(client, keep=False), *lost):
            pass
        assert len(rheos.clients) == 0
        alice.stream.lose()
        assert rheos.broker.memory.used == used
        rheos.advance(61)
        assert not rheos.clock.getDelayedCalls()

    def test_topics_closed_to_it_meanwhile_are_omitted(self) -> None:
        rheos = Rheos()
        rheos.broker.topics.create("sport")
        rheos.reader(ALICE, "news", "sport").stream.lose()
        rheos.listener.reconfigure({**rheos.listener.settings, "allow-subscribe": ("sport",)})
        alice = rheos.connect("rheos")
        alice.send(wire.create(ALICE))
        assert alice.take() == FAILED
        assert rheos.refused("revoked") == 1
        bob = rheos.connect("rheos")
        bob.send(wire.publish(BOB, b"n") + wire.publish(BOB, b"s", name=b"sport"))
        assert alice.take() == wire.response(BOB, b"s")


class RevokedTests(SynchronousTestCase):
    """rheos §5.6: live subscriptions are rechecked"""

    def test_a_revoked_subscription_ends_silently(self) -> None:
        rheos = Rheos()
        used = rheos.broker.memory.used
        alice, bob = rheos.reader(ALICE), rheos.connect("rheos")
        rheos.listener.reconfigure({**rheos.listener.settings, "allow-subscribe": ("sport",)})
        assert recheck_all(rheos.broker.router, rheos.broker.topics) == (0, 1)
        assert rheos.refused("revoked") == 1
        bob.send(wire.publish(BOB, b"hi"))
        assert alice.take() == b""
        assert not alice.closed
        # A new connection does not restore it.
        rheos.listener.reconfigure({**rheos.listener.settings, "allow-subscribe": ("*",)})
        again = rheos.connect("rheos")
        again.send(wire.create(ALICE))
        bob.send(wire.publish(BOB, b"ho"))
        assert again.take() == FAILED
        for client in (alice, bob, again):
            client.stream.lose()
        assert rheos.broker.memory.used == used + HEAD_BYTES

    def test_an_ended_topic_is_removed_to_make_room(self) -> None:
        rheos = Rheos(max_subscriptions=2)
        topics = rheos.broker.topics
        topics.create("sport")
        alice = rheos.reader(ALICE, "news", "sport")
        rheos.broker.topic_lifecycle.end(topics.named("sport"))
        topics.create("other")
        alice.send(wire.subscribe(ALICE, b"sport") + wire.subscribe(ALICE, b"other"))
        assert alice.take() == FAILED + wire.topic_ack("other")
        topics.create("sport")
        alice.send(wire.subscribe(ALICE, b"sport"))
        assert alice.take() == FAILED
        assert rheos.refused("limit-reached") == 1

    def test_an_ended_topic_does_not_move(self) -> None:
        rheos = Rheos()
        topics = rheos.broker.topics
        old = topics.create("sport")
        rheos.reader(ALICE, "news", "sport")
        rheos.broker.topic_lifecycle.end(old)
        topics.create("sport")
        alice = rheos.connect("rheos")
        alice.send(wire.create(ALICE))
        bob = rheos.connect("rheos")
        bob.send(wire.publish(BOB, b"s", name=b"sport") + wire.publish(BOB, b"n"))
        assert alice.take() == FAILED + wire.response(BOB, b"n")
        assert not old.groups
