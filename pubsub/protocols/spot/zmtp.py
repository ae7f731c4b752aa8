"""ZMTP 3.1: our greeting (``zmtp_handshake.py`` reads the peer's), frames, commands. Sans-IO.

RFC 37 is the specification (RFC 23 for peers with ZMTP 3.0, which are accepted too); spot §2 adds
the rules of this project. A connection is a greeting of 64 bytes, the commands of a handshake
(``zmtp_handshake.py``), and then messages of one or more frames, with commands between them:

    flags    1 byte: 1 MORE (the message continues), 2 LONG, 4 COMMAND, no others
    size     1 byte, or 8 big-endian if LONG
    body     size bytes; that of a command is the length of its name, its name, its data
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

from pubsub.protocols.spot.refusals import MALFORMED_METADATA

MORE, LONG, COMMAND = 1, 2, 4
_SHORTEST_LONG = 256
_MAX_CONTEXT = 16

SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
NULL = b"NULL".ljust(20, b"\0")


def greeting(mechanism: bytes, is_server: bool = False) -> bytes:
    """Return the greeting of version 3.1, of 64 bytes."""
    name = mechanism.ljust(len(NULL), b"\0")
    return SIGNATURE + b"\x03\x01" + name + bytes((is_server,)) + bytes(31)


GREETING = greeting(b"NULL")
"""The greeting with the mechanism NULL."""

SERVER_TYPES: Mapping[bytes, bytes] = {
    b"DEALER": b"ROUTER",
    b"REQ": b"ROUTER",
    b"ROUTER": b"ROUTER",
    b"SUB": b"XPUB",
    b"XSUB": b"XPUB",
    b"PUB": b"XSUB",
    b"XPUB": b"XSUB",
}
"""Our socket type for each socket type of a peer; no others are served (spot §2.3)."""


class ZmtpError(Exception):
    """Bytes that are not ZMTP, or use a part of it that is not supported.

    The connection cannot continue; ``answer`` is to be sent before it is closed.
    """

    def __init__(self, reason: str, answer: bytes = b"") -> None:
        super().__init__(reason)
        self.reason = reason
        self.answer = answer


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """The largest body of a frame, in bytes, and the largest number of frames of a message."""

    frame: int = 1024 * 1024
    frames: int = 8


@dataclass(frozen=True, slots=True)
class Command:
    """A command frame, such as PING or SUBSCRIBE."""

    name: bytes
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Unit:
    """A message, or a command, or a message with commands between its frames.

    ``frames`` is empty if there is no message. ``end`` is where the unit ends, ``last`` where the
    header of its last frame begins.
    """

    frames: list[bytes]
    commands: list[Command]
    last: int
    end: int


@dataclass(frozen=True, slots=True)
class Partial:
    """An incomplete unit: the contents of its first ``length`` bytes.

    It can be decoded further when there are ``need`` bytes from its start on.
    """

    frames: list[bytes]
    commands: list[Command]
    length: int
    need: int


def frame_head(size: int, flags: int = 0) -> bytes:
    """Return the header of a frame with a body of ``size`` bytes."""
    if size < _SHORTEST_LONG:
        return bytes((flags, size))
    return bytes((flags | LONG,)) + size.to_bytes(8, "big")


def encode_message(frames: Iterable[bytes]) -> bytes:
    """Encode a message of one or more frames."""
    *before, last = frames
    parts = [(frame_head(len(frame), MORE), frame) for frame in before]
    return b"".join(chain(*parts, (frame_head(len(last)), last)))


def encode_command(command: Command) -> bytes:
    """Encode a command frame."""
    body = bytes((len(command.name),)) + command.name + command.data
    return frame_head(len(body), COMMAND) + body


def decode(
    data: bytes, at: int, limits: FrameLimits, partial: Partial | None = None
) -> Unit | Partial:
    """Return the unit that starts at ``at``, or the part of it that has arrived.

    ``partial`` is the result of the last call for the same unit, which is not decoded again.
    Raises ZmtpError.
    """
    start, end = at, len(data)
    frames: list[bytes] = [] if partial is None else partial.frames
    commands: list[Command] = [] if partial is None else partial.commands
    at += 0 if partial is None else partial.length
    while True:
        if end - at < 2:
            return Partial(frames, commands, at - start, at + 2 - start)
        flags, size, body = data[at], data[at + 1], at + 2
        if flags & LONG:
            body = at + 9
            if end < body:
                return Partial(frames, commands, at - start, body - start)
            size = int.from_bytes(data[at + 1 : body], "big")
        _check(flags, size, len(frames) + len(commands), limits)
        stop = body + size
        if stop > end:
            return Partial(frames, commands, at - start, stop - start)
        if flags & COMMAND:
            commands.append(parse_command(data[body:stop]))
            if not frames:
                return Unit(frames, commands, at, stop)
        else:
            frames.append(data[body:stop])
            if not flags & MORE:
                return Unit(frames, commands, at, stop)
        at = stop


def _check(flags: int, size: int, before: int, limits: FrameLimits) -> None:
    if flags & ~(MORE | LONG | COMMAND) or flags & (COMMAND | MORE) == COMMAND | MORE:
        raise ZmtpError("malformed-frame")
    if size > limits.frame:
        raise ZmtpError("too-large")
    if before >= limits.frames:
        raise ZmtpError("too-many-frames")


def parse_command(body: bytes) -> Command:
    """Return the command in a command frame; raises ZmtpError."""
    length = body[0] if body else 0
    if not length or len(body) <= length:
        raise ZmtpError("malformed-command")
    return Command(body[1 : 1 + length], body[1 + length :])


def encode_metadata(socket_type: bytes, properties: Mapping[bytes, bytes] | None = None) -> bytes:
    """Return the metadata of a socket of this type, as in READY and INITIATE."""
    listed = {b"Socket-Type": socket_type, **(properties or {})}
    return b"".join(
        bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value
        for name, value in listed.items()
    )


def ready(socket_type: bytes, properties: Mapping[bytes, bytes] | None = None) -> bytes:
    """Return the READY command of a socket of this type (RFC 37, NULL)."""
    return encode_command(Command(b"READY", encode_metadata(socket_type, properties)))


def error(reason: bytes) -> bytes:
    """Return the ERROR command; ``reason`` is up to 255 printable characters."""
    return encode_command(Command(b"ERROR", bytes((len(reason),)) + reason))


def pong(ping: Command) -> bytes:
    """Return the reply to a PING: its context without the time to live; raises ZmtpError."""
    context = ping.data[2:]
    if len(ping.data) < 2 or len(context) > _MAX_CONTEXT:
        raise ZmtpError("malformed-command")
    return encode_command(Command(b"PONG", context))


def ping(context: bytes, seconds: float = 0) -> bytes:
    """Return a PING; the peer may close the connection after ``seconds`` of silence (0: never)."""
    return encode_command(Command(b"PING", round(seconds * 10).to_bytes(2, "big") + context))


def ping_seconds(command: Command) -> float:
    """Return the time to live in a PING, in seconds."""
    return int.from_bytes(command.data[:2], "big") / 10


def parse_metadata(data: bytes) -> dict[bytes, bytes]:
    """Return the properties of a READY by lower-case name; raises ZmtpError.

    A property with two values is refused: libzmq takes the first of some and the last of others.
    """
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        name = data[at + 1 : at + 1 + data[at]]
        start = at + 1 + data[at] + 4
        at = start + int.from_bytes(data[start - 4 : start], "big")
        is_complete = name and start <= len(data) and at <= len(data)
        value = data[start:at]
        if not is_complete or found.setdefault(name.lower(), value) != value:
            raise ZmtpError("malformed-metadata", error(MALFORMED_METADATA))
    return found
