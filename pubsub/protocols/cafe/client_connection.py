"""cafe's client, sans-IO: see ``ClientWire`` and ``WireConnection``.

cafe acknowledges nothing but PING, and frames take effect in order. So a PING follows the frames
that have to be confirmed: an ERROR before its PONG is a refusal, and no ERROR means success. The
requests that wait for a PONG are in ``waiting``, the oldest first:

    request              sent               before its PONG             event
    confirm              PING               ERROR, one for each         Confirmed
    subscribe            SUBSCRIBE, PING    ERROR                       Subscribed, NotSubscribed
    unsubscribe          UNSUBSCRIBE, PING  ERROR is ignored            Unsubscribed
    ping                 PING               ERROR counts for the next   Alive
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pubsub.protocols.cafe.client_id import RESUME
from pubsub.protocols.cafe.codec import (
    HEADER,
    CafeError,
    Disconnect,
    Error,
    ErrorCode,
    Frame,
    HandshakeAck,
    Ping,
    Pong,
    decode,
    encode,
    needed,
)
from pubsub.wire.client_events import (
    Alive,
    Closing,
    Interest,
    NotResumed,
    Opened,
    Rejected,
    WireEvent,
)
from pubsub.wire.client_wire import (
    WireConnection,
    WireError,
)
from pubsub.wire.error_names import error_name

_PING = encode(Ping())
_PONG = encode(Pong())
# The same handshake would fail again with these.
_PERMANENT = frozenset(
    (
        ErrorCode.INVALID_HANDSHAKE,
        ErrorCode.CHANNEL_NOT_FOUND,
        ErrorCode.PROTOCOL_VERSION_MISMATCH,
        ErrorCode.MALFORMED_MESSAGE,
        ErrorCode.UNAUTHORIZED,
    )
)
# After the handshake, these close the connection (cafe §6.1).
_CLOSING = frozenset(
    (
        ErrorCode.INVALID_HANDSHAKE,
        ErrorCode.PROTOCOL_VERSION_MISMATCH,
        ErrorCode.MALFORMED_MESSAGE,
    )
)


class CafeSession(NamedTuple):
    """The number with which a handshake resumes a session (cafe §4.6)."""

    number: int

    def client_id(self, name: bytes) -> bytes:
        """Return the client id of the handshake."""
        return name + RESUME + b"%016x" % self.number


@dataclass(frozen=True, slots=True)
class Naming:
    """The client's id, and the topics of the channels in both directions."""

    client_id: bytes = field(repr=False)
    topics: Mapping[int, str]
    channels: Mapping[str, int]


class Waiting(NamedTuple):
    """A request that waits for its PONG: a ping if everything is None."""

    published: int | None = None
    interest: Interest | None = None
    wanted: bool = True


class CafeClientConnection(WireConnection):
    """The base of the connections of publishers and subscribers."""

    def __init__(self, naming: Naming, resume: CafeSession | None) -> None:
        super().__init__()
        self.naming = naming
        self._resume = resume
        self._opened = False
        self.waiting: deque[Waiting] = deque()
        # The codes of the ERROR frames since the last PONG that they count for.
        self.errors: list[int] = []

    # Requests

    def client_id(self) -> bytes:
        """Return the client id for the handshake."""
        name = self.naming.client_id
        return name if self._resume is None else self._resume.client_id(name)

    def await_pong(self, waiting: Waiting, request: bytes = b"") -> None:
        """Send ``request`` and a PING, whose PONG is the reply to ``waiting``."""
        self.waiting.append(waiting)
        self.send(request + _PING)

    def ping(self) -> None:
        """See ``WireConnection``."""
        self.await_pong(Waiting())

    def close(self) -> None:
        """See ``WireConnection``."""
        self.session = None
        self.send(encode(Disconnect()))

    # Input

    def consume(self, data: bytes, at: int, events: list[WireEvent]) -> tuple[int, int]:
        """See ``WireConnection``."""
        try:
            while True:
                at = self.scan(data, at, events)
                if at == len(data):
                    return at, HEADER.size
                need = needed(data, at)
                if len(data) - at < need:
                    return at, need
                found = decode(data, at)
                if found is None:
                    return at, need
                frame, at = found
                if self._handle(frame, events):
                    return len(data), 1
        except CafeError as error:
            raise WireError(f"not a frame of cafe ({error})") from None

    def scan(self, data: bytes, at: int, events: list[WireEvent]) -> int:
        """Handle the messages that begin at ``at``; return where they end."""
        return at

    def _handle(self, frame: Frame, events: list[WireEvent]) -> bool:
        """Handle a frame; return whether the connection has ended."""
        match frame:
            case HandshakeAck() if not self._opened:
                events.append(self._acknowledged(frame))
                return not self._opened
            case Pong() if self.waiting:
                self.answered(self.waiting.popleft(), events)
            case Error():
                return self._refused(frame.code, events)
            case Disconnect():
                events.append(Closing("the broker has ended the session"))
                return True
            case Ping():
                self.send(_PONG)
            case _:
                raise WireError(f"{type(frame).__name__} is not expected")
        return False

    def _acknowledged(self, frame: HandshakeAck) -> WireEvent:
        if not frame.status:
            self._opened = True
            self.session = CafeSession(frame.session_id)
            return Opened(resumed=self._resume is not None)
        if self._resume is not None and frame.status == ErrorCode.INVALID_HANDSHAKE:
            return NotResumed()
        return Rejected(error_name(ErrorCode, frame.status), frame.status in _PERMANENT)

    def _refused(self, code: int, events: list[WireEvent]) -> bool:
        if self._opened and code not in _CLOSING:
            self.error(code, events)
            return False
        events.append(Rejected(error_name(ErrorCode, code), code in _PERMANENT))
        return True

    def error(self, code: int, events: list[WireEvent]) -> None:
        """Handle an ERROR that leaves the connection open."""
        self.errors.append(code)

    def answered(self, waiting: Waiting, events: list[WireEvent]) -> None:
        """Handle the PONG for ``waiting``."""
        events.append(Alive())
