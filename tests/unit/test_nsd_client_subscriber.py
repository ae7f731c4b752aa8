"""nsd's client: subscriptions and positions, with a broker in memory and with bytes."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pubsub.kernel import Columns
from pubsub.protocols.nsd.client import NsdWire
from pubsub.protocols.nsd.reading_session import NsdSession
from pubsub.store.memory_store import MemoryStore
from pubsub.wire.client_events import (
    Alive,
    Interest,
    Missed,
    NotSubscribed,
    Opened,
    Subscribed,
    WireEvent,
)
from pubsub.wire.client_wire import Role, WireConnection
from tests.unit.nsd_lines import SUCCESS, Nsd, error, get, open_, unsubscribe
from tests.unit.nsd_reading import (
    MISSING,
    NEWS,
    READER,
    SPORT,
    SPORT_READER,
    WIRE,
    listed,
    make_wire,
    message,
    opened,
    own_identity,
    position,
    subscribed,
    subscribing,
)
from tests.unit.wire_pairs import Pair, flat, others


def broker(epoch: str) -> Nsd:
    """Return a broker with a history of this epoch."""
    store = MemoryStore(1000, 1 << 20)
    store.epoch = epoch
    return Nsd(store=store)


class BrokerTests(SynchronousTestCase):
    """With a broker in memory"""

    def reader(self, house: Nsd, wire: NsdWire = WIRE, session: object = None) -> Pair:
        return Pair(house, "nsd", wire.connect(Role.SUBSCRIBER, session), piece=7)

    def publish(self, house: Nsd, topic: str, *payloads: bytes) -> None:
        writer = Pair(house, "nsd", make_wire(b"bob").connect(Role.PUBLISHER))
        writer.connection.publish(topic, Columns.of(list(payloads)))
        writer.settle()

    def polled(self, pair: Pair) -> list[WireEvent]:
        pair.events += pair.connection.wake()
        return pair.take()

    def test_a_topic_is_created_by_a_subscription(self) -> None:
        house = Nsd()
        reader = self.reader(house)
        reader.connection.subscribe(NEWS)
        assert reader.take() == [Opened(), Subscribed(NEWS)]
        assert reader.take_sent() == (
            get("pubsub-ping") + subscribing() + open_("news") + subscribing() + get(READER)
        )  # fmt: skip
        payloads = [b"one", b"", "ü€𝄞\n".encode(), b"x" * 999]
        self.publish(house, "news", *payloads)
        events = self.polled(reader)
        assert flat(events) == [("news", b"bob", payload) for payload in payloads]
        assert reader.take_sent() == get(READER)
        assert self.polled(reader) == []
        assert reader.take_sent() == get(READER, 4)

    def test_two_topics_and_the_end_of_one(self) -> None:
        house = Nsd()
        reader = self.reader(house)
        reader.connection.subscribe(NEWS)
        reader.connection.subscribe(SPORT)
        reader.settle()
        self.publish(house, "news", b"n1")
        self.publish(house, "sport", b"s1")
        assert sorted(flat(self.polled(reader))) == [
            ("news", b"bob", b"n1"), ("sport", b"bob", b"s1"),
        ]  # fmt: skip
        reader.take_sent()
        reader.connection.unsubscribe(NEWS)
        assert reader.take_sent() == unsubscribe(READER, "news")
        self.publish(house, "news", b"n2")
        self.publish(house, "sport", b"s2")
        assert flat(self.polled(reader)) == [("sport", b"bob", b"s2")]
        assert reader.take_sent() == get(SPORT_READER, 2)

    def test_the_end_of_another_subscription_to_the_topic(self) -> None:
        """A client has a connection of its own for each subscription with a start."""
        for wire in (WIRE, make_wire(b"")):
            house = Nsd()
            readers = [self.reader(house, wire) for _ in range(3)]
            interests = (NEWS, Interest("news", start=0), Interest("news", start=0))
            for reader, interest in zip(readers, interests, strict=True):
                reader.connection.subscribe(interest)
                reader.settle()
            readers[1].connection.unsubscribe(interests[1])
            readers[1].connection.close()
            readers[1].settle()
            self.publish(house, "news", b"1")
            for reader in (readers[0], readers[2]):
                assert flat(self.polled(reader)) == [("news", b"bob", b"1")]
            readers[2].connection.close()
            readers[2].settle()
            self.publish(house, "news", b"2")
            assert flat(self.polled(readers[0])) == [("news", b"bob", b"2")]

    def test_a_topic_that_is_subscribed_to_again(self) -> None:
        """It is one subscription, whose position stays: nothing is polled or delivered twice."""
        house = Nsd()
        reader = self.reader(house)
        reader.connection.subscribe(NEWS)
        reader.connection.subscribe(NEWS)
        assert reader.take() == [Opened(), Subscribed(NEWS)]
        reader.take_sent()
        self.publish(house, "news", b"a", b"b")
        # A request is on its way, and the response has both messages.
        assert reader.connection.wake() == []
        reader.connection.subscribe(NEWS)
        events = self.polled(reader)
        assert flat(events) == [("news", b"bob", b"a"), ("news", b"bob", b"b")]
        assert others(events) == [Subscribed(NEWS)]
        assert reader.take_sent() == get(READER)
        assert self.polled(reader) == []
        assert reader.take_sent() == get(READER, 2)

    def test_a_start(self) -> None:
        house = Nsd()
        self.publish(house, "news", b"a", b"b", b"c")
        reader = self.reader(house)
        start = Interest("news", start=1)
        reader.connection.subscribe(start)
        reader.connection.subscribe(NEWS)
        events = reader.take()
        assert others(events) == [Opened(), Subscribed(start), Subscribed(NEWS)]
        assert flat(events) == [("news", b"bob", b"b"), ("news", b"bob", b"c")]
        # They share an identity, whose subscription ends with the last of them.
        reader.take_sent()
        reader.connection.unsubscribe(start)
        self.publish(house, "news", b"d")
        assert flat(self.polled(reader)) == [("news", b"bob", b"d")]
        reader.connection.unsubscribe(NEWS)
        assert reader.take_sent().endswith(unsubscribe(READER, "news"))

    def test_a_start_beyond_the_end(self) -> None:
        house = Nsd()
        self.publish(house, "news", b"a", b"b")
        for start, refused in ((2, False), (3, True), (2**63, True)):
            reader = self.reader(house)
            beyond = Interest("news", start=start)
            reader.connection.subscribe(beyond)
            refusal = NotSubscribed(beyond, "the history ends at offset 2")
            events = reader.take()
            assert events == [Opened(), refusal if refused else Subscribed(beyond)]
            own = own_identity(reader.connection, "news")
            left = reader.take_sent().endswith(unsubscribe(own, "news"))
            assert left == refused

    def test_the_next_connection_continues(self) -> None:
        house = broker("e1")
        reader = self.reader(house)
        reader.connection.subscribe(NEWS)
        reader.settle()
        self.publish(house, "news", b"a")
        assert flat(self.polled(reader)) == [("news", b"bob", b"a")]
        reader.far.stream.lose()
        self.publish(house, "news", b"b")
        again = self.reader(house, session=reader.connection.session)
        again.connection.subscribe(NEWS)
        events = again.take()
        assert others(events) == [Opened(resumed=True), Subscribed(NEWS)]
        assert flat(events) == [("news", b"bob", b"b")]
        assert again.take_sent() == (
            get("pubsub-ping") + subscribing(epoch="e1", after=1) + get(READER, 1)
        )

    def test_a_broker_with_another_history(self) -> None:
        house, other = broker("e1"), broker("e2")
        reader = self.reader(house)
        reader.connection.subscribe(NEWS)
        reader.settle()
        self.publish(other, "news", b"first")
        again = self.reader(other, session=reader.connection.session)
        again.connection.subscribe(NEWS)
        events = again.take()
        missed = Missed("news", "the broker has another history now")
        assert others(events) == [Opened(resumed=True), missed, Subscribed(NEWS)]
        assert flat(events) == [("news", b"bob", b"first")]

    def test_refusals(self) -> None:
        reader = self.reader(Nsd(allow_subscribe="news", allow_publish="news"))
        reader.connection.subscribe(SPORT)
        reader.connection.ping()
        events = reader.take()
        assert [type(event) for event in events] == [Opened, NotSubscribed, Alive]
        assert str(events[1].reason).startswith("NO")  # type: ignore[union-attr]

    def test_a_goodbye(self) -> None:
        """Without a client id, no identity is left."""
        for client_id, left in ((b"", 0), (b"ada", 2)):
            house = Nsd()
            reader = self.reader(house, make_wire(client_id))
            reader.connection.subscribe(NEWS)
            reader.connection.subscribe(SPORT)
            reader.settle()
            reader.connection.close()
            reader.settle()
            identities = house.factories["nsd"]._identities
            found = [name for name in identities.subscriptions() if name in ("news", "sport")]
            # The topics have been opened under their own names.
            assert len(found) == 2 + left

    def test_payloads_that_are_not_text(self) -> None:
        house = Nsd(also={"cafe": {}})
        reader = self.reader(house)
        reader.connection.subscribe(NEWS)
        reader.settle()
        publisher = house.listeners["cafe"].publisher(house.connect("cafe").protocol, b"bob")
        topic = house.broker.topics.named("news")
        publisher.publish(topic, Columns.of([b"\xff\0", b"ok"]))
        assert [one[2] for one in flat(self.polled(reader))] == [b"\xff\0", b"ok"]


class PositionTests(SynchronousTestCase):
    def resumed(self, after: int = 5) -> WireConnection:
        connection = subscribed(NEWS, when=after)
        assert isinstance(connection.session, NsdSession)
        again = opened(connection.session)
        again.subscribe(NEWS)
        assert again.take_output() == subscribing(epoch="e1", after=after)
        return again

    def test_the_reply_has_the_position_to_continue_at(self) -> None:
        connection = self.resumed()
        assert connection.receive(position(5, continues=True)) == [Subscribed(NEWS)]
        assert connection.take_output() == get(READER, 5)

    def test_messages_that_a_crash_has_lost(self) -> None:
        connection = self.resumed()
        lost = Missed("news", "a crash of the broker has lost messages")
        assert connection.receive(position(3, continues=True)) == [lost, Subscribed(NEWS)]
        assert connection.take_output() == get(READER, 3)

    def test_another_history(self) -> None:
        connection = self.resumed()
        other = Missed("news", "the broker has another history now")
        assert connection.receive(position(9, epoch="e2")) == [other, Subscribed(NEWS)]
        assert connection.take_output() == get(READER)

    def test_a_broker_without_positions(self) -> None:
        refused = NotSubscribed(NEWS, "the broker does not tell its position")
        for connection in (self.resumed(), opened()):
            connection.subscribe(NEWS)
            assert connection.receive(SUCCESS) == [refused]
        start = Interest("news", start=4)
        connection = opened()
        connection.subscribe(start)
        connection.take_output()
        assert connection.receive(SUCCESS) == [Subscribed(start)]
        assert connection.take_output() == get(own_identity(connection, "news"), 4)

    def test_refusals_that_may_pass(self) -> None:
        """Such a subscription is requested again, at the same position."""
        for why in ("BROKER BUSY", "RATE LIMIT EXCEEDED", "LIMIT REACHED: subscriptions"):
            connection = self.resumed()
            assert connection.receive(error(why)) == [NotSubscribed(NEWS, why, passing=True)]
            connection.subscribe(NEWS)
            assert connection.take_output() == subscribing(epoch="e1", after=5)
        why = "NOT AUTHORIZED: news"
        assert self.resumed().receive(error(why)) == [NotSubscribed(NEWS, why)]

    def test_an_epoch_that_cannot_be_sent_back(self) -> None:
        for epoch, sent in (("\ud800", "?"), (5, "")):
            connection = opened()
            connection.subscribe(NEWS)
            connection.receive(position(5, epoch=epoch))
            again = opened(connection.session)
            again.subscribe(NEWS)
            assert again.take_output() == subscribing(epoch=sent, after=5)


class UnsubscribeTests(SynchronousTestCase):
    def test_messages_that_are_on_their_way(self) -> None:
        connection = subscribed(NEWS)
        connection.unsubscribe(NEWS)
        assert connection.receive(listed(message(1)) + SUCCESS) == []
        connection.wake()
        assert connection.take_output() == unsubscribe(READER, "news")

    def test_a_poll_that_is_refused_later(self) -> None:
        connection = subscribed(NEWS)
        connection.unsubscribe(NEWS)
        assert connection.receive(error("BROKER BUSY") + SUCCESS) == []

    def test_before_the_response_to_the_subscription(self) -> None:
        for response in (position(4), MISSING, error("NOT AUTHORIZED: news")):
            connection = opened()
            connection.subscribe(NEWS)
            connection.unsubscribe(NEWS)
            assert connection.take_output() == subscribing() + unsubscribe(READER, "news")
            assert connection.receive(response + SUCCESS) == []
            connection.wake()
            assert connection.take_output() == b""
            connection.subscribe(NEWS)
            assert connection.receive(position(4)) == [Subscribed(NEWS)]

    def test_another_start_that_is_not_accepted_yet(self) -> None:
        one = Interest("news", start=0)
        connection = subscribed(one)
        connection.subscribe(Interest("news", start=1))
        connection.take_output()
        connection.unsubscribe(one)
        assert connection.take_output() == b""
