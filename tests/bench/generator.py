"""The load: publishers and subscribers on non-blocking sockets, polled in one loop.

Polling costs the broker nothing, while blocked readers would have to be woken inside the broker's
send calls. A publisher keeps at most a window of batches in flight to its slowest subscriber, so it
never publishes more than subscribers can take.
"""

from __future__ import annotations

import socket
import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from tests.bench import BenchError
from tests.bench.batches import build_batches
from tests.bench.plan import RunPlan
from tests.bench.poller import CheckedPoller, Poller
from tests.bench.publisher import Publisher
from tests.bench.subscriber import CheckedSubscriber, Subscriber, receive_buffer
from tests.bench.verify import Stream
from tests.bench.wires import BrokerTraits, Frame, PollRequest, Wire, traits_of

Address = tuple[str, int]

HANDSHAKE_SECONDS = 10.0
STALL_SECONDS = 10.0
# Always available and permitted. Some systems use bbr by default, whose pacing on loopback sends a
# sixth of what reno does. The benchmark would then measure the load, not the broker.
CONGESTION_CONTROL = b"reno"


class Load:
    """All publishers and subscribers of one run.

    Subscribers connect to ``address`` and to those in ``others`` in turn, publishers to
    ``publish_address``. Subscribers check the keys of messages, or with ``every_byte`` the other
    bytes too.
    """

    def __init__(
        self,
        address: Address,
        wire: Wire,
        plan: RunPlan,
        publish_address: Address | None = None,
        every_byte: bool = False,
        others: Sequence[Address] = (),
    ) -> None:
        self.plan = plan
        self.publishers: list[Publisher] = []
        self.subscribers: list[Subscriber] = []
        self.samples: array[int] = array("q")
        """Latencies in nanoseconds."""
        self._sockets: list[socket.socket] = []
        self._last_progress = 0.0
        self._every_byte = every_byte
        self._others = others
        try:
            self._connect(address, publish_address or address, wire)
            answer_late_frames(self._sockets, traits_of(wire))
        except BaseException:
            self.close()
            raise

    def _connect(self, address: Address, publish_address: Address, wire: Wire) -> None:
        topology = self.plan.topology
        addresses = [address, *self._others]
        # Subscribers connect first, as they must receive every published message.
        readers = []
        for number in range(topology.subscribers):
            topics = topology.topics_of(number)
            hello = wire.subscriber_hello(topics, f"bench-sub-{number}")
            address = addresses[number % len(addresses)]
            readers.append(self._open(address, wire, hello, len(topics)))
        for number in range(topology.publishers):
            topic = topology.topic(number)
            hello = wire.publisher_hello([topic], f"bench-pub-{number}")
            sock = self._open(publish_address, wire, hello)
            frame = wire.publication(topic, self.plan.payload)
            batches = build_batches(frame, number, self.plan)
            publisher = Publisher(sock, self.plan, batches, frame.answer)
            publisher.expects_unsolicited = traits_of(wire).unsolicited
            self.publishers.append(publisher)
        frames = [
            wire.delivery(topology.topic(number), self.plan.payload)
            for number in range(topology.publishers)
        ]
        buffer = receive_buffer(max(frame.size for frame in frames))
        for number, sock in enumerate(readers):
            sources = {source: frames[source] for source in topology.sources(number)}
            self._subscribe(sock, sources, buffer, traits_of(wire).poll_request)

    def _subscribe(
        self,
        sock: socket.socket,
        frames: Mapping[int, Frame],
        buffer: bytearray,
        poll_request: PollRequest | None,
    ) -> None:
        streams: dict[int, Stream] = {}
        publishers: dict[int, Publisher] = {}
        for number in frames:
            streams[number] = Stream(self.plan.per_batch * self.plan.cycle)
            publishers[number] = self.publishers[number]
            publishers[number].streams.append(streams[number])
        if poll_request is None:
            pushed = CheckedSubscriber if self._every_byte else Subscriber
            self.subscribers.append(pushed(sock, frames, buffer, streams, publishers, self.samples))
            return
        polled = CheckedPoller if self._every_byte else Poller
        subscriber = polled(sock, frames, buffer, streams, publishers, self.samples)
        subscriber.poll_with(partial(poll_request, f"bench-sub-{len(self.subscribers)}"))
        self.subscribers.append(subscriber)

    def _open(self, address: Address, wire: Wire, hello: bytes, topics: int = 1) -> socket.socket:
        sock = connect(address, hello, traits_of(wire).greeting)
        self._sockets.append(sock)
        await_welcome(sock, wire, topics)
        sock.setblocking(False)
        return sock

    def close(self) -> None:
        """Close every connection."""
        for sock in self._sockets:
            sock.close()

    def sweep(self) -> None:
        """Let each publisher send and each subscriber receive once.

        Raises BenchError after STALL_SECONDS without progress.
        """
        moved = 0
        try:
            for publisher in self.publishers:
                moved += publisher.pump()
                if publisher.acks is not None:
                    moved += publisher.acks.poll()
            for subscriber in self.subscribers:
                moved += subscriber.poll()
        except ConnectionError as error:
            raise BenchError(f"the broker dropped a connection: {error}") from error
        now = time.monotonic()
        if moved or not self._last_progress:
            self._last_progress = now
        elif now - self._last_progress > STALL_SECONDS and self.outstanding():
            self._stalled()

    def _stalled(self) -> None:
        for publisher in self.publishers:
            publisher.check_answers()
        raise BenchError(
            f"no progress for {STALL_SECONDS:.0f} s: of {self.published} messages published "
            f"{self.outstanding()} have not reached their slowest subscriber"
            + ("" if self.publishers[0].acks is None else " or are not acknowledged")
        )

    def run(self, seconds: float) -> None:
        """Publish as fast as the windows allow."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.sweep()

    def drain(self) -> None:
        """Stop publishing and receive every message in flight. Raises BenchError."""
        for publisher in self.publishers:
            publisher.allowance = 0
        while self.outstanding():
            self.sweep()
        for publisher in self.publishers:
            publisher.check_answers()

    def outstanding(self) -> int:
        """Return the number of messages that have not reached their slowest subscriber."""
        return sum(publisher.outstanding() for publisher in self.publishers)

    @property
    def published(self) -> int:
        return sum(publisher.published for publisher in self.publishers)

    @property
    def acknowledged(self) -> int:
        return sum(publisher.acks.count for publisher in self.publishers if publisher.acks)

    @property
    def delivered(self) -> int:
        return sum(subscriber.delivered for subscriber in self.subscribers)

    @property
    def streams(self) -> list[Stream]:
        """The streams of all subscribers."""
        return [stream for reader in self.subscribers for stream in reader.streams.values()]


def connect(address: Address, hello: bytes, greeting: int = 0) -> socket.socket:
    """Open a blocking connection and send `hello`. Raises BenchError.

    The broker replies to the first `greeting` bytes with as many bytes before the rest is sent.
    """
    try:
        sock = socket.create_connection(address, HANDSHAKE_SECONDS)
        tune(sock)
        if greeting:
            sock.sendall(hello[:greeting])
            # On a socket with a timeout MSG_WAITALL does not wait for all bytes; SO_RCVLOWAT does.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, greeting)
            if len(sock.recv(greeting, socket.MSG_PEEK)) < greeting:
                raise BenchError("the broker closed a connection instead of greeting")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        sock.sendall(hello[greeting:])
    except OSError as error:
        raise BenchError(f"cannot connect: {error}") from error
    return sock


def receive(sock: socket.socket, size: int) -> bytes:
    """Return `size` bytes, or fewer at the end of the stream. MSG_WAITALL ignores the timeout."""
    data = b""
    while len(data) < size and (more := sock.recv(size - len(data))):
        data += more
    return data


def tune(sock: socket.socket) -> None:
    """Make the kernel send data at once."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION_CONTROL)


def answer_late_frames(sockets: Iterable[socket.socket], expected: BrokerTraits) -> None:
    """Reply to the late frame before any message, as it would come between messages."""
    for sock in sockets if expected.late_frame else ():
        sock.settimeout(HANDSHAKE_SECONDS)
        got = receive(sock, len(expected.late_frame))
        if got != expected.late_frame:
            raise BenchError(f"the broker sent {got!r} instead of {expected.late_frame!r}")
        sock.sendall(expected.late_reply)
        sock.setblocking(False)


def await_welcome(sock: socket.socket, wire: Wire, topics: int = 1) -> None:
    """Wait for the broker's reply to the hello. Raises BenchError."""
    answer = b""
    try:
        while not wire.welcomed(answer, topics):
            data = sock.recv(4096)
            if not data:
                raise BenchError("the broker closed a connection during its handshake")
            answer += data
    except OSError as error:
        raise BenchError(f"{wire.name} handshake failed: {error}") from error
