"""A connection that speaks ZMTP, on either side: handshake, heartbeat, messages.

The meaning of the messages depends on its ``Role``, which is chosen when the handshake is done.
Runs of publications are recognized here, as they are most of the traffic.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pubsub.broker.topics import topic_name
from pubsub.errors import InvalidTopicName, Refused
from pubsub.kernel import Columns
from pubsub.protocols.spot.codec import SpotError
from pubsub.protocols.spot.heads import KnownPublications, Publication
from pubsub.protocols.spot.latest_replies import LatestReplies
from pubsub.protocols.spot.zmtp import (
    GREETING,
    Command,
    FrameLimits,
    Handshake,
    Partial,
    Unit,
    ZmtpError,
    decode,
    ping_seconds,
    pong,
)
from pubsub.wire.connection import Connection

if TYPE_CHECKING:
    from pubsub.broker.listener import Listener
    from pubsub.broker.slices import SlicedWork, Work
    from pubsub.protocols.spot.role import Role

NODE = b"X-Node"
"""The property of READY by which brokers of this kind recognize each other (spot §2.4)."""
EPOCH = b"X-Epoch"
"""The property by which a broker tells another one the epoch of its history (spot §7.7)."""
MAX_MALFORMED = 10
"""Malformed messages after which the connection is closed (spot §6.1)."""


class ZmtpConnection(Connection):
    """The base of both sides.

    ``limits`` apply to frames and messages that are received. ``known`` has the publications
    that arrived before; connections whose roles are of one kind share it.
    """

    has_handshake = True
    known: KnownPublications
    _role: Role | None = None
    _partial_unit: Partial | None = None
    _malformed_messages = 0
    # No input is handled: a request is being carried out in slices, or its reply fills the
    # transport.
    _paused = False
    _work: SlicedWork | None = None
    # Sweeps since the last input.
    _silent_ticks = 0
    # Seconds of silence that the peer allows itself; 0 if it has not said so.
    _peer_timeout = 0.0
    _latest_replies: LatestReplies | None = None

    def __init__(self, listener: Listener, limits: FrameLimits) -> None:
        super().__init__(listener)
        self.limits = limits
        self.handshake = Handshake()

    # For subclasses

    def greeting_received(self) -> None:
        """The peer's greeting has arrived."""

    def handshake_done(self) -> Role:
        """The peer's READY has arrived: reply to it and choose the role; raises ZmtpError."""
        raise NotImplementedError

    # Handshake

    def start(self) -> None:
        """Send the greeting; the peer has to complete its handshake in time."""
        self.listener.handshakes.begin(self)
        self.reply(GREETING)

    @property
    def is_node(self) -> bool:
        """True if the peer is a broker of this kind."""
        return NODE.lower() in self.handshake.metadata

    def consume(self, data: bytes) -> tuple[int, int]:
        """See ``Connection``."""
        self._silent_ticks = 0
        at = 0
        try:
            while self._role is None:
                greeted = self.handshake.minor is not None
                at, need = self.handshake.consume(data, at)
                if not greeted and self.handshake.minor is not None:
                    self.greeting_received()
                if self.handshake.done:
                    self._role = self.handshake_done()
                    self.end_handshake()
                elif need > len(data) - at:
                    return at, need
            return self._consume_messages(self._role, data, at)
        except ZmtpError as problem:
            self.fail(problem.reason, problem.answer, data[at:])
            return at, 0

    # Messages

    def _consume_messages(self, role: Role, data: bytes, at: int) -> tuple[int, int]:
        limits = self.limits
        while not self.closing and not self._paused:
            start, at = at, self._consume_known(role, data, at)
            unit = decode(data, at, limits, self._partial_unit if at == start else None)
            if isinstance(unit, Partial):
                self._partial_unit = unit if unit.length else None
                return at, unit.need
            self._partial_unit = None
            for command in unit.commands:
                self._handle_command(role, command)
            if unit.frames:
                self._handle_message(role, unit, data[at : unit.last])
            at = unit.end
        return at, 0

    def _consume_known(self, role: Role, data: bytes, at: int) -> int:
        """Handle the publications from ``at`` on whose prefixes are known; return their end."""
        columns = self.known.scan(data, at)
        if columns.count:
            role.receive(columns)
        return columns.end

    def _handle_message(self, role: Role, unit: Unit, before: bytes) -> None:
        """Handle a message of which ``before`` are the bytes before its last frame."""
        try:
            publication = role.message(unit.frames)
            if publication is None:
                return
            found = Publication(before, topic_name(publication.topic), publication.origin)
        except (SpotError, InvalidTopicName):
            self._count_malformed(before + unit.frames[-1])
        except Refused as refused:
            self.refuse(refused.reason)
        else:
            if not unit.commands:
                self.known.add(found)
            role.receive(Columns.one(publication.data, found))

    def _handle_command(self, role: Role, command: Command) -> None:
        if command.name == b"PING":
            self._peer_timeout = ping_seconds(command)
            self.reply_latest("pong", partial(pong, command))
            return
        try:
            role.command(command)
        except (SpotError, InvalidTopicName):
            self._count_malformed(command.name + command.data)
        except Refused as refused:
            self.refuse(refused.reason)

    def _count_malformed(self, frame: bytes) -> None:
        """Count a malformed message (EPROTO in the original); close if there are too many."""
        self.refuse("eproto", frame=frame)
        self._malformed_messages += 1
        if self._malformed_messages >= MAX_MALFORMED:
            self.end_reason = "eproto"
            self.close()

    # Flow control

    def reply_latest(self, kind: str, make: Callable[[], bytes]) -> None:
        """Reply with the result of ``make``.

        A client that does not read its replies is not read from. Two brokers that publish to each
        other would stop permanently that way. So another broker is read from, and while it does
        not read, only the latest reply of each ``kind`` is kept for it.
        """
        if not (self.is_node and self.output_full):
            self.reply(make())
            return
        if self._latest_replies is None:
            self._latest_replies = LatestReplies()
        self._latest_replies.add(kind, make)

    def _send_latest(self) -> None:
        replies, self._latest_replies = self._latest_replies, None
        for kind, make in () if replies is None else replies.take():
            if not self.closing:
                self.reply_latest(kind, make)

    def carry_out(self, work: Work) -> None:
        """Do ``work``, in slices. No input is handled before it is done and its reply is sent.

        For requests that cost much more than their few bytes, as one read may hold thousands. The
        work has to look at ``closing`` after each step, as a step can end the connection.
        """
        self._work = self.listener.slices.run(work, self._carried_out)
        if self._work is not None or not self._has_room:
            self._paused = True
            self.hold("request")

    def _carried_out(self) -> None:
        self._work = None
        self._resume_input()

    @property
    def _has_room(self) -> bool:
        """Another broker is read from even if it does not read (see ``reply_latest``)."""
        return self.is_node or not self.output_full

    def _resume_input(self) -> None:
        if self._paused and self._work is None and self._has_room:
            self._paused = False
            self.release("request")
            self.parse_buffered()

    def pauseProducing(self) -> None:
        """See ``Connection``."""
        super().pauseProducing()
        if self._role is not None:
            self._role.pause()

    def resumeProducing(self) -> None:
        """See ``Connection``."""
        super().resumeProducing()
        if self._role is not None:
            self._role.resume()
        self._send_latest()
        self._resume_input()

    # Housekeeping and closing

    def sweep(self, now: float) -> None:
        """See ``Client``. A peer that announced a time to live must keep it (RFC 37)."""
        super().sweep(now)
        self._silent_ticks += 1
        silent = self._peer_timeout and self._silent_ticks > self._peer_timeout
        if silent and not self._hold_reasons and not self.closing:
            self.refuse("heartbeat")
            self.abort("silent for longer than its announced time to live")

    @property
    def label(self) -> str:
        """See ``Connection``: the peer's identity, if it has one, and its address."""
        name = self.handshake.metadata.get(b"identity", b"").decode(errors="replace")
        return f"{name}@{self.peer}" if name else self.peer

    def refusal(self, refused: Refused) -> bytes:
        """See ``Connection``: nothing, as after an ERROR the peer would not connect again."""
        return b""

    def ended(self) -> None:
        """See ``Connection``."""
        if self._work is not None:
            self._work.stop()
        if self._role is not None:
            self._role.closed()
        if self.outbox is not None:
            self.outbox.shut("disconnected")
