"""ZMTP 3.1 with the NULL mechanism: greeting, READY, frames, commands. Sans-IO.

RFC 37 is the specification (and RFC 23 for the 3.0 peers that are accepted as well); spot §2 is
what this project settles on top. A connection is a greeting of 64 bytes, a READY command, and
then messages of one or more frames with commands between them:

    flags    1 byte: 1 MORE (the message goes on), 2 LONG, 4 COMMAND, nothing else
    size     1 byte, or 8 big-endian if LONG
    body     size bytes; a command's is its name's length, its name, its data
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
# Where the version is in the greeting.
_MAJOR = len(SIGNATURE)
GREETING = SIGNATURE + b"\x03\x01" + NULL + bytes(32)
"""What we send: version 3.1, mechanism NULL, not a server."""

SERVER_TYPES: Mapping[bytes, bytes] = {
    b"DEALER": b"ROUTER",
    b"REQ": b"ROUTER",
    b"ROUTER": b"ROUTER",
    b"SUB": b"XPUB",
    b"XSUB": b"XPUB",
    b"PUB": b"XSUB",
    b"XPUB": b"XSUB",
}
"""The socket type to answer each type of peer with; no others are served (spot §2.3)."""


class ZmtpError(Exception):
    """Bytes that are no ZMTP, or not what is spoken here; the connection cannot go on.

    ``answer`` is what to send before it is closed.
    """

    def __init__(self, reason: str, answer: bytes = b"") -> None:
        super().__init__(reason)
        self.reason = reason
        self.answer = answer


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """The largest frame, in bytes of its body, and the most frames of one message."""

    frame: int = 1024 * 1024
    frames: int = 8


@dataclass(frozen=True, slots=True)
class Command:
    """A command frame, such as PING or SUBSCRIBE."""

    name: bytes
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Unit:
    """What comes next: a message, or commands alone, or a message with commands between.

    ``frames`` is empty if there is no message. ``end`` is where the unit ends, ``last`` where the
    header of its last frame is.
    """

    frames: list[bytes]
    commands: list[Command]
    last: int
    end: int


@dataclass(frozen=True, slots=True)
class Partial:
    """The start of a unit: what the first ``length`` bytes hold.

    From its start on there have to be ``need`` bytes before it is worth looking again.
    """

    frames: list[bytes]
    commands: list[Command]
    length: int
    need: int


def frame_head(size: int, flags: int = 0) -> bytes:
    """What stands before a frame's body of ``size`` bytes."""
    if size < _SHORTEST_LONG:
        return bytes((flags, size))
    return bytes((flags | LONG,)) + size.to_bytes(8, "big")


def encode_message(frames: Iterable[bytes]) -> bytes:
    """A message of one or more frames."""
    *before, last = frames
    parts = [(frame_head(len(frame), MORE), frame) for frame in before]
    return b"".join(chain(*parts, (frame_head(len(last)), last)))


def encode_command(command: Command) -> bytes:
    """A command frame."""
    body = bytes((len(command.name),)) + command.name + command.data
    return frame_head(len(body), COMMAND) + body


def decode(
    data: bytes, at: int, limits: FrameLimits, begun: Partial | None = None
) -> Unit | Partial:
    """The unit that starts at ``at``, or what there is of it.

    ``begun`` is what the last call for the same unit gave: it need not be read again.
    Raises ZmtpError.
    """
    start, end = at, len(data)
    frames: list[bytes] = [] if begun is None else begun.frames
    commands: list[Command] = [] if begun is None else begun.commands
    at += 0 if begun is None else begun.length
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
    """The command in a command frame; raises ZmtpError."""
    length = body[0] if body else 0
    if not length or len(body) <= length:
        raise ZmtpError("malformed-command")
    return Command(body[1 : 1 + length], body[1 + length :])


def ready(socket_type: bytes, properties: Mapping[bytes, bytes] | None = None) -> bytes:
    """The READY command of a socket of this type (RFC 37, NULL)."""
    listed = {b"Socket-Type": socket_type, **(properties or {})}
    data = b"".join(
        bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value
        for name, value in listed.items()
    )
    return encode_command(Command(b"READY", data))


def error(reason: bytes) -> bytes:
    """The ERROR command, with what is wrong in up to 255 printable characters."""
    return encode_command(Command(b"ERROR", bytes((len(reason),)) + reason))


def pong(ping: Command) -> bytes:
    """The answer to a PING: its context without the time to live; raises ZmtpError."""
    context = ping.data[2:]
    if len(ping.data) < 2 or len(context) > _MAX_CONTEXT:
        raise ZmtpError("malformed-command")
    return encode_command(Command(b"PONG", context))


def ping(context: bytes, seconds: float = 0) -> bytes:
    """A PING; the peer may hang up if it hears nothing for ``seconds`` (0: it should not)."""
    return encode_command(Command(b"PING", round(seconds * 10).to_bytes(2, "big") + context))


def ping_seconds(command: Command) -> float:
    """The time to live that a PING carries."""
    return int.from_bytes(command.data[:2], "big") / 10


def parse_metadata(data: bytes) -> dict[bytes, bytes]:
    """The properties of a READY by lower-case name; raises ZmtpError."""
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


# The properties of READY that are looked at, in lower case, and the longest identity (RFC 37).
_PROPERTIES = (b"socket-type", b"identity", b"x-node")
_MAX_IDENTITY = 255
# The handshake's limits hold for one command frame; real ones have some fifty bytes.
_HANDSHAKE_LIMITS = FrameLimits(frame=4096, frames=1)


@dataclass(slots=True)
class Handshake:
    """The peer's side of the start of a connection: its greeting, then its READY.

    ``minor`` is the peer's minor version once the greeting has been read, ``metadata`` the
    properties of its READY once that has been; then the handshake is ``done``.
    """

    minor: int | None = None
    metadata: dict[bytes, bytes] = field(default_factory=dict)
    done: bool = False

    @property
    def socket_type(self) -> bytes:
        """What the peer says it is."""
        return self.metadata.get(b"socket-type", b"")

    @property
    def has_commands(self) -> bool:
        """May SUBSCRIBE, CANCEL, PING and PONG be sent to it? Peers of 3.0 know none."""
        return self.minor != 0

    def consume(self, data: bytes, at: int = 0) -> tuple[int, int]:
        """Take one step; returns where to go on, and how many bytes from there that takes.

        Nothing is left to take once the second is 0. Raises ZmtpError.
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
        """As soon as can be: a peer of another kind may wait for us before it sends 64 bytes."""
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
        # The rest means nothing here and need not be kept.
        self.metadata = {name: found[name] for name in _PROPERTIES if name in found}
        if len(self.metadata.get(b"identity", b"")) > _MAX_IDENTITY:
            raise ZmtpError("malformed-metadata", error(b"malformed metadata"))
        self.done = True
