"""The peer's part of a ZMTP handshake (spot §2.1): greeting, then commands. Sans-IO."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pubsub.protocols.spot.mechanisms import NULL, ONLY_NULL, Mechanism, Mechanisms
from pubsub.protocols.spot.refusals import MALFORMED_METADATA, READY_EXPECTED
from pubsub.protocols.spot.zmtp import (
    GREETING,
    SIGNATURE,
    FrameLimits,
    Partial,
    ZmtpError,
    decode,
    encode_metadata,
    error,
    greeting,
    parse_metadata,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

# The position of the version in the greeting, of the mechanism's name, and of the next field.
_MAJOR = len(SIGNATURE)
_MECHANISM, _AS_SERVER = _MAJOR + 2, _MAJOR + 22
# The properties of READY that are used, in lower case, and the longest identity (RFC 37).
_PROPERTIES = (b"socket-type", b"identity", b"x-node", b"x-epoch", b"x-refusals")
_MAX_IDENTITY = 255
# The limits of the handshake's command frames; real ones have up to about 400 bytes.
_HANDSHAKE_LIMITS = FrameLimits(frame=4096, frames=1)


class Handshake:
    """A handshake with a peer that may use any of ``mechanisms``.

    ``minor`` is the peer's minor version once the greeting has been read, ``metadata`` the
    properties of its READY or INITIATE once that has been; then the handshake is ``done``.
    """

    __slots__ = ("_mechanisms", "_output", "done", "mechanism", "metadata", "minor")

    def __init__(self, mechanisms: Mechanisms = ONLY_NULL) -> None:
        self._mechanisms = mechanisms
        self._output = b""
        self.minor: int | None = None
        self.metadata: dict[bytes, bytes] = {}
        self.done = False
        self.mechanism: Mechanism | None = None
        """The mechanism on which the greetings have agreed."""

    @property
    def socket_type(self) -> bytes:
        """The peer's socket type, as it states it."""
        return self.metadata.get(b"socket-type", b"")

    @property
    def has_commands(self) -> bool:
        """False for peers with ZMTP 3.0, which know no SUBSCRIBE, CANCEL, PING and PONG."""
        return self.minor != 0

    def greet(self) -> bytes:
        """Return the greeting, or its begin if the peer's mechanism decides about the rest."""
        if len(self._mechanisms) > 1:
            return GREETING[: _MAJOR + 1]
        (make,) = self._mechanisms.values()
        mechanism = make()
        return greeting(mechanism.name, mechanism.is_server)

    def take_output(self) -> bytes:
        """Return and remove the bytes to send now."""
        output, self._output = self._output, b""
        return output

    def ready(self, socket_type: bytes, properties: Mapping[bytes, bytes]) -> bytes:
        """Return the server's reply to the peer's metadata."""
        assert self.mechanism is not None
        return self.mechanism.ready(encode_metadata(socket_type, properties))

    def consume(self, data: bytes, at: int = 0) -> tuple[int, int]:
        """Take one step; return where to continue, and how many bytes the next step needs.

        The latter is 0 when the handshake is done. Raises ZmtpError.
        """
        if self.mechanism is None:
            seen = data[at : at + len(GREETING)]
            self._check_greeting(seen)
            if len(seen) < len(GREETING):
                return at, len(GREETING) if len(seen) > _MAJOR else _MAJOR + 1
            self.minor = seen[_MAJOR + 1] if seen[_MAJOR] == 3 else 1
            self._agree(seen[_MECHANISM:_AS_SERVER].rstrip(b"\0"))
            return at + len(GREETING), 2
        unit = decode(data, at, _HANDSHAKE_LIMITS)
        if isinstance(unit, Partial):
            return at, unit.need
        if unit.frames:
            raise ZmtpError("no-handshake", error(READY_EXPECTED))
        if unit.commands[0].name == b"ERROR":
            raise ZmtpError("refused-by-peer")
        reply, metadata = self.mechanism.take(unit.commands[0])
        self._output += reply
        if metadata is None:
            return unit.end, 2
        self._take_metadata(metadata)
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

    def _agree(self, name: bytes) -> None:
        """Use the mechanism ``name`` of the peer; raises ZmtpError if this side does not."""
        make = self._mechanisms.get(name)
        if make is None:
            # ERROR is part of a mechanism. But the peer learns that it has another one.
            raise ZmtpError("mechanism", self._rest(next(iter(self._mechanisms))))
        self.mechanism = mechanism = make()
        self._output = self._rest(name) + mechanism.begin()

    def _rest(self, name: bytes) -> bytes:
        """Return the rest of the greeting, if ``greet`` has returned its begin only."""
        return greeting(name, name != NULL)[_MAJOR + 1 :] if len(self._mechanisms) > 1 else b""

    def _take_metadata(self, data: bytes) -> None:
        found = parse_metadata(data)
        # Other properties are not used.
        self.metadata = {name: found[name] for name in _PROPERTIES if name in found}
        if len(self.metadata.get(b"identity", b"")) > _MAX_IDENTITY:
            raise ZmtpError("malformed-metadata", error(MALFORMED_METADATA))
        self.done = True
