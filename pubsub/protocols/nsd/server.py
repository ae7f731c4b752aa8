"""nsd's server: one request a line, one response a line, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.interfaces import IProtocolFactory

from pubsub.broker.durability import Durability
from pubsub.broker.message_run import MessageRun
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
    MAX_LINE,
    SHOWN,
    SUCCESS,
    Get,
    InvalidRequest,
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
from pubsub.protocols.nsd.listing import ListingConnection
from pubsub.protocols.nsd.templates import Rows, Template, surroundings, template
from pubsub.settings import Setting, integer
from pubsub.wire.connection import ConnectionFactory

if TYPE_CHECKING:
    from twisted.internet.interfaces import IAddress

    from pubsub.broker.batch import Batch
    from pubsub.broker.listener import Listener
    from pubsub.broker.topics import Topic

_BILLION = 10**9
SETTINGS: tuple[Setting, ...] = (
    Setting("max-body", integer(0, MAX_LINE), 1000, "characters a message's body may have"),
    Setting("max-identities", integer(0, _BILLION), 100_000, "identities there may be"),
    Setting(
        "max-subscriptions", integer(0, _BILLION), 10_000, "channels an identity may subscribe to"
    ),
)

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


class NsdConnection(ListingConnection):
    """A client. It has no outbox: what it is sent, it has asked for."""

    delimiter = b"\n"
    # What surrounded the body in the last publish that was parsed; and what many are like.
    _surroundings: tuple[bytes, bytes] | None = None
    _template: Template | None = None

    def __init__(self, listener: Listener, identities: Identities, rows: Rows) -> None:
        super().__init__(listener, identities, rows)
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
                topic = self.listener.topics.named(request.channel)
                self.listener.access.check_subscribe(request.channel)
                self._subscribe(request.identity, request.channel)
            case Unsubscribe():
                topic = self.listener.topics.named(request.channel)
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
        topic = self.listener.topics.create(name)
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
        topic = self.listener.topics.create(request.identity)
        message = request.message
        batch = self._publisher.publish(
            topic,
            MessageRun.of(payloads),
            headers=[message.extra] * len(payloads) if message.extra else None,
            sender=message.sender.encode(),
        )
        return topic, batch

    def _subscribe(self, name: str, channel: str) -> None:
        settings = self.listener.settings
        if self._identities.subscribe(
            name, channel, settings["max-identities"], settings["max-subscriptions"]
        ):
            listener = self.listener
            listener.router.read_history(listener.topics.named(channel))

    def _unsubscribe(self, name: str, channel: str) -> None:
        if self._identities.unsubscribe(name, channel):
            listener = self.listener
            listener.router.leave_history(listener.topics.named(channel))

    # The ends

    def refusal(self, refused: Refused) -> bytes:
        """See ``Connection``."""
        busy = isinstance(refused, MemoryExhausted)
        return wrap(error(TEXTS[MemoryExhausted] if busy else "TOO MANY CONNECTIONS"), False)


class NsdFactory(ConnectionFactory):
    """Builds the connections of one listener; identities are the same on all of a broker's."""

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        listener.when_open(lambda: self._identities)

    @property
    def _identities(self) -> Identities:
        listener = self.listener
        return listener.shared("nsd-identities", lambda: _identities(listener))

    def buildProtocol(self, addr: IAddress | None) -> NsdConnection:
        """See IProtocolFactory."""
        rows = self.listener.shared("nsd-rows", lambda: Rows(_ROWS_BYTES))
        return NsdConnection(self.listener, self._identities, rows)


def _topic_of(request: Request) -> str:
    """The channel a request is about."""
    if isinstance(request, Subscribe | Unsubscribe):
        return request.channel
    return request.identity


def _identities(listener: Listener) -> Identities:
    """Those of the broker; what they are subscribed to may be another broker's to host."""
    identities = Identities(listener.store, listener.memory)
    for channel in identities.opened_channels():
        listener.topics.create(channel)
    for channel in identities.subscriptions():
        listener.router.read_history(listener.topics.create(channel, hosted=False))
    return identities


def make_factory(listener: Listener) -> IProtocolFactory:
    """See IWireProtocol."""
    return NsdFactory(listener)
