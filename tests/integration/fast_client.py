"""A small blocking client of fast, and the command ``pubsub`` for its secrets and tokens."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.integration.broker import TIMEOUT, Broker, environment
from tests.integration.clients import Client

PUBSUB = str(Path(sys.executable).with_name("pubsub"))
MESSAGE, KEY_UPDATE, ERROR = 0x04, 0x06, 0x7F
# No topic has this id. The error for it shows that all requests before it were handled.
NOWHERE = 0


def pubsub(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run the real command."""
    return subprocess.run(
        [PUBSUB, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT / 2,
        check=check,
    )


def make_secret(path: Path) -> Path:
    """Make a secret file."""
    pubsub("secret", str(path))
    return path


def make_token(secret: Path, *options: str, key: str = "k1", permission: str = "*") -> bytes:
    """Return a token for ``key``."""
    made = pubsub(
        "token", "make", "--secret-file", str(secret), f"--queue-key={key}",
        f"--permission={permission}", *options,
    )  # fmt: skip
    return made.stdout.strip().encode()


def topic_id(name: str) -> int:
    """Return the FNV-1a 32 hash."""
    value = 0x811C9DC5
    for byte in name.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


NEWS = topic_id("news")


def _head(kind: int, raw: bytes) -> bytes:
    return bytes([kind, len(raw)]) + raw


def create(raw: bytes, name: str = "news", flags: int = 0) -> bytes:
    topic = name.encode()
    return _head(0x01, raw) + bytes([len(topic)]) + topic + bytes([flags])


def subscribe(raw: bytes, topic: int = NEWS) -> bytes:
    return _head(0x02, raw) + struct.pack(">I", topic)


def publish(raw: bytes, *payloads: bytes, topic: int = NEWS) -> bytes:
    head = _head(0x03, raw)
    return b"".join(head + struct.pack(">II", topic, len(p)) + p for p in payloads)


def rotate(raw: bytes, key: bytes, topic: int = NEWS) -> bytes:
    return _head(0x07, raw) + struct.pack(">I", topic) + bytes([len(key)]) + key


class Packet(NamedTuple):
    """A received packet; ``code`` and ``offending`` are those of an ERROR."""

    kind: int
    topic: int
    data: bytes = b""
    offending: int = 0
    code: int = 0


class Fast(Client):
    """A fast client."""

    @classmethod
    def to(cls, broker: Broker, *requests: bytes) -> Fast:
        """Return a client of a broker's first fast listener that has sent ``requests``."""
        made = cls(broker.port("fast"))
        made.send(*requests)
        return made

    def receive(self) -> Packet:
        """Return the next packet. Raises EOFError."""
        kind = self._peek(1)[0]
        if kind == ERROR:
            _, offending, code, topic = struct.unpack(">BBBI", self._take(7))
            return Packet(kind, topic, b"", offending, code)
        if kind == MESSAGE:
            _, topic, length = struct.unpack(">BII", self._peek(9))
            return Packet(kind, topic, self._take(9 + length)[9:])
        assert kind == KEY_UPDATE
        _, topic, length = struct.unpack(">BIB", self._peek(6))
        return Packet(kind, topic, self._take(6 + length)[6:])

    def texts(self, count: int) -> list[bytes]:
        """Return the payloads of the next ``count`` packets, all MESSAGE."""
        packets = [self.receive() for _ in range(count)]
        assert all(packet.kind == MESSAGE for packet in packets), packets
        return [packet.data for packet in packets]

    def error(self) -> tuple[int, int]:
        """Return the offending type and code of the next packet, which must be an ERROR."""
        packet = self.receive()
        assert packet.kind == ERROR, packet
        return packet.offending, packet.code

    def sync(self, raw: bytes) -> list[Packet]:
        """Return the replies to all earlier requests; ``raw`` must be a valid token."""
        self.send(_head(0x05, raw) + struct.pack(">I", NOWHERE))
        packets: list[Packet] = []
        while (packet := self.receive()) != Packet(ERROR, NOWHERE, b"", 0x05, 4):
            packets.append(packet)
        return packets
