"""The client side on the wire: a DEALER connected to another broker's ROUTER (spot §7)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, fail

from pubsub.broker.clients.frame_turns import publish_runs
from pubsub.broker.routing.encoders import make_encoder
from pubsub.broker.topic_space.durability import Durability
from pubsub.errors import MessageTooLarge
from pubsub.protocols.spot.broker_commands import (
    EPOCH,
    NODE,
    Confirm,
    Confirmation,
    HistoryPage,
    Read,
    decode_broker_command,
    encode_broker_command,
)
from pubsub.protocols.spot.commands import (
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
from pubsub.protocols.spot.confirmations import PendingConfirmations
from pubsub.protocols.spot.message_heads import MessageEncoding, publish_prefix
from pubsub.protocols.spot.outgoing_connection import OutgoingConnection, PeerEvents
from pubsub.protocols.spot.topic_copies import ReadFailed
from pubsub.protocols.spot.zmtp import Command, ZmtpError, ping

if TYPE_CHECKING:
    from pubsub.broker.delivery.outbox import Outbox
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.kernel import Columns
    from pubsub.protocols.spot.role import SocketRole


# In the context of a PING whose PONG confirms messages, before their number.
_PONG_MARK = b"\x00"


class _NoTopics:
    """The ``DeliverySource`` of deliveries without messages."""

    topics: tuple[Topic, ...] = ()

    def counts(self, count: int) -> tuple[tuple[Topic, int], ...]:
        """See ``DeliverySource``."""
        return ()


_NO_TOPICS = _NoTopics()


class PeerConnection(OutgoingConnection):
    """One connection to another broker; it is its own ``SocketRole``."""

    socket_type = b"DEALER"

    # Messages sent, and how many of them the other broker has confirmed.
    _sent = 0
    _confirmed = 0
    # The number in the last request for a confirmation, and the messages that were sent before it.
    _asked = (0, 0)
    # When the query that waits for an answer was sent.
    _query_sent: float | None = None
    _ticks_since_query = 0

    def __init__(self, listener: Listener, node: PeerEvents) -> None:
        super().__init__(listener, node)
        self._subscribed: set[Topic] = set()
        self._pending = PendingConfirmations(self._ask_to_confirm, listener.clock.seconds)
        self._reads: deque[tuple[Read, Deferred[HistoryPage]]] = deque()
        self._read_sent = 0.0

    # Opening

    def handshake_done(self) -> SocketRole:
        """See ``ZmtpConnection``."""
        self.encrypt()
        if self.run_id == self._node_id:
            self._node.connected_to_itself()
            raise ZmtpError("itself")
        if self._is_publisher:
            self._node.set_publisher(True)
            self.abort("a publisher")
            return self
        if self.handshake.socket_type not in (b"ROUTER", b"DEALER", b"REP"):
            raise ZmtpError("socket-type")
        self.is_open = True
        self.outbox = self.listener.outbox(self.consumer, self, forwards=True)
        if self.output_full:
            self.outbox.pause()
        self._node.opened(self)
        self.query()
        return self

    @property
    def run_id(self) -> bytes:
        """The X-Node of the other broker; empty if it has none."""
        return self.handshake.metadata.get(NODE.lower(), b"")

    # Requests

    def query(self) -> None:
        """Ask which topics the other broker hosts."""
        self._ticks_since_query = 0
        if self._query_sent is None:
            self._query_sent = self.listener.clock.seconds()
        self._send(Query())

    def subscribe(self, topic: Topic) -> None:
        """Subscribe to ``topic``, unless this connection already has."""
        if topic not in self._subscribed:
            self._subscribed.add(topic)
            self._send(Subscribe(topic.name.encode()))

    def unsubscribe(self, topic: Topic) -> None:
        """End the subscription to ``topic``."""
        if topic in self._subscribed:
            self._subscribed.discard(topic)
            self._send(Unsubscribe(topic.name.encode()))

    def publish(self, topic: Topic, batch: Batch) -> None:
        """Send a batch; messages over the limit are dropped. Raises MessageTooLarge if all are."""
        assert self.outbox is not None
        limit: int = self.listener.settings["max-message"]
        encoder = make_encoder([MessageEncoding(publish_prefix(topic.name.encode()), limit)])
        data, count = encoder.encode(batch)
        if not count:
            raise MessageTooLarge(batch.nbytes)
        listener = self.listener
        # The host confirms fewer messages if some are dropped here.
        self._pending.number += batch.count
        if count < batch.count:
            reason = MessageTooLarge.reason
            listener.drop(self.label, topic.name, reason, batch.count - count, self)
        listener.counters.delivered += count
        self._sent += count
        self.outbox.deliver(data, count, topic, -1)
        listener.router.flush_soon()

    def when_confirmed(self, topic: Topic, call: Callable[[bool], None]) -> None:
        """See ``Upstream``."""
        if EPOCH.lower() in self.handshake.metadata:
            self._pending.wait(call)
        elif self.handshake.has_commands and topic.durability < Durability.SYNC:
            # A PONG confirms that the messages before it have arrived, and no more.
            self._pending.wait(call)
        else:
            call(False)

    def _ask_to_confirm(self, number: int) -> None:
        """Ask behind all messages that were published, however many are queued."""
        self._asked = (number, self._sent)
        if EPOCH.lower() in self.handshake.metadata:
            request = encode_broker_command(Confirm(number))
        else:
            request = ping(_PONG_MARK + number.to_bytes(8, "big"))
        outbox = self.outbox
        assert outbox is not None
        outbox.enqueue(request, 0, _NO_TOPICS, -1)
        outbox.flush()

    # The history of the other broker

    @property
    def reads_history(self) -> bool:
        """True if the other broker knows READ."""
        return self.is_open and EPOCH.lower() in self.handshake.metadata

    def read(self, topic: str, epoch: str, offset: int) -> Deferred[HistoryPage]:
        """See ``PageReader``. Pages are requested one after another."""
        if self.closing:
            return fail(ReadFailed("the connection has ended"))
        done: Deferred[HistoryPage] = Deferred()
        self._reads.append((Read(topic.encode(), epoch.encode(), offset), done))
        if len(self._reads) == 1:
            self._send_read()
        return done

    def _send_read(self) -> None:
        assert self.outbox is not None
        self._read_sent = self.listener.clock.seconds()
        self.outbox.send(encode_broker_command(self._reads[0][0]))

    def _page_received(self, page: HistoryPage) -> None:
        """Pass a page on, unless it is the reply to a request that has expired."""
        request = self._reads[0][0] if self._reads else None
        if request is None or request.topic != page.topic:
            return
        if page.since != request.offset and page.epoch == request.epoch:
            return
        _request, done = self._reads.popleft()
        if self._reads:
            self._send_read()
        done.callback(page)

    def _fail_reads(self, reason: str) -> None:
        reads, self._reads = self._reads, deque()
        for _request, done in reads:
            done.errback(ReadFailed(reason))

    def _send(self, request: Request) -> None:
        """Send a request. Unlike ``reply`` this never stops reading (see ``reply_latest``)."""
        assert self.outbox is not None
        self.outbox.send(encode_request(request))

    # Role

    def command(self, command: Command) -> None:
        """See ``SocketRole``: a PONG confirms the messages sent before its PING."""
        if command.name != b"PONG":
            return
        number = int.from_bytes(command.data[-8:], "big")
        if len(command.data) == 8:
            self._confirmed = number
        elif command.data.startswith(_PONG_MARK):
            self._confirmation(Confirmation(0, number, number))

    def _confirmation(self, reply: Confirmation) -> None:
        number, sent = self._asked
        if reply.number == number:
            # They are not lost if the connection ends before the next PONG.
            self._confirmed = max(self._confirmed, sent)
        self._pending.confirmed(reply)

    def message(self, frames: list[bytes]) -> Publish | None:
        """See ``SocketRole``."""
        command = decode_broker_command(frames)
        if isinstance(command, Confirmation):
            self._confirmation(command)
            return None
        if isinstance(command, HistoryPage):
            self._page_received(command)
            return None
        match decode_request(frames):
            case Publish() as publication:
                return publication
            case QueryResponse(topics):
                self._query_sent = None
                self.carry_out(self._node.listed(list(topics)))
                return None
        # A server sends no requests to a client.
        raise SpotError

    def receive(self, columns: Columns) -> int:
        """See ``SocketRole``: deliver messages of the other broker here, and only here."""
        return publish_runs(columns, self._relay, self.turn_over)

    def _relay(self, columns: Columns) -> None:
        topic = self.listener.topics.get(columns.addresses[0].topic)
        if topic is None or topic not in self._subscribed:
            # The UNSUBSCRIBE was still on its way, or the topic was never subscribed to.
            return
        self._node.received(topic, columns, self)
        self.delivered(topic)

    def delivered(self, topic: Topic) -> None:
        """See ``PageReader``."""
        if self.closing:
            return
        if topic.blocked(self.outbox):
            topic.wait(self, self.outbox)
        if self.listener.memory.full:
            self.listener.memory.wait(self)

    def pause(self) -> None:
        """See ``SocketRole``: nothing, as there is one outbox."""

    def resume(self) -> None:
        """See ``SocketRole``."""

    def routed_outboxes(self) -> Iterable[Outbox]:
        """See ``SocketRole``."""
        return ()

    def closed(self) -> None:
        """See ``SocketRole``: nothing, as ``ended`` does all of it."""

    # Housekeeping

    def sweep(self, now: float) -> None:
        """See ``ConnectedClient``: heartbeats and queries that are due."""
        super().sweep(now)
        if self.closing or not self.is_open:
            return
        settings = self.listener.settings
        if self._query_sent is not None and now - self._query_sent > settings["query-timeout"]:
            self._query_sent = None
            self._node.query_timed_out()
            self.listener.refuse("query-timeout", self.label, connection=self)
        if self._reads and now - self._read_sent > settings["confirm-seconds"]:
            self.listener.refuse("read-timeout", self.label, connection=self)
            self._fail_reads("the broker has not replied in time")
        expired = self._pending.expire(settings["confirm-seconds"])
        if expired:
            self.listener.refuse("confirm-timeout", self.label, expired, connection=self)
        self._ticks_since_query += 1
        if self._ticks_since_query >= settings["sync"] > 0:
            self.query()

    def send_ping(self) -> None:
        """See ``OutgoingConnection``."""
        outbox = self.outbox
        if outbox is not None:
            # Sent after all messages before it, so that its PONG confirms those.
            outbox.flush()
            if not outbox.queued:
                outbox.send(ping(self._sent.to_bytes(8, "big")))

    # Closing

    def goodbye(self) -> bytes:
        """See ``Connection``: an orderly end delivers all that has been written."""
        self._confirmed = self._sent
        return b""

    def discarded(self, nbytes: int) -> None:
        """See ``Leaver``: messages that were not taken were not confirmed either."""

    def ended(self) -> None:
        """See ``Connection``: count the messages that were not confirmed as dropped."""
        counters = self.listener.counters
        before = counters.dropped
        super().ended()
        self._pending.fail()
        self._fail_reads("the connection has ended")
        if not self.is_open:
            return
        self.is_open = False
        lost = self._sent - self._confirmed - (counters.dropped - before)
        if lost > 0:
            self.listener.drop(self.label, "*", "unconfirmed", lost, self)
