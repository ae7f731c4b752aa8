"""nsd's server: one request a line, one response a line, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.interfaces import IProtocolFactory
from twisted.python.failure import Failure

from pubsub.broker.batch import MIXED
from pubsub.broker.durability import Durability
from pubsub.errors import (
    HistoryUnavailable,
    LimitReached,
    MemoryExhausted,
    MessageTooLarge,
    NotAuthorized,
    RateLimited,
    Refused,
    TopicNotFound,
    TopicUnreachable,
)
from pubsub.protocols.nsd.codec import (
    LIST_END,
    LIST_START,
    MAX_LINE,
    SHOWN,
    SUCCESS,
    Get,
    InvalidRequest,
    LineStream,
    Open,
    Publish,
    Request,
    Subscribe,
    Unsubscribe,
    error,
    parse,
    unwrap,
    wrap,
)
from pubsub.protocols.nsd.identities import Identities
from pubsub.protocols.nsd.rows import Rows, Template, surroundings, template
from pubsub.settings import Setting, integer
from pubsub.wire.connection import Connection, ConnectionFactory

if TYPE_CHECKING:
    from twisted.internet.interfaces import IAddress

    from pubsub.broker.batch import Batch
    from pubsub.broker.listener import Listener
    from pubsub.broker.service import BrokerService
    from pubsub.broker.topics import Topic

_BILLION = 10**9
SETTINGS: tuple[Setting, ...] = (
    Setting("max-body", integer(0, MAX_LINE), 1000, "characters a message's body may have"),
    Setting("max-identities", integer(0, _BILLION), 100_000, "identities there may be"),
    Setting(
        "max-subscriptions", integer(0, _BILLION), 10_000, "channels an identity may subscribe to"
    ),
)

_PAGE_BYTES = 256 * 1024
# Of the newest messages, kept as they are sent.
_ROWS_BYTES = 4 * 1024 * 1024

TEXTS: dict[type[Refused], str] = {
    TopicNotFound: "NO SUCH CHANNEL: {0}",
    TopicUnreachable: "NO SUCH CHANNEL: {0}",
    NotAuthorized: "NOT AUTHORIZED: {0}",
    MessageTooLarge: "MESSAGE TOO BIG: {0} characters",
    LimitReached: "LIMIT REACHED: {0}",
    RateLimited: "RATE LIMIT EXCEEDED",
    MemoryExhausted: "BROKER BUSY",
    HistoryUnavailable: "HISTORY UNAVAILABLE",
}
"""The protocol's words for each refusal of the broker (nsd §6.1)."""


class NsdConnection(Connection):
    """A client. It has no outbox: what it is sent, it has asked for."""

    delimiter = b"\n"
    _busy = False
    _parsing = False
    _stopping = False
    _writable: Deferred[None] | None = None
    # What surrounded the body in the last publish that was parsed; and what many are like.
    _surroundings: tuple[bytes, bytes] | None = None
    _template: Template | None = None

    def __init__(self, listener: Listener, identities: Identities, rows: Rows) -> None:
        super().__init__(listener)
        self._identities = identities
        self._rows = rows
        # Who sends is said by each message, not by the connection.
        self._publisher = listener.publisher(self, b"")

    # Lines

    def consume(self, data: bytes) -> tuple[int, int]:
        """See ``Connection``. Stops at a request whose response takes longer, or when the client
        does not read the responses it got."""
        at = 0
        self._parsing = True
        while not self._busy and not self._output_full and not self.closing:
            if self._template is not None:
                at = self._publish_row(self._template, data, at)
            end = data.find(b"\n", at)
            if end < 0:
                if len(data) - at > MAX_LINE + data.endswith(b"\r"):
                    self._too_long(data[at:])
                break
            line = data[at:end].removesuffix(b"\r")
            if len(line) > MAX_LINE:
                self._too_long(line)
                break
            self._answer(line, data[at : end + 1])
            at = end + 1
        self._parsing = False
        return at, MAX_LINE + 2

    def _too_long(self, line: bytes) -> None:
        shown = line[: 4 * SHOWN].decode(errors="replace")[:SHOWN]
        answer = wrap(error(f"INVALID REQUEST: [{shown}]"), False)
        self.fail("line-too-long", answer, line)

    def _publish_row(self, like: Template, data: bytes, at: int) -> int:
        """Publish what is like ``like`` from ``at`` on; returns where something else begins."""
        settings = self.listener.settings
        bodies, at = like.scan(data, at, settings["max-body"])
        if not bodies:
            return at
        count = done = len(bodies)
        try:
            topic, batch = self._publish(like.request, bodies)
            self._rows.note(batch)
            done = len(batch.payloads)
            if topic.durability is Durability.SYNC:
                failed = wrap(error(TEXTS[HistoryUnavailable]), False) * done
                self.reply_when_stored(wrap(SUCCESS, False) * done, failed, done)
            else:
                self.reply(wrap(SUCCESS, False) * done)
            if done < count:
                raise RateLimited(self.listener.protocol)
        except Refused as refused:
            left = count - done if done < count else count
            self.refuse(refused.reason, left, topic=like.request.identity)
            self.reply(wrap(error(TEXTS[type(refused)].format(*refused.args)), False) * left)
        return at

    def _learn(self, request: Publish, line: bytes) -> None:
        """Note what surrounds the body; the second time the same does, more is to come."""
        around, before = surroundings(line, request), self._surroundings
        self._surroundings = around
        if around is not None and around == before:
            self._template = template(*around, request)

    def _answer(self, line: bytes, whole: bytes) -> None:
        text, in_base64 = unwrap(line)
        try:
            request = parse(text, line)
            if isinstance(request, Get):
                self._get(request, in_base64)
                return
            topic = self._carry_out(request)
            if isinstance(request, Publish):
                self._learn(request, whole)
            if topic.durability is Durability.SYNC:
                failed = error(TEXTS[HistoryUnavailable])
                self.reply_when_stored(wrap(SUCCESS, in_base64), wrap(failed, in_base64))
                return
            response = SUCCESS
        except InvalidRequest as invalid:
            self.refuse("invalid-request", frame=line)
            response = error(f"INVALID REQUEST: [{invalid.shown}]")
        except Refused as refused:
            self.refuse(refused.reason, topic=_topic_of(request))
            response = error(TEXTS[type(refused)].format(*refused.args))
        self.reply(wrap(response, in_base64))

    # Requests

    def _carry_out(self, request: Request) -> Topic:
        """Returns the topic that is concerned."""
        match request:
            case Open():
                return self._open(request.identity)
            case Publish():
                message = request.message
                if len(message.body) > self.listener.settings["max-body"]:
                    self._may_publish(request.identity)
                    raise MessageTooLarge(len(message.body))
                return self._publish(request, [message.body.encode()])[0]
            case Subscribe():
                topic = self.listener.broker.topics.named(request.channel)
                self.listener.access.check_subscribe(request.channel)
                self._subscribe(request.identity, request.channel)
            case Unsubscribe():
                topic = self.listener.broker.topics.named(request.channel)
                self._unsubscribe(request.identity, request.channel)
            case Get():
                raise AssertionError("answered by _get")
        return topic

    def _open(self, name: str) -> Topic:
        access = self.listener.access
        readable = access.may_subscribe(name)
        if not readable:
            access.check_publish(name)
        settings = self.listener.settings
        limits = (settings["max-identities"], settings["max-subscriptions"])
        self._identities.check_room(name, name if readable else None, *limits)
        topic = self.listener.broker.topics.create(name)
        self._identities.open(name)
        if readable:
            self._subscribe(name, name)
        return topic

    def _may_publish(self, identity: str) -> None:
        if not self._identities.opened(identity):
            raise TopicNotFound(identity)
        self.listener.access.check_publish(identity)

    def _publish(self, request: Publish, payloads: list[bytes]) -> tuple[Topic, Batch]:
        """Publish ``payloads`` as ``request`` would its body; returns what was accepted."""
        self._may_publish(request.identity)
        # After a restart an identity may be known before its channel is.
        topic = self.listener.broker.topics.create(request.identity)
        message = request.message
        sizes = set(map(len, payloads))
        batch = self._publisher.publish(
            topic,
            payloads,
            sum(map(len, payloads)),
            sizes.pop() if len(sizes) == 1 else MIXED,
            headers=[message.extra] * len(payloads) if message.extra else None,
            sender=message.sender.encode(),
        )
        return topic, batch

    def _subscribe(self, name: str, channel: str) -> None:
        settings = self.listener.settings
        if self._identities.subscribe(
            name, channel, settings["max-identities"], settings["max-subscriptions"]
        ):
            broker = self.listener.broker
            broker.router.read_history(broker.topics.named(channel))

    def _unsubscribe(self, name: str, channel: str) -> None:
        if self._identities.unsubscribe(name, channel):
            broker = self.listener.broker
            broker.router.leave_history(broker.topics.named(channel))

    # Get

    def _get(self, request: Get, in_base64: bool) -> None:
        self._busy = True
        ensureDeferred(self._stream(request, LineStream(in_base64))).addCallbacks(
            self._finished, self._broken
        )

    async def _stream(self, request: Get, line: LineStream) -> None:
        """Send the list a page of the history at a time, as fast as the client reads it."""
        store = self.listener.broker.store
        may_read = self.listener.access.may_subscribe
        identity = self._identities.find(request.identity)
        names = frozenset(filter(may_read, identity.channels if identity is not None else ()))
        # What is published while the list is sent is for the next Get.
        offset = max(request.after, 0)
        end = await self._stored_end() if names else offset
        pieces, comma = [LIST_START], b""
        while names and offset < end and not self.closing:
            page = await store.read(offset, names, _PAGE_BYTES)
            for start, stop in page.damaged:
                self.listener.broker.counters.drop(self.label, "*", "damaged", stop - start)
            for batch in page.batches:
                pieces += (comma, self._rows.of(batch))
                comma = b","
            offset = page.next_offset
            if offset < end:
                self.reply(line.feed(*pieces))
                pieces.clear()
                await self._turn()
        # A list of one page leaves in one write, with its end: that is what pollers mostly get.
        if not self.closing:
            self.reply(line.finish(*pieces, LIST_END))

    async def _stored_end(self) -> int:
        """Where the history ends now, once that much of it is committed and may be shown.

        So a client finds what it has published before.
        """
        store = self.listener.broker.store
        end: int = store.next_offset
        if end > store.committed:
            stored: Deferred[bool] = Deferred()
            store.when_stored(stored.callback)
            self.hold("get")
            await stored
        return min(end, store.committed)

    def _turn(self) -> Deferred[None]:
        """Fires when others have had their turn and the transport has room again."""
        turn: Deferred[None] = Deferred()
        if self._output_full:
            self._writable = turn
        else:
            self.listener.broker.at_turn_end(lambda: turn.callback(None))
        self.hold("get")
        return turn

    def resumeProducing(self) -> None:
        """See ``Connection``."""
        super().resumeProducing()
        self._wake()
        self._go_on()

    def _wake(self) -> None:
        if self._writable is not None:
            writable, self._writable = self._writable, None
            writable.callback(None)

    def _finished(self, result: None) -> None:
        self._busy = False
        self.release("get")
        if self._stopping:
            self.close()
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Parse what was left waiting, unless it still has to."""
        if not (self._busy or self._parsing or self._output_full):
            self.parse_rest()

    def _broken(self, failure: Failure) -> None:
        self.log.failure("nsd: reading the history for {client!r}", failure, client=self.label)
        self.abort("the history cannot be read")

    # The ends

    def refusal(self, refused: Refused) -> bytes:
        """See ``Connection``."""
        busy = isinstance(refused, MemoryExhausted)
        return wrap(error(TEXTS[MemoryExhausted] if busy else "TOO MANY CONNECTIONS"), False)

    def drain(self) -> None:
        """See ``Client``: a response under way is finished first."""
        if self._busy:
            self._stopping = True
        else:
            super().drain()

    def ended(self) -> None:
        """See ``Connection``."""
        self.listener.broker.at_turn_end(self._wake)


class NsdFactory(ConnectionFactory):
    """Builds the connections of one listener; identities are the same on all of a broker's."""

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        listener.broker.when_open(lambda: self._identities)

    @property
    def _identities(self) -> Identities:
        broker = self.listener.broker
        return broker.shared("nsd-identities", lambda: _identities(broker))

    def buildProtocol(self, addr: IAddress | None) -> NsdConnection:
        """See IProtocolFactory."""
        rows = self.listener.broker.shared("nsd-rows", lambda: Rows(_ROWS_BYTES))
        return NsdConnection(self.listener, self._identities, rows)


def _topic_of(request: Request) -> str:
    """The channel a request is about."""
    if isinstance(request, Subscribe | Unsubscribe):
        return request.channel
    return request.identity


def _identities(broker: BrokerService) -> Identities:
    """Those of ``broker``; what they are subscribed to may be another broker's to host."""
    identities = Identities(broker.store, broker.memory)
    for channel in identities.opened_channels():
        broker.topics.create(channel)
    for channel in identities.subscriptions():
        broker.router.read_history(broker.topics.create(channel, hosted=False))
    return identities


def make_factory(listener: Listener) -> IProtocolFactory:
    """See IWireProtocol."""
    return NsdFactory(listener)
