"""A tiny blocking client of fast, and the command ``pubsub`` that makes its secrets and tokens."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.integration.broker import PATIENCE, Broker, environment
from tests.integration.clients import Client

PUBSUB = str(Path(sys.executable).with_name("pubsub"))
MESSAGE, KEY_UPDATE, ERROR = 0x04, 0x06, 0x7F
# Nothing has this id: it is asked for to know that all before has been done.
NOWHERE = 0


def pubsub(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run the real command."""
    return subprocess.run(
        [PUBSUB, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE / 2,
        check=check,
    )


def make_secret(path: Path) -> Path:
    """A new secret file."""
    pubsub("secret", str(path))
    return path


def make_token(secret: Path, *options: str, key: str = "k1", permission: str = "*") -> bytes:
    """A token for ``key``."""
    made = pubsub(
        "token", "make", "--secret-file", str(secret), f"--queue-key={key}",
        f"--permission={permission}", *options,
    )  # fmt: skip
    return made.stdout.strip().encode()


def topic_id(name: str) -> int:
    """FNV-1a 32."""
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
    """A packet as it came; ``code`` and ``offending`` are an ERROR's."""

    kind: int
    topic: int
    data: bytes = b""
    offending: int = 0
    code: int = 0


class Fast(Client):
    """A fast client."""

    @classmethod
    def to(cls, broker: Broker, *requests: bytes) -> Fast:
        """Connected to a broker's first fast listener, having sent ``requests``."""
        made = cls(broker.port("fast"))
        made.send(*requests)
        return made

    def receive(self) -> Packet:
        """The next packet; raises EOFError."""
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
        """What the next ``count`` packets, all MESSAGE, carry."""
        packets = [self.receive() for _ in range(count)]
        assert all(packet.kind == MESSAGE for packet in packets), packets
        return [packet.data for packet in packets]

    def error(self) -> tuple[int, int]:
        """The next packet's offending type and code; it has to be an ERROR."""
        packet = self.receive()
        assert packet.kind == ERROR, packet
        return packet.offending, packet.code

    def sync(self, raw: bytes) -> list[Packet]:
        """What came for all that was sent before; ``raw`` has to be a good token."""
        self.send(_head(0x05, raw) + struct.pack(">I", NOWHERE))
        packets: list[Packet] = []
        while (packet := self.receive()) != Packet(ERROR, NOWHERE, b"", 0x05, 4):
            packets.append(packet)
        return packets
