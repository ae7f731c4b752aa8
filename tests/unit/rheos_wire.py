"""rheos packets made by hand, and a broker with a rheos listener."""

from __future__ import annotations

from struct import pack
from typing import Any
from uuid import UUID, uuid5
from zlib import crc32

from pubsub.protocols.rheos.connection import RheosConnection
from tests.unit.streams import Client, ProtocolHouse

CREATE, SUBSCRIBE, PUBLISH = 0, 1, 2
ALICE = bytes.fromhex("a11ce000a11ce000a11ce000a11ce000")
BOB = bytes.fromhex("00b0b00000b0b00000b0b00000b0b000")
CAROL = bytes.fromhex("ca201000ca201000ca201000ca201000")
NIL = bytes(16)
FAILED = b"\xac" + NIL + b"\x01"
TOPICS = UUID("5d1c8a52-2f4e-5a0b-9b8e-0f6a4a3d7c11")
SENDERS = UUID("a3c7e0f4-6b1d-5e92-8d35-41f07b9c26de")


def body(name: bytes, data: bytes = b"", length: str = "<H") -> bytes:
    """Return the topic encoding."""
    return pack("<H", len(name)) + name + pack(length, len(data)) + data


def raw(opcode: int, client_id: bytes, payload: bytes) -> bytes:
    """Return a request with any body."""
    return b"\xfa" + pack("<I", len(payload)) + client_id + bytes([opcode]) + payload


def create(client_id: bytes, name: bytes = b"news") -> bytes:
    return raw(CREATE, client_id, body(name))


def subscribe(client_id: bytes, name: bytes = b"news") -> bytes:
    return raw(SUBSCRIBE, client_id, body(name))


def publish(client_id: bytes, *payloads: bytes, name: bytes = b"news") -> bytes:
    return b"".join(raw(PUBLISH, client_id, body(name, payload)) for payload in payloads)


def original(opcode: int, client_id: bytes, name: bytes, data: bytes = b"") -> bytes:
    """Return a request in the original layout."""
    payload = body(name, data, "<I")
    return b"\xfa" + pack("<I", len(payload)) + bytes([opcode]) + client_id + payload


def sealed(packet: bytes) -> bytes:
    """Return ``packet`` with a checksum."""
    return packet + pack("<I", crc32(packet))


def ack(message_id: bytes) -> bytes:
    return b"\xac" + message_id + b"\x00"


def topic_ack(name: str = "news") -> bytes:
    return ack(uuid5(TOPICS, name).bytes)


def response(sender_id: bytes, *payloads: bytes) -> bytes:
    return b"".join(
        b"\x15" + pack("<I", len(payload)) + sender_id + payload for payload in payloads
    )


def message_ids(data: bytes) -> list[bytes]:
    """Return the ids in ``data``, which must be acknowledgments of success."""
    return _ids(data, 0)


def unconfirmed_ids(data: bytes) -> list[bytes]:
    """Return the ids in ``data``: FAILED for messages that may be published nevertheless."""
    ids = _ids(data, 1)
    assert NIL not in ids
    return ids


def _ids(data: bytes, code: int) -> list[bytes]:
    assert len(data) % 18 == 0
    acks = [data[at : at + 18] for at in range(0, len(data), 18)]
    assert all(one[0] == 0xAC and one[17] == code for one in acks)
    return [one[1:17] for one in acks]


class Rheos(ProtocolHouse):
    """A broker with one rheos listener and the topic "news"."""

    served = "rheos"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.listener = self.listeners["rheos"]
        self.clients = self.factories["rheos"].shared.clients
        self.broker.topics.create("news")

    def reader(self, client_id: bytes, *names: str) -> Client:
        """Return a new client that is subscribed to these topics, or to news."""
        client = self.connect("rheos")
        for name in names or ("news",):
            client.send(subscribe(client_id, name.encode()))
            assert client.take() == topic_ack(name)
        return client

    def connection(self, client: Client) -> RheosConnection:
        """Return the broker's side of the connection."""
        assert isinstance(client.protocol, RheosConnection)
        return client.protocol

    def refused(self, reason: str) -> int:
        """Return how often this was the reason of a FAILED."""
        return self.broker.counters.refusals["rheos", reason]
