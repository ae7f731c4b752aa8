"""The requests of the subprotocol ``pubsub.v1.json``, for one connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pubsub.broker.topic_space.provisional_topics import ProvisionalTopics
from pubsub.broker.topic_space.topic_names import topic_name
from pubsub.errors import LimitReached
from pubsub.http_api.publishing.message_body import MAX_JOINED
from pubsub.http_api.reading.follow_start import find_start
from pubsub.http_api.reading.live_response import TOPIC_BYTES
from pubsub.http_api.reading.shared_ranges import shared_positions
from pubsub.http_api.requests.api_error import CONFLICT, NOT_FOUND, NOT_SATISFIABLE, ApiError
from pubsub.http_api.requests.parameters import Parameters, check_name, invalid
from pubsub.http_api.requests.request_access import RequestAccess, token_access
from pubsub.http_api.websocket.socket_publishing import PublishOutcome, publish
from pubsub.http_api.websocket.websocket_frames import BatchEncoding, FrameEncoding
from pubsub.http_api.websocket.websocket_prefixes import WebSocketPrefixes

if TYPE_CHECKING:
    from pubsub.broker.delivery.outbox import Outbox
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.publishing.rate_limits import RateLimiter
    from pubsub.broker.routing.encoders import RowEncoding
    from pubsub.broker.slices import Work
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.http_api.publishing.message_publishing import MessagePublisher
    from pubsub.http_api.readers.reader_positions import ReaderPositions

JsonReply = dict[str, object]
_START = ("start", "timestamp", "position", "reader")
_FORMS = ("headers", "binary", "batches", "mixed")


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The objects that the requests of all connections use."""

    listener: Listener
    publisher: MessagePublisher
    positions: ReaderPositions


@dataclass(frozen=True, slots=True)
class _TopicSubscription:
    """A subscription; with ``past`` messages are read that were published before it."""

    topic: Topic
    provisional: ProvisionalTopics
    past: bool


class WebSocketRequests:
    """Carries out the requests of one connection, whose messages go to ``outbox``."""

    def __init__(self, context: RequestContext, outbox: Outbox, anonymous: RequestAccess) -> None:
        self._context = context
        self._listener = context.listener
        self._outbox = outbox
        self._anonymous = anonymous
        self.access = anonymous
        self.sender = b""
        self._subscriptions: dict[str, _TopicSubscription] = {}
        self._prefixes = WebSocketPrefixes(
            self._listener,
            outbox,
            lambda name: self.access.may_follow(name),
            lambda name: name in self._subscriptions,
        )
        self._run = context.listener.dispatcher.run_id
        self._operations: Mapping[str, Callable[[dict[str, Any]], Awaitable[JsonReply]]] = {
            "connect": self._connect,
            "subscribe": self._subscribe,
            "unsubscribe": self._unsubscribe,
            "acknowledge": self._acknowledge,
            "ping": self._ping,
        }

    async def carry_out(self, op: object, members: dict[str, Any]) -> JsonReply:
        """Carry out a request; return the members of its answer. Raises ApiError or Refused."""
        operation = self._operations.get(op) if isinstance(op, str) else None
        if operation is None:
            expected = ", ".join(sorted([*self._operations, "publish"]))
            raise ApiError(NOT_FOUND, "unknown-op", f"unknown op; expected {expected}")
        return await operation(members)

    async def _connect(self, members: dict[str, Any]) -> JsonReply:
        """Take the rights of a token, or those of a client without one."""
        given = Parameters(members, ("token", "sender"))
        access, listener = self._anonymous, self._listener
        if members.get("token") is not None:
            token = members["token"]
            if not isinstance(token, str):
                raise invalid("token: expected text")
            host = access.identity.host
            access = token_access(token.encode(errors="replace"), listener, host)
        listener.check_identity(access.identity)
        self.sender = given.text("sender", access.owner or "").encode()
        self.access = access
        await listener.slices.finish(self.recheck())
        answer: JsonReply = {
            "epoch": listener.store.epoch,
            "max_messages": MAX_JOINED,
            "max_bytes": listener.settings["max-message"],
            "mixed": True,
        }
        # A client that goes on at another broker compares it.
        positions = shared_positions(listener.store)
        return answer if positions is None else {**answer, "shared": positions.identity}

    def recheck(self) -> Work:
        """The rights have changed: recheck every subscription."""
        for subscription in tuple(self._subscriptions.values()):
            for _ in self._listener.router.recheck_each(subscription.topic):
                yield
        yield from self._prefixes.recheck()

    async def _ping(self, members: dict[str, Any]) -> JsonReply:
        Parameters(members, ())
        return {}

    # Subscriptions

    async def _subscribe(self, members: dict[str, Any]) -> JsonReply:
        if "prefix" in members:
            return await self._subscribe_prefix(members)
        given = Parameters(members, ("topic", *_FORMS, "epoch", *_START))
        if sum(name in given for name in _START) > 1:
            raise invalid(f"expected one of {', '.join(_START)}")
        listener = self._listener
        name = topic_name(check_name("topic", members.get("topic")))
        if name in self._subscriptions or self._prefixes.may_continue(name):
            message = f"topic {name!r} is subscribed already"
            raise ApiError(CONFLICT, "already-subscribed", message, topic=name)
        self._check_limit()
        start = await find_start(listener.store, given, await self._position(given), True)
        if self._outbox.closed:
            # The client has left meanwhile.
            return {}
        if start.past:
            for _ in self.access.check_read((name,)):
                pass
        else:
            self.access.check_follow((name,))
        self._begin(name, start.past, self._encoding(given), start.offset)
        answer: JsonReply = {"topic": name, "start": start.offset, "epoch": listener.store.epoch}
        return answer if start.gap is None else {**answer, "gap": start.gap._asdict()}

    def _check_limit(self) -> None:
        number = len(self._subscriptions) + len(self._prefixes)
        if number >= self._listener.settings["max-subscriptions"]:
            raise LimitReached("subscriptions of a connection")

    def _encoding(self, given: Parameters) -> RowEncoding:
        headers, binary, batches, mixed = map(given.flag, _FORMS)
        if batches:
            return BatchEncoding(headers, self._run, mixed)
        return FrameEncoding(headers, binary, self._run)

    async def _subscribe_prefix(self, members: dict[str, Any]) -> JsonReply:
        """Subscribe to all topics whose names have a prefix, for new messages."""
        if any(name in members for name in ("topic", *_START)):
            raise invalid("a prefix begins with new messages; the history is read by topic")
        given = Parameters(members, ("prefix", *_FORMS))
        name, store = _prefix(members), self._listener.store
        prefix = name.encode()
        if prefix in self._prefixes:
            message = f"prefix {name!r} is subscribed already"
            raise ApiError(CONFLICT, "already-subscribed", message)
        self._check_limit()
        await self._prefixes.add(prefix, self._encoding(given))
        return {"prefix": name, "start": store.next_offset, "epoch": store.epoch}

    async def _unsubscribe_prefix(self, members: dict[str, Any]) -> JsonReply:
        Parameters(members, ("prefix",))
        name = _prefix(members)
        if name.encode() not in self._prefixes:
            message = f"prefix {name!r} is not subscribed"
            raise ApiError(NOT_FOUND, "not-subscribed", message)
        await self._listener.slices.finish(self._prefixes.discard(name.encode()))
        return {"prefix": name}

    async def _position(self, given: Parameters) -> str | None:
        """Return the position to continue at: the given one, or that of the given reader."""
        if "position" in given:
            return given.text("position")
        if "reader" not in given:
            return None
        return await self._context.positions.position((self.access.owner, given.text("reader")))

    def _begin(self, name: str, past: bool, encoding: RowEncoding, start: int) -> None:
        listener = self._listener
        listener.memory.reserve(TOPIC_BYTES)
        provisional = ProvisionalTopics(listener.topics, listener.router)
        try:
            for _ in provisional.add((name,)):
                pass
        except BaseException:
            listener.memory.free(TOPIC_BYTES)
            raise
        topic = provisional[name]
        self._subscriptions[name] = _TopicSubscription(topic, provisional, past)
        listener.router.subscribe(self._outbox, topic, encoding, start, admitted=True)

    async def _unsubscribe(self, members: dict[str, Any]) -> JsonReply:
        if "prefix" in members:
            return await self._unsubscribe_prefix(members)
        Parameters(members, ("topic",))
        name = topic_name(check_name("topic", members.get("topic")))
        subscription = self._subscriptions.get(name)
        if subscription is None:
            message = f"topic {name!r} is not subscribed"
            raise ApiError(NOT_FOUND, "not-subscribed", message, topic=name)
        self._listener.router.unsubscribe(self._outbox, subscription.topic)
        self.forget(subscription.topic)
        # It may have one of the prefixes.
        self._prefixes.join(subscription.topic, admitted=True)
        return {"topic": name}

    def may_continue(self, topic: Topic) -> bool:
        """Return whether the subscription to ``topic`` may continue."""
        subscription = self._subscriptions.get(topic.name)
        if not self.access.token_is_valid:
            return False
        if subscription is None:
            return self._prefixes.may_continue(topic.name)
        if subscription.past:
            return self.access.may_read(topic.name)
        return self.access.may_follow(topic.name)

    def forget(self, topic: Topic) -> None:
        """The subscription to ``topic`` has ended, or is about to."""
        subscription = self._subscriptions.pop(topic.name, None)
        if subscription is not None:
            self._listener.slices.run_later(self._release([subscription]))

    def end(self) -> None:
        """The connection has ended, and its outbox is shut."""
        self._prefixes.end()
        subscriptions, self._subscriptions = self._subscriptions, {}
        if subscriptions:
            self._listener.slices.run_later(self._release(list(subscriptions.values())))

    def _release(self, subscriptions: list[_TopicSubscription]) -> Work:
        for subscription in subscriptions:
            self._listener.memory.free(TOPIC_BYTES)
            yield from subscription.provisional.withdraw()

    # Publishing and positions

    async def publish(
        self,
        members: dict[str, Any],
        payload: bytes | None,
        limiters: Sequence[RateLimiter],
        refuse: Callable[[Exception], ApiError],
    ) -> PublishOutcome:
        """See ``socket_publishing.publish``."""
        listener, publisher = self._context.listener, self._context.publisher
        sender, access = self.sender, self.access
        return await publish(
            listener, publisher, members, payload, sender, access, limiters, refuse
        )

    async def _acknowledge(self, members: dict[str, Any]) -> JsonReply:
        """Store the position of a reader: it has handled the message at ``offset``."""
        given = Parameters(members, ("reader", "offset", "epoch"))
        store = self._listener.store
        reader, position = given.text("reader"), given.number("offset") + 1
        epoch = given.text("epoch", store.epoch)
        self._context.positions.check(position, epoch)
        if position > store.next_offset:
            message = f"the history ends at offset {store.next_offset}"
            raise ApiError(NOT_SATISFIABLE, "beyond-end", message, next=store.next_offset)
        self.access.require_readers()
        self._context.positions.report((self.access.owner, reader), position, epoch)
        return {"reader": reader, "position": f"{epoch}:{position}"}


def _prefix(members: dict[str, Any]) -> str:
    """Return the prefix of a request; an empty one stands for all topics."""
    prefix = members["prefix"]
    return "" if prefix == "" else check_name("prefix", prefix)
