"""ZMTP 3.1 with the NULL mechanism: greeting, READY, frames, commands. Sans-IO.

RFC 37 is the specification (RFC 23 for peers with ZMTP 3.0, which are accepted too); spot §2 adds
the rules of this project. A connection is a greeting of 64 bytes, a READY command, and then
messages of one or more frames, with commands between them:

    flags    1 byte: 1 MORE (the message continues), 2 LONG, 4 COMMAND, nothing else
    size     1 byte, or 8 big-endian if LONG
    body     size bytes; that of a command is the length of its name, its name, its data
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain

MORE, LONG, COMMAND = 1, 2, 4
_SHORTEST_LONG = 256
_MAX_CONTEXT = 16

SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
NULL = b"NULL".ljust(20, b"\0")
# The position of the version in the greeting.
_MAJOR = len(SIGNATURE)
GREETING = SIGNATURE + b"\x03\x01" + NULL + bytes(32)
"""Our greeting: version 3.1, mechanism NULL, not a server."""

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


def ready(socket_type: bytes, properties: Mapping[bytes, bytes] | None = None) -> bytes:
    """Return the READY command of a socket of this type (RFC 37, NULL)."""
    listed = {b"Socket-Type": socket_type, **(properties or {})}
    data = b"".join(
        bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value
        for name, value in listed.items()
    )
    return encode_command(Command(b"READY", data))


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
    """Return the properties of a READY by lower-case name; raises ZmtpError."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        name = data[at + 1 : at + 1 + data[at]]
        start = at + 1 + data[at] + 4
        at = start + int.from_bytes(data[start - 4 : start], "big")
        if not name or at > len(data) or start > len(data):
            raise ZmtpError("malformed-metadata", error(b"malformed metadata"))
        found[name.lower()] = data[start:at]
    return found


# The properties of READY that are used, in lower case, and the longest identity (RFC 37).
_PROPERTIES = (b"socket-type", b"identity", b"x-node", b"x-epoch")
_MAX_IDENTITY = 255
# The limits of the handshake's command frame; real ones have about fifty bytes.
_HANDSHAKE_LIMITS = FrameLimits(frame=4096, frames=1)


@dataclass(slots=True)
class Handshake:
    """The peer's part of the handshake: its greeting, then its READY.

    ``minor`` is the peer's minor version once the greeting has been read, ``metadata`` the
    properties of its READY once that has been; then the handshake is ``done``.
    """

    minor: int | None = None
    metadata: dict[bytes, bytes] = field(default_factory=dict)
    done: bool = False

    @property
    def socket_type(self) -> bytes:
        """The peer's socket type, as it states it."""
        return self.metadata.get(b"socket-type", b"")

    @property
    def has_commands(self) -> bool:
        """False for peers with ZMTP 3.0, which know no SUBSCRIBE, CANCEL, PING and PONG."""
        return self.minor != 0

    def consume(self, data: bytes, at: int = 0) -> tuple[int, int]:
        """Take one step; return where to continue, and how many bytes the next step needs.

        The latter is 0 when the handshake is done. Raises ZmtpError.
        """
        if self.minor is None:
            seen = data[at : at + len(GREETING)]
            self._check_greeting(seen)
            if len(seen) < len(GREETING):
                return at, len(GREETING) if len(seen) > _MAJOR else _MAJOR + 1
            self.minor = seen[_MAJOR + 1] if seen[_MAJOR] == 3 else 1
            return at + len(GREETING), 2
        unit = decode(data, at, _HANDSHAKE_LIMITS)
        if isinstance(unit, Partial):
            return at, unit.need
        self._take_ready(unit)
        return unit.end, 0

    @staticmethod
    def _check_greeting(seen: bytes) -> None:
        """Check the bytes that have arrived.

        A peer with another protocol may wait for a reply before it sends 64 bytes.
        """
        if seen and not seen.startswith(b"\xff"):
            raise ZmtpError("not-zmtp")
        if len(seen) > _MAJOR:
            if not seen[_MAJOR - 1] & 1:
                raise ZmtpError("not-zmtp")
            if seen[_MAJOR] < 3:
                raise ZmtpError("version")
        if len(seen) == len(GREETING) and seen[_MAJOR + 2 : _MAJOR + 2 + len(NULL)] != NULL:
            raise ZmtpError("mechanism")

    def _take_ready(self, unit: Unit) -> None:
        if unit.frames:
            raise ZmtpError("no-handshake", error(b"READY expected"))
        command = unit.commands[0]
        if command.name == b"ERROR":
            raise ZmtpError("refused-by-peer")
        if command.name != b"READY":
            raise ZmtpError("no-handshake", error(b"READY expected"))
        found = parse_metadata(command.data)
        # Other properties are not used.
        self.metadata = {name: found[name] for name in _PROPERTIES if name in found}
        if len(self.metadata.get(b"identity", b"")) > _MAX_IDENTITY:
            raise ZmtpError("malformed-metadata", error(b"malformed metadata"))
        self.done = True
