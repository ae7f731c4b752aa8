"""Replies in the order of their requests, although some wait for the disk or another broker."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from pubsub.errors import HistoryUnavailable
from pubsub.wire.unsent_bytes import TransportCharge

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.topic_space.durability import Durability
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.interfaces import IStore

# Estimated bytes of a reply that waits, besides its own.
_REPLY_BYTES = 192
# Bytes of a connection's waiting replies from which on they count in the memory budget, and from
# which on the requests behind them are not read.
_COUNTED, _HELD = 64 * 1024, 4 * 1024 * 1024
UNCONFIRMED = "unconfirmed"
"""The counted reason of messages that the broker which hosts their topic has not confirmed."""
Condition: TypeAlias = Callable[[Callable[[str | None], None]], None]
"""Takes a call, and makes it once: with None when a reply can be sent, or with the reason why the
requests have failed."""
FailedReply: TypeAlias = bytes | Callable[[], bytes]
"""The reply to requests that have failed, or a call that makes it, as few do."""


def stored_in(store: IStore, durability: Durability) -> Condition:
    """Return the condition that everything published so far is stored as ``durability`` says."""

    def when(call: Callable[[str | None], None]) -> None:
        def stored(done: bool) -> None:
            call(None if done else HistoryUnavailable.reason)

        if not durability or not store.durable:
            stored(True)
        elif durability.on_disk:
            store.when_stored(stored)
        else:
            store.when_written(stored)

    return when


def confirmed_by_host(topic: Topic) -> Condition:
    """Return the condition that the host of ``topic`` has all messages published so far."""

    def when(call: Callable[[str | None], None]) -> None:
        upstream = topic.upstream
        if upstream is None:
            call(None)
        else:
            upstream.when_confirmed(topic, lambda done: call(None if done else UNCONFIRMED))

    return when


def all_of(conditions: list[Condition]) -> Condition:
    """Return the condition that all of ``conditions`` hold."""

    def when(call: Callable[[str | None], None]) -> None:
        results: list[str | None] = []

        def add(failure: str | None) -> None:
            results.append(failure)
            if len(results) == len(conditions):
                call(next(filter(None, results), None))

        for condition in conditions:
            condition(add)

    return when


class ReplyingConnection(Protocol):
    """The connection, as its replies use it."""

    listener: Listener
    closing: bool
    replies: ReplyQueue | None
    """Set to None by the queue when it is empty."""

    def refuse(self, reason: str, count: int = 1) -> None:
        """Count requests that were answered with an error."""

    def reply(self, data: bytes) -> None:
        """Send a reply, after those that wait, and after gathered messages are published."""

    def send_reply(self, data: bytes) -> None:
        """Send the bytes of one reply or more."""

    def hold(self, reason: object) -> None:
        """Read no more requests until ``release``."""

    def release(self, reason: object) -> None:
        """End ``hold``."""

    def evict(self, reason: str) -> None:
        """See ``MemoryHolder``."""

    def answered(self) -> None:
        """No reply waits any more."""


def reply_to_messages(connection: ReplyingConnection, data: bytes) -> None:
    """Send a reply that clients take for a confirmation of the messages that they sent before.

    It is sent at the end of the tick if messages are gathered until then (see ``Gathering``):
    ``ReplyingConnection.reply`` would publish them now.
    """
    router = connection.listener.router
    if router.gathered is None:
        connection.reply(data)
        return
    if connection.replies is None:
        connection.replies = ReplyQueue(connection)
    reply = connection.replies.add(data, b"")
    # Called after the flush of the tick, which was scheduled with the first of the messages.
    router.at_tick_end(partial(reply.resolve, None))


class Reply:
    """``data`` answers ``count`` requests.

    Without ``failed`` it is ready at once. With it, the reply waits for a condition; ``failed`` is
    sent instead if the requests have failed.
    """

    __slots__ = ("_count", "_failed", "_queue", "data", "nbytes", "ready")

    def __init__(
        self, queue: ReplyQueue, data: bytes, failed: FailedReply | None = None, count: int = 1
    ) -> None:
        self.data = data
        self.ready = failed is None
        self._queue = queue
        self._failed = failed
        self._count = count
        self.nbytes = _REPLY_BYTES + len(data) + (len(failed) if isinstance(failed, bytes) else 0)

    def stored(self, done: bool) -> None:
        """See ``IStore.when_stored``."""
        self.resolve(None if done else HistoryUnavailable.reason)

    def resolve(self, failure: str | None) -> None:
        """See ``Condition``."""
        connection = self._queue.connection
        if connection.closing:
            return
        if failure is not None:
            connection.refuse(failure, self._count)
            failed = self._failed or b""
            self.data = failed if isinstance(failed, bytes) else failed()
        self.ready = True
        self._queue.send_ready()


class ReplyQueue:
    """The replies of ``connection`` that wait for a condition, or behind one that does.

    It exists only while a reply waits, so that an idle connection does not pay for it.
    """

    __slots__ = ("_charge", "_replies", "_waiting_bytes", "connection")

    def __init__(self, connection: ReplyingConnection) -> None:
        self.connection = connection
        self._replies: deque[Reply] = deque()
        self._waiting_bytes = 0
        self._charge: TransportCharge | None = None

    def add(self, data: bytes, failed: FailedReply | None = None, count: int = 1) -> Reply:
        """Add a reply behind the others (see ``Reply``)."""
        reply = Reply(self, data, failed, count)
        self._replies.append(reply)
        self._waiting_bytes += reply.nbytes
        if self._waiting_bytes > _COUNTED:
            self._measure()
        return reply

    def _measure(self) -> None:
        """Charge the replies, as they are many; a client that sends more and more must wait."""
        connection, nbytes = self.connection, self._waiting_bytes
        if self._charge is None:
            self._charge = TransportCharge(connection.evict, connection.listener.memory)
        self._charge.set(nbytes)
        if nbytes > _HELD:
            connection.hold(self)
        else:
            connection.release(self)

    def drop(self) -> None:
        """The connection has ended."""
        if self._charge is not None:
            self._charge.set(0)

    def send_ready(self) -> None:
        """Send the replies before the first that has to wait."""
        replies, ready = self._replies, []
        while replies and replies[0].ready:
            reply = replies.popleft()
            self._waiting_bytes -= reply.nbytes
            ready.append(reply.data)
        data = b"".join(ready)
        if self._charge is not None:
            self._measure()
        if data:
            self.connection.send_reply(data)
        if not replies:
            self.connection.replies = None
            self.connection.answered()
