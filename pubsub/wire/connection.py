"""The base class of every protocol's connection: admission, input, time limits, replies.

A subclass parses frames and replies to them in ``consume``. The rest is the same for all stream
protocols: it is here, in the base class (``stream_client.py``: flow control, the way to the end),
and in the partial frame (``read_buffer.py``) and waiting replies (``replies.py``) of a connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

from twisted.internet.interfaces import IHandshakeListener, IProtocolNegotiationFactory
from twisted.internet.protocol import Factory, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from pubsub.broker.listeners.limits import UNKNOWN
from pubsub.errors import FrameTimeout, HandshakeTimeout, MemoryExhausted, Refused
from pubsub.wire.connection_admission import admit, locate, withdraw
from pubsub.wire.foreign_protocols import foreign_start
from pubsub.wire.life_cycle import Event
from pubsub.wire.read_buffer import LONG_READ, ReadBuffer
from pubsub.wire.replies import Condition, FailedReply, ReplyQueue
from pubsub.wire.stream_client import StreamClient

if TYPE_CHECKING:
    from twisted.internet.interfaces import ITransport

    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.slices import Work
    from pubsub.broker.topic_space.durability import Durability
    from pubsub.broker.topic_space.topics import KeyChange, Topic

# The reason for which a client with many frames is not read from.
_TURN = "turn"


@implementer(IHandshakeListener)
class Connection(StreamClient):
    """One client on a stream."""

    __slots__ = ("_read_buffer",)

    delimiter: ClassVar[bytes | None] = None
    """If set, a partial frame is parsed when this byte arrives, or as much as can be kept."""
    has_handshake: ClassVar[bool] = False
    """If set, the client has to send a handshake; the subclass calls ``end_handshake``."""
    long_read: ClassVar[int] = LONG_READ
    """Bytes of a read of a client that sends as fast as it can."""

    # See ``admit``.
    _admitted_host: str | None = None

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        self._read_buffer: ReadBuffer | None = None

    # For subclasses

    def consume(self, data: bytes) -> tuple[int, int]:
        """Handle the whole frames at the start of ``data``.

        Returns the number of bytes that were handled, and how many bytes there must be from there
        on before the next call can achieve anything.
        """
        raise NotImplementedError

    def refusal(self, error: Refused) -> bytes:
        """The reply to a client that is not admitted, or whose time is over."""
        raise NotImplementedError

    def revoked(self, topic: Topic) -> None:
        """The subscription to ``topic`` ends, as the client may no longer read it."""

    def recheck(self, topic: Topic, change: KeyChange | None) -> bool:
        """See ``Subscriber``."""
        if self.listener.may_continue(self.label, topic, self, self.access):
            return True
        self.revoked(topic)
        return False

    # Input

    def makeConnection(self, transport: ITransport) -> None:
        """See IProtocol. Unlike Twisted's, sets no ``connected``, which nothing reads."""
        self.transport = transport
        self.connectionMade()

    def connectionMade(self) -> None:
        """Admit the client or refuse it."""
        self._admitted_host = admit(self.listener, self)
        if self._admitted_host is not None:
            self._report_connect()
            self.stream.registerProducer(self, True)

    def not_admitted(self, refused: Refused) -> None:
        """See ``Admissible``."""
        self.listener.refuse(refused.reason, self.peer, connection=self)
        self.close(self.refusal(refused))

    def _report_connect(self) -> None:
        if self.listener.events is not None and self._admitted_host != UNKNOWN:
            self._events = self.listener.connection_events(self.peer, self.mark)

    def handshakeCompleted(self) -> None:
        """See IHandshakeListener: that of TLS, or the header of a proxy. A client's may follow."""
        if self._admitted_host == UNKNOWN and not self.closing:
            self._admitted_host = locate(self.listener, self, self._admitted_host)
            self._report_connect()
        if not self.has_handshake:
            self.end_handshake()

    def end_handshake(self) -> None:
        """All handshakes are done."""
        self.listener.handshakes.done(self)

    def handshake_overdue(self) -> None:
        """See ``Shaking``."""
        error = HandshakeTimeout()
        self.fail(error.reason, self.refusal(error))
        # A client without a session is not given the time of one that is slow.
        self._leave().on(Event.DRAIN)

    def dataReceived(self, data: bytes) -> None:
        """Parse ``data``, together with the partial frame before it."""
        if self._idle_ticks:
            if self._discards_input or (self._idle_ticks < 0 and self.refuses_first(data)):
                return
            self._idle_ticks = 0
        buffer = self._read_buffer
        if buffer is not None:
            if not buffer.add(data, self.delimiter):
                return
            data = buffer.take()
        done, need = self.consume(data)
        if done < len(data) or self._read_buffer is not None:
            self._keep_partial(data, done, need)

    def refuses_first(self, data: bytes) -> bool:
        """Refuse a client whose first bytes are of another protocol; return whether they are.

        Here those of TLS and of a proxy's header, which every protocol recognizes.
        """
        found = foreign_start(data, self.refusal)
        if found is not None:
            self.fail(*found)
        return found is not None

    def turn_over(self) -> bool:
        """Count a frame that was handled on its own; return whether others have their turn now.

        Then ``consume`` stops after it, and is called again in a later tick.
        """
        turns = self.listener.frame_turns
        if not turns.count():
            return False
        if not self.closing and not self.takes_turns:
            self.hold(_TURN)
            turns.run_later(self._take_turn, self._end_turns)
        return True

    @property
    def takes_turns(self) -> bool:
        """Whether the rest of a read is handled in turns."""
        return self._hold_reasons is not None and _TURN in self._hold_reasons

    def _take_turn(self) -> None:
        with self._ending_on_error():
            self.next_turn()

    def ending_on_error(self, work: Work) -> Work:
        """Do ``work``; an error ends the connection, which would wait for the rest forever."""
        with self._ending_on_error():
            yield from work

    @contextmanager
    def _ending_on_error(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self.abort("an error of the broker")
            raise

    def _end_turns(self) -> None:
        if not self.closing:
            self.release(_TURN)

    def next_turn(self) -> None:
        """Handle some frames of the rest of a read."""
        self.parse_buffered()

    def parse_buffered(self) -> None:
        """Parse the read buffer, after ``consume`` had stopped early."""
        buffer = self._read_buffer
        if buffer is not None and not self._discards_input and (data := buffer.take()):
            self._keep_partial(data, *self.consume(data))

    def _keep_partial(self, data: bytes, done: int, need: int) -> None:
        """Buffer the rest of ``data`` after ``consume``; drop the buffer if there is none."""
        if self.closing:
            return
        buffer = self._read_buffer
        if done < len(data):
            if buffer is None:
                memory = self.listener.memory
                buffer = self._read_buffer = ReadBuffer(self, memory, self, self.long_read)
            read_size = buffer.start(data[done:], need, len(data))
        else:
            assert buffer is not None
            self._read_buffer = None
            read_size = buffer.clear()
        if read_size:
            self.stream.bufferSize = read_size

    @property
    def held(self) -> int:
        """See ``MemoryHolder``: the bytes of the partial frame that are charged."""
        return 0 if self._read_buffer is None else self._read_buffer.charged

    def sweep(self, now: float) -> None:
        """See ``ConnectedClient``: close one whose frame takes too long, or that is silent.

        There is a sweep every second, so that reads need not look at the clock.
        """
        reasons, listener = self._hold_reasons, self.listener
        if self._departure is not None or (reasons and not all(map(_waits_for_room, reasons))):
            # Leaving has a deadline of its own; a client that is held cannot send.
            return
        if listener.frame_seconds and self.frame_overdue(listener.frame_seconds):
            error = MemoryExhausted() if reasons else FrameTimeout()
            self.fail(error.reason, self.refusal(error))
        elif listener.idle_timeout and not reasons:
            is_new = self._idle_ticks < 0
            self._idle_ticks += -1 if is_new else 1
            if abs(self._idle_ticks) > listener.idle_timeout + is_new:
                self.refuse("idle")
                self.end_reason = "idle"
                self.close(self.goodbye())

    def frame_overdue(self, seconds: float) -> bool:
        """Count a second; return whether a frame takes longer than ``seconds`` and its bytes."""
        return self._read_buffer is not None and self._read_buffer.overdue(seconds)

    # Replies

    def reply(self, data: bytes) -> None:
        """Send a reply, after those that wait for the disk."""
        gathered = self.listener.router.gathered
        if gathered is not None:
            # Clients take a reply for a confirmation of the messages that they sent before.
            gathered()
        if self.replies is not None:
            self.replies.add(data)
        else:
            self.send_reply(data)

    def reply_when_stored(
        self, durability: Durability, data: bytes, failed: FailedReply, count: int = 1
    ) -> None:
        """Send ``data`` when everything published so far is stored, or ``failed`` if it cannot be.

        ASYNC means written to the history, SYNC means on disk; with NONE nothing has to be stored.
        Either answers ``count`` requests. Later replies are sent after it. Nothing else waits:
        neither further requests of this client nor its deliveries.
        """
        store = self.listener.store
        if not durability or not store.durable:
            self.reply(data)
            return
        if self.replies is None:
            self.replies = ReplyQueue(self)
        reply = self.replies.add(data, failed, count)
        if durability.on_disk:
            store.when_stored(reply.stored)
        else:
            store.when_written(reply.stored)

    def reply_when(
        self, condition: Condition, data: bytes, failed: FailedReply, count: int = 1
    ) -> None:
        """Send ``data`` when ``condition`` holds, or ``failed``; see ``reply_when_stored``."""
        if self.replies is None:
            self.replies = ReplyQueue(self)
        condition(self.replies.add(data, failed, count).resolve)

    def send_reply(self, data: bytes) -> None:
        """Send now; a client that does not read its replies is not read from either."""
        if self.outbox is not None:
            self.outbox.send(data)
        else:
            self.consumer.write(data)
        if self.output_full:
            self.hold("output")
            self.charge_unsent()

    def answered(self) -> None:
        """A pending reply has been sent."""
        if self._departure is not None:
            self._departure.settle()

    def refuse(
        self, reason: str, count: int = 1, topic: str | None = None, frame: bytes | None = None
    ) -> None:
        """Count requests that were answered with an error (see ``Listener.refuse``)."""
        self.listener.refuse(reason, self.label, count, topic=topic, connection=self, frame=frame)

    # Leaving

    def fail(self, reason: str, answer: bytes, frame: bytes | None = None) -> None:
        """The client broke the protocol or its limits: count that, send ``answer``, close."""
        self.refuse(reason, frame=frame)
        self.end_reason = reason
        self.close(answer)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """The transport is gone."""
        super().connectionLost(reason)
        host, self._admitted_host = self._admitted_host, None
        withdraw(self.listener, self, host)

    def end(self) -> None:
        """See ``Leaver``."""
        super().end()
        self.end_handshake()
        buffer, self._read_buffer = self._read_buffer, None
        if buffer is not None:
            buffer.clear()


def _waits_for_room(reason: object) -> bool:
    return isinstance(reason, ReadBuffer)


@implementer(IProtocolNegotiationFactory)
class ConnectionFactory(Factory):
    """The factory of one listener; subclasses build its protocol's connections."""

    noisy = False

    def __init__(self, listener: Listener) -> None:
        self.listener = listener

    def acceptableProtocols(self) -> list[bytes]:
        """See IProtocolNegotiationFactory: the protocol's own name.

        Without it Twisted ends the handshake of every TLS client that offers ALPN (RFC 7301).
        """
        return [self.listener.protocol.encode()]
