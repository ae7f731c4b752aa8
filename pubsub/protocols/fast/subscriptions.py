"""fast's subscriptions: each is valid as long as its token and the token's queue key are."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, ClassVar

from twisted.internet.interfaces import IDelayedCall

from pubsub.broker.routing.batch import Batch
from pubsub.errors import LimitReached
from pubsub.kernel import Head
from pubsub.protocols.fast.message_heads import message_head

if TYPE_CHECKING:
    from pubsub.broker.access_rules.access import AccessRules
    from pubsub.broker.credentials.tokens import Token
    from pubsub.broker.delivery.outbox import Outbox
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.topic_space.topics import KeyChange, Topic


# Estimated bytes of a subscription with a token of its own and a timer, for the memory budget.
SUBSCRIPTION_BYTES = 1024
# Seconds by which the clocks may drift apart until the timers are set again.
_SHIFTED = 1.0


@dataclass(frozen=True, slots=True)
class MessageEncoding:
    """Messages as MESSAGE packets of one topic (fast §3.4); see ``HeadEncoding``."""

    topic_id: int
    limit: int = 2**32 - 1
    variable_at: ClassVar[int] = 0
    variable_size: ClassVar[int] = 0
    by_timestamp: ClassVar[bool] = True

    @property
    def heads(self) -> tuple[Head]:
        """See ``HeadEncoding``."""
        return (message_head(self.topic_id, self.limit),)

    def variable(self, batch: Batch) -> bytes:
        """See ``HeadEncoding``."""
        return b""


@dataclass(slots=True, eq=False)
class _TokenSubscription:
    """A subscription: its token and queue key, and when it ends.

    ``grace_ends`` is the end of the grace period after a rotation, by the monotonic clock; the end
    of the token is a time of the wall clock.
    """

    token: Token
    key: bytes = field(repr=False)
    grace_ends: float = inf
    timer: IDelayedCall | None = None

    def cancel(self) -> None:
        if self.timer is not None and self.timer.active():
            self.timer.cancel()
        self.timer = None


class Subscriptions:
    """The subscriptions of one connection, delivered to ``outbox``.

    ``access_with`` returns the access of the client with a token. ``ended`` reports to the client
    that a subscription has ended, ``updated`` that it continues with a new key.
    """

    def __init__(
        self,
        listener: Listener,
        outbox: Outbox,
        access_with: Callable[[Token], AccessRules],
        ended: Callable[[Topic], None],
        updated: Callable[[Topic, bytes], None],
    ) -> None:
        self._listener = listener
        self._outbox = outbox
        self._access_with = access_with
        self._ended = ended
        self._updated = updated
        self._by_topic: dict[Topic, _TokenSubscription] = {}
        self._shift = self._clock_shift()

    def _clock_shift(self) -> float:
        return self._listener.wall.system() - self._listener.clock.seconds()

    def follow_clock(self) -> None:
        """Schedule the ends again if the system's clock was set, or the computer has slept."""
        shift = self._clock_shift()
        if abs(shift - self._shift) > _SHIFTED:
            self._shift = shift
            for topic, subscription in self._by_topic.items():
                self._schedule_end(topic, subscription)

    def add(self, topic: Topic, token: Token) -> None:
        """Subscribe, or replace the token of a subscription.

        Raises LimitReached or MemoryExhausted.
        """
        # A new queue key that waits is for the subscription as it is.
        self._outbox.make_changes()
        subscription = self._by_topic.get(topic)
        if subscription is None and not self._outbox.closed:
            subscription = self._begin(topic, token)
        if subscription is None or self._outbox.closed:
            # The client was evicted by a message that had to be delivered first.
            return
        subscription.token, subscription.key, subscription.grace_ends = token, token.queue_key, inf
        self._schedule_end(topic, subscription)

    def _begin(self, topic: Topic, token: Token) -> _TokenSubscription:
        listener = self._listener
        if len(self._by_topic) >= listener.settings["max-subscriptions"]:
            raise LimitReached("subscriptions of a connection")
        listener.memory.reserve(SUBSCRIPTION_BYTES)
        subscription = self._by_topic[topic] = _TokenSubscription(token, token.queue_key)
        encoding = MessageEncoding(topic.id)
        listener.router.subscribe(self._outbox, topic, encoding, admitted=True)
        return subscription

    def remove(self, topic: Topic) -> None:
        """Unsubscribe, if subscribed."""
        self._outbox.make_changes()
        self._forget(topic)
        self._listener.router.unsubscribe(self._outbox, topic)

    def clear(self) -> None:
        """Cancel all timers: the connection is closed."""
        for topic in tuple(self._by_topic):
            self._forget(topic)

    def recheck(self, topic: Topic, change: KeyChange | None) -> bool:
        """See ``Subscriber``: the token must be valid, and its key that before the change."""
        subscription = self._by_topic.get(topic)
        if subscription is None:
            return False
        if not self._is_valid(topic, subscription, change):
            self._forget(topic)
            self._ended(topic)
            return False
        if change is not None:
            subscription.key = change.new
            self._updated(topic, change.new)
            grace = self._listener.settings["rotation-grace"]
            if grace:
                ends = self._listener.clock.seconds() + grace
                subscription.grace_ends = min(ends, subscription.grace_ends)
        # The end of its secret may have changed as well.
        self._schedule_end(topic, subscription)
        return True

    def _is_valid(
        self, topic: Topic, subscription: _TokenSubscription, change: KeyChange | None
    ) -> bool:
        if change is None:
            key_matches = self._listener.queue_keys.matches(topic, subscription.key)
        else:
            old = change.old
            key_matches = old is not None and hmac.compare_digest(old, subscription.key)
        return (
            key_matches
            and subscription.token.permits("subscribe")
            and self._access_with(subscription.token).may_subscribe(topic.name)
            and self._listener.tokens.valid(subscription.token, self._listener.wall.system())
        )

    def _schedule_end(self, topic: Topic, subscription: _TokenSubscription) -> None:
        """End the subscription with its token or its grace period, whichever is first."""
        subscription.cancel()
        delay = self._seconds_left(subscription)
        if delay < inf:
            clock = self._listener.clock
            subscription.timer = clock.callLater(max(delay, 0.0), self._elapsed, topic)

    def _seconds_left(self, subscription: _TokenSubscription) -> float:
        listener = self._listener
        return min(
            subscription.grace_ends - listener.clock.seconds(),
            listener.tokens.end(subscription.token) - listener.wall.system(),
        )

    def _elapsed(self, topic: Topic) -> None:
        """End a subscription whose token or grace period has expired."""
        # A recheck that waits may end it.
        self._outbox.make_changes()
        subscription = self._by_topic.get(topic)
        if subscription is None:
            return
        if self._seconds_left(subscription) > 0:
            # The system's clock was set back, or is slower than the timer.
            self._schedule_end(topic, subscription)
            return
        self.remove(topic)
        self._ended(topic)

    def _forget(self, topic: Topic) -> None:
        subscription = self._by_topic.pop(topic, None)
        if subscription is not None:
            subscription.cancel()
            self._listener.memory.free(SUBSCRIPTION_BYTES)
