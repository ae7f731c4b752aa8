"""A connection that speaks ZMTP, whichever side opened it: handshake, heartbeat, messages.

What the messages mean is its ``Role``'s to say, which is chosen when the handshake is done. Runs
of publications are found here, as they are most of the traffic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from pubsub.broker.message_run import MIXED, MessageRun
from pubsub.broker.topics import topic_name
from pubsub.errors import InvalidTopicName, Refused
from pubsub.protocols.spot.codec import Publish, SpotError
from pubsub.protocols.spot.scan import scan, stem_at
from pubsub.protocols.spot.zmtp import (
    GREETING,
    Command,
    FrameLimits,
    Handshake,
    Partial,
    Unit,
    ZmtpError,
    decode,
    frame_head,
    ping_seconds,
    pong,
)
from pubsub.wire.connection import Connection
from pubsub.wire.read_buffer import PayloadHandler

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

    from pubsub.broker.listener import Listener

NODE = b"X-Node"
"""The property of READY by which brokers of this kind know each other (spot §2.4)."""
MAX_EPROTO = 10
"""Messages that are none of the protocol before the connection is closed (spot §6.1)."""
# Beginnings of publications that are remembered; then it starts anew.
_STEMS = 4096
# Bytes before the body of a frame that is not a short one (RFC 37).
_LONG_HEAD = 9


@dataclass(frozen=True, slots=True)
class MessageHead:
    """How a publication begins on the wire, up to its data, and what that says."""

    wire: bytes
    topic: str
    origin: bytes | None


class Role(Protocol):
    """What the two sides are to each other."""

    def command(self, command: Command) -> None:
        """Carry out a command other than PING and PONG; raises SpotError or Refused."""

    def message(self, frames: list[bytes]) -> Publish | None:
        """Carry out a message, or return it if it is a publication; raises SpotError, Refused."""

    def take(self, stem: MessageHead, run: MessageRun) -> None:
        """Publications that begin with ``stem``."""

    def left(self) -> None:
        """The connection is gone."""


class ZmtpConnection(Connection):
    """The base of both sides.

    ``limits`` are those of what is received. ``stems`` holds beginnings of publications by what
    they are on the wire; connections whose roles are alike may share them.
    """

    _role: Role | None = None
    _begun: Partial | None = None
    _eproto = 0
    _resting = False
    _silent = 0
    _ttl = 0.0
    _owed: dict[str, Callable[[], bytes]] | None = None
    _deadline: IDelayedCall | None = None

    def __init__(self, listener: Listener, limits: FrameLimits) -> None:
        super().__init__(listener)
        self.limits = limits
        self.handshake = Handshake()
        self.stems: dict[bytes, MessageHead] = {}

    # For subclasses

    def greeted(self) -> None:
        """The peer's greeting has come."""

    def opened(self) -> Role:
        """The peer's READY has come: answer it; raises ZmtpError."""
        raise NotImplementedError

    # Handshake

    def start(self) -> None:
        """Greet the peer, which has to be done with its own part in time."""
        seconds: float = self.listener.settings["handshake-timeout"]
        self._deadline = self.listener.clock.callLater(
            seconds, lambda: self.fail("handshake-timeout", b"")
        )
        self.reply(GREETING)

    @property
    def is_node(self) -> bool:
        """Is the peer a broker like this one?"""
        return NODE.lower() in self.handshake.metadata

    def consume(self, data: bytes) -> tuple[int, int]:
        """See ``Connection``."""
        self._silent = 0
        at = 0
        try:
            while self._role is None:
                greeted = self.handshake.minor is not None
                at, need = self.handshake.consume(data, at)
                if not greeted and self.handshake.minor is not None:
                    self.greeted()
                if self.handshake.done:
                    self._role = self.opened()
                    self._stop_clock()
                elif need > len(data) - at:
                    return at, need
            return self._traffic(self._role, data, at)
        except ZmtpError as problem:
            self.fail(problem.reason, problem.answer, data[at:])
            return at, 0

    def _stop_clock(self) -> None:
        if self._deadline is not None and self._deadline.active():
            self._deadline.cancel()
        self._deadline = None

    # Traffic

    def _traffic(self, role: Role, data: bytes, at: int) -> tuple[int, int]:
        limits = self.limits
        while not self.closing and not self._resting:
            start, at = at, self._take_runs(role, data, at)
            unit = decode(data, at, limits, self._begun if at == start else None)
            if isinstance(unit, Partial):
                self._begun = unit if unit.length else None
                return at, unit.need
            self._begun = None
            for command in unit.commands:
                self._command(role, command)
            if unit.frames:
                self._message(role, unit, data[at : unit.last])
            at = unit.end
        return at, 0

    def _take_runs(self, role: Role, data: bytes, at: int) -> int:
        """The publications from ``at`` on whose beginnings are known; returns where they end."""
        while (stem := self.stems.get(stem_at(data, at))) is not None:
            run = MessageRun([], MIXED)
            stop = scan(data, at, stem.wire, self.limits.frame, run)
            if stop == at:
                break
            role.take(stem, run)
            at = stop
        return at

    def large_payload(self, head: bytes, need: int) -> tuple[int, PayloadHandler] | None:
        """See ``Connection``: a publication whose beginning is known."""
        role = None if self._resting else self._role
        stem = self.stems.get(stem_at(head, 0))
        if role is None or stem is None:
            return None
        before = stem.wire + frame_head(need - len(stem.wire) - _LONG_HEAD)
        if not head.startswith(before):
            return None

        def take(payload: bytes) -> None:
            self._begun = None
            role.take(stem, MessageRun([payload], len(payload)))

        return len(before), take

    def _message(self, role: Role, unit: Unit, before: bytes) -> None:
        try:
            publication = role.message(unit.frames)
            if publication is None:
                return
            stem = MessageHead(before, topic_name(publication.topic), publication.origin)
        except (SpotError, InvalidTopicName):
            self._broken(before + unit.frames[-1])
        except Refused as refused:
            self.refuse(refused.reason)
        else:
            if not unit.commands:
                if len(self.stems) >= _STEMS:
                    self.stems.clear()
                self.stems[before] = stem
            role.take(stem, MessageRun([publication.data], len(publication.data)))

    def _command(self, role: Role, command: Command) -> None:
        if command.name == b"PING":
            self._ttl = ping_seconds(command)
            self.answer("pong", partial(pong, command))
            return
        try:
            role.command(command)
        except SpotError:
            self._broken(command.name + command.data)
        except Refused as refused:
            self.refuse(refused.reason)

    def _broken(self, frame: bytes) -> None:
        """A message that is none of the protocol: what the original calls EPROTO."""
        self.refuse("eproto", frame=frame)
        self._eproto += 1
        if self._eproto >= MAX_EPROTO:
            self.end_reason = "eproto"
            self.close()

    # Pace

    def answer(self, kind: str, make: Callable[[], bytes]) -> None:
        """Reply with what ``make`` gives.

        A client that does not read its answers is not read from. Two brokers that feed each
        other would stop for good that way, so another broker is, and while it does not read it is
        owed the latest answer of each ``kind``.
        """
        if not (self.is_node and self.output_full):
            self.reply(make())
            return
        if self._owed is None:
            self._owed = {}
        self._owed[kind] = make

    def _pay(self) -> None:
        owed, self._owed = self._owed, None
        for kind, make in (owed or {}).items():
            if not self.closing:
                self.answer(kind, make)

    def rest(self) -> None:
        """Handle no more input before others had their turn and the transport has room.

        For requests that cost much more than their few bytes, as one read may hold thousands.
        """
        if not self._resting:
            self._resting = True
            self.hold("rest")
            self.listener.at_tick_end(self._go_on)

    def _go_on(self) -> None:
        if self._resting and (self.is_node or not self.output_full):
            self._resting = False
            self.release("rest")
            self.parse_buffered()

    def resumeProducing(self) -> None:
        """See ``Connection``."""
        super().resumeProducing()
        self._pay()
        self._go_on()

    # Housekeeping

    def sweep(self, now: float) -> None:
        """See ``Client``; a peer that announced a time to live is held to it (RFC 37)."""
        super().sweep(now)
        self._silent += 1
        if self._ttl and self._silent > self._ttl and not self._hold_reasons and not self.closing:
            self.refuse("heartbeat")
            self.abort("silent for longer than it said it would be")

    @property
    def label(self) -> str:
        """See ``Connection``: the peer's identity, if it has one, and its address."""
        name = self.handshake.metadata.get(b"identity", b"").decode(errors="replace")
        return f"{name}@{self.peer}" if name else self.peer

    def refusal(self, refused: Refused) -> bytes:
        """See ``Connection``: closing says it, as an ERROR would keep the peer from coming back."""
        return b""

    def ended(self) -> None:
        """See ``Connection``."""
        self._stop_clock()
        if self._role is not None:
            self._role.left()
        if self.outbox is not None:
            self.outbox.shut("disconnected")
