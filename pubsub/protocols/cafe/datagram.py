"""cafe over UDP: whole frames in datagrams, the peer's address as its connection (cafe §7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.error import MessageLengthError
from twisted.internet.protocol import DatagramProtocol

from pubsub.broker.counters import OTHERS
from pubsub.errors import Refused
from pubsub.protocols.cafe.channels import Channels
from pubsub.protocols.cafe.codec import (
    HANDSHAKES,
    HEADER,
    MESSAGE_OVERHEAD,
    OPCODES,
    CafeError,
    ErrorCode,
    needed,
)
from pubsub.protocols.cafe.conversation import Conversation
from pubsub.protocols.cafe.error_codes import GOODBYE, code_of, error
from pubsub.protocols.cafe.scan import split_frames

if TYPE_CHECKING:
    from pubsub.broker.listener import Listener
    from pubsub.broker.outbox import Outbox
    from pubsub.broker.publisher import PublishingConnection
    from pubsub.broker.topics import KeyChange, Topic

MAX_DATAGRAM = 65_507
# Several frames share a datagram up to here, which no common path has to fragment.
FULL_DATAGRAM = 1_400
SILENCE = 300.0
_HANDSHAKES = frozenset(OPCODES[frame] for frame in HANDSHAKES)
Address = tuple[str, int]


class CafePeer(Conversation):
    """A client behind one address, its own ``Link`` and ``Consumer``."""

    def __init__(self, server: CafeDatagrams, address: Address, channels: Channels) -> None:
        self.listener = server.listener
        self.outbox: Outbox | None = None
        self.closing = False
        self.address = address
        self.heard = server.listener.clock.seconds()
        self._server = server
        self._channels = channels
        self._events = server.listener.connection_events(self.peer)

    @property
    def peer(self) -> str:
        """See ``Link``."""
        return f"{self.address[0]}:{self.address[1]}"

    @property
    def publishing(self) -> PublishingConnection | None:
        """See ``Link``: nothing can keep datagrams from coming."""
        return None

    def write(self, data: bytes) -> None:
        """Send frames, as few datagrams as sensible (see ``Consumer``)."""
        for piece in split_frames(data, FULL_DATAGRAM):
            if not self._server.send(piece, self.address):
                counters = self.listener.counters
                counters.drop(self.label, OTHERS, "unsendable", 1)

    def reply(self, data: bytes) -> None:
        """See ``Link``."""
        if self.outbox is not None:
            self.outbox.send(data)
        else:
            self.write(data)

    def refuse(
        self, reason: str, count: int = 1, topic: str | None = None, frame: bytes | None = None
    ) -> None:
        """See ``Link``."""
        label = self.label
        self.listener.refuse(
            reason, label, count, topic=topic, connection_events=self._events, frame=frame
        )

    def fail(self, reason: str, answer: bytes, frame: bytes | None = None) -> None:
        """See ``Link``."""
        self.refuse(reason, frame=frame)
        self.close(answer, reason)

    def close(self, last: bytes = b"", why: str = "left") -> None:
        """See ``Link``: the session ends, as nothing else marks the end of a connection."""
        if last and not self.closing:
            self.reply(last)
        self._end(why, keep=False)

    def abort(self, reason: str) -> None:
        """See ``Link``: another connection goes on with the session."""
        self._end(reason, keep=True)

    def evict(self, reason: str) -> None:
        """See ``Subscriber``."""
        self.listener.evicted(reason, self.label, self._events)
        self.abort(reason)

    def _end(self, why: str, keep: bool) -> None:
        if not self.closing:
            self.ended(keep)
            self.closing = True
            if self._events is not None:
                self._events.end(self.label, why, *self.published)
            self._server.forget(self)

    def open_outbox(self) -> Outbox:
        """See ``Link``."""
        if self.outbox is None:
            self.outbox = self.listener.outbox(self, self)
        return self.outbox

    def recheck(self, topic: Topic, change: KeyChange | None) -> bool:
        """See ``Subscriber`` (cafe §5.4)."""
        if self.listener.may_continue(self.label, topic):
            return True
        self.reply(error(ErrorCode.UNAUTHORIZED))
        return False


class CafeDatagrams(DatagramProtocol):
    """Serves every UDP client of a listener; a ``Client`` of the broker as a whole."""

    noisy = False
    _closing = False

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self._channels = Channels(
            listener.settings["channels"], listener.topics, MAX_DATAGRAM - MESSAGE_OVERHEAD
        )
        self._peers: dict[Address, CafePeer] = {}

    def startProtocol(self) -> None:
        """The port is open."""
        self.listener.clients.add(self)

    def stopProtocol(self) -> None:
        """The port is closed."""
        self.listener.clients.discard(self)

    def datagramReceived(self, datagram: bytes, addr: Address) -> None:
        """Handle the frames of one datagram."""
        if not datagram:
            return
        peer = self._peers.get(addr)
        if peer is None:
            peer = self._welcome(datagram, addr)
            if peer is None:
                return
        peer.heard = self.listener.clock.seconds()
        done, _need = peer.consume(datagram)
        if done < len(datagram) and not peer.closing:
            peer.fail("truncated-datagram", error(ErrorCode.MALFORMED_MESSAGE), datagram[done:])

    def _welcome(self, datagram: bytes, addr: Address) -> CafePeer | None:
        """A peer for an unknown address whose first frame is a handshake, if there is room."""
        answer = self._unwelcome(datagram)
        if answer is None:
            try:
                self.listener.admit(addr[0])
            except Refused as refused:
                self.listener.refuse(refused.reason, addr[0])
                answer = error(code_of(refused))
            else:
                peer = self._peers[addr] = CafePeer(self, addr, self._channels)
                return peer
        else:
            self.listener.refuse("no-handshake", addr[0], frame=datagram)
        self.send(answer, addr)
        return None

    @staticmethod
    def _unwelcome(datagram: bytes) -> bytes | None:
        """What to answer an unknown peer that does not begin with a handshake (cafe §7.2)."""
        try:
            length = needed(datagram, 0)
        except CafeError as problem:
            return error(problem.code)
        if len(datagram) < max(length, HEADER.size):
            return error(ErrorCode.MALFORMED_MESSAGE)
        return None if datagram[2] in _HANDSHAKES else error(ErrorCode.INVALID_HANDSHAKE)

    def send(self, data: bytes, address: Address) -> bool:
        """Send one datagram; False if it is as lost as on the way."""
        assert self.transport is not None
        try:
            self.transport.write(data, address)
        except (OSError, MessageLengthError):
            # The socket's buffer is full, or the address cannot be reached.
            return False
        return True

    def forget(self, peer: CafePeer) -> None:
        """``peer`` has closed."""
        if self._peers.pop(peer.address, None) is not None:
            self.listener.leave(peer.address[0])

    # Client

    def drain(self) -> None:
        """The broker stops: say goodbye to every peer and close the port (see ``Client``)."""
        for peer in tuple(self._peers.values()):
            if peer.outbox is not None:
                peer.outbox.release()
            peer.close(GOODBYE, "stopped")
        self._close_port()

    def abort(self, reason: str) -> None:
        """See ``Client``."""
        self._close_port()

    def _close_port(self) -> None:
        # Once: the broker may have lost its patience while it was closing.
        if not self._closing and self.transport is not None:
            self._closing = True
            self.transport.stopListening()

    def sweep(self, now: float) -> None:
        """End the sessions that have been silent for too long (see ``Client``)."""
        timeout = self.listener.idle_timeout
        for peer in tuple(self._peers.values()):
            silence = now - peer.heard
            if timeout and silence > timeout:
                peer.refuse("idle")
                peer.close(GOODBYE, "idle")
            elif silence > SILENCE:
                peer.close(why="idle")
