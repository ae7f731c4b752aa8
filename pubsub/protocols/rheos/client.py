"""A blocking publisher for rheos, which acknowledges every request (on a sync topic from the disk).

Topics are created before the first message; FAILED for a topic that exists is ignored.
"""

from __future__ import annotations

import secrets

from pubsub.protocols.rheos.codec import (
    HEADER_SIZE,
    MAX_PAYLOAD,
    SUCCESS,
    Ack,
    Codec,
    Opcode,
    Request,
    RheosError,
)
from pubsub.settings import Setting, choice
from pubsub.wire.blocking_publisher import Address, BlockingPublisher
from pubsub.wire.client_side import ClientSide, PublisherOptions

_UUID_BYTES = 16


class RheosPublisher(BlockingPublisher):
    """``layout`` and ``checksum`` must be those of the listener. The sender is a random UUID."""

    protocol = "rheos"

    def __init__(self, address: Address, layout: str = "spec", checksum: bool = False) -> None:
        super().__init__(address)
        self._codec = Codec(layout, checksum)
        self._client_id = secrets.token_bytes(_UUID_BYTES)
        self._created: set[str] = set()
        # For each request without a reply, whether it publishes.
        self._awaited: list[bool] = []

    def encode(self, topic: str, payload: bytes, sender: bytes | None) -> bytes:
        name = topic.encode()
        before = b""
        if topic not in self._created:
            self._created.add(topic)
            before = self._codec.encode(Request(Opcode.CREATE, self._client_id, name))
            self._awaited.append(False)
        try:
            request = self._codec.encode(Request(Opcode.PUBLISH, self._client_id, name, payload))
        except OverflowError:
            raise self.impossible(f"{len(payload)} bytes are too many for this layout") from None
        if len(request) > HEADER_SIZE + MAX_PAYLOAD:
            raise self.impossible(f"{len(payload)} bytes are too many")
        self._awaited.append(True)
        return before + request

    def confirm(self, count: int, last: bool) -> None:
        failed = 0
        for publishes in self._awaited:
            failed += (self._acknowledgment().code != SUCCESS) and publishes
        self._awaited = []
        if failed:
            raise self.refused("FAILED; the broker's log has the reason", failed)

    def _acknowledgment(self) -> Ack:
        while True:
            try:
                reply = self.stream.receive(self._codec.decode_answer)
            except RheosError as error:
                raise self.refused(f"malformed reply ({error}); check the layout") from None
            if isinstance(reply, Ack):
                return reply


def make_publisher(options: PublisherOptions) -> RheosPublisher:
    """See ``ClientSide``."""
    values = options.values
    return RheosPublisher(options.address, values["layout"], values["checksum"] == "crc32")


CLIENT = ClientSide(
    make_publisher,
    parameters=(
        Setting("layout", choice("spec", "original"), "spec", "that of the listener"),
        Setting("checksum", choice("none", "crc32"), "none", "that of the listener"),
    ),
)
