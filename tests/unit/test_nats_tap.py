"""``Splitter`` and ``Tap``: the messages of topics do not pass through nats-py."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import time
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.selectreactor import SelectReactor
from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.engine.nats_tap import Splitter, TappedLoop
from tests.silent_address import SILENT_HOST, name_with_addresses, silent_address

TIMEOUT = 30.0
INFO = b'INFO {"server_id":"x","max_payload":1048576}\r\n'
TOPIC = "pubsub.v1.t.a.b=2Ec"


def message(subject: str, payload: bytes, reply: str = "") -> bytes:
    words = [subject, "7", *([reply] if reply else []), str(len(payload))]
    return b"MSG %s\r\n%s\r\n" % (" ".join(words).encode(), payload)


def with_headers(subject: str, payload: bytes) -> bytes:
    head = b"NATS/1.0\r\na: b\r\n\r\n"
    sizes = b"%d %d" % (len(head), len(head) + len(payload))
    return b"HMSG %s 7 %s\r\n%s%s\r\n" % (subject.encode(), sizes, head, payload)


def take(*pieces: bytes, size: int = 4096) -> tuple[list[tuple[str, bytes]], bytes]:
    """Return what a splitter with a buffer of ``size`` takes out of the pieces, and the rest."""
    found: list[tuple[str, bytes]] = []
    splitter = Splitter(lambda subject, data: found.append((subject, data)), size)
    rest = b""
    for piece in pieces:
        left = piece
        while left or not piece:
            room = splitter.room()
            assert len(room)
            count = min(len(room), len(left))
            room[:count], left = left[:count], left[count:]
            rest += splitter.take(count)
            if not piece:
                break
    return found, rest


OTHERS = st.one_of(
    st.sampled_from([INFO, b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'x'\r\n"]),
    st.builds(message, st.just("_INBOX.x.1"), st.binary(max_size=40)),
    # Bytes that look like a message of a topic within another one.
    st.builds(message, st.just("$JS.x"), st.just(message(TOPIC, b"inner"))),
    st.builds(with_headers, st.just(TOPIC), st.binary(max_size=40)),
)
# Lines for nats-py, and payloads of messages of the topic.
STREAMS = st.lists(
    st.tuples(st.just(True), OTHERS) | st.tuples(st.just(False), st.binary(max_size=60)), max_size=8
)


class SplitterTests(SynchronousTestCase):
    """The bytes of a server"""

    def test_a_message_of_a_topic(self) -> None:
        payload = b"x\r\nMSG pubsub.v1.t.q 1 3\r\n"
        found, rest = take(INFO + message(TOPIC, payload) + message(TOPIC, b"") + b"PING\r\n")
        assert found == [(TOPIC, payload), (TOPIC, b"")]
        assert rest == INFO + b"PING\r\n"

    def test_a_reply_subject_is_left_out(self) -> None:
        assert take(message(TOPIC, b"x", "_INBOX.1")) == ([(TOPIC, b"x")], b"")

    def test_other_subjects_pass(self) -> None:
        for subject in ("_INBOX.1", "pubsub.v1.tt.a", "pubsub.v2.t.a"):
            data = message(subject, b"x")
            assert take(data) == ([], data)

    def test_lines_that_are_malformed_pass(self) -> None:
        for words in (b"", b" pubsub.v1.t.a 1 x", b" pubsub.v1.t.a 1 -1", b" 1 " + b"9" * 5000):
            line = b"MSG" + words + b"\r\n"
            assert take(line, message(TOPIC, b"x")) == ([(TOPIC, b"x")], line)

    def test_a_message_that_is_larger_than_the_buffer(self) -> None:
        payload = bytes(range(256)) * 40
        other = message("_INBOX.1", payload)
        stream = message(TOPIC, payload) + message(TOPIC, b"x") + other
        found = [(TOPIC, payload), (TOPIC, b"x")]
        assert take(stream + stream, size=64) == (found + found, other + other)

    def test_a_line_that_never_ends_is_not_held(self) -> None:
        assert take(bytes(1000), size=64) == ([], bytes(960))

    @given(STREAMS, st.integers(48, 200), st.data())
    def test_any_pieces(self, parts: list[tuple[bool, bytes]], size: int, data: Any) -> None:
        stream = b"".join([one if passes else message(TOPIC, one) for passes, one in parts])
        others = b"".join([one for passes, one in parts if passes])
        expected = [(TOPIC, one) for passes, one in parts if not passes]
        cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8).map(sorted))
        ends = [0, *cuts, len(stream)]
        pieces = [stream[a:b] for a, b in itertools.pairwise(ends)]
        assert take(*pieces, size=size) == (expected, others)

    @given(st.lists(st.binary(max_size=80), max_size=4))
    def test_garbage(self, pieces: list[bytes]) -> None:
        take(*pieces)


class _Inner(asyncio.Protocol):
    """Stands for the protocol of nats-py."""

    def __init__(self) -> None:
        self.received = b""
        self.ended = False
        self.pauses = False
        self.waits: list[bool] = []
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        if self.pauses:
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        self.waits.append(True)

    def resume_writing(self) -> None:
        self.waits.append(False)

    def connection_lost(self, error: Exception | None) -> None:
        self.ended = True


class TapTests(SynchronousTestCase):
    """Between nats-py and its transport"""

    def setUp(self) -> None:
        self.reactor = SelectReactor()
        self.inner = _Inner()
        self.found: list[tuple[str, bytes]] = []
        self.passes = 0
        self.loop = TappedLoop(self.reactor, self.passed, self.receive)
        self.server, ours = socket.socketpair()
        self.server.settimeout(TIMEOUT)
        self.addCleanup(self.server.close)
        connecting = self.loop.create_connection(lambda: self.inner, sock=ours)
        task = self.loop.create_task(connecting)
        task.add_done_callback(lambda _: self.loop.stop())
        self.loop.begin(TIMEOUT)
        self.addCleanup(self.loop.end)
        assert self.loop.tap is not None
        self.tap = self.loop.tap

    def passed(self) -> None:
        self.passes += 1

    def receive(self, subject: str, data: bytes) -> None:
        if data == b"bad":
            raise ValueError
        self.found.append((subject, data))

    def wait(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            assert time.monotonic() < deadline, "nothing happens"
            self.reactor.iterate(0.05)

    def test_it_notes_when_the_server_was_heard(self) -> None:
        for data, read in (
            (b"PING\r\n", lambda: self.tap.heard),
            (message(TOPIC, b"by the loop"), lambda: self.tap in self.reactor.getReaders()),
            (message(TOPIC, b"by the reactor"), lambda: len(self.found) == 2),
        ):
            self.tap.heard = 0.0
            self.server.sendall(data)
            self.wait(read)
            assert 0 <= self.loop.silence <= TIMEOUT

    def read_by_the_reactor(self) -> None:
        """Have it read, and the loop not."""
        self.server.sendall(message(TOPIC, b"first"))
        self.wait(lambda: self.tap in self.reactor.getReaders())
        assert self.found.pop() == (TOPIC, b"first")
        assert not self.inner.transport.is_reading()

    def test_the_loop_reads_until_it_runs_in_the_reactor(self) -> None:
        loop = TappedLoop(self.reactor, self.passed, self.receive)
        server, ours = socket.socketpair()
        self.addCleanup(server.close)

        async def connect() -> None:
            await loop.create_connection(lambda: self.inner, sock=ours)
            server.sendall(message(TOPIC, b"x"))
            while not self.found:
                await asyncio.sleep(0)
            server.sendall(b"PONG\r\n")
            while not self.inner.received:
                await asyncio.sleep(0)
            loop.stop()

        task = loop.create_task(connect())
        loop.begin(TIMEOUT)
        self.addCleanup(loop.end)
        assert task.done()
        assert loop.tap not in self.reactor.getReaders()

    def test_the_first_address_of_a_name_does_not_answer(self) -> None:
        loop = TappedLoop(self.reactor, self.passed, self.receive)
        name_with_addresses(self.patch, "several", SILENT_HOST, "127.0.0.1")
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with silent_address(port):
                task = loop.create_task(loop.create_connection(_Inner, "several", port))
                task.add_done_callback(lambda _: loop.stop())
                loop.begin(TIMEOUT)
                self.addCleanup(loop.end)
                transport, _ = task.result()
                assert transport.get_extra_info("peername") == ("127.0.0.1", port)
                transport.abort()

    def test_the_reactor_reads_messages_of_topics(self) -> None:
        self.read_by_the_reactor()
        passes = self.passes
        self.server.sendall(message(TOPIC, b"x") + message(TOPIC, b"y")[:-3])
        self.wait(lambda: self.found)
        self.server.sendall(message(TOPIC, b"y")[-3:])
        self.wait(lambda: len(self.found) == 2)
        assert self.found == [(TOPIC, b"x"), (TOPIC, b"y")]
        # Waiting messages are reported, without a turn of the loop.
        assert self.passes >= passes + 2
        assert self.tap in self.reactor.getReaders()

    def test_what_is_for_nats_py_is_read_by_the_loop(self) -> None:
        self.read_by_the_reactor()
        self.server.sendall(b"PING\r\n" + message(TOPIC, b"x") + b"+O")
        self.wait(lambda: self.inner.received == b"PING\r\n")
        assert self.tap not in self.reactor.getReaders()
        assert self.inner.transport.is_reading()
        self.server.sendall(b"K\r\n")
        self.wait(lambda: self.inner.received == b"PING\r\n+OK\r\n")
        assert self.found == [(TOPIC, b"x")]
        self.read_by_the_reactor()

    def test_nats_py_pauses(self) -> None:
        self.read_by_the_reactor()
        self.inner.pauses = True
        self.server.sendall(b"+OK\r\n")
        self.wait(lambda: self.inner.received)
        self.server.sendall(message(TOPIC, b"x"))
        for _ in range(3):
            self.reactor.iterate(0.01)
        assert not self.found
        assert self.tap not in self.reactor.getReaders()
        self.loop.run_pass(self.inner.transport.resume_reading)
        self.wait(lambda: self.found)

    def test_the_end_of_the_connection(self) -> None:
        self.read_by_the_reactor()
        self.server.close()
        self.wait(lambda: self.inner.ended)
        assert self.tap not in self.reactor.getReaders()

    def test_nats_py_closes(self) -> None:
        self.read_by_the_reactor()
        self.loop.run_pass(self.inner.transport.close)
        self.wait(lambda: self.inner.ended)
        assert self.tap not in self.reactor.getReaders()

    def test_an_error_ends_the_connection(self) -> None:
        self.read_by_the_reactor()
        self.server.sendall(message(TOPIC, b"bad"))
        self.wait(lambda: self.inner.ended)
        assert self.tap not in self.reactor.getReaders()
        self.flushLoggedErrors(ValueError)  # type: ignore[no-untyped-call]

    def test_what_is_written(self) -> None:
        assert self.tap.publish([("a", [b"12", b"345"], 5), ("b", [b""], 0)]) == 5
        assert self.server.recv(100) == b"PUB a 5\r\n12345\r\nPUB b 0\r\n\r\n"
        # More than the system takes at once, in more parts than it takes.
        large = [bytes([number % 251]) * 997 for number in range(3000)]
        self.tap.publish([("c", large, 997 * 3000), ("d", large[:7], 997 * 7)])
        self.tap.publish([("e", [b"last"], 4)])
        expected = b"".join(
            b"PUB %s %d\r\n%s\r\n" % (name, len(whole), whole)
            for name, whole in (
                (b"c", b"".join(large)), (b"d", b"".join(large[:7])), (b"e", b"last"),
            )
        )  # fmt: skip
        assert self.written(len(expected)) == expected

    def written(self, size: int) -> bytes:
        """Return what arrives at the server: so many bytes at least."""
        self.server.setblocking(False)
        received = bytearray()

        def read() -> bool:
            with contextlib.suppress(BlockingIOError):
                received.extend(self.server.recv(1 << 20))
            return len(received) >= size

        self.wait(read)
        return bytes(received)

    def test_a_server_that_reads_slowly(self) -> None:
        # The system takes a part of it.
        large = bytes(range(256)) * 20_000
        self.tap.publish([("a", [large], len(large))])
        # It has room again, but the rest has to follow first.
        first = self.server.recv(1 << 16)
        self.tap.publish([("b", [b"last"], 4)])
        expected = b"PUB a %d\r\n%s\r\nPUB b 4\r\nlast\r\n" % (len(large), large)
        assert first + self.written(len(expected) - len(first)) == expected

    def test_several_messages_of_which_the_system_takes_a_part(self) -> None:
        large = bytes(range(256)) * 20_000
        self.tap.publish([("a", [large], len(large)), ("b", [b"last"], 4)])
        expected = b"PUB a %d\r\n%s\r\nPUB b 4\r\nlast\r\n" % (len(large), large)
        assert self.written(len(expected)) == expected

    def test_nats_py_waits_while_the_server_does_not_read(self) -> None:
        self.inner.transport.write(bytes(10**6))
        assert self.inner.waits == [True]
        self.written(10**6)
        self.wait(lambda: self.inner.waits == [True, False])

    def test_a_connection_that_is_reset(self) -> None:
        self.read_by_the_reactor()
        self.tap.publish([("a", [b"x"], 1)])
        # It has not read that.
        self.server.close()
        self.wait(lambda: self.inner.ended)
        assert self.tap not in self.reactor.getReaders()

    def test_the_end_of_the_loop(self) -> None:
        self.read_by_the_reactor()
        self.loop.end()
        assert self.tap not in self.reactor.getReaders()

    def test_a_closed_connection_is_found_in_writing(self) -> None:
        self.server.close()
        self.tap.publish([("a", [b"x"], 1)])
        self.wait(lambda: self.inner.ended)
