"""The base of every connection: the read buffer, flow control, closing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.interfaces import ISSLTransport, ITCPTransport, ITransport
from twisted.internet.protocol import Protocol
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.publishing.publisher_gates import Gate
from pubsub.errors import Refused
from pubsub.wire.connection import Connection
from pubsub.wire.departure import LINGER
from pubsub.wire.direct_transport import READ_BYTES
from pubsub.wire.read_buffer import LONG_READ, LONGEST_READ
from tests.unit.connections import Frames, Lines, LongFrames, Setup, frame
from tests.unit.streams import Client

# All but the payload that stops the parsing of ``Frames``.
PAYLOADS = st.binary(max_size=20).filter(lambda payload: payload != b"!")


def unread_last_bytes() -> tuple[Setup, Client, Frames]:
    """Return a client that has not read its last bytes for all but 0.1 of its 7 seconds."""
    setup = Setup(slow_seconds=7)
    client, connection = setup.connect()
    client.stream.stop_reading()
    connection.close(b"last")
    setup.clock.advance(6.9)
    return setup, client, connection


class BufferTests(SynchronousTestCase):
    """The read buffer"""

    def test_complete_frames_are_handled_and_not_kept(self) -> None:
        client, connection = Setup().connect()
        client.send(b"\x02hi\x00\x03you")
        assert connection.frames == [b"hi", b"", b"you"]
        assert connection.calls == 1

    def test_a_partial_frame_is_not_parsed_again_before_it_is_complete(self) -> None:
        client, connection = Setup().connect()
        client.send(b"\x01a\xc8")
        assert connection.calls == 1
        for _ in range(199):
            client.send(b"x")
        assert (connection.calls, connection.frames) == (1, [b"a"])
        client.send(b"x\x01b\x05")
        assert connection.calls == 2
        assert connection.frames == [b"a", b"x" * 200, b"b"]

    @given(st.lists(PAYLOADS, max_size=8), st.data())
    def test_any_split_gives_the_same_frames(
        self, payloads: list[bytes], data: st.DataObject
    ) -> None:
        client, connection = Setup().connect()
        wire = b"".join(map(frame, payloads))
        cuts = data.draw(st.lists(st.integers(0, len(wire)), max_size=6).map(sorted))
        for start, stop in zip([0, *cuts], [*cuts, len(wire)], strict=True):
            client.send(wire[start:stop])
        assert connection.frames == payloads

    def test_input_after_an_early_stop_is_parsed_on_demand(self) -> None:
        client, connection = Setup().connect()
        client.send(b"\x01a\x01!\x01b\x01c")
        assert connection.frames == [b"a", b"!"]
        connection.parse_buffered()
        assert connection.frames == [b"a", b"!", b"b", b"c"]
        connection.parse_buffered()
        assert len(connection.frames) == 4

    def test_with_a_delimiter_input_is_parsed_only_when_it_arrives(self) -> None:
        client, connection = Setup(Lines).connect()
        client.send(b"one")
        client.send(b" and")
        client.send(b" more")
        assert connection.calls == 1
        client.send(b"\nnext")
        assert (connection.calls, connection.frames) == (2, [b"one and more"])
        client.send(b" line\n")
        assert connection.frames == [b"one and more", b"next line"]

    def test_with_a_delimiter_the_buffer_is_bounded(self) -> None:
        client, connection = Setup(Lines).connect()
        client.send(b"x" * 999)
        client.send(b"x")
        assert connection.calls == 1
        client.send(b"x")
        assert connection.calls == 2

    def test_reads_align_with_frames_of_equal_size(self) -> None:
        client, connection = Setup().connect()
        rows = frame(b"x" * 99) * 5000 + frame(b"y" * 200) * 5000
        sent, ends = 0, []
        while sent < len(rows):
            piece = rows[sent : sent + client.stream.bufferSize]
            if sent:
                assert LONG_READ - 400 < client.stream.bufferSize <= LONG_READ
            client.send(piece)
            sent += len(piece)
            ends.append(connection._read_buffer is None)
        # The size is not known in the first read, nor in the one in which it changes.
        assert ends == [False, True, False, *[True] * 4]
        assert connection.frames == [b"x" * 99] * 5000 + [b"y" * 200] * 5000

    def test_reads_of_large_frames_are_longer(self) -> None:
        client, connection = Setup(LongFrames).connect()
        rows = frame(bytes(65_000), 4) * 20
        sent = 0
        while sent < len(rows):
            piece = rows[sent : sent + client.stream.bufferSize]
            client.send(piece)
            sent += len(piece)
            assert connection._read_buffer is None or sent == READ_BYTES
            assert client.stream.bufferSize <= LONGEST_READ
        assert connection.frames == [bytes(65_000)] * 20
        assert client.stream.bufferSize == LONGEST_READ // 65_004 * 65_004

    def test_a_frame_that_is_longer_than_a_read(self) -> None:
        client, connection = Setup(LongFrames).connect()
        rows = frame(bytes(2**20), 4)
        client.send(rows[:READ_BYTES])
        assert client.stream.bufferSize == LONGEST_READ
        client.send(rows[READ_BYTES:])
        assert connection.frames == [bytes(2**20)]

    def test_short_reads_do_not_change_the_read_size(self) -> None:
        client, _ = Setup().connect()
        client.send(frame(b"x" * 99) * 300 + b"\x63")
        assert client.stream.bufferSize == READ_BYTES

    def test_nothing_is_parsed_after_the_end(self) -> None:
        client, connection = Setup().connect()
        client.send(b"\x02h")
        connection.close()
        client.send(b"i\x01a")
        connection.parse_buffered()
        assert connection.frames == []


class HoldTests(SynchronousTestCase):
    """Holding and releasing"""

    def test_reading_resumes_when_the_last_reason_is_released(self) -> None:
        client, connection = Setup().connect()
        one, two = object(), "two"
        connection.hold(one)
        connection.hold(two)
        connection.hold(one)
        assert bool(client.stream.paused)
        connection.release(one)
        connection.release("never held")
        assert bool(client.stream.paused)
        connection.release(two)
        assert not client.stream.paused
        connection.release(two)

    def test_input_waits_and_is_handled_in_order(self) -> None:
        client, connection = Setup().connect()
        connection.hold("reason")
        client.send(b"\x01a")
        client.send(b"\x01b")
        assert connection.frames == []
        connection.release("reason")
        client.send(b"\x01c")
        assert connection.frames == [b"a", b"b", b"c"]

    def test_a_client_that_does_not_read_its_replies_is_not_read(self) -> None:
        client, connection = Setup().connect()
        client.stream.stop_reading()
        connection.reply(b"x" * 65_536)
        assert not bool(client.stream.paused)
        connection.reply(b"x")
        assert bool(client.stream.paused)
        client.stream.read()
        assert not client.stream.paused
        assert len(client.take()) == 65_537

    def test_after_the_end_nothing_is_held_or_released(self) -> None:
        client, connection = Setup().connect()
        connection.hold("reason")
        connection.close()
        assert not client.stream.paused
        connection.hold("other")
        assert not client.stream.paused
        connection.release("other")
        client.stream.lose()
        connection.hold("more")
        connection.release("more")

    def test_after_the_end_no_gate_keeps_it(self) -> None:
        """Clients may come and go for hours while a disk hangs."""
        client, connection = Setup().connect()
        gate = Gate()
        gate.close()
        gate.wait(connection)
        connection.hold("reason")
        client.stream.lose()
        assert not gate._waiting


class CloseTests(SynchronousTestCase):
    """The ways a connection ends"""

    def test_half_closed_first_and_closed_after_the_linger(self) -> None:
        setup = Setup()
        client, connection = setup.connect()
        connection.close(b"last")
        assert client.take() == b"last"
        assert client.stream.half_closed
        assert connection.ends == 1
        client.send(b"\x01a")
        assert connection.frames == []
        setup.clock.advance(LINGER - 0.01)
        assert not bool(client.stream.losing)
        setup.clock.advance(0.01)
        setup.clock.advance(0)
        assert (client.stream.lost, client.stream.aborted, connection.ends) == (True, False, 1)
        assert not setup.broker.clients
        assert not setup.clock.getDelayedCalls()

    def test_a_client_that_reads_slowly_has_time_for_the_last_bytes(self) -> None:
        setup, client, _connection = unread_last_bytes()
        client.stream.read()
        assert client.take() == b"last"
        setup.clock.advance(LINGER - 0.01)
        assert not bool(client.stream.losing)
        setup.clock.advance(0.01)
        setup.clock.advance(0)
        assert (client.stream.lost, client.stream.aborted) == (True, False)

    def test_a_client_that_never_reads_the_last_bytes_is_aborted(self) -> None:
        setup, client, connection = unread_last_bytes()
        assert not bool(client.stream.aborted)
        setup.clock.advance(0.1)
        assert client.stream.aborted
        setup.clock.advance(0)
        assert (client.stream.lost, connection.ends) == (True, 1)

    def test_no_abort_if_the_peer_closes_first(self) -> None:
        setup = Setup()
        client, connection = setup.connect()
        connection.close(b"last")
        client.stream.lose(clean=True)
        setup.clock.advance(0)
        assert not setup.clock.getDelayedCalls()
        assert not client.stream.aborted
        assert connection.ends == 1

    def test_closing_again_sends_nothing(self) -> None:
        client, connection = Setup().connect()
        connection.close(b"one")
        connection.close(b"two")
        connection.fail("reason", b"three")
        assert client.take() == b"one"

    def test_tls_closes_the_connection_itself(self) -> None:
        setup = Setup()
        client, connection = setup.connect(provides=(ITCPTransport, ISSLTransport))
        connection.close(b"last")
        assert client.stream.losing
        assert not client.stream.half_closed
        setup.clock.advance(0)
        assert client.stream.lost
        assert not setup.clock.getDelayedCalls()

    def test_a_unix_socket_closes_as_tcp_does(self) -> None:
        client, connection = Setup().connect(provides=(ITransport,))
        connection.close(b"last")
        assert client.take() == b"last"
        assert client.stream.half_closed

    def test_failing_counts_the_reason(self) -> None:
        setup = Setup()
        client, connection = setup.connect()
        connection.fail("nonsense", b"?")
        assert client.take() == b"?"
        assert setup.broker.counters.refusals == {("toy", "nonsense"): 1}

    def test_drain_sends_the_goodbye_after_queued_messages(self) -> None:
        setup = Setup()
        client, connection = setup.connect()
        topic = setup.broker.topics.create("t")
        outbox = connection.open_outbox()
        outbox.hold()
        outbox.deliver(b"queued ", 1, topic, 0)
        connection.drain()
        assert client.take() == b"queued bye"
        assert client.closed
        connection.drain()
        assert client.take() == b""

    def test_drain_waits_for_a_slow_reader(self) -> None:
        setup = Setup()
        client, connection = setup.connect()
        topic = setup.broker.topics.create("t")
        outbox = connection.open_outbox()
        client.stream.stop_reading()
        for _ in range(3):
            outbox.deliver(b"x" * 70_000, 1, topic, 0)
            outbox.flush()
        connection.drain()
        assert not client.closed
        assert client.stream.paused
        client.stream.read()
        assert client.take() == b"x" * 210_000 + b"bye"
        assert client.closed

    def test_abort_closes_at_once(self) -> None:
        client, connection = Setup().connect()
        client.stream.stop_reading()
        connection.reply(b"unread")
        connection.abort("why")
        connection.abort("again")
        assert client.closed
        assert client.take() == b""
        assert connection.ends == 1

    def test_an_outbox_opened_on_a_full_transport_is_paused(self) -> None:
        client, connection = Setup().connect()
        client.stream.stop_reading()
        connection.reply(b"x" * 70_000)
        outbox = connection.open_outbox()
        assert outbox.paused
        assert connection.open_outbox() is outbox
        client.stream.read()
        assert not outbox.paused


class AbstractTests(SynchronousTestCase):
    """Methods that a protocol must implement"""

    def test_consume_and_refusal_are_abstract(self) -> None:
        connection = Connection(Setup().listener)
        assert isinstance(connection, Protocol)
        with pytest.raises(NotImplementedError):
            connection.consume(b"x")
        with pytest.raises(NotImplementedError):
            connection.refusal(Refused())
        assert connection.goodbye() == b""
        connection.ended()
        connection.stopProducing()
