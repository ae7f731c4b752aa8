"""The base of every protocol's connection: holding, answering, refusing, closing.

A subclass parses and answers in ``consume``; everything that is the same for all stream
protocols is here, and in ``unfinished.py`` what becomes of the bytes that come in. Nothing here
knows a frame.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from sys import intern
from typing import TYPE_CHECKING, ClassVar, cast

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import (
    IHalfCloseableProtocol,
    IPushProducer,
    ISSLTransport,
    ITCPTransport,
)
from twisted.internet.protocol import Factory, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from pubsub.errors import Refused
from pubsub.wire.read_buffer import ReadBuffer
from pubsub.wire.replies import Answer, take_ready

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

    from pubsub.broker.events import ConnectionEvents
    from pubsub.broker.listener import Listener
    from pubsub.broker.outbox import Outbox
    from pubsub.broker.publisher import Publisher
    from pubsub.broker.topics import KeyChange, Topic

# Seconds a connection goes on reading and discarding once the kernel has its last bytes. Closed
# with unread input it would send a reset that can overtake the error or goodbye just written.
LINGER = 2.0


@implementer(IPushProducer, IHalfCloseableProtocol)
class Connection(ReadBuffer):
    """One client on a stream.

    The attributes start as class attributes, so that an idle connection costs little.
    """

    log: ClassVar[Logger] = Logger()

    outbox: Outbox | None = None
    publisher: Publisher | None = None
    why = "left"
    """Why the connection ended, for whoever is told of it; ``left`` if the client closed it."""
    _visit: ConnectionEvents | None = None
    # What it was counted in by, until it is counted out. What a transport says of its peer may
    # change, for example when a proxy's header has come.
    _counted: str | None = None
    _output_full = False
    _holds: set[object] | None = None
    _lingering: IDelayedCall | None = None
    _answers: list[Answer] | None = None
    _leaving: Callable[[], None] | None = None

    # For subclasses

    def refusal(self, error: Refused) -> bytes:
        """What to tell a client that is turned away at the door."""
        raise NotImplementedError

    def goodbye(self) -> bytes:
        """What to tell a client when the broker stops."""
        return b""

    def ended(self) -> None:
        """The connection is gone or given up: let go of the session and the like. Once."""

    def revoked(self, topic: Topic) -> None:
        """The subscription to ``topic`` ends, as the client may not read it any more."""

    def recheck(self, topic: Topic, change: KeyChange | None) -> bool:
        """See ``Subscriber``."""
        if self.listener.may_continue(self.label, topic):
            return True
        self.revoked(topic)
        return False

    @property
    def label(self) -> str:
        """The client's name for counters and logs."""
        return self.peer

    @property
    def peer(self) -> str:
        """Where the client is, as text."""
        address = self.stream.getPeer()
        if isinstance(address, IPv4Address | IPv6Address):
            return f"{address.host}:{address.port}"
        return "unix"

    # Input

    def connectionMade(self) -> None:
        """Count the connection in, or turn it away."""
        address = self.stream.getPeer()
        # One text for all of a host's connections.
        host = intern(address.host) if isinstance(address, IPv4Address | IPv6Address) else "unix"
        try:
            self.listener.admit(host)
        except Refused as error:
            self.listener.refuse(error.reason, self.peer)
            self.close(self.refusal(error))
            return
        self._counted = host
        if self.listener.events is not None:
            self._visit = self.listener.connection_events(self.peer)
        self.listener.clients.add(self)
        self.stream.registerProducer(self, True)

    def evict(self, reason: str) -> None:
        """Give the connection up for the others' sake (see ``Holder`` and ``Subscriber``)."""
        if not self.closing:
            self.listener.evicted(reason, self.label, self._visit)
        self.abort(reason)

    # Flow

    def hold(self, reason: object) -> None:
        """Read no more until ``release`` has been called for every reason given."""
        if self._holds is None:
            self._holds = set()
        if not self._holds and not self.closing:
            self.stream.pauseProducing()
        self._holds.add(reason)

    def release(self, reason: object) -> None:
        """``reason`` does not hold any more."""
        if self._holds is None:
            return
        self._holds.discard(reason)
        if not self._holds:
            self._holds = None
            if not self.closing:
                self.stream.resumeProducing()

    def reply(self, data: bytes) -> None:
        """Send an answer, after those that wait for the disk."""
        if self._answers is not None:
            self._answers.append(Answer(self, data))
        else:
            self._write_answer(data)

    def reply_when_stored(self, data: bytes, failed: bytes, count: int = 1) -> None:
        """Send ``data`` when all that was published is on disk, or ``failed`` if it cannot be.

        Either answers ``count`` requests. Later answers come after it. Nothing else waits:
        neither further requests of this client nor its deliveries.
        """
        answer = Answer(self, data, failed, count)
        if self._answers is None:
            self._answers = []
        self._answers.append(answer)
        self.listener.store.when_stored(answer.stored)

    def send_ready(self) -> None:
        """Send the answers that need not wait for the disk any more."""
        answers = self._answers
        if answers is None:
            return
        data = take_ready(answers)
        if data:
            self._write_answer(data)
        if not answers:
            self._answers = None
            leaving, self._leaving = self._leaving, None
            if leaving is not None:
                leaving()

    def _answers_first(self, leave: Callable[[], None]) -> bool:
        """Must the client get answers first? Then ``leave`` is called after them."""
        if self._answers is None or self.closing:
            return False
        if self._leaving is None:
            self._leaving = leave
            self.hold("leaving")
        return True

    def _write_answer(self, data: bytes) -> None:
        """Write; a client that does not read its answers is not read from either."""
        if self.outbox is not None:
            self.outbox.send(data)
        else:
            self.stream.write(data)
        if self._output_full:
            self.hold("output")

    def pauseProducing(self) -> None:
        """The transport has more than it can send now."""
        self._output_full = True
        if self.outbox is not None:
            self.outbox.pause()

    def resumeProducing(self) -> None:
        """The transport has sent all it had."""
        self._output_full = False
        self.release("output")
        if self.outbox is not None:
            self.outbox.resume()

    def stopProducing(self) -> None:
        """The transport is gone; connectionLost follows."""

    def open_outbox(self) -> Outbox:
        """The connection's outbox, made when first asked for."""
        if self.outbox is None:
            self.outbox = self.listener.outbox(self.stream, self)
            if self._output_full:
                self.outbox.pause()
        return self.outbox

    # The end

    def refuse(
        self, reason: str, count: int = 1, topic: str | None = None, frame: bytes | None = None
    ) -> None:
        """Count requests that were answered with an error (see ``Listener.refuse``)."""
        self.listener.refuse(
            reason, self.label, count, topic=topic, connection_events=self._visit, frame=frame
        )

    def fail(self, reason: str, answer: bytes, frame: bytes | None = None) -> None:
        """The client broke the protocol or its limits: say so, count it, close."""
        self.refuse(reason, frame=frame)
        self.why = reason
        self.close(answer)

    def close(self, last: bytes = b"") -> None:
        """Send what is queued and ``last``, then close, discarding what still comes in."""
        if self.closing or self._answers_first(partial(self.close, last)):
            return
        if last:
            self.reply(last)
        self._end()
        stream = self.stream
        stream.unregisterProducer()
        if ITCPTransport.providedBy(stream) and not ISSLTransport.providedBy(stream):
            stream.resumeProducing()
            cast(ITCPTransport, stream).loseWriteConnection()
            clock = self.listener.clock
            seconds = max(self.listener.slow.seconds, LINGER)
            self._lingering = clock.callLater(seconds, self._abort_transport)
        else:
            stream.loseConnection()

    def readConnectionLost(self) -> None:
        """The client sends nothing more: what it is owed goes out, then the end."""
        if self._answers_first(self.readConnectionLost):
            return
        self._end()
        self.stream.unregisterProducer()
        self.stream.loseConnection()

    def writeConnectionLost(self) -> None:
        """The kernel has all that was written, and our half is closed, as ``close`` asked for."""
        if self._lingering is not None and self._lingering.active():
            self._lingering.cancel()
            # No abort: the kernel goes on sending to a client that reads slowly.
            clock = self.listener.clock
            self._lingering = clock.callLater(LINGER, self.stream.loseConnection)

    def drain(self) -> None:
        """The broker stops: read no more, flush, say goodbye, close (see ``Client``)."""
        if self.closing:
            return
        self.hold("drain")
        self.why = "stopped"
        if self.outbox is None:
            self.close(self.goodbye())
        else:
            self.outbox.release()
            self.outbox.when_drained(lambda: self.close(self.goodbye()))

    def abort(self, reason: str) -> None:
        """Close at once, whatever is still queued."""
        if not self.closing:
            self.log.info(
                "{protocol} client {client!r} disconnected: {reason}",
                protocol=self.listener.protocol,
                client=self.label,
                reason=reason,
            )
        self.why = reason
        self._end()
        self._abort_transport()

    def sweep(self, now: float) -> None:
        """Close a connection that has been silent for too long (see ``Client``)."""
        timeout = self.listener.idle_timeout
        if not timeout or self.closing:
            return
        # Sweeps come once a second, which spares every read a look at the clock.
        self._quiet += 1
        if self._quiet > timeout and not self._holds:
            self.refuse("idle")
            self.why = "idle"
            self.close(self.goodbye())

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Count the connection out."""
        self._end()
        if self._lingering is not None and self._lingering.active():
            self._lingering.cancel()
        host, self._counted = self._counted, None
        if host is not None:
            self.listener.leave(host)
            self.listener.clients.discard(self)

    def _end(self) -> None:
        if self.closing:
            return
        # First of all, as ending a subscription may give this very subscriber up as too slow.
        self.closing = True
        self._leave_events()
        self.ended()
        self._answers = None
        self._forget_rest()
        # Whoever held this connection finds that out when it lets go.
        self._holds = None

    def _leave_events(self) -> None:
        visit, self._visit = self._visit, None
        if visit is not None:
            publisher = self.publisher
            messages = 0 if publisher is None else publisher.messages
            nbytes = 0 if publisher is None else publisher.nbytes
            visit.end(self.label, self.why, messages, nbytes)

    def _abort_transport(self) -> None:
        self.stream.abortConnection()


class ConnectionFactory(Factory):
    """The factory of one listener; subclasses build its protocol's connections."""

    noisy = False

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
