"""The transport's side of a connection: flow control and closing.

The base of ``Connection``, which adds input and replies. The states of the way to the end are in
``life_cycle.py``; ``departure.py`` carries them out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from twisted.internet.interfaces import IHalfCloseableProtocol, IPushProducer
from twisted.internet.protocol import Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from pubsub.broker.clients.connection_marks import describe
from pubsub.broker.credentials.identity import Identity
from pubsub.broker.figures.connection_figures import ConnectionFigures, figures_of
from pubsub.broker.publishing.held_request import leave_all
from pubsub.wire.connection_admission import report_end
from pubsub.wire.departure import Departure
from pubsub.wire.direct_transport import StreamTransport
from pubsub.wire.identified import Identified
from pubsub.wire.life_cycle import Event
from pubsub.wire.peer_address import address_text
from pubsub.wire.transport_identity import identity_of
from pubsub.wire.unsent_bytes import TransportCharge, unsent_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pubsub.broker.delivery.outbox import Outbox
    from pubsub.broker.figures.events import ConnectionEvents
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.publishing.publisher import Publisher
    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.topic_space.topics import KeyChange, Topic
    from pubsub.interfaces import Consumer
    from pubsub.wire.replies import ReplyQueue


@implementer(IPushProducer, IHalfCloseableProtocol)
class StreamClient(Identified, Protocol):
    """One client on a stream, as its transport and the broker see it.

    Most attributes start as class attributes, so that an idle connection takes little memory. Those
    that each read looks at are slots, which the interpreter finds without a search. The parts are
    created when they are needed and dropped when they are empty.
    """

    __slots__ = ("_idle_ticks",)

    log: ClassVar[Logger] = Logger()

    outbox: Outbox | None = None
    publisher: Publisher | None = None
    replies: ReplyQueue | None = None
    """Replies that wait for the disk, or behind one that does."""
    output_full = False
    """The transport has more than it can send now."""
    closing = False
    """True from the start of the end on: nothing more is sent."""
    end_reason = "left"
    """The reason for the end of the connection, for events; ``left`` if the client closed it."""
    is_listed = True
    mark = 0
    """The number of the connection (see ``Marked``)."""
    # Messages that were sent without an outbox, and their bytes as frames.
    _messages_sent = _bytes_sent = 0
    _events: ConnectionEvents | None = None
    # Input is discarded: the connection is closing, or will be when pending output has been sent.
    _discards_input = False
    _hold_reasons: set[object] | None = None
    # The bytes in the transport, while it is full and there is no outbox that counts them.
    _transport_charge: TransportCharge | None = None
    _departure: Departure | None = None

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        # Sweeps since the last input. Not 0 while input is discarded, and less before the first.
        self._idle_ticks = -1

    # For subclasses

    def reply(self, data: bytes) -> None:
        """Send a reply, after those that wait for the disk."""
        raise NotImplementedError

    def goodbye(self) -> bytes:
        """Return the bytes that a client is sent when the broker stops."""
        return b""

    def ended(self) -> None:
        """The connection has ended: release the session and other resources. Called once."""

    def recheck(self, topic: Topic, change: KeyChange | None) -> bool:
        """See ``Subscriber``."""
        raise NotImplementedError

    def receives(self, topic: Topic, batch: Batch) -> bool:
        """See ``Subscriber``."""
        return True

    @property
    def label(self) -> str:
        """The client's name in counters and logs."""
        return self.peer

    @property
    def accepted_by(self) -> object:
        """See ``ConnectedClient``."""
        return self.listener

    @property
    def peer(self) -> str:
        """The client's address as text."""
        return address_text(self.stream.getPeer())

    def log_fields(self) -> dict[str, str]:
        """See ``Marked``."""
        return describe(self.mark, self.listener.event_protocol, self.peer, self._identity)

    @property
    def stream(self) -> StreamTransport:
        """The transport, with its type."""
        return cast(StreamTransport, self.transport)

    @property
    def consumer(self) -> Consumer:
        """The target of writes: the transport, or an object that a subclass puts before it."""
        return self.stream

    def transport_identity(self) -> Identity:
        """See ``Identified``."""
        return identity_of(self.stream, self.listener.settings["tls-identity"])

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
        """The transport has more than it can send now; called again when it gets still more."""
        self.output_full = True
        if self.outbox is not None:
            self.outbox.pause()
        else:
            self.charge_unsent()

    def charge_unsent(self) -> None:
        """Charge the bytes in the transport, which is full.

        Over TLS it does not report each time that it gets more.
        """
        nbytes = unsent_bytes(self.stream)
        if self.outbox is not None:
            self.outbox.count_unsent(nbytes)
            return
        if self._transport_charge is None:
            self._transport_charge = TransportCharge(self.evict, self.listener.memory)
        self._transport_charge.set(nbytes)

    def resumeProducing(self) -> None:
        """The transport has sent all its bytes."""
        self.output_full = False
        self._uncharge_transport()
        if self._departure is not None:
            self._departure.on(Event.DRAINED)
        self.release("output")
        if self.outbox is not None:
            self.outbox.resume()

    def stopProducing(self) -> None:
        """The transport is gone; connectionLost follows."""

    def _uncharge_transport(self) -> None:
        charge, self._transport_charge = self._transport_charge, None
        if charge is not None:
            charge.set(0)

    def open_outbox(self) -> Outbox:
        """The connection's outbox, which is created by the first call."""
        if self.outbox is None:
            self.outbox = self.listener.outbox(self.consumer, self)
            if self.output_full:
                self.outbox.pause()
        return self.outbox

    # Figures

    def count_sent(self, messages: int, nbytes: int) -> None:
        """Count messages that are sent without an outbox."""
        self.add_sent(messages, nbytes)
        written = self.listener.traffic.written
        written.messages += messages
        written.nbytes += nbytes

    def add_sent(self, messages: int, nbytes: int) -> None:
        """Add the figures of an outbox that ends before the connection does."""
        self._messages_sent += messages
        self._bytes_sent += nbytes

    def outboxes(self) -> Iterable[Outbox]:
        """Return all outboxes of the connection."""
        return () if self.outbox is None else (self.outbox,)

    def figures(self) -> ConnectionFigures:
        """Return the figures of the connection: messages published and sent, and its lag."""
        found = figures_of(self.publisher, self.outboxes(), self._departure is not None)
        return found.with_sent(self._messages_sent, self._bytes_sent)

    # Leaving

    def close(self, last: bytes = b"") -> None:
        """Send pending output and ``last``, then close. Further input is discarded."""
        if self.closing:
            return
        for outbox in self.outboxes():
            outbox.write_published()
        departure = self._leave()
        if departure.last is None:
            departure.last = lambda: last
        departure.on(Event.CLOSE)

    def drain(self) -> None:
        """The broker stops: read no more, send the queued messages and a goodbye, close."""
        departure, outbox = self._departure, self.outbox
        if departure is None:
            departure = self._leave()
            departure.last = self.goodbye
            self.end_reason = "stopped"
            if outbox is not None:
                departure.undrained = True
                outbox.release()
                outbox.when_drained(departure.outbox_drained)
        departure.on(Event.DRAIN)

    def dismiss(self, reason: str) -> None:
        """See ``ConnectedClient``."""
        if self._departure is not None:
            self.abort(reason)
            return
        self._log_disconnect(reason)
        self.end_reason = reason
        self.close(self.goodbye())

    def evict(self, reason: str) -> None:
        """Disconnect the client to protect others (see ``MemoryHolder`` and ``Subscriber``)."""
        if not self.closing:
            self.listener.evicted(reason, self.label, self)
        self.abort(reason)

    def abort(self, reason: str) -> None:
        """Close at once and discard queued messages."""
        if not self.closing:
            self._log_disconnect(reason)
        self.end_reason = reason
        self._leave().on(Event.ABORT)

    def readConnectionLost(self) -> None:
        """The client sends nothing more: it gets the replies to its requests."""
        self.hold("half-closed")
        self._leave().on(Event.HALF_CLOSE)

    def writeConnectionLost(self) -> None:
        """The kernel has all that was written, and our half is closed."""
        if self._departure is not None:
            self._departure.on(Event.DRAINED)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """The transport is gone."""
        self._leave().on(Event.LOST)

    def _leave(self) -> Departure:
        if self._departure is None:
            self._departure = Departure(self, self.stream, self.listener)
        return self._departure

    def _log_disconnect(self, reason: str) -> None:
        self.log.info(
            "{protocol} client {client!r} disconnected: {reason}",
            protocol=self.listener.event_protocol,
            client=self.label,
            reason=reason,
            connection=self.log_fields(),
        )

    # As a ``Leaver``

    def discard_input(self) -> None:
        """See ``Leaver``."""
        self._begin_to_discard()
        self.hold("closing")

    def _begin_to_discard(self) -> None:
        self._discards_input = True
        self._idle_ticks = 1

    def owes_answers(self) -> bool:
        """See ``Leaver``; a protocol adds its pending output besides replies."""
        return self.replies is not None

    def send_last(self, data: bytes) -> None:
        """See ``Leaver``."""
        self.reply(data)

    def discarded(self, nbytes: int) -> None:
        """See ``Leaver``."""
        if self.outbox is not None:
            self.outbox.count_untaken(nbytes)

    def timed_out(self, seconds: float) -> None:
        """See ``Leaver``."""
        self._log_disconnect(f"did not read its messages for {seconds:g} s")
        if not self.closing:
            self.end_reason = "slow"

    def end(self) -> None:
        """See ``Leaver``."""
        # Set first, as the end of a subscription may evict this very subscriber as too slow.
        self.closing = True
        self._begin_to_discard()
        events, self._events = self._events, None
        report_end(self.listener, self, self.label, self.end_reason, events, self.publisher)
        self.ended()
        replies, self.replies = self.replies, None
        if replies is not None:
            replies.drop()
        self._uncharge_transport()
        # Other holders of this connection find that out when they release it.
        reasons, self._hold_reasons = self._hold_reasons, None
        leave_all(self, reasons or ())
