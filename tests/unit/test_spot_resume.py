"""Subscribers of spot that resume by their identity (spot §3.5)."""

from __future__ import annotations

from typing import ClassVar

from twisted.trial.unittest import SynchronousTestCase

from pubsub.protocols.spot.subscriptions import SUBSCRIPTION_BYTES
from tests.unit.brokers import publish, ready, subscribe, unsubscribe
from tests.unit.streams import Client, House


class Resuming(SynchronousTestCase):
    """A broker with spot, and a publisher."""

    top: ClassVar[dict[str, object]] = {}

    def setUp(self) -> None:
        self.house = House({"spot": {}}, top=self.top)
        self.house.start()
        self.source = self.join(b"DEALER")

    def join(self, kind: bytes, identity: bytes = b"", *requests: bytes) -> Client:
        client = self.house.connect("spot")
        client.send(ready(kind, identity))
        self.house.pump(3)
        # Messages may already follow the greeting and READY.
        ends = 64 + 2 + client.stream.received[65]
        del client.stream.received[:ends]
        if requests:
            client.send(b"".join(requests))
        self.house.pump(5)
        return client

    def say(self, topic: bytes, *payloads: bytes) -> None:
        self.source.send(b"".join(publish(topic, payload) for payload in payloads))
        self.house.pump(3)

    def lose(self, client: Client) -> None:
        client.stream.lose()
        self.house.pump(2)


class DealerTests(Resuming):
    """Resumed subscriptions"""

    def test_missed_messages_precede_new_ones(self) -> None:
        reader = self.join(b"DEALER", b"bob", subscribe(b"t"))
        self.say(b"t", b"1")
        assert reader.take() == publish(b"t", b"1")
        self.lose(reader)
        self.say(b"t", b"2", b"3")
        again = self.join(b"DEALER", b"bob")
        assert again.take() == publish(b"t", b"2") + publish(b"t", b"3")
        self.say(b"t", b"4")
        assert again.take() == publish(b"t", b"4")

    def test_a_client_can_resume_repeatedly(self) -> None:
        reader = self.join(b"DEALER", b"bob", subscribe(b"t"))
        for number in range(5):
            self.lose(reader)
            self.say(b"t", b"%d" % number)
            reader = self.join(b"DEALER", b"bob")
            assert reader.take() == publish(b"t", b"%d" % number)

    def test_a_pattern_covers_topics_created_meanwhile(self) -> None:
        reader = self.join(b"DEALER", b"bob", subscribe(b"a*"))
        self.lose(reader)
        self.say(b"a1", b"x")
        self.say(b"b1", b"no")
        again = self.join(b"DEALER", b"bob")
        assert again.take() == publish(b"a1", b"x")
        self.say(b"a2", b"y")
        assert again.take() == publish(b"a2", b"y")

    def test_subscribing_again_delivers_once(self) -> None:
        reader = self.join(b"DEALER", b"bob", subscribe(b"t"), subscribe(b"t*"))
        self.lose(reader)
        self.say(b"t", b"1")
        again = self.house.connect("spot")
        again.send(ready(b"DEALER", b"bob") + subscribe(b"t") + subscribe(b"t*"))
        self.house.pump(5)
        self.say(b"t", b"2")
        got = again.take()
        assert got.endswith(publish(b"t", b"1") + publish(b"t", b"2"))
        assert got.count(b"\x01t") == 2

    def test_unsubscribing_at_once_omits_the_topic(self) -> None:
        reader = self.join(b"DEALER", b"bob", subscribe(b"t"), subscribe(b"u"))
        self.lose(reader)
        self.say(b"t", b"1")
        self.say(b"u", b"2")
        again = self.house.connect("spot")
        again.send(ready(b"DEALER", b"bob") + unsubscribe(b"t"))
        self.house.pump(5)
        assert again.take().endswith(publish(b"u", b"2"))
        self.say(b"t", b"3")
        assert again.take() == b""

    def test_an_interrupted_replay_continues(self) -> None:
        reader = self.join(b"DEALER", b"bob", subscribe(b"t"))
        self.lose(reader)
        payloads = [b"%04d" % number + b"." * 60 for number in range(8000)]
        for at in range(0, 8000, 500):
            self.say(b"t", *payloads[at : at + 500])
        got = b""
        for _ in range(40):
            again = self.house.connect("spot")
            again.send(ready(b"DEALER", b"bob"))
            again.stream.stop_reading()
            self.house.pump(3)
            got += again.take()
            self.lose(again)
        last = self.join(b"DEALER", b"bob")
        got += last.take()
        self.house.pump(100)
        got += last.take()
        # Messages written to a broken connection may be lost, but none is delivered twice.
        numbers = [int(part[:4]) for part in got.split(b"\x01\x01t\x00\x40")[1:] if len(part) > 3]
        assert numbers == sorted(set(numbers))
        assert numbers[-1] == 7999

    def test_many_topics_are_restored_in_slices(self) -> None:
        names = [b"t%04d" % number for number in range(500)]
        for name in names:
            self.say(name, b"0")
        reader = self.join(b"DEALER", b"bob", *map(subscribe, names[:250]), subscribe(b"t*"))
        self.house.pump(20)
        self.lose(reader)
        for _ in range(3):
            self.say(names[0], b"1")
            self.say(names[-1], b"2")
            # It is lost again before everything is restored.
            again = self.house.connect("spot")
            again.stream.feed(ready(b"DEALER", b"bob"))
            assert len(self.house.broker.slices) == 1
            self.lose(again)
        last = self.join(b"DEALER", b"bob")
        self.house.pump(50)
        assert last.take() == 3 * (publish(names[0], b"1") + publish(names[-1], b"2"))
        self.say(names[300], b"3")
        assert last.take() == publish(names[300], b"3")

    def test_many_prefixes_are_restored_in_slices(self) -> None:
        prefixes = [subscribe(b"t%04d*" % number) for number in range(1000)]
        reader = self.join(b"DEALER", b"bob", *prefixes)
        self.house.pump(20)
        self.lose(reader)
        self.say(b"t0999-x", b"1")
        again = self.house.connect("spot")
        again.stream.feed(ready(b"DEALER", b"bob"))
        assert len(self.house.broker.slices) == 1
        self.house.pump(50)
        assert again.take().endswith(publish(b"t0999-x", b"1"))

    def test_another_identity_does_not_get_the_session(self) -> None:
        reader = self.join(b"DEALER", b"bob", subscribe(b"t"))
        self.lose(reader)
        self.say(b"t", b"1")
        for kind, identity in ((b"DEALER", b""), (b"DEALER", b"eve"), (b"SUB", b"bob")):
            assert self.join(kind, identity).take() == b""
        assert self.join(b"DEALER", b"bob").take() == publish(b"t", b"1")

    def test_a_second_connection_does_not_take_over(self) -> None:
        first = self.join(b"DEALER", b"bob", subscribe(b"t"))
        second = self.join(b"DEALER", b"bob")
        self.say(b"t", b"1")
        assert first.take() == publish(b"t", b"1")
        assert second.take() == b""
        assert not first.closed

    def test_the_session_is_counted_beside_the_subscriptions_that_it_resumes(self) -> None:
        memory, names = self.house.broker.memory, [b"%d" % number for number in range(10)]
        reader = self.join(b"DEALER", b"bob", *map(subscribe, names))
        before = memory.used
        self.lose(reader)
        self.join(b"DEALER", b"bob")
        assert memory.used >= before + len(names) * SUBSCRIPTION_BYTES

    def test_after_the_window_nothing_is_held(self) -> None:
        reader = self.join(b"DEALER", b"bob", subscribe(b"t"))
        self.lose(reader)
        self.say(b"t", b"1")
        self.house.advance(61)
        assert self.join(b"DEALER", b"bob").take() == b""
        assert self.house.broker.sessions.absent((None, b""), b"bob") is None

    def test_a_client_without_subscriptions_leaves_no_session(self) -> None:
        reader = self.join(b"DEALER", b"bob")
        assert len(self.house.broker.sessions) == 1
        self.lose(reader)
        assert len(self.house.broker.sessions) == 0


class NoWindowTests(Resuming):
    """Without a window"""

    top: ClassVar[dict[str, object]] = {"resume-window": 0}

    def test_a_client_starts_without_subscriptions(self) -> None:
        reader = self.join(b"DEALER", b"bob", subscribe(b"t"))
        self.lose(reader)
        self.say(b"t", b"1")
        assert self.join(b"DEALER", b"bob").take() == b""


class FullTests(Resuming):
    """Without room for a session a client is still served"""

    top: ClassVar[dict[str, object]] = {"max-sessions": 1}

    def test_it_cannot_be_resumed(self) -> None:
        self.join(b"DEALER", b"ann", subscribe(b"t"))
        bob = self.join(b"DEALER", b"bob", subscribe(b"t"))
        self.say(b"t", b"1")
        assert bob.take() == publish(b"t", b"1")
        assert self.house.broker.counters.refusals == {("spot", "limit-reached"): 1}
