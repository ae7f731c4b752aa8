"""fast's subscriptions: each lasts as long as the token and the queue key it was proved with."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IDelayedCall

from pubsub.broker.batch import Batch
from pubsub.errors import LimitReached
from pubsub.protocols.fast.scan import encode_messages

if TYPE_CHECKING:
    from pubsub.broker.listener import Listener
    from pubsub.broker.outbox import Outbox
    from pubsub.broker.tokens import Token
    from pubsub.broker.topics import KeyChange, Topic


@dataclass(frozen=True, slots=True)
class MessageEncoding:
    """A batch as MESSAGE packets of one topic (fast §3.4)."""

    topic_id: int
    limit: int = 2**32 - 1

    def encode(self, batch: Batch) -> bytes:
        """See ``Encoding``."""
        return encode_messages(self.topic_id, batch.payloads, batch.size)


@dataclass(slots=True, eq=False)
class _Reader:
    """A subscription: its token, the key that was proved, when its time of grace after a
    rotation is over, and when it ends at the latest."""

    token: Token
    key: bytes = field(repr=False)
    grace: float = inf
    ends: float = inf
    timer: IDelayedCall | None = None

    def cancel(self) -> None:
        if self.timer is not None and self.timer.active():
            self.timer.cancel()
        self.timer = None


class Readers:
    """The subscriptions of one connection, delivered to ``outbox``.

    ``ended`` tells the client that one is over, ``updated`` that it goes on with a new key.
    """

    def __init__(
        self,
        listener: Listener,
        outbox: Outbox,
        ended: Callable[[Topic], None],
        updated: Callable[[Topic, bytes], None],
    ) -> None:
        self._listener = listener
        self._outbox = outbox
        self._ended = ended
        self._updated = updated
        self._readers: dict[Topic, _Reader] = {}

    def add(self, topic: Topic, token: Token) -> None:
        """Subscribe, or rest a subscription on another token from now on.

        Raises LimitReached.
        """
        reader = self._readers.get(topic)
        if reader is None:
            if len(self._readers) >= self._listener.settings["max-subscriptions"]:
                raise LimitReached("subscriptions of a connection")
            reader = self._readers[topic] = _Reader(token, token.queue_key)
            self._listener.router.subscribe(self._outbox, topic, MessageEncoding(topic.id))
        reader.token, reader.key, reader.grace = token, token.queue_key, inf
        self._end_at(topic, reader, self._listener.tokens.end(token))

    def remove(self, topic: Topic) -> None:
        """Unsubscribe, if subscribed."""
        self._forget(topic)
        self._listener.router.unsubscribe(self._outbox, topic)

    def clear(self) -> None:
        """The connection is gone, and with it the timers."""
        for topic in tuple(self._readers):
            self._forget(topic)

    def recheck(self, topic: Topic, change: KeyChange | None) -> bool:
        """See ``Subscriber``: the token, and the key it came with, must have held until now."""
        reader = self._readers.get(topic)
        if reader is None:
            return False
        if not self._holds(topic, reader, change):
            self._forget(topic)
            self._ended(topic)
            return False
        if change is None:
            # Its secret may have been given an end, or another one.
            self._end_at(topic, reader, min(reader.grace, self._listener.tokens.end(reader.token)))
        else:
            reader.key = change.new
            self._updated(topic, change.new)
            grace = self._listener.settings["rotation-grace"]
            if grace:
                reader.grace = min(self._listener.clock.seconds() + grace, reader.grace)
                self._end_at(topic, reader, min(reader.grace, reader.ends))
        return True

    def _holds(self, topic: Topic, reader: _Reader, change: KeyChange | None) -> bool:
        if change is None:
            proved = self._listener.queue_keys.matches(topic, reader.key)
        else:
            proved = change.old is not None and hmac.compare_digest(change.old, reader.key)
        return (
            proved
            and reader.token.permits("subscribe")
            and self._listener.access.may_subscribe(topic.name)
            and self._listener.tokens.valid(reader.token, self._listener.clock.seconds())
        )

    def _end_at(self, topic: Topic, reader: _Reader, when: float) -> None:
        """End the subscription at ``when``, in seconds since the Unix epoch."""
        reader.cancel()
        reader.ends = when
        if when < inf:
            delay = max(when - self._listener.clock.seconds(), 0.0)
            reader.timer = self._listener.clock.callLater(delay, self._expired, topic)

    def _expired(self, topic: Topic) -> None:
        """The token's time is over, or that of grace."""
        self.remove(topic)
        self._ended(topic)

    def _forget(self, topic: Topic) -> None:
        reader = self._readers.pop(topic, None)
        if reader is not None:
            reader.cancel()
