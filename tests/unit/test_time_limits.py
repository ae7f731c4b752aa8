"""The time limits of unfinished frames and handshakes."""

from __future__ import annotations

from typing import Any

from twisted.internet.interfaces import IHandshakeListener
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.clients.handshakes import Handshakes
from pubsub.errors import FrameTimeout, HandshakeTimeout
from pubsub.wire.connection import ConnectionFactory
from tests.unit import cafe_wire
from tests.unit.connections import Frames, Lines, Setup, frame
from tests.unit.fakes import clock_at
from tests.unit.fast_wire import Fast
from tests.unit.streams import Client, House, Stream

PARTIAL = {
    "cafe": bytes.fromhex("feca10"),
    "fast": b"\x01\x05ab",
    "nsd": b'{"_class":',
    "rheos": b"\xfa\x01",
}
"""The beginning of a frame of each protocol."""


def seconds(setup: Setup | House, count: int) -> None:
    """Let that many seconds pass, with their sweeps."""
    for _ in range(count):
        setup.clock.advance(1)


class FrameTests(SynchronousTestCase):
    """``frame-seconds``"""

    def start(self, kind: type[Frames] = Frames, **settings: Any) -> tuple[Client, Setup]:
        setup = Setup(kind, **settings)
        setup.broker.startService()
        return setup.connect()[0], setup

    def test_a_frame_that_does_not_arrive_is_given_up(self) -> None:
        client, setup = self.start(frame_seconds=5)
        client.send(b"\x09half")
        seconds(setup, 5)
        assert not client.closed
        seconds(setup, 1)
        assert client.take() == b"no: frame-timeout"
        assert client.closed
        assert setup.broker.counters.refusals == {("toy", "frame-timeout"): 1}

    def test_twenty_seconds_by_default(self) -> None:
        client, setup = self.start()
        client.send(b"\x09half")
        seconds(setup, 20)
        assert not client.closed
        seconds(setup, 1)
        assert client.closed

    def test_dripping_does_not_help(self) -> None:
        client, setup = self.start(frame_seconds=5)
        client.send(b"\xff")
        for _ in range(6):
            client.send(b"x")
            seconds(setup, 1)
        assert client.closed

    def test_a_head_that_arrives_late_does_not_help(self) -> None:
        client, house = self.cafe(frame_seconds=5)
        frame = cafe_wire.publish(7, bytes(100))
        client.send(frame[:3])
        seconds(house, 4)
        client.send(frame[3:9])
        seconds(house, 1)
        assert not client.closed
        seconds(house, 1)
        assert client.closed

    def test_a_long_frame_has_a_second_more_for_each_64_kib(self) -> None:
        client, setup = self.start(Lines, frame_seconds=5)
        client.send(b"x")
        client.send(b"x" * 900)
        setup.listener.memory.limit = 0
        # As much as would take the limit of ``Lines`` ten times.
        buffer = client.protocol._read_buffer
        assert buffer is not None
        buffer._need = 10**6
        client.send(b"x" * 3 * 65_536)
        seconds(setup, 8)
        assert not client.closed
        seconds(setup, 1)
        assert client.closed

    def test_each_frame_has_its_own_time(self) -> None:
        client, setup = self.start(frame_seconds=5)
        client.send(b"\x02a")
        for _ in range(10):
            seconds(setup, 4)
            client.send(b"b\x02a")
        assert not client.closed
        assert len(client.protocol.frames) == 10  # type: ignore[attr-defined]

    def test_the_time_in_which_the_client_is_held_does_not_count(self) -> None:
        client, setup = self.start(frame_seconds=5)
        client.send(b"\x02a")
        client.protocol.hold("reason")
        seconds(setup, 100)
        client.protocol.release("reason")
        seconds(setup, 4)
        client.send(b"b")
        assert client.protocol.frames == [b"ab"]  # type: ignore[attr-defined]

    def test_zero_is_no_limit(self) -> None:
        client, setup = self.start(frame_seconds=0)
        client.send(b"\x09half")
        seconds(setup, 1000)
        assert not client.closed

    def test_memory_is_free_again(self) -> None:
        client, setup = self.start(Lines, frame_seconds=5)
        before = setup.broker.memory.used
        client.send(b"x" * 500)
        client.send(b"x" * 9000)
        assert setup.broker.memory.used == before + 9500
        seconds(setup, 6)
        assert setup.broker.memory.used == before

    def test_memory_is_free_when_a_short_frame_follows(self) -> None:
        client, house = self.cafe()
        frame = cafe_wire.publish(7, bytes(9000))
        client.send(frame[:3])
        before = house.broker.memory.used
        client.send(frame[3:6000])
        assert house.broker.memory.used == before + 6000
        client.send(frame[6000:] + frame[:3])
        assert house.broker.memory.used == before

    def cafe(self, **settings: Any) -> tuple[Client, House]:
        """Return a client of cafe that may publish, and the broker."""
        given = {name.replace("_", "-"): value for name, value in settings.items()}
        house = House({"cafe": given}, top={"durability": "*=none"})
        house.start()
        client = house.connect("cafe")
        client.send(cafe_wire.hs_pub(7))
        return client, house

    def test_every_protocol_answers_in_its_own_terms(self) -> None:
        answers = {
            "cafe": bytes.fromhex("feca ff 01000000 07"),
            "fast": b"",
            "nsd": b'{"_class":"ErrorResponse","error":"REQUEST TIMEOUT"}\n',
            "rheos": b"",
        }
        for name, partial in PARTIAL.items():
            house = Fast(self) if name == "fast" else House({name: {}})
            house.start()
            client = house.connect(name)
            connection = client.protocol
            expected = connection.refusal(FrameTimeout())
            assert answers[name] in (b"", expected), name
            client.send(partial)
            # Under the time limit of cafe's handshake.
            connection.end_handshake()
            seconds(house, 21)
            assert client.take() == expected
            assert client.closed, name
            assert house.broker.counters.refusals == {(name, "frame-timeout"): 1}


class ShakingFrames(Frames):
    """A protocol with a handshake: the first frame."""

    has_handshake = True

    def consume(self, data: bytes) -> tuple[int, int]:
        done, need = super().consume(data)
        if self.frames:
            self.end_handshake()
        return done, need


class HandshakeTests(SynchronousTestCase):
    """``handshake-seconds``"""

    def test_a_client_without_a_handshake_is_disconnected(self) -> None:
        setup = Setup(ShakingFrames)
        silent, prompt = setup.connect()[0], setup.connect()[0]
        prompt.send(frame(b"hello"))
        seconds(setup, 9)
        assert not silent.closed
        seconds(setup, 1)
        assert silent.take() == b"no: handshake-timeout"
        assert (silent.closed, prompt.closed) == (True, False)
        assert setup.broker.counters.refusals == {("toy", "handshake-timeout"): 1}

    def test_each_has_its_own_time_and_one_timer_serves_all(self) -> None:
        setup = Setup(ShakingFrames, handshake_seconds=4)
        clients = []
        for _ in range(3):
            clients.append(setup.connect()[0])
            seconds(setup, 1)
        assert len(setup.clock.getDelayedCalls()) == 1
        for closed in range(4):
            assert [client.closed for client in clients] == [index < closed for index in range(3)]
            seconds(setup, 1)

    def test_nothing_is_left_of_finished_and_ended_clients(self) -> None:
        setup = Setup(ShakingFrames)
        one, two = setup.connect()[0], setup.connect()[0]
        one.send(frame(b"hello"))
        two.stream.lose()
        assert len(setup.listener.handshakes) == 0
        assert not setup.clock.getDelayedCalls()

    def test_a_process_that_was_stopped_reads_first(self) -> None:
        """The timer is handled before the input that has arrived meanwhile."""
        setup = Setup(ShakingFrames)
        silent, prompt = setup.connect()[0], setup.connect()[0]
        setup.clock.advance(60)
        prompt.send(frame(b"hello"))
        assert not silent.closed
        seconds(setup, 1)
        assert (silent.closed, prompt.closed) == (True, False)

    def test_zero_is_no_limit(self) -> None:
        setup = Setup(ShakingFrames, handshake_seconds=0)
        client = setup.connect()[0]
        seconds(setup, 1000)
        assert not client.closed

    def test_cafe(self) -> None:
        house = House({"cafe": {}})
        client = house.connect("cafe")
        seconds(house, 10)
        assert client.take() == client.protocol.refusal(HandshakeTimeout())
        assert client.closed

    def test_a_wrapped_stream_has_to_be_ready_in_time(self) -> None:
        """TLS, or the header of a proxy, also for a protocol that has no handshake."""
        for ready in (False, True):
            setup = Setup()
            connection = Frames(setup.listener)
            assert IHandshakeListener.providedBy(connection)
            factory = WrappingFactory(ConnectionFactory(setup.listener))
            wrapper: Any = ProtocolWrapper(factory, connection)
            stream = Stream(setup.clock, None)
            stream.protocol = connection
            wrapper.makeConnection(stream)
            if ready:
                connection.handshakeCompleted()
            seconds(setup, 10)
            assert connection.closing is not ready

    def test_the_time_begins_once(self) -> None:
        clock = clock_at()
        overdue: list[float] = []

        class One:
            def handshake_overdue(self) -> None:
                overdue.append(clock.seconds())

        handshakes, one = Handshakes(clock, 5), One()
        handshakes.begin(one)
        clock.advance(3)
        handshakes.begin(one)
        clock.advance(2)
        assert len(overdue) == 1
        handshakes.done(one)
