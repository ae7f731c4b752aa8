"""The client half on the wire: a DEALER connected to another broker's ROUTER (spot §7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from twisted.internet.interfaces import ITCPTransport

from pubsub.errors import MessageTooLarge, Refused
from pubsub.protocols.spot.codec import (
    Publish,
    Query,
    QueryResponse,
    Request,
    SpotError,
    Subscribe,
    Unsubscribe,
    decode_request,
    encode_request,
)
from pubsub.protocols.spot.connection import NODE, MessageHead, Role, ZmtpConnection
from pubsub.protocols.spot.scan import StemEncoding, publish_stem
from pubsub.protocols.spot.zmtp import Command, FrameLimits, ZmtpError, ping, ready

if TYPE_CHECKING:
    from twisted.python.failure import Failure

    from pubsub.broker.batch import Batch
    from pubsub.broker.listener import Listener
    from pubsub.broker.message_run import MessageRun
    from pubsub.broker.topics import Topic

# Another broker is trusted further than a client: it may have larger limits and many topics.
FRAME_LIMITS = FrameLimits(frame=64 * 1024 * 1024, frames=1_000_000)
# Signs of life that may fail to come before the other broker is given up.
_MISSED = 3


class PeerEvents(Protocol):
    """The broker at the other end, as what is known here of it."""

    endpoint: str

    def opened(self, link: PeerConnection) -> None: ...

    def lost(self, link: PeerConnection) -> None: ...

    def listed(self, names: list[bytes]) -> None: ...

    def silent(self) -> None:
        """It has not answered in time."""

    def itself(self) -> None:
        """The other end turned out to be this very broker."""


class PeerConnection(ZmtpConnection):
    """One connection to another broker; it is also the ``Role`` of the other side."""

    _sent = 0
    _confirmed = 0
    _asked: float | None = None
    _beat = 0
    _since_query = 0

    def __init__(self, listener: Listener, far: PeerEvents) -> None:
        super().__init__(listener, FRAME_LIMITS)
        self._far = far
        self._subscribed: set[Topic] = set()
        self.is_open = False

    @property
    def peer(self) -> str:
        """See ``Connection``."""
        return self._far.endpoint

    # Opening

    def connectionMade(self) -> None:
        """Not counted among the listener's clients, which did not come here by themselves."""
        self.listener.clients.add(self)
        transport = self.transport
        if ITCPTransport.providedBy(transport):
            transport.setTcpNoDelay(True)
        self.stream.registerProducer(self, True)
        self.start()

    def greeted(self) -> None:
        """See ``ZmtpConnection``: who connects says first what it is (RFC 37, NULL)."""
        self.reply(ready(b"DEALER", {b"Identity": b"", NODE: self._node_id}))

    @property
    def _node_id(self) -> bytes:
        return b"%015x" % self.listener.dispatcher.run_id

    def opened(self) -> Role:
        """See ``ZmtpConnection``."""
        if self.handshake.metadata.get(NODE.lower()) == self._node_id:
            self._far.itself()
            raise ZmtpError("itself")
        if self.handshake.socket_type not in (b"ROUTER", b"DEALER", b"REP"):
            raise ZmtpError("socket-type")
        self.is_open = True
        self.open_outbox()
        self._far.opened(self)
        self.query()
        return self

    # Requests

    def query(self) -> None:
        """Ask which topics are hosted there."""
        self._since_query = 0
        if self._asked is None:
            self._asked = self.listener.clock.seconds()
        self._send(Query())

    def subscribe(self, topic: Topic) -> None:
        """Have ``topic`` sent here, if that is not so yet."""
        if topic not in self._subscribed:
            self._subscribed.add(topic)
            self._send(Subscribe(topic.name.encode()))

    def unsubscribe(self, topic: Topic) -> None:
        """Have it sent no more."""
        if topic in self._subscribed:
            self._subscribed.discard(topic)
            self._send(Unsubscribe(topic.name.encode()))

    def publish(self, topic: Topic, batch: Batch) -> None:
        """Send a batch there; what is too large is counted, or refused if that is all of it."""
        assert self.outbox is not None
        fitting: Batch | None = batch
        limit: int = self.listener.settings["max-message"]
        if batch.nbytes > limit:
            fitting = batch.within(limit)
            if fitting is None:
                raise MessageTooLarge(batch.nbytes)
        assert fitting is not None
        listener, count = self.listener, len(fitting.payloads)
        if count < len(batch.payloads):
            listener.counters.drop(
                self.label, topic.name, MessageTooLarge.reason, len(batch.payloads) - count
            )
        data = StemEncoding(publish_stem(topic.name.encode())).encode(fitting)
        listener.counters.delivered += count
        self._sent += count
        self.outbox.deliver(data, count, topic, -1)
        listener.router.flush_soon()

    def _send(self, request: Request) -> None:
        """Unlike ``reply`` this never stops us from reading: two brokers would stop for good."""
        assert self.outbox is not None
        self.outbox.send(encode_request(request))

    # Role

    def command(self, command: Command) -> None:
        """See ``Role``: PONG says how much of what was sent has been taken there."""
        if command.name == b"PONG" and len(command.data) == 8:
            self._confirmed = int.from_bytes(command.data, "big")

    def message(self, frames: list[bytes]) -> Publish | None:
        """See ``Role``."""
        match decode_request(frames):
            case Publish() as publication:
                return publication
            case QueryResponse(topics):
                self._asked = None
                self._far.listed(list(topics))
                return None
        # A server asks nothing of a client.
        raise SpotError

    def take(self, stem: MessageHead, run: MessageRun) -> None:
        """See ``Role``: deliver here what was published there, and only here."""
        listener = self.listener
        try:
            topic = listener.topics.create(stem.topic, hosted=False)
        except Refused as refused:
            self.listener.refuse(refused.reason, self.label, len(run.payloads))
            return
        if topic not in self._subscribed:
            # It crossed our UNSUBSCRIBE, or is nothing we asked for.
            return
        sender = self._far.endpoint.encode()
        listener.dispatcher.relay(topic, run, sender, listener.protocol)
        if topic.blocked(self.outbox):
            topic.wait(self, self.outbox)
        if listener.memory.full:
            listener.memory.wait(self)

    def left(self) -> None:
        """See ``Role``; ``ended`` has seen to it."""

    # Housekeeping

    def sweep(self, now: float) -> None:
        """See ``Client``: heartbeat, and the questions that are due."""
        super().sweep(now)
        if self.closing or not self.is_open:
            return
        settings = self.listener.settings
        if self._silent > _MISSED * settings["heartbeat"] and self._answers_pings:
            self.listener.refuse("heartbeat", self.label)
            self.abort("it shows no sign of life")
            return
        self._beat += 1
        if self._beat >= settings["heartbeat"]:
            self._beat = 0
            self._ping()
        if self._asked is not None and now - self._asked > settings["query-timeout"]:
            self._asked = None
            self._far.silent()
            self.listener.refuse("query-timeout", self.label)
        self._since_query += 1
        if self._since_query >= settings["sync"] > 0:
            self.query()

    @property
    def _answers_pings(self) -> bool:
        """Would it, and would we hear it? Not while a slow reader keeps us from reading."""
        return self.handshake.has_commands and not self._hold_reasons

    def _ping(self) -> None:
        outbox = self.outbox
        if outbox is not None and self.handshake.has_commands and not self.output_full:
            # Sent behind everything before it, so that its answer confirms all of that.
            outbox.flush()
            if not outbox.queued:
                outbox.send(ping(self._sent.to_bytes(8, "big")))

    # The end

    def goodbye(self) -> bytes:
        """See ``Connection``: what has been written before an orderly end arrives."""
        self._confirmed = self._sent
        return b""

    def ended(self) -> None:
        """See ``Connection``: what nobody knows to have arrived is counted."""
        counters = self.listener.counters
        before = counters.dropped
        super().ended()
        if not self.is_open:
            return
        self.is_open = False
        lost = self._sent - self._confirmed - (counters.dropped - before)
        if lost > 0:
            counters.drop(self.label, "*", "unconfirmed", lost)

    def connectionLost(self, reason: Failure | None = None) -> None:
        """See ``Connection``."""
        super().connectionLost()
        self.listener.clients.discard(self)
        self._far.lost(self)
