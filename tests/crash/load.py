"""Publishers that do not stop when the broker does: what they sent, and what was acknowledged.

Every message is published once, so each is in the history once at the most. A publisher whose
connection breaks goes on with new messages when the broker is back.
"""

from __future__ import annotations

import random
import socket
import threading
from abc import abstractmethod
from uuid import NAMESPACE_URL, uuid5

from tests.bench.wires.rheos import ACK_SIZE, CREATE, PUBLISH, request
from tests.integration.broker import Broker
from tests.integration.clients import Cafe, Nsd, message, publish

# Messages that are sent before their acknowledgments are read.
BURST = 20
_LARGE = 3000


class Publisher(threading.Thread):
    """One client of ``broker``, for one life of it."""

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
        """Publish until the connection breaks, which raises OSError or EOFError."""

    def make(self) -> list[bytes]:
        """Some messages that were not published before."""
        payloads = []
        for _ in range(self._random.randint(1, BURST)):
            payload = b"%s-%d" % (self.name.encode(), self._record.next())
            if self._random.random() < 0.02:
                payload += b" " * _LARGE
            payloads.append(payload)
        return payloads


class Record:
    """What was published, and what of it was acknowledged as stored."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0
        self.published: set[bytes] = set()
        self.acknowledged: set[bytes] = set()
        self.broken: list[str] = []

    def next(self) -> int:
        """A number for the next message."""
        with self._lock:
            self._number += 1
            return self._number

    def sending(self, payloads: list[bytes]) -> None:
        """From now on these may be in the history."""
        with self._lock:
            self.published.update(payloads)

    def confirmed(self, payloads: list[bytes]) -> None:
        """From now on these must be there."""
        with self._lock:
            self.acknowledged.update(payloads)


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
                self._record.sending(payloads)
                sock.sendall(b"".join(request(PUBLISH, me, topic, data) for data in payloads))
                for payload in payloads:
                    acknowledgment = _receive(sock, ACK_SIZE)
                    assert acknowledgment[-1] == 0, "a publication has failed"
                    self._record.confirmed([payload])


class NsdPublisher(Publisher):
    """Lines to a sync channel, some before the responses to those before are read."""

    def load(self) -> None:
        with Nsd.to(self._broker) as client:
            identity = f"sync/{self.name}"
            client.do("Open", identity)
            while True:
                payloads = [payload[:900] for payload in self.make()]
                self._record.sending(payloads)
                for payload in payloads:
                    client.put("Publish", identity, message=message(payload.decode()))
                for payload in payloads:
                    assert client.answer() == {"_class": "SuccessResponse"}
                    self._record.confirmed([payload])


class CafePublisher(Publisher):
    """Large bursts that nobody acknowledges."""

    def load(self) -> None:
        with Cafe.publisher(self._broker, 1, self.name.encode()) as client:
            while True:
                payloads = [payload for _ in range(10) for payload in self.make()]
                self._record.sending(payloads)
                client.send(*[publish(1, payload) for payload in payloads])
                # Not faster than the broker, or there would be more to check than to learn.
                client.sync()


def _receive(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data


KINDS: tuple[type[Publisher], ...] = (Rheos, Rheos, NsdPublisher, CafePublisher)
