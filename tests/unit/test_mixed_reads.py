"""cafe, rheos and spot: reads that bring messages of several topics."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.publishing.publisher import Publisher
from pubsub.broker.topic_space.durability import Durability
from pubsub.store.memory_store import MemoryStore
from tests.unit import brokers, cafe_wire, rheos_wire
from tests.unit.cafe_wire import Cafe
from tests.unit.rheos_wire import ALICE, BOB, FAILED, Rheos
from tests.unit.streams import Client, House


def stored(case: SynchronousTestCase, house: House) -> list[tuple[str, bytes]]:
    """Return topic and payload of each message in the history, in order."""
    assert isinstance(house.store, MemoryStore)
    page = case.successResultOf(house.store.read(0, None, 2**30))
    return [
        (batch.topics[index], payload)
        for batch in page.batches
        for index, payload in zip(batch.columns.indexes(), batch.payloads(), strict=True)
    ]


def at_once() -> Any:
    """Return a context in which messages are published at once, or not at all."""
    return patch.object(Publisher, "publish", side_effect=AssertionError)


class CafeTests(SynchronousTestCase):
    """cafe"""

    SENT = ((1, b"a"), (2, b"b"), (1, b"c"), (3, b"dd"), (1, b""), (2, b"e"))

    def sent(self) -> bytes:
        return b"".join(cafe_wire.publish(*one) for one in self.SENT)

    def start(self, **settings: Any) -> tuple[Cafe, Client]:
        """Return the house and a publisher to channels that have been published to."""
        house = Cafe(**settings)
        publisher = house.publisher()
        publisher.send(b"".join(cafe_wire.publish(channel, b"0") for channel in (1, 2, 3)))
        return house, publisher

    def test_messages_keep_their_order(self) -> None:
        house, publisher = self.start()
        everything, some = house.subscriber(b"\1\2\3"), house.subscriber(b"\2\3")
        with at_once():
            publisher.send(self.sent())
        assert publisher.take() == b""
        stamp = cafe_wire.frames(everything.take())
        assert [(p[0], p[9:]) for _, p in stamp] == list(self.SENT)
        found = [(p[0], p[9:]) for _, p in cafe_wire.frames(some.take())]
        assert found == [one for one in self.SENT if one[0] != 1]
        assert stored(self, house)[3:] == [(f"cafe/{n}", payload) for n, payload in self.SENT]

    def test_a_frame_is_scanned_in_any_piece(self) -> None:
        house, publisher = self.start()
        reader = house.subscriber(b"\1\2\3")
        for byte in self.sent():
            publisher.send(bytes([byte]))
        found = [(p[0], p[9:]) for _, p in cafe_wire.frames(reader.take())]
        assert found == list(self.SENT)

    def test_channels_that_are_new(self) -> None:
        house = Cafe()
        publisher, reader = house.publisher(), house.subscriber(b"\1\2\3")
        publisher.send(self.sent())
        found = [(p[0], p[9:]) for _, p in cafe_wire.frames(reader.take())]
        assert found == list(self.SENT)
        assert all(house.broker.topics.named(f"cafe/{n}").hosted for n in (1, 2, 3))

    def test_a_channel_that_is_not_offered(self) -> None:
        house, publisher = self.start(channels="1-2")
        reader = house.subscriber(b"\1\2")
        publisher.take()
        publisher.send(self.sent())
        assert publisher.take() == cafe_wire.error(2)
        found = [(p[0], p[9:]) for _, p in cafe_wire.frames(reader.take())]
        assert found == [one for one in self.SENT if one[0] != 3]

    def test_a_channel_that_may_no_longer_be_published_to(self) -> None:
        house, publisher = self.start()
        reader = house.subscriber(b"\1\2\3")
        listener = house.listeners["cafe"]
        listener.reconfigure({**listener.settings, "allow-publish": ("cafe/[13]",)})
        publisher.send(self.sent())
        assert publisher.take() == cafe_wire.error(8) * 2
        found = [(p[0], p[9:]) for _, p in cafe_wire.frames(reader.take())]
        assert found == [one for one in self.SENT if one[0] != 2]

    def test_a_rate_limit(self) -> None:
        house, publisher = self.start(rate_messages=7)
        reader = house.subscriber(b"\1\2\3")
        publisher.send(self.sent())
        assert len(cafe_wire.frames(publisher.take())) == 2
        found = [(p[0], p[9:]) for _, p in cafe_wire.frames(reader.take())]
        assert found == list(self.SENT[:4])

    def test_a_channel_without_a_history_among_others(self) -> None:
        house, publisher = self.start()
        reader = house.subscriber(b"\1\2\3")
        house.broker.topics.named("cafe/2").set_durability(Durability.NONE)
        publisher.send(self.sent())
        found = [(p[0], p[9:]) for _, p in cafe_wire.frames(reader.take())]
        assert found == list(self.SENT)
        wanted = [(f"cafe/{n}", payload) for n, payload in self.SENT if n != 2]
        assert stored(self, house)[3:] == wanted

    def test_other_frames_in_between(self) -> None:
        house, publisher = self.start()
        reader = house.subscriber(b"\1\2\3")
        publisher.send(cafe_wire.PING.join([self.sent(), self.sent(), cafe_wire.publish(2, b"x")]))
        assert publisher.take() == cafe_wire.PONG * 2
        found = [(p[0], p[9:]) for _, p in cafe_wire.frames(reader.take())]
        assert found == [*self.SENT, *self.SENT, (2, b"x")]

    def test_a_session_that_resumes(self) -> None:
        """A subscriber that was away receives the missed messages, in order and once."""
        house, publisher = self.start()
        reader = house.subscriber(b"\1\3")
        session = reader.protocol.session.id  # type: ignore[attr-defined]
        publisher.send(self.sent())
        assert len(cafe_wire.frames(reader.take())) == 4
        reader.stream.lose()
        publisher.send(self.sent())
        publisher.send(cafe_wire.publish(3, b"x") + self.sent())
        again = house.connect("cafe")
        again.send(cafe_wire.hs_sub(b"\1\3", cafe_wire.resume(b"bob", session)))
        house.clock.advance(cafe_wire.GAP)
        house.pump()
        publisher.send(self.sent())
        (_, *messages) = cafe_wire.frames(again.take())
        own = [one for one in self.SENT if one[0] != 2]
        assert [(p[0], p[9:]) for _, p in messages] == [*own, (3, b"x"), *own, *own]


class RheosTests(SynchronousTestCase):
    """rheos"""

    NAMES = (b"news", b"sport", b"news", b"weather", b"sport", b"news")

    def sent(self, client_id: bytes = ALICE) -> bytes:
        return b"".join(
            rheos_wire.publish(client_id, b"%d" % n, name=name) for n, name in enumerate(self.NAMES)
        )

    def start(self, **settings: Any) -> tuple[Rheos, Client]:
        """Return the house and a publisher that the broker knows."""
        house = Rheos(**settings)
        for name in ("sport", "weather"):
            house.broker.topics.create(name)
        client = house.connect("rheos")
        client.send(rheos_wire.publish(ALICE, b"first"))
        client.take()
        return house, client

    def test_messages_keep_their_order(self) -> None:
        house, client = self.start()
        everything = house.reader(BOB, "news", "sport", "weather")
        one = house.reader(rheos_wire.CAROL, "sport")
        with at_once():
            client.send(self.sent())
        ids = rheos_wire.message_ids(client.take())
        assert ids == sorted(set(ids))
        assert len(ids) == 6
        wanted = [b"%d" % n for n in range(6)]
        assert everything.take() == rheos_wire.response(ALICE, *wanted)
        assert one.take() == rheos_wire.response(ALICE, b"1", b"4")
        assert [name.encode() for name, _ in stored(self, house)[1:]] == list(self.NAMES)

    def test_with_checksums(self) -> None:
        house = Rheos(checksum="crc32")
        house.broker.topics.create("sport")
        client = house.connect("rheos")
        sent = [
            rheos_wire.sealed(rheos_wire.publish(ALICE, b"%d" % n, name=(b"news", b"sport")[n % 2]))
            for n in range(10)
        ]
        client.send(b"".join(sent[:2]))
        client.take()
        client.send(b"".join(sent[2:6]) + sent[6][:-1] + b"?" + b"".join(sent[7:]))
        # Four acknowledgments and FAILED, each with a checksum; then the connection ends.
        assert len(client.take()) == 5 * 22
        assert client.closed
        assert [payload for _, payload in stored(self, house)] == [b"%d" % n for n in range(6)]

    def test_a_first_checksum_that_is_wrong(self) -> None:
        for first in (b"news", b"sport"):
            house = Rheos(checksum="crc32")
            client = house.connect("rheos")
            bad = rheos_wire.publish(ALICE, b"x", name=first) + bytes(4)
            client.send(bad + rheos_wire.sealed(rheos_wire.publish(ALICE, b"y", name=b"news")))
            assert client.take() == rheos_wire.sealed(FAILED)
            assert stored(self, house) == []

    def test_clients_that_share_a_connection(self) -> None:
        house, client = self.start()
        reader = house.reader(rheos_wire.CAROL, "news", "sport")
        client.send(
            rheos_wire.publish(ALICE, b"1")
            + rheos_wire.publish(BOB, b"2", name=b"sport")
            + rheos_wire.publish(ALICE, b"3", name=b"sport")
        )
        assert len(rheos_wire.message_ids(client.take())) == 3
        assert reader.take() == (
            rheos_wire.response(ALICE, b"1")
            + rheos_wire.response(BOB, b"2")
            + rheos_wire.response(ALICE, b"3")
        )

    def test_a_client_does_not_receive_its_own_messages(self) -> None:
        house, client = self.start()
        client.send(rheos_wire.subscribe(ALICE, b"sport"))
        client.take()
        reader = house.reader(BOB, "news", "sport", "weather")
        client.send(self.sent())
        assert len(rheos_wire.message_ids(client.take())) == 6
        assert reader.take() == rheos_wire.response(ALICE, *[b"%d" % n for n in range(6)])

    def test_an_unknown_topic(self) -> None:
        house, client = self.start()
        reader = house.reader(BOB, "news", "sport")
        house.broker.topic_lifecycle.end(house.broker.topics.named("weather"))
        client.send(self.sent())
        answer = client.take()
        assert answer[3 * 18 : 4 * 18] == FAILED
        assert len(rheos_wire.message_ids(answer.replace(FAILED, b""))) == 5
        assert reader.take() == rheos_wire.response(ALICE, *[b"%d" % n for n in (0, 1, 2, 4, 5)])

    def test_a_rate_limit(self) -> None:
        house, client = self.start(rate_messages=5)
        reader = house.reader(BOB, "news", "sport", "weather")
        client.send(self.sent())
        answer = client.take()
        assert answer.endswith(FAILED * 2)
        assert len(rheos_wire.message_ids(answer[: -2 * 18])) == 4
        assert reader.take() == rheos_wire.response(ALICE, *[b"%d" % n for n in range(4)])


class SpotTests(SynchronousTestCase):
    """spot"""

    NAMES = (b"news", b"sport", b"news", b"weather", b"sport", b"news")

    def sent(self) -> bytes:
        return b"".join(brokers.publish(name, b"%d" % n) for n, name in enumerate(self.NAMES))

    def join(self, house: House, *requests: bytes) -> Client:
        client = house.connect("spot")
        client.send(brokers.ready(b"DEALER") + b"".join(requests))
        house.turn()
        client.take()
        return client

    def start(self, **settings: object) -> tuple[House, Client]:
        """Return the house and a publisher whose topics are known."""
        own = {name.replace("_", "-"): value for name, value in settings.items()}
        house = House({"spot": own})
        first = [brokers.publish(name, b"0") for name in (b"news", b"sport", b"weather")]
        return house, self.join(house, *first)

    def test_messages_keep_their_order(self) -> None:
        house, client = self.start()
        everything = self.join(house, brokers.subscribe(b"*"))
        some = self.join(house, brokers.subscribe(b"sport"), brokers.subscribe(b"weather"))
        with at_once():
            client.send(self.sent())
        assert everything.take() == self.sent()
        assert some.take() == b"".join(
            brokers.publish(name, b"%d" % n) for n, name in enumerate(self.NAMES) if name != b"news"
        )
        wanted = [(name.decode(), b"%d" % n) for n, name in enumerate(self.NAMES)]
        assert stored(self, house)[3:] == wanted

    def test_topics_that_are_new(self) -> None:
        house = House({"spot": {}})
        client = self.join(house)
        everything = self.join(house, brokers.subscribe(b"*"))
        client.send(self.sent())
        assert everything.take() == self.sent()
        client.send(self.sent())
        assert everything.take() == self.sent()

    def test_long_frames_among_short_ones(self) -> None:
        house, client = self.start()
        reader = self.join(house, brokers.subscribe(b"*"))
        parts = []
        for n in range(20):
            head = brokers.publish((b"news", b"sport")[n % 2], b"")[:-2]
            body = bytes([n]) * (300 if n % 3 else 5)
            size = b"\x02" + len(body).to_bytes(8, "big") if n % 3 else bytes([0, 5])
            parts.append(head + size + body)
        client.send(b"".join(parts))
        assert reader.take() == b"".join(parts)

    def test_access_rules_that_change(self) -> None:
        house, client = self.start()
        reader = self.join(house, brokers.subscribe(b"*"))
        listener = house.listeners["spot"]
        listener.reconfigure({**listener.settings, "allow-publish": ("news",)})
        client.send(self.sent())
        assert reader.take() == b"".join(brokers.publish(b"news", b"%d" % n) for n in (0, 2, 5))
        assert house.broker.counters.refusals["spot", "not-authorized"] == 3

    def test_a_rate_limit(self) -> None:
        house, client = self.start(rate_messages=7)
        reader = self.join(house, brokers.subscribe(b"*"))
        client.send(self.sent())
        wanted = [brokers.publish(name, b"%d" % n) for n, name in enumerate(self.NAMES[:4])]
        assert reader.take() == b"".join(wanted)
        assert house.broker.counters.refusals["spot", "rate-limited"] == 2
