"""A client of cafe over UDP: the sender of datagrams from one address (cafe §7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pubsub.broker.clients.connection_marks import describe
from pubsub.broker.credentials.identity import Identity
from pubsub.broker.figures.connection_figures import ConnectionFigures, figures_of
from pubsub.protocols.cafe.codec import HEADER, OPCODES, ErrorCode, Message, split_frames
from pubsub.protocols.cafe.refusals import GOODBYE, error
from pubsub.protocols.cafe.served_client import DISPLACED, ClientState, label_of
from pubsub.wire.connection_admission import report_end
from pubsub.wire.connection_log import log_opened
from pubsub.wire.identified import Identified
from pubsub.wire.life_cycle import Action, Event, LifeCycle
from pubsub.wire.peer_address import place_text, plain_host

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pubsub.broker.clients.sessions import Session
    from pubsub.broker.credentials.passwords import PasswordCheck
    from pubsub.broker.delivery.outbox import Outbox
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.publishing.publisher import Publisher, PublishingConnection
    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.topic_space.topics import KeyChange, Topic

# Frames may share datagrams of up to this many bytes, which no common path fragments.
FULL_DATAGRAM = 1_400
# A limit that every frame is over: each has a datagram of its own.
_ONE_FRAME = 1
_MESSAGE = OPCODES[Message]
# Bytes of datagrams that wait for the verification of a password.
_MAX_WAITING = 16 * 1024
SocketAddress = tuple[str, int]


class DatagramServer(Protocol):
    """The server of all clients of a listener, as a client uses it."""

    listener: Listener

    def trusts(self, address: SocketAddress) -> bool:
        """Return whether a subscriber at ``address`` may be silent."""

    def idle_limit(self, only_listens: bool) -> float:
        """Return the seconds for which a client may be silent."""

    def has_ended(self, address: SocketAddress, heard: float) -> bool:
        """Return whether the program at ``address``, last heard of at ``heard``, has ended."""

    def topic_name(self, channel: int) -> str:
        """Return the name of the topic of a channel that is offered."""

    def send(self, data: bytes, address: SocketAddress) -> bool:
        """Send one datagram; False if it could not even leave this host."""

    def handle(self, client: DatagramClient, datagram: bytes) -> None:
        """Handle the frames of a datagram of ``client``, or keep them if it has to wait."""

    def ended(self, client: DatagramClient, keep: bool) -> None:
        """End the session of ``client``, or keep it if it can be resumed."""

    def forget(self, client: DatagramClient) -> None:
        """Remove ``client``, which has closed."""


class DatagramClient(Identified):
    """The client at one address: a ``ServedClient`` over datagrams, and a ``Consumer``."""

    is_listed = True

    def __init__(self, server: DatagramServer, address: SocketAddress) -> None:
        self.listener = server.listener
        self.state = ClientState.NEW
        self.name = b""
        self.session: Session | None = None
        self.publisher: Publisher | None = None
        self.outbox: Outbox | None = None
        self.closing = False
        self.password_check: PasswordCheck | None = None
        # Datagrams that arrived while the password is verified, or the rest of one.
        self.waiting: list[bytes] = []
        self._life = LifeCycle()
        self.address = address
        self.host = plain_host(address[0])
        self.heard = server.listener.clock.seconds()
        """When the last datagram arrived."""
        self.trusted = server.trusts(address)
        """True if a subscriber may be silent."""
        self._server = server
        self.mark = next(server.listener.marks)
        if self.listener.logs_connections:
            log_opened(self.listener, self)
        self._events = server.listener.connection_events(self.peer, self.mark)

    @property
    def accepted_by(self) -> object:
        """See ``ConnectedClient``."""
        return self.listener

    @property
    def peer(self) -> str:
        """See ``ServedClient``."""
        return place_text(self.host, self.address[1])

    @property
    def label(self) -> str:
        """See ``Subscriber``."""
        return label_of(self)

    proves_address = False
    """A datagram may come from anywhere."""

    def log_fields(self) -> dict[str, str]:
        """See ``Marked``."""
        return describe(self.mark, self.listener.protocol, self.peer, self._identity)

    def transport_identity(self) -> Identity:
        """See ``Identified``: a datagram proves nothing, not even its address."""
        return Identity(host=self.host)

    @property
    def publishing(self) -> PublishingConnection | None:
        """See ``ServedClient``: the sender of datagrams cannot be held."""
        return None

    def write(self, data: bytes) -> None:
        """Send frames in datagrams (see ``Consumer``)."""
        packing = self.listener.settings["udp-packing"]
        for piece in split_frames(data, FULL_DATAGRAM if packing else _ONE_FRAME):
            if not self._server.send(piece, self.address):
                self._count_unsent(piece)

    def _count_unsent(self, datagram: bytes) -> None:
        for frame in split_frames(datagram, _ONE_FRAME):
            if frame[2] == _MESSAGE:
                name = self._server.topic_name(frame[HEADER.size])
                self.listener.drop(self.label, name, "unsendable", 1, self)

    def reply(self, data: bytes) -> None:
        """See ``ServedClient``."""
        if self.outbox is not None:
            self.outbox.send(data)
        else:
            self.write(data)

    def pong(self, data: bytes) -> None:
        """See ``ServedClient``. No datagram is gathered."""
        self.reply(data)

    def refuse(
        self, reason: str, count: int = 1, topic: str | None = None, frame: bytes | None = None
    ) -> None:
        """See ``ServedClient``."""
        self.listener.refuse(reason, self.label, count, topic=topic, connection=self, frame=frame)

    def fail(self, reason: str, answer: bytes, frame: bytes | None = None) -> None:
        """See ``ServedClient``."""
        self.refuse(reason, frame=frame)
        self.close(answer, reason)

    def close(self, last: bytes = b"", end_reason: str = "left") -> None:
        """See ``ServedClient``.

        The session ends as well, because UDP has no other end of a connection.
        """
        self._leave((Event.CLOSE, Event.ANSWERED, Event.LOST), end_reason, False, last)

    def shared_sessions(self) -> Iterable[str]:
        """See ``Connection``."""
        return () if self.session is None or not self.session.key else (self.session.key,)

    def displaced(self) -> None:
        """See ``ServedClient``."""
        self._leave((Event.ABORT, Event.LOST), DISPLACED, True)

    def evict(self, reason: str) -> None:
        """See ``Subscriber``."""
        self.listener.evicted(reason, self.label, self)
        self.abort(reason)

    def _leave(
        self, events: tuple[Event, ...], end_reason: str, keep: bool, last: bytes = b""
    ) -> None:
        """Take ``events`` together: datagrams are sent at once, and the end is not confirmed.

        ``keep`` says whether the session can be resumed.
        """
        for event in events:
            step = self._life.on(event)
            for action in () if step is None else step.actions:
                if action is Action.SEND_LAST and last:
                    self.reply(last)
                elif action is Action.END and not self.closing:
                    self._end(end_reason, keep)
                elif action is Action.RELEASE:
                    self._server.forget(self)

    def _end(self, end_reason: str, keep: bool) -> None:
        # Set first, as the end of a subscription may evict this very subscriber.
        self.closing = True
        self._server.ended(self, keep)
        self.listener.memory.free(sum(map(len, self.waiting)))
        self.waiting = []
        report_end(self.listener, self, self.label, end_reason, self._events, self.publisher)

    def hold_input(self) -> None:
        """See ``ServedClient``: the server keeps some datagrams while a password is verified."""

    def resume_input(self) -> None:
        """See ``ServedClient``."""
        waiting, self.waiting = self.waiting, []
        self.listener.memory.free(sum(map(len, waiting)))
        for datagram in waiting:
            self._server.handle(self, datagram)

    def turn_over(self) -> bool:
        """See ``ServedClient``: a datagram has one frame."""
        return False

    def keep(self, datagram: bytes) -> None:
        """Handle a datagram later. It is lost if too many wait, or if it is a repeated one."""
        waiting = self.waiting
        if sum(map(len, waiting)) + len(datagram) <= _MAX_WAITING and datagram not in waiting:
            waiting.append(datagram)
            self.listener.memory.add(len(datagram))

    def end_handshake(self) -> None:
        """See ``ServedClient``: a client is admitted with its handshake."""

    def open_outbox(self) -> Outbox:
        """See ``ServedClient``."""
        if self.outbox is None:
            self.outbox = self.listener.outbox(self, self)
        return self.outbox

    def outboxes(self) -> Iterable[Outbox]:
        """See ``StreamClient``."""
        return () if self.outbox is None else (self.outbox,)

    def figures(self) -> ConnectionFigures:
        """See ``StreamClient``."""
        return figures_of(self.publisher, self.outboxes(), self.closing)

    def recheck(self, topic: Topic, change: KeyChange | None) -> bool:
        """See ``Subscriber`` (cafe §5.4)."""
        if self.listener.may_continue(self.label, topic, self, self.access):
            return True
        self.reply(error(ErrorCode.UNAUTHORIZED))
        return False

    def receives(self, topic: Topic, batch: Batch) -> bool:
        """See ``Subscriber``."""
        return True

    # Client

    def dismiss(self, reason: str) -> None:
        """See ``ConnectedClient``."""
        self.close(GOODBYE, reason)

    def drain(self) -> None:
        """See ``ConnectedClient``."""
        if self.outbox is not None and not self.closing:
            self.outbox.release()
        self.close(GOODBYE, "stopped")

    def abort(self, reason: str) -> None:
        """See ``ConnectedClient``."""
        self._leave((Event.ABORT, Event.LOST), reason, True)

    def sweep(self, now: float) -> None:
        """See ``ConnectedClient``: end the session of a client that is gone or silent too long."""
        only_listens = self.trusted and self.state is ClientState.SUBSCRIBER
        if now - self.heard > self._server.idle_limit(only_listens):
            self.refuse("idle")
            self.close(GOODBYE, "idle")
        elif only_listens and self._server.has_ended(self.address, self.heard):
            self.close()
