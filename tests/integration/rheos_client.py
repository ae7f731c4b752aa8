"""A client of rheos on a socket."""

from __future__ import annotations

import struct
import zlib

from tests.integration.clients import Client

CREATE, SUBSCRIBE, PUBLISH = 0, 1, 2
NIL = bytes(16)


class Rheos(Client):
    """A rheos client; ``use`` selects its format."""

    client_id = NIL
    original = sealed = False

    def use(self, client_id: bytes, layout: str = "spec", checksum: str = "off") -> Rheos:
        self.client_id = client_id
        self.original, self.sealed = layout == "original", checksum == "crc32"
        return self

    def request(self, opcode: int, topic: bytes, data: bytes = b"") -> bytes:
        length = "<I" if self.original else "<H"
        body = struct.pack("<H", len(topic)) + topic + struct.pack(length, len(data)) + data
        who = self.client_id
        rest = bytes([opcode]) + who if self.original else who + bytes([opcode])
        return self.seal(b"\xfa" + struct.pack("<I", len(body)) + rest + body)

    def seal(self, packet: bytes) -> bytes:
        return packet + struct.pack("<I", zlib.crc32(packet)) if self.sealed else packet

    def acked(self) -> bytes:
        """Return the id in the next packet, which must be an acknowledgment of success."""
        packet = self._take(22 if self.sealed else 18)
        assert packet == self.seal(packet[:18])
        assert (packet[0], packet[17]) == (0xAC, 0), packet
        return packet[1:17]

    def failed(self) -> bool:
        """Return whether the next packet is an acknowledgment of failure."""
        packet = self._take(22 if self.sealed else 18)
        return packet == self.seal(b"\xac" + NIL + b"\x01")

    def message(self) -> tuple[bytes, bytes]:
        """Return sender and data of the next packet, which must be a response."""
        size, length, sender = struct.unpack("<BI16s", self._take(21))
        assert size == 21
        return sender, self._take(length)

    def do(self, opcode: int, topic: bytes, data: bytes = b"") -> bytes:
        """Send a request that must succeed."""
        self.send(self.request(opcode, topic, data))
        return self.acked()
