"""Lone messages of several clients in a tick, over the protocols that gather them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.publishing.publisher import Publisher
from pubsub.broker.routing.batch import Batch
from pubsub.kernel import Senders
from pubsub.protocols.fast.codec import ErrorCode
from pubsub.protocols.spot.zmtp import Command, encode_command, ping
from tests.unit import brokers, cafe_wire, fast_wire
from tests.unit.fast_wire import BAD_TOKEN, OWNER, READER, WRITER, WRONG_KEY, Fast
from tests.unit.spot_house import house, join
from tests.unit.streams import Client, House

OTHER_WRITER = fast_wire.grant("publish", sub="joe")


class Scene(NamedTuple):
    """A subscriber, two publishers, and their frames."""

    house: House
    subscriber: Client
    publishers: list[Client]
    publication: Callable[[int, bytes], bytes]
    message: Callable[[bytes], bytes]


Make = Callable[[SynchronousTestCase], Scene]


def cafe(case: SynchronousTestCase) -> Scene:
    home = House({"cafe": {}})
    subscriber = cafe_wire.handshaken(home, cafe_wire.hs_sub(b"\1", b"sub"))
    publishers = [
        cafe_wire.handshaken(home, cafe_wire.hs_pub(1, b"p%d" % number)) for number in range(2)
    ]
    return Scene(
        home,
        subscriber,
        publishers,
        lambda number, payload: cafe_wire.publish(1, payload),
        lambda payload: cafe_wire.message(
            1, payload, at=round(home.clock.seconds() * 1000).to_bytes(8, "little")
        ),
    )


def fast(case: SynchronousTestCase) -> Scene:
    home = Fast(case)
    home.owner()
    tokens = (WRITER, OTHER_WRITER)
    return Scene(
        home,
        home.reader(),
        [home.client() for _ in tokens],
        lambda number, payload: fast_wire.publish(tokens[number], payload),
        fast_wire.message,
    )


def spot(case: SynchronousTestCase) -> Scene:
    home = house()
    return Scene(
        home,
        join(home, b"DEALER", brokers.subscribe(b"t")),
        [join(home), join(home)],
        lambda number, payload: brokers.publish(b"t", payload),
        lambda payload: brokers.publish(b"t", payload),
    )


class LoneCase(SynchronousTestCase):
    """Messages that are sent one by one within a tick."""

    def begin(self, made: Make) -> Scene:
        """Return a scene in which each publisher has had a message gathered in this tick."""
        scene = made(self)
        self.sent: list[bytes] = []
        # Twice, as the first message of spot is recognized by no head yet.
        for number in (0, 1, 0, 1):
            self.send(scene, number)
        self.end(scene)
        for number in (0, 1, 0, 1):
            self.send(scene, number)
        return scene

    def send(self, scene: Scene, number: int) -> None:
        payload = b"%d" % len(self.sent)
        self.sent.append(payload)
        scene.publishers[number].stream.feed(scene.publication(number, payload))

    def end(self, scene: Scene) -> None:
        """End the tick, and check what the subscriber has got."""
        scene.house.turn()
        assert scene.subscriber.take() == b"".join(map(scene.message, self.sent))
        self.sent.clear()


class AlikeTests(LoneCase):
    """Messages like the last ones of their clients"""

    def assert_alike(self, made: Make) -> None:
        scene = self.begin(made)
        # They are published without a look at their topic.
        with patch.object(Publisher, "publish_soon", side_effect=AssertionError):
            for number in (0, 1, 1, 0):
                self.send(scene, number)
        self.end(scene)

    def test_cafe(self) -> None:
        self.assert_alike(cafe)

    def test_fast(self) -> None:
        self.assert_alike(fast)

    def test_spot(self) -> None:
        self.assert_alike(spot)

    def test_half_of_one(self) -> None:
        for made in (cafe, fast, spot):
            scene = self.begin(made)
            whole = scene.publication(0, b"halves")
            scene.publishers[0].stream.feed(whole[:-3])
            self.send(scene, 1)
            scene.publishers[0].stream.feed(whole[-3:])
            self.sent.append(b"halves")
            self.send(scene, 0)
            self.end(scene)

    def test_one_of_another_topic_between_them(self) -> None:
        unknown = fast_wire.topic_id("none")
        others: list[tuple[Make, bytes]] = [
            (cafe, cafe_wire.publish(2, b"other")),
            (fast, fast_wire.publish(WRITER, b"other", topic=unknown)),
            (spot, brokers.publish(b"u", b"other")),
        ]
        for made, other in others:
            scene = self.begin(made)
            scene.publishers[0].stream.feed(other)
            self.send(scene, 0)
            self.send(scene, 1)
            self.end(scene)

    def test_senders(self) -> None:
        scene = self.begin(fast)
        for number in (0, 1, 1):
            self.send(scene, number)
        self.end(scene)
        page = self.successResultOf(scene.house.store.read(0, None, 2**20))
        senders = b"".join(batch.sender[:1] * batch.count for batch in page.batches)
        assert senders == b"ejej" + b"ejejejj"


class ConfirmedTests(LoneCase):
    """Messages with a request for their confirmation, as the client library sends them"""

    def assert_confirmed_together(self, made: Make, question: bytes, answer: bytes) -> None:
        scene = self.begin(made)
        for publisher in scene.publishers:
            publisher.take()
        appended: list[int] = []
        append = scene.house.store.append

        def noted(batch: Batch, senders: Senders | None = None) -> None:
            append(batch, senders)
            appended.append(batch.count)

        with patch.object(scene.house.store, "append", noted):
            for number in (0, 1, 1):
                self.send(scene, number)
                scene.publishers[number].stream.feed(question)
            assert [one.take() for one in scene.publishers] == [b"", b""]
            self.end(scene)
        assert appended == [7]
        scene.house.pump()
        assert [one.take() for one in scene.publishers] == [answer, answer * 2]

    def test_cafe(self) -> None:
        self.assert_confirmed_together(cafe, cafe_wire.PING, cafe_wire.PONG)

    def test_fast(self) -> None:
        unknown = fast_wire.error(fast_wire.UNSUBSCRIBE, ErrorCode.NO_SUCH_TOPIC, 0)
        self.assert_confirmed_together(fast, fast_wire.unsubscribe(WRITER, 0), unknown)

    def test_spot(self) -> None:
        asked, answer = ping(b"1"), encode_command(Command(b"PONG", b"1"))
        self.assert_confirmed_together(spot, asked, answer)


class DeviceTests(SynchronousTestCase):
    """Clients that publish to a topic of their own, as devices do"""

    def assert_together(
        self, home: House, devices: list[Client], frames: list[bytes], *wanted: int
    ) -> None:
        """Check that frames of one tick are stored by appends of so many messages."""
        appended: list[int] = []
        append = home.store.append

        def noted(batch: Batch, senders: Senders | None = None) -> None:
            append(batch, senders)
            appended.append(batch.count)

        with patch.object(home.store, "append", noted):
            for device, data in zip(devices, frames, strict=True):
                device.stream.feed(data)
            home.turn()
        assert appended == list(wanted)

    def test_cafe(self) -> None:
        home = House({"cafe": {}})
        everything = cafe_wire.handshaken(home, cafe_wire.hs_sub(b"\1\2\3\4", b"all"))
        one = cafe_wire.handshaken(home, cafe_wire.hs_sub(b"\3", b"one"))
        devices = [
            cafe_wire.handshaken(home, cafe_wire.hs_pub(channel, b"d%d" % channel))
            for channel in range(1, 5)
        ]
        # The first messages create the topics.
        for appends in ([1, 1, 1, 1], [1, 3], [4]):
            sent = [cafe_wire.publish(channel, b"%d" % channel) for channel in range(1, 5)]
            self.assert_together(home, devices, sent, *appends)
            at = round(home.clock.seconds() * 1000).to_bytes(8, "little")
            wanted = [cafe_wire.message(channel, b"%d" % channel, at=at) for channel in range(1, 5)]
            assert everything.take() == b"".join(wanted)
            assert one.take() == wanted[2]

    def test_spot(self) -> None:
        home = house()
        everything = join(home, b"DEALER", brokers.subscribe(b"t/*"))
        devices = [join(home) for _ in range(4)]
        sent = [brokers.publish(b"t/%d" % number, b"x") for number in range(4)]
        for device, data in zip(devices, sent, strict=True):
            # The first message creates the topic, and the second one is recognized by no head yet.
            for _ in range(2):
                device.stream.feed(data)
                home.turn()
        everything.take()
        self.assert_together(home, devices, sent, 1, 3)
        assert everything.take() == b"".join(sent)


class TokenTests(LoneCase):
    """What a token permits is not taken for granted"""

    def assert_refused(self, scene: Scene, code: int) -> None:
        scene.publishers[0].take()
        scene.publishers[0].stream.feed(scene.publication(0, b"refused"))
        self.end(scene)
        assert scene.publishers[0].take() == fast_wire.error(3, code)

    def test_a_token_that_ends_meanwhile(self) -> None:
        short = fast_wire.for_seconds(10, "publish", sub="eve")
        scene = self.begin(fast)
        scene = scene._replace(
            publication=lambda number, payload: fast_wire.publish(short, payload)
        )
        self.send(scene, 0)
        self.send(scene, 0)
        scene.house.clock.rightNow += 10
        self.assert_refused(scene, BAD_TOKEN)

    def test_a_key_that_is_rotated_meanwhile(self) -> None:
        scene = self.begin(fast)
        scene.house.connect("fast").stream.feed(fast_wire.rotate(OWNER, b"k2"))
        scene.publishers[0].stream.feed(scene.publication(0, b"refused"))
        scene.house.turn()
        assert scene.publishers[0].take() == fast_wire.error(3, WRONG_KEY)

    def test_other_packets_in_between(self) -> None:
        scene = self.begin(fast)
        scene.publishers[0].stream.feed(fast_wire.subscribe(READER))
        self.send(scene, 0)
        scene.publishers[0].stream.feed(fast_wire.unsubscribe(READER))
        self.send(scene, 0)
        self.end(scene)
