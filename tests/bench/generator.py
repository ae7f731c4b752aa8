"""The load: publishers and subscribers on non-blocking sockets, polled in one loop.

Polling rather than waiting costs the broker nothing, whereas each blocked reader would have to be
woken up inside the broker's own send calls. A publisher keeps at most a window of batches on
their way to its slowest subscriber, so nothing is published that could not be taken.
"""

from __future__ import annotations

import socket
import time
from array import array
from functools import partial

from tests.bench import BenchError
from tests.bench.batches import build_batches
from tests.bench.plan import RunPlan
from tests.bench.poller import Poller
from tests.bench.publisher import Publisher
from tests.bench.subscriber import Subscriber, receive_buffer
from tests.bench.verify import Stream
from tests.bench.wires import BrokerTraits, Frame, PollRequest, Wire, traits_of

Address = tuple[str, int]

HANDSHAKE_SECONDS = 10.0
STALL_SECONDS = 10.0
# Always there and free to choose. Some systems default to bbr, whose pacing on loopback sends a
# sixth of what reno does, so that the load would be measured instead of the broker.
CONGESTION_CONTROL = b"reno"


class Load:
    """All publishers and subscribers of one run."""

    def __init__(
        self, address: Address, wire: Wire, plan: RunPlan, publish_address: Address | None = None
    ) -> None:
        self.plan = plan
        self.publishers: list[Publisher] = []
        self.subscribers: list[Subscriber] = []
        self.samples: array[int] = array("q")
        """Latencies in nanoseconds."""
        self._sockets: list[socket.socket] = []
        self._last_progress = 0.0
        try:
            self._connect(address, publish_address or address, wire)
            self._answer_late_frame(traits_of(wire))
        except BaseException:
            self.close()
            raise

    def _connect(self, address: Address, publish_address: Address, wire: Wire) -> None:
        topology = self.plan.topology
        # Subscribers' sockets come first: what is published before they are there is not theirs.
        readers = []
        for number in range(topology.subscribers):
            hello = wire.subscriber_hello(number % topology.topics, f"bench-sub-{number}")
            readers.append(self._open(address, wire, hello))
        for number in range(topology.publishers):
            topic = number % topology.topics
            hello = wire.publisher_hello(topic, f"bench-pub-{number}")
            sock = self._open(publish_address, wire, hello)
            frame = wire.publication(topic, self.plan.payload)
            batches = build_batches(frame, number, self.plan)
            publisher = Publisher(sock, self.plan, batches, frame.answer)
            publisher.expects_unsolicited = traits_of(wire).unsolicited
            self.publishers.append(publisher)
        frames = [wire.delivery(topic, self.plan.payload) for topic in range(topology.topics)]
        buffer = receive_buffer(max(frame.size for frame in frames))
        for number, sock in enumerate(readers):
            topic = number % topology.topics
            self._subscribe(sock, frames[topic], buffer, topic, traits_of(wire).poll_request)

    def _subscribe(
        self,
        sock: socket.socket,
        frame: Frame,
        buffer: bytearray,
        topic: int,
        poll_request: PollRequest | None,
    ) -> None:
        streams: dict[int, Stream] = {}
        publishers: dict[int, Publisher] = {}
        for number in range(topic, len(self.publishers), self.plan.topology.topics):
            streams[number] = Stream(self.plan.per_batch * self.plan.cycle)
            publishers[number] = self.publishers[number]
            publishers[number].streams.append(streams[number])
        if poll_request is None:
            subscriber = Subscriber(sock, frame, buffer, streams, publishers, self.samples)
        else:
            client = f"bench-sub-{len(self.subscribers)}"
            subscriber = Poller(sock, frame, buffer, streams, publishers, self.samples)
            subscriber.poll_with(partial(poll_request, client))
        self.subscribers.append(subscriber)

    def _open(self, address: Address, wire: Wire, hello: bytes) -> socket.socket:
        sock = connect(address, hello, traits_of(wire).greeting)
        self._sockets.append(sock)
        await_welcome(sock, wire)
        sock.setblocking(False)
        return sock

    def _answer_late_frame(self, expected: BrokerTraits) -> None:
        """Have it out of the way, before there are messages that it would come between."""
        for sock in self._sockets if expected.late_frame else ():
            sock.settimeout(HANDSHAKE_SECONDS)
            got = receive(sock, len(expected.late_frame))
            if got != expected.late_frame:
                raise BenchError(f"the broker sent {got!r} instead of {expected.late_frame!r}")
            sock.sendall(expected.late_reply)
            sock.setblocking(False)

    def close(self) -> None:
        """Closes every connection."""
        for sock in self._sockets:
            sock.close()

    def sweep(self) -> None:
        """Lets each publisher send and each subscriber receive once.

        Raises BenchError if nothing has moved for STALL_SECONDS.
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
        """Publishes as fast as the windows allow."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.sweep()

    def drain(self) -> None:
        """Stops publishing and receives all that is on its way. Raises BenchError."""
        for publisher in self.publishers:
            publisher.allowance = 0
        while self.outstanding():
            self.sweep()
        for publisher in self.publishers:
            publisher.check_answers()

    def outstanding(self) -> int:
        """Messages that have not reached their slowest subscriber."""
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
        """Of all subscribers."""
        return [stream for reader in self.subscribers for stream in reader.streams.values()]


def connect(address: Address, hello: bytes, greeting: int = 0) -> socket.socket:
    """Opens a blocking connection and sends `hello`. Raises BenchError.

    The first `greeting` bytes of it are answered by as many before the rest is sent.
    """
    try:
        sock = socket.create_connection(address, HANDSHAKE_SECONDS)
        tune(sock)
        if greeting:
            sock.sendall(hello[:greeting])
            # With a time limit MSG_WAITALL would not wait for all of it; this does.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, greeting)
            if len(sock.recv(greeting, socket.MSG_PEEK)) < greeting:
                raise BenchError("the broker closed a connection instead of greeting")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        sock.sendall(hello[greeting:])
    except OSError as error:
        raise BenchError(f"cannot connect: {error}") from error
    return sock


def receive(sock: socket.socket, size: int) -> bytes:
    """So many bytes, or less at the end of the stream; MSG_WAITALL knows no time limit."""
    data = b""
    while len(data) < size and (more := sock.recv(size - len(data))):
        data += more
    return data


def tune(sock: socket.socket) -> None:
    """Makes the kernel send what it is given at once."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION_CONTROL)


def await_welcome(sock: socket.socket, wire: Wire) -> None:
    """Waits for the broker's answer to the hello. Raises BenchError."""
    answer = b""
    try:
        while not wire.welcomed(answer):
            data = sock.recv(4096)
            if not data:
                raise BenchError("the broker closed a connection during its handshake")
            answer += data
    except OSError as error:
        raise BenchError(f"{wire.name} handshake failed: {error}") from error
