"""The broker's own decoders applied to streams, in the form in which tshark shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from pubsub.protocols.cafe import codec as cafe
from pubsub.protocols.fast import codec as fast
from pubsub.protocols.rheos import codec as rheos
from pubsub.protocols.spot import broker_commands, zmtp, zmtp_handshake
from pubsub.protocols.spot import commands as spot
from pubsub.wire.fields import Unsigned, decode_fields, layout

Fields: TypeAlias = dict[str, list[str]]
"""The bytes of each field, as hexadecimal digits."""


def declared(frame: Any) -> Fields:
    """Return the fields of a dataclass of ``wire/fields.py``."""
    found: Fields = {}
    for name, kind in layout(type(frame)):
        value = getattr(frame, name)
        encoded = kind.encode(value) if isinstance(kind, Unsigned) else value
        found[name] = [encoded.hex()]
    return found


def cafe_frames(data: bytes) -> Iterator[Fields]:
    """Yield the fields of each cafe frame; raises CafeError."""
    at = 0
    while (decoded := cafe.decode(data, at)) is not None:
        frame, end = decoded
        yield {"opcode": [data[at + 2 : at + 3].hex()], **declared(frame)}
        at = end


def fast_packets(data: bytes, largest: int | None = None) -> Iterator[Fields]:
    """Yield the fields of each fast packet; raises FastError.

    ``largest`` is the listener's ``max-payload``, if these are bytes of a client.
    """
    at = 0
    if largest is not None:
        fast.needed(data, at, largest)
    while (decoded := fast.decode(data, at)) is not None:
        packet, end = decoded
        yield {"type": [data[at : at + 1].hex()], **declared(packet)}
        at = end
        if largest is not None:
            fast.needed(data, at, largest)


def rheos_packets(data: bytes, options: Mapping[str, str], from_client: bool) -> Iterator[Fields]:
    """Yield the fields of each rheos packet; raises RheosError."""
    codec = rheos.Codec(options.get("layout", "spec"), options.get("checksum") == "crc32")
    at = 0
    while at < len(data):
        decoded = codec.decode(data, at) if from_client else codec.decode_answer(data, at)
        if decoded is None:
            return
        packet, at = decoded
        yield _rheos_fields(packet, codec, options.get("envelope") == "topic")


def _rheos_fields(packet: rheos.Packet, codec: rheos.Codec, envelope: bool) -> Fields:
    match packet:
        case rheos.Request(opcode, client_id, topic, data):
            numbers = {"opcode": [f"{opcode:02x}"], "client_id": [client_id.hex()]}
            return {**numbers, "name": [topic.hex()], "data": [data.hex()]}
        case rheos.Ack():
            return declared(packet)
        case rheos.Response(sender_id, payload):
            found = {"sender_id": [sender_id.hex()]}
            if not envelope:
                return {**found, "payload": [payload.hex()]}
            return {**found, **declared(decode_fields(codec.layout.topic, payload))}


def spot_messages(
    data: bytes, at: int = 0, sender: bytes = b"DEALER", largest: int = 2**20
) -> Iterator[Fields]:
    """Yield the fields of each unit after READY that a socket of the type ``sender`` sends.

    ``largest`` is the listener's ``max-message``.

    Raises ZmtpError and SpotError.
    """
    limits = zmtp.FrameLimits(frame=largest)
    while isinstance(unit := zmtp.decode(data, at, limits), zmtp.Unit):
        at = unit.end
        if not unit.frames:
            yield _command_fields(unit.commands[0])
        elif sender in (b"SUB", b"XSUB"):
            (subscription,) = unit.frames
            if subscription[:1] not in (b"\x00", b"\x01"):
                raise spot.SpotError
            yield {"prefix": [subscription[1:].hex()]}
        elif sender in (b"PUB", b"XPUB"):
            topic, payload = unit.frames
            yield {"topic": [topic.hex()], "data": [payload.hex()]}
        else:
            yield _spot_fields(_request(unit.frames))


def spot_stream(data: bytes, largest: int) -> Iterator[Fields]:
    """Yield the fields of a greeting, of READY, and of all units after it.

    Raises ZmtpError and SpotError.
    """
    shake = zmtp_handshake.Handshake()
    at, need = shake.consume(data)
    if shake.minor is None:
        return
    mechanism = data[12:32].hex()
    yield {"version.minor": [f"{data[11]:02x}"], "greeting.mechanism": [mechanism]}
    at, need = shake.consume(data, at)
    if need:
        return
    identity = shake.metadata.get(b"identity")
    found = {"socket_type": [shake.socket_type.hex()]} if shake.socket_type else {}
    yield found if identity is None else {**found, "identity": [identity.hex()]}
    yield from spot_messages(data, at, shake.socket_type, largest)


def _command_fields(command: zmtp.Command) -> Fields:
    found = {"command.name": [command.name.hex()]}
    match command.name:
        case b"PING":
            zmtp.pong(command)
            return {**found, "ttl": [command.data[:2].hex()], "context": [command.data[2:].hex()]}
        case b"PONG":
            return {**found, "context": [command.data.hex()]}
        case b"SUBSCRIBE" | b"CANCEL":
            return {**found, "prefix": [command.data.hex()]}
    return found


def _request(frames: Sequence[bytes]) -> spot.Request | broker_commands.BrokerCommand:
    command = broker_commands.decode_broker_command(frames)
    if command is not None:
        return command
    try:
        return spot.decode_request(frames)
    except spot.SpotError:
        return spot.decode_routed(frames)[1]


def _spot_fields(request: spot.Request | broker_commands.BrokerCommand) -> Fields:
    found: Fields = {}
    for name in request.__dataclass_fields__:
        value = getattr(request, name)
        name = "offset" if name == "offsets" else name
        if isinstance(value, bytes):
            found[name] = [value.hex()]
        elif isinstance(value, int):
            found[name] = [value.to_bytes(8, "big").hex()]
        elif value is not None:
            found[name] = [
                one.hex() if isinstance(one, bytes) else one.to_bytes(8, "big").hex()
                for one in value
            ]
    return found
