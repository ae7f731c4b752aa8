"""Publishers that outlive brokers; they record the sent and the acknowledged messages.

Every message is published once, so the history has it once at most. A publisher whose connection
breaks continues with new messages when a broker runs again.
"""

from __future__ import annotations

import random
import socket
import threading
from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar
from uuid import NAMESPACE_URL, uuid5

from tests.bench.wires.rheos import ACK_SIZE, CREATE, PUBLISH, request
from tests.integration.broker import Broker
from tests.integration.clients import PING, PONG, Cafe, Nsd, frame, handshake_pub, message, publish
from tests.unit import brokers, fast_wire

# Messages that are sent before their acknowledgments are read.
BURST = 20
_LARGE = 3000
_BULKY = 60_000
_CAFE_PING, _CAFE_PONG = frame(PING), frame(PONG)
# A context of eight bytes follows.
_ZMTP_PING = b"\x04\x0f\x04PING\0\0"


class Publisher(threading.Thread):
    """One client of ``broker``, until it is killed."""

    kept_whole: ClassVar = True
    """Whether the history has the first messages that were sent, without holes."""

    def __init__(self, broker: Broker, name: str, record: Record, random: random.Random) -> None:
        super().__init__(name=name, daemon=True)
        self._broker = broker
        self._record = record
        self._random = random

    def run(self) -> None:
        try:
            self.load()
        except (OSError, EOFError):
            pass
        except AssertionError as broken:
            self._record.broken.append(f"{self.name}: {broken}")

    @abstractmethod
    def load(self) -> None:
        """Publish until the connection breaks. Raises OSError or EOFError."""

    def make(self) -> list[bytes]:
        """Return new messages."""
        payloads = []
        for _ in range(self._random.randint(1, BURST)):
            payload = b"%s-%d" % (self.name.encode(), self._record.next())
            if self._random.random() < 0.02:
                payload += b" " * _LARGE
            payloads.append(payload)
        return payloads

    def sending(self, payloads: list[bytes]) -> None:
        """Record that the history may have these from now on."""
        self._record.sending(self.name, payloads, self.kept_whole)


class Record:
    """The published messages, and those acknowledged as stored; without trailing blanks.

    ``sent`` has the messages of each publisher in order.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0
        self.published: set[bytes] = set()
        self.sent: dict[str, list[bytes]] = {}
        self.whole: set[str] = set()
        self.acknowledged: set[bytes] = set()
        self.broken: list[str] = []
        self.may_fail = False
        """May publications be answered with an error?"""

    def next(self) -> int:
        """Return a number for the next message."""
        with self._lock:
            self._number += 1
            return self._number

    def sending(self, name: str, payloads: list[bytes], whole: bool) -> None:
        """Record that the history may have these from now on."""
        stripped = [payload.rstrip() for payload in payloads]
        with self._lock:
            self.published.update(stripped)
            self.sent.setdefault(name, []).extend(stripped)
            if whole:
                self.whole.add(name)

    def confirmed(self, payloads: list[bytes]) -> None:
        """Record that the history must have these from now on."""
        with self._lock:
            self.acknowledged.update(payload.rstrip() for payload in payloads)

    def check_order(self, offsets: Mapping[bytes, int], damaged: bool) -> None:
        """Check that each publisher's messages are in the order sent. Raises AssertionError.

        Where messages were lost with the power (``damaged``) others may be there behind them.
        """
        for name, sent in self.sent.items():
            there = [offsets.get(payload) for payload in sent]
            found = [offset for offset in there if offset is not None]
            assert found == sorted(found), f"{name}: out of order"
            if name in self.whole and not (self.may_fail or damaged):
                assert there[: len(found)] == found, f"{name}: holes"


class Rheos(Publisher):
    """Bursts of requests to a sync topic, each acknowledged."""

    def load(self) -> None:
        me = uuid5(NAMESPACE_URL, self.name).bytes
        topic = f"sync/{self.name}"
        with socket.create_connection(("127.0.0.1", self._broker.port("rheos"))) as sock:
            sock.settimeout(20)
            sock.sendall(request(CREATE, me, topic))
            _receive(sock, ACK_SIZE)
            while True:
                payloads = self.make()
                self.sending(payloads)
                sock.sendall(b"".join(request(PUBLISH, me, topic, data) for data in payloads))
                for payload in payloads:
                    acknowledgment = _receive(sock, ACK_SIZE)
                    if acknowledgment[-1] == 0:
                        self._record.confirmed([payload])
                    else:
                        assert self._record.may_fail, "a publication has failed"


class NsdPublisher(Publisher):
    """Lines to a sync channel; several are sent before responses are read."""

    def load(self) -> None:
        with Nsd.to(self._broker) as client:
            identity = f"sync/{self.name}"
            if client.ask("Open", identity) != {"_class": "SuccessResponse"}:
                assert self._record.may_fail, "an identity could not be opened"
                return
            while True:
                payloads = [payload[:900] for payload in self.make()]
                self.sending(payloads)
                for payload in payloads:
                    client.put("Publish", identity, message=message(payload.decode()))
                for payload in payloads:
                    if client.answer() == {"_class": "SuccessResponse"}:
                        self._record.confirmed([payload])
                    else:
                        assert self._record.may_fail, "a publication has failed"


class CafePublisher(Publisher):
    """Large bursts without acknowledgments."""

    def load(self) -> None:
        with Cafe.publisher(self._broker, 1, self.name.encode()) as client:
            while True:
                payloads = [payload for _ in range(10) for payload in self.make()]
                self.sending(payloads)
                client.send(*[publish(1, payload) for payload in payloads])
                # A faster publisher would only make the checks longer.
                client.sync()


class Bulk(Publisher):
    """Large messages without acknowledgments, which fill segments."""

    def load(self) -> None:
        with Cafe.publisher(self._broker, 2, self.name.encode()) as client:
            while True:
                payloads = [payload.ljust(_BULKY) for payload in self.make()]
                self.sending(payloads)
                client.send(*[publish(2, payload) for payload in payloads])
                client.sync()


class UdpPublisher(Publisher):
    """Datagrams; the kernel or the broker may drop some."""

    kept_whole = False

    def load(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(0.05)
            sock.connect(("127.0.0.1", self._broker.port("cafe", "udp")))
            sock.send(handshake_pub(3, self.name.encode()))
            self._await_pong(sock)
            while True:
                payloads = self.make()
                self.sending(payloads)
                for payload in payloads:
                    sock.send(publish(3, payload))
                self._await_pong(sock)

    def _await_pong(self, sock: socket.socket) -> None:
        """Wait until the broker has handled all messages. Raises OSError when it is gone."""
        answer = b""
        while _CAFE_PONG not in answer:
            sock.send(_CAFE_PING)
            try:
                answer = sock.recv(65_536)
            except TimeoutError:
                # Either datagram may be lost. If no process listens any more, the next send fails.
                continue


class SpotPublisher(Publisher):
    """A DEALER, whose messages have no acknowledgments."""

    def load(self) -> None:
        with socket.create_connection(("127.0.0.1", self._broker.port("spot"))) as sock:
            sock.settimeout(20)
            sock.sendall(brokers.ready(b"DEALER"))
            topic = self.name.encode()
            while True:
                payloads = [payload.rstrip() for payload in self.make()]
                self.sending(payloads)
                mark = payloads[-1][-7:].rjust(8)
                requests = [brokers.publish(topic, payload) for payload in payloads]
                sock.sendall(b"".join(requests) + _ZMTP_PING + mark)
                _receive_until(sock, mark)


class FastPublisher(Publisher):
    """On a durable topic, which is committed like acknowledged ones, without an acknowledgment."""

    def load(self) -> None:
        with socket.create_connection(("127.0.0.1", self._broker.port("fast"))) as sock:
            sock.settimeout(20)
            topic = fast_wire.topic_id(self.name)
            sock.sendall(fast_wire.create(fast_wire.OWNER, self.name, fast_wire.DURABLE))
            # The error for an unknown topic follows the handling of all earlier packets.
            question = fast_wire.unsubscribe(fast_wire.OWNER, 1)
            while True:
                payloads = self.make()
                self.sending(payloads)
                requests = fast_wire.publish(fast_wire.OWNER, *payloads, topic=topic)
                sock.sendall(requests + question)
                answer = _receive(sock, 7)
                while answer != fast_wire.error(0x05, fast_wire.NO_TOPIC, 1):
                    assert self._record.may_fail, f"answered with {answer.hex(' ')}"
                    answer = _receive(sock, 7)


def _receive(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def _receive_until(sock: socket.socket, mark: bytes) -> None:
    data = b""
    while not data.endswith(mark):
        more = sock.recv(65_536)
        if not more:
            raise EOFError
        data += more


KINDS: tuple[type[Publisher], ...] = (
    Rheos, Rheos, NsdPublisher, CafePublisher, UdpPublisher, SpotPublisher, FastPublisher,
)  # fmt: skip
