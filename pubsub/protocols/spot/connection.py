"""A connection that speaks ZMTP, on either side: handshake, heartbeat, messages.

The meaning of the messages depends on its ``SocketRole``, chosen when the handshake is done.
Runs of publications are recognized here, as they are most of the traffic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pubsub.broker.clients.frame_turns import TURN_BYTES
from pubsub.broker.topic_space.topic_names import topic_name
from pubsub.errors import InvalidTopicName, Refused
from pubsub.kernel import Columns
from pubsub.protocols.spot.broker_commands import NODE
from pubsub.protocols.spot.commands import SpotError
from pubsub.protocols.spot.curve_channel import CurveChannel
from pubsub.protocols.spot.latest_replies import LatestReplies
from pubsub.protocols.spot.mechanisms import ONLY_NULL
from pubsub.protocols.spot.message_heads import KnownPublications, Publication, end_of
from pubsub.protocols.spot.security import check_rate, shown_frame
from pubsub.protocols.spot.zmtp import (
    Command,
    FrameLimits,
    Partial,
    Unit,
    ZmtpError,
    decode,
    ping_seconds,
    pong,
)
from pubsub.protocols.spot.zmtp_handshake import Handshake
from pubsub.wire.connection import Connection
from pubsub.wire.replies import reply_to_messages

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pubsub.broker.delivery.outbox import Outbox
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.slices import SlicedWork, Work
    from pubsub.interfaces import Consumer
    from pubsub.protocols.spot.mechanisms import Login, Mechanisms
    from pubsub.protocols.spot.role import SocketRole

MAX_MALFORMED = 10
"""Malformed messages after which the connection is closed (spot §6.1)."""


class ZmtpConnection(Connection):
    """The base of both sides.

    ``limits`` apply to frames and messages that are received. ``known`` has the publications
    that arrived before; connections whose roles are of one kind share it.
    """

    has_handshake = True
    known: KnownPublications
    _role: SocketRole | None = None
    _partial_unit: Partial | None = None
    _malformed_messages = 0
    # No input is handled: a request is carried out in slices, or its reply fills the transport.
    _paused = False
    _work: SlicedWork | None = None
    # Sweeps since the last input.
    _silent_ticks = 0
    # Seconds of silence that the peer allows itself; 0 if it has not said so.
    _peer_timeout = 0.0
    _latest_replies: LatestReplies | None = None
    # The encryption of the stream, from the end of the handshake of CURVE on.
    _channel: CurveChannel | None = None

    def __init__(
        self, listener: Listener, limits: FrameLimits, mechanisms: Mechanisms = ONLY_NULL
    ) -> None:
        super().__init__(listener)
        self.limits = limits
        self.handshake = Handshake(mechanisms)

    # For subclasses

    def handshake_done(self) -> SocketRole:
        """The peer's metadata has arrived: reply to it and choose the role; raises ZmtpError."""
        raise NotImplementedError

    def log_in(self, login: Login) -> None:
        """Have the user and password of a client checked, and then answer."""
        raise NotImplementedError

    # Handshake

    def start(self) -> None:
        """Send the greeting; the peer has to complete its handshake in time."""
        self.listener.handshakes.begin(self)
        self.reply(self.handshake.greet())

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
                if self._paused or self.closing:
                    return at, 0
                at, need = self._shake_hands(data, at)
                if self._role is None and need > len(data) - at:
                    return at, need
            if self._channel is not None:
                return (at, 0) if self._paused else self._channel.consume(data, at)
            return self._consume_messages(self._role, data, at)
        except ZmtpError as problem:
            self.fail(problem.reason, problem.answer, shown_frame(self.listener, data[at:]))
            return at, 0

    def _shake_hands(self, data: bytes, at: int) -> tuple[int, int]:
        """Take one step of the handshake."""
        handshake = self.handshake
        agreed = handshake.mechanism is not None
        at, need = handshake.consume(data, at)
        if not agreed:
            check_rate(self.listener, handshake.mechanism, self.stream.getPeer())
        if output := handshake.take_output():
            self.reply(output)
        mechanism = handshake.mechanism
        if mechanism is not None and mechanism.login is not None:
            self.log_in(mechanism.login)
        if handshake.done:
            self._role = self.handshake_done()
            self.end_handshake()
        return at, need

    def encrypt(self) -> None:
        """Encrypt everything from now on, if the mechanism does that."""
        assert self.handshake.mechanism is not None
        if (traffic := self.handshake.mechanism.traffic()) is not None:
            self._channel = CurveChannel(self, traffic)

    @property
    def consumer(self) -> Consumer:
        """See ``StreamClient``."""
        return self.stream if self._channel is None else self._channel

    def consume_frames(self, data: bytes) -> tuple[int, int]:
        """See ``Encrypted``."""
        assert self._role is not None
        return self._consume_messages(self._role, data, 0)

    # Messages

    def _consume_messages(self, role: SocketRole, data: bytes, at: int) -> tuple[int, int]:
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
            if self.turn_over():
                break
        return at, 0

    def _consume_known(self, role: SocketRole, data: bytes, at: int) -> int:
        """Handle the publications from ``at`` on whose prefixes are known; return their end."""
        publisher = self.publisher
        if not at and publisher is not None and publisher.publish_alike(self.known.table, data):
            return len(data)
        columns = self.known.scan(data[: at + TURN_BYTES] if self.takes_turns else data, at)
        done = role.receive(columns) if columns.count else None
        return end_of(columns, done, data, at)

    def _handle_message(self, role: SocketRole, unit: Unit, before: bytes) -> None:
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

    def _handle_command(self, role: SocketRole, command: Command) -> None:
        if command.name == b"PING":
            self._peer_timeout = ping_seconds(command)
            self.reply_latest("pong", pong(command))
            return
        try:
            role.command(command)
        except (SpotError, InvalidTopicName):
            self._count_malformed(command.name + command.data)
        except Refused as refused:
            self.refuse(refused.reason)

    def _count_malformed(self, frame: bytes) -> None:
        """Count a malformed message (EPROTO in the original); close if there are too many."""
        self.refuse("eproto", frame=shown_frame(self.listener, frame))
        self._malformed_messages += 1
        if self._malformed_messages >= MAX_MALFORMED:
            self.end_reason = "eproto"
            self.close()

    # Flow control

    def reply_latest(self, kind: str, data: bytes) -> None:
        """Reply; another broker that does not read gets the latest reply of each ``kind``."""
        # Other clients are not read from then; two brokers that publish to each other would stop.
        if not self.is_node:
            reply_to_messages(self, data)
        elif not self.output_full:
            self.reply(data)
        elif not self.closing:
            if self._latest_replies is None:
                self._latest_replies = LatestReplies(self.listener.memory)
            self._latest_replies.add(kind, data)

    def _send_latest(self) -> None:
        replies, self._latest_replies = self._latest_replies, None
        for kind, data in replies.take() if replies else ():
            if not self.closing:
                self.reply_latest(kind, data)

    def carry_out(self, work: Work) -> None:
        """Do ``work``, in slices. No input is handled before it is done and its reply is sent.

        For requests that cost much more than their few bytes, as one read may hold thousands. The
        work has to look at ``closing`` after each step, as a step can end the connection.
        """
        self._work = self.listener.slices.run(self.ending_on_error(work), self._carried_out)
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
            self.next_turn()

    def next_turn(self) -> None:
        """See ``Connection``. What was decrypted comes first."""
        try:
            if self._channel is not None and not self.closing:
                self._channel.consume_frames(b"")
        except ZmtpError as problem:
            self.fail(problem.reason, problem.answer, b"")
        self.parse_buffered()

    def pauseProducing(self) -> None:
        """See ``Connection``."""
        if self._channel is not None:
            self._channel.stream_full = True
        self.pause_output()

    def pause_output(self) -> None:
        """See ``Encrypted``."""
        super().pauseProducing()
        if self._role is not None:
            self._role.pause()

    def resumeProducing(self) -> None:
        """See ``Connection``."""
        if self._channel is None or self._channel.drained():
            self.resume_output()

    def resume_output(self) -> None:
        """See ``Encrypted``."""
        super().resumeProducing()
        if self._role is not None:
            self._role.resume()
        self._send_latest()
        self._resume_input()

    # Housekeeping and closing

    def outboxes(self) -> Iterable[Outbox]:
        """See ``StreamClient``."""
        routed = () if self._role is None else self._role.routed_outboxes()
        return (*super().outboxes(), *routed)

    def sweep(self, now: float) -> None:
        """See ``ConnectedClient``. A peer that announced a time to live must keep it (RFC 37)."""
        super().sweep(now)
        self._silent_ticks += 1
        late = self._peer_timeout and self._silent_ticks > self._peer_timeout
        if late and not (self._hold_reasons or self.closing):
            self.refuse("heartbeat")
            self.abort("silent for longer than its announced time to live")

    def frame_overdue(self, seconds: float) -> bool:
        """See ``Connection``."""
        decrypted = self._channel is not None and self._channel.overdue(seconds)
        return super().frame_overdue(seconds) or decrypted

    def discarded(self, nbytes: int) -> None:
        """See ``Leaver``."""
        super().discarded(nbytes if self._channel is None else self._channel.frame_bytes(nbytes))

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
        if self._channel is not None:
            self._channel.flush()
            self._channel.close()
        if self._work is not None:
            self._work.stop()
        if self._latest_replies is not None:
            self._latest_replies.take()
        if self._role is not None:
            self._role.closed()
        if self.outbox is not None:
            self.outbox.shut("disconnected")
