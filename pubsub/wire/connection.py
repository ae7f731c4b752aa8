"""The base class of every protocol's connection: input, flow control, replies, closing.

A subclass parses frames and replies to them in ``consume``. Everything that is the same for all
stream protocols is here or in the parts that a connection holds: the partial frame
(``read_buffer.py``), the replies that wait for the disk (``replies.py``) and the end of a TCP
stream (``linger.py``). Nothing here knows a frame.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

from twisted.internet.interfaces import IHalfCloseableProtocol, IPushProducer
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from pubsub.errors import Refused
from pubsub.wire.direct_transport import READ_BYTES, StreamTransport
from pubsub.wire.linger import Linger, can_linger
from pubsub.wire.peer_address import address_text, host_of
from pubsub.wire.read_buffer import PayloadHandler, ReadBuffer
from pubsub.wire.replies import ReplyQueue

if TYPE_CHECKING:
    from twisted.internet.interfaces import ITransport

    from pubsub.broker.events import ConnectionEvents
    from pubsub.broker.listener import Listener
    from pubsub.broker.outbox import Outbox
    from pubsub.broker.publisher import Publisher
    from pubsub.broker.topics import KeyChange, Topic


@implementer(IPushProducer, IHalfCloseableProtocol)
class Connection(Protocol):
    """One client on a stream.

    The attributes start as class attributes, so that an idle connection takes little memory. The
    parts are created when they are needed and dropped when they are empty.
    """

    log: ClassVar[Logger] = Logger()

    delimiter: ClassVar[bytes | None] = None
    """If set, a partial frame is parsed when this byte arrives, or as much as can be kept."""
    read_bytes: ClassVar[int] = READ_BYTES
    """The largest number of bytes of one read."""

    outbox: Outbox | None = None
    publisher: Publisher | None = None
    closing = False
    """True from the start of the end on: nothing more is sent."""
    end_reason = "left"
    """Why the connection ended, for events; ``left`` if the client closed it."""
    _events: ConnectionEvents | None = None
    # The host that the listener's quota counts this connection for. The peer's address may change
    # meanwhile, for example when the header of a proxy arrives.
    _admitted_host: str | None = None
    # Input is discarded: the connection is closing, or will be when the replies have been sent.
    _input_ended = False
    _read_buffer: ReadBuffer | None = None
    # Sweeps since the last input.
    _idle_ticks = 0
    output_full = False
    """The transport has more than it can send now."""
    _hold_reasons: set[object] | None = None
    replies: ReplyQueue | None = None
    """Replies that wait for the disk, or behind one that does."""
    _linger: Linger | None = None

    def __init__(self, listener: Listener) -> None:
        self.listener = listener

    # For subclasses

    def consume(self, data: bytes) -> tuple[int, int]:
        """Handle the whole frames at the start of ``data``.

        Returns the number of bytes that were handled, and how many bytes there must be from there
        on before the next call can achieve anything.
        """
        raise NotImplementedError

    def large_payload(self, head: bytes, need: int) -> tuple[int, PayloadHandler] | None:
        """How to handle the frame of ``need`` bytes that begins with ``head``.

        For a message whose payload ends the frame: the offset of the payload in the frame, and
        its handler. None for any other frame, and for one that cannot be handled now: it is left
        to ``consume``.
        """
        return None

    def refusal(self, error: Refused) -> bytes:
        """The reply to a client that is refused when it connects."""
        raise NotImplementedError

    def goodbye(self) -> bytes:
        """What a client is sent when the broker stops."""
        return b""

    def ended(self) -> None:
        """The connection has ended: release the session and the like. Called once."""

    def revoked(self, topic: Topic) -> None:
        """The subscription to ``topic`` ends, as the client may no longer read it."""

    def recheck(self, topic: Topic, change: KeyChange | None) -> bool:
        """See ``Subscriber``."""
        if self.listener.may_continue(self.label, topic):
            return True
        self.revoked(topic)
        return False

    @property
    def label(self) -> str:
        """The client's name in counters and logs."""
        return self.peer

    @property
    def peer(self) -> str:
        """The client's address as text."""
        return address_text(self.stream.getPeer())

    @property
    def stream(self) -> StreamTransport:
        """The transport, with its type."""
        return cast(StreamTransport, self.transport)

    # Input

    def makeConnection(self, transport: ITransport) -> None:
        """See IProtocol. Unlike Twisted's, sets no ``connected``, which nothing reads."""
        self.transport = transport
        self.connectionMade()

    def connectionMade(self) -> None:
        """Admit the client or refuse it."""
        host = host_of(self.stream.getPeer())
        try:
            self.listener.admit(host)
        except Refused as error:
            self.listener.refuse(error.reason, self.peer)
            self.close(self.refusal(error))
            return
        self._admitted_host = host
        if self.listener.events is not None:
            self._events = self.listener.connection_events(self.peer)
        self.listener.clients.add(self)
        self.stream.registerProducer(self, True)

    def dataReceived(self, data: bytes) -> None:
        """Parse ``data``, together with the partial frame before it."""
        if self._idle_ticks:
            self._idle_ticks = 0
        if self._input_ended:
            return
        buffer = self._read_buffer
        if buffer is not None:
            if not buffer.add(data, self.delimiter):
                return
            data = buffer.take_frame(self.large_payload)
        done, need = self.consume(data)
        if done < len(data) or self._read_buffer is not None:
            self._keep_partial(data, done, need)

    def parse_buffered(self) -> None:
        """Parse what is in the read buffer, after ``consume`` had stopped early."""
        buffer = self._read_buffer
        if buffer is not None and not self._input_ended and (data := buffer.take()):
            self._keep_partial(data, *self.consume(data))

    def _keep_partial(self, data: bytes, done: int, need: int) -> None:
        """Buffer what ``consume`` has left of ``data``; drop the buffer if that is nothing."""
        if self.closing:
            return
        buffer = self._read_buffer
        if done < len(data):
            if buffer is None:
                memory = self.listener.memory
                buffer = self._read_buffer = ReadBuffer(self, memory, self.read_bytes)
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
        """Close a connection that has been silent for too long (see ``Client``)."""
        timeout = self.listener.idle_timeout
        if not timeout or self.closing:
            return
        # There is a sweep every second, so that reads need not look at the clock.
        self._idle_ticks += 1
        if self._idle_ticks > timeout and not self._hold_reasons:
            self.refuse("idle")
            self.end_reason = "idle"
            self.close(self.goodbye())

    # Flow control

    def hold(self, reason: object) -> None:
        """Do not read until ``release`` has been called for every reason."""
        if self.closing:
            return
        if self._hold_reasons is None:
            self._hold_reasons = set()
            self.stream.pauseProducing()
        self._hold_reasons.add(reason)

    def release(self, reason: object) -> None:
        """Withdraw ``reason``; read again if it was the last."""
        reasons = self._hold_reasons
        if reasons is not None:
            reasons.discard(reason)
            if not reasons:
                self._hold_reasons = None
                self.stream.resumeProducing()

    def pauseProducing(self) -> None:
        """The transport has more than it can send now."""
        self.output_full = True
        if self.outbox is not None:
            self.outbox.pause()

    def resumeProducing(self) -> None:
        """The transport has sent all it had."""
        self.output_full = False
        self.release("output")
        if self.outbox is not None:
            self.outbox.resume()

    def stopProducing(self) -> None:
        """The transport is gone; connectionLost follows."""

    def open_outbox(self) -> Outbox:
        """The connection's outbox, which is created by the first call."""
        if self.outbox is None:
            self.outbox = self.listener.outbox(self.stream, self)
            if self.output_full:
                self.outbox.pause()
        return self.outbox

    # Replies

    def reply(self, data: bytes) -> None:
        """Send a reply, after those that wait for the disk."""
        if self.replies is not None:
            self.replies.add(data)
        else:
            self.send_reply(data)

    def reply_when_stored(self, data: bytes, failed: bytes, count: int = 1) -> None:
        """Send ``data`` when everything published so far is on disk, or ``failed`` if it cannot be.

        Either answers ``count`` requests. Later replies are sent after it. Nothing else waits:
        neither further requests of this client nor its deliveries.
        """
        if self.replies is None:
            self.replies = ReplyQueue(self)
        reply = self.replies.add(data, failed, count)
        self.listener.store.when_stored(reply.stored)

    def send_reply(self, data: bytes) -> None:
        """Send now; a client that does not read its replies is not read from either."""
        if self.outbox is not None:
            self.outbox.send(data)
        else:
            self.stream.write(data)
        if self.output_full:
            self.hold("output")

    def _wait_for_replies(self, then: Callable[[], None]) -> bool:
        """Return whether replies have to be sent first; if so, ``then`` is called after them."""
        if self.replies is None or self.closing:
            return False
        if self.replies.then is None:
            self.replies.then = then
            self._input_ended = True
            self.hold("closing")
        return True

    def refuse(
        self, reason: str, count: int = 1, topic: str | None = None, frame: bytes | None = None
    ) -> None:
        """Count requests that were answered with an error (see ``Listener.refuse``)."""
        self.listener.refuse(
            reason, self.label, count, topic=topic, connection_events=self._events, frame=frame
        )

    # Closing

    def fail(self, reason: str, answer: bytes, frame: bytes | None = None) -> None:
        """The client broke the protocol or its limits: count that, send ``answer``, close."""
        self.refuse(reason, frame=frame)
        self.end_reason = reason
        self.close(answer)

    def close(self, last: bytes = b"") -> None:
        """Send what is queued and ``last``, then close. Further input is discarded."""
        if self.closing or self._wait_for_replies(partial(self.close, last)):
            return
        if last:
            self.reply(last)
        self._end()
        stream = self.stream
        stream.unregisterProducer()
        if can_linger(stream):
            self._linger = Linger(stream, self.listener.clock, self.listener.slow.seconds)
        else:
            stream.loseConnection()

    def drain(self) -> None:
        """The broker stops: read no more, send what is queued and a goodbye, close."""
        if self.closing:
            return
        self.hold("drain")
        self.end_reason = "stopped"
        if self.outbox is None:
            self.close(self.goodbye())
        else:
            self.outbox.release()
            self.outbox.when_drained(lambda: self.close(self.goodbye()))

    def evict(self, reason: str) -> None:
        """Disconnect the client to protect others (see ``MemoryHolder`` and ``Subscriber``)."""
        if not self.closing:
            self.listener.evicted(reason, self.label, self._events)
        self.abort(reason)

    def abort(self, reason: str) -> None:
        """Close at once and discard what is queued."""
        if not self.closing:
            self.log.info(
                "{protocol} client {client!r} disconnected: {reason}",
                protocol=self.listener.protocol,
                client=self.label,
                reason=reason,
            )
        self.end_reason = reason
        self._end()
        self.stream.abortConnection()

    def readConnectionLost(self) -> None:
        """The client sends nothing more: send the replies that wait, then close."""
        if self._wait_for_replies(self.readConnectionLost):
            return
        self._end()
        self.stream.unregisterProducer()
        self.stream.loseConnection()

    def writeConnectionLost(self) -> None:
        """The kernel has all that was written, and our half is closed, as ``close`` requested."""
        if self._linger is not None:
            self._linger.sent()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """The transport is gone."""
        self._end()
        if self._linger is not None:
            self._linger.stop()
        host, self._admitted_host = self._admitted_host, None
        if host is not None:
            self.listener.leave(host)
            self.listener.clients.discard(self)

    def _end(self) -> None:
        if self.closing:
            return
        # Set first, as the end of a subscription may evict this very subscriber as too slow.
        self.closing = self._input_ended = True
        self._report_end()
        self.ended()
        self.replies = None
        buffer, self._read_buffer = self._read_buffer, None
        if buffer is not None:
            buffer.clear()
        # Holders of this connection find that out when they release it.
        self._hold_reasons = None

    def _report_end(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            publisher = self.publisher
            messages = 0 if publisher is None else publisher.messages
            nbytes = 0 if publisher is None else publisher.nbytes
            events.end(self.label, self.end_reason, messages, nbytes)


class ConnectionFactory(Factory):
    """The factory of one listener; subclasses build its protocol's connections."""

    noisy = False

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
