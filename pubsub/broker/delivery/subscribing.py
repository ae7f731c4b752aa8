"""Subscribing: outboxes join the topics that they read, live or behind, and leave them.

A change is for messages that are published later: before it, the outbox receives those published
before (see ``Router.complete``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pubsub.broker.compact_map import EMPTY_MAP, with_item, without_item
from pubsub.broker.delivery.subscription_account import (
    BEHIND_BYTES,
    GROUP_BYTES,
    LIVE_BYTES,
    SubscriptionAccount,
)
from pubsub.broker.topic_space.topics import SubscriberGroup

if TYPE_CHECKING:
    from pubsub.broker.delivery.start_positions import Position
    from pubsub.broker.routing.message_router import MessageRouter
    from pubsub.broker.slices import Slices, Work
    from pubsub.broker.topic_space.interest import TopicInterest
    from pubsub.broker.topic_space.topics import Recipient, Topic
    from pubsub.interfaces import Encoding

# Subscriptions that are ended at once, rather than in slices.
_FEW = 64


class Subscribing:
    """Begins and ends the subscriptions of the outboxes to which ``router`` delivers.

    ``behind`` has the topics that have subscribers behind, ``gone`` the outboxes that are shut and
    whose subscriptions are being ended in slices.
    """

    def __init__(self, router: MessageRouter, interest: TopicInterest, slices: Slices) -> None:
        self.account = SubscriptionAccount(router.memory)
        self.behind: set[Topic] = set()
        self.gone: set[Recipient] = set()
        self._router = router
        self._interest = interest
        self._slices = slices

    def subscribe(
        self,
        outbox: Recipient,
        topic: Topic,
        encoding: Encoding,
        start: Position | None = None,
        *,
        admitted: bool = False,
    ) -> bool:
        """Deliver ``topic`` to ``outbox`` from the next message on; False if it already is.

        With ``start`` the messages of the history from there on are delivered first. Raises
        MemoryExhausted at the bound, unless it is ``admitted``: then it belongs to an object that
        was checked already, such as a session. Nothing is begun for an outbox that is shut.
        """
        if topic in outbox.subscriptions or outbox.is_behind(topic):
            return False
        memory = self._router.memory
        if memory.full and not admitted:
            memory.check()
        # Messages published earlier are not for the new subscriber. They may evict it.
        self._router.complete(outbox)
        if outbox.closed:
            return False
        topic.idle_since = None
        if not outbox.starts_behind(topic, encoding, start):
            self._join(outbox, topic, encoding)
        self._interest.reader_came(topic)
        return True

    def _join(self, outbox: Recipient, topic: Topic, encoding: Encoding) -> None:
        group, nbytes = topic.groups.get(encoding), LIVE_BYTES
        if group is None:
            group = topic.groups[encoding] = SubscriberGroup(topic, encoding)
            nbytes += GROUP_BYTES
        group.add(outbox)
        outbox.subscriptions = with_item(outbox.subscriptions, group.only_subscription)
        self.account.began(nbytes)
        topic.subscription_changed(outbox)

    def unsubscribe(self, outbox: Recipient, topic: Topic) -> bool:
        """End a subscription; False if there was none."""
        if self._router.waiting:
            self._router.complete(outbox)
        encoding = outbox.subscriptions.get(topic)
        if encoding is None and not outbox.is_behind(topic):
            return False
        outbox.ended(topic)
        if encoding is None:
            self.leave_behind(outbox, topic)
        else:
            outbox.subscriptions = without_item(outbox.subscriptions, topic)
            self._leave(outbox, topic, encoding)
        return True

    # Subscribers that are behind

    def fall_behind(self, outbox: Recipient, topic: Topic) -> None:
        """Note that ``outbox`` is subscribed to ``topic`` and reads it from the history.

        If it is live, messages are no longer delivered to it.
        """
        if topic.behind is None:
            topic.behind = set()
            self.behind.add(topic)
        if outbox not in topic.behind:
            topic.behind.add(outbox)
            self.account.began(BEHIND_BYTES)
        if self._router.waiting:
            # Its cursor makes the changes before it delivers later messages.
            self._router.complete(outbox, with_changes=False)
        encoding = outbox.subscriptions.get(topic)
        if encoding is not None:
            outbox.subscriptions = without_item(outbox.subscriptions, topic)
            self._leave(outbox, topic, encoding)

    def leave_behind(self, outbox: Recipient, topic: Topic) -> None:
        """End ``fall_behind``."""
        if topic.behind is not None and outbox in topic.behind:
            topic.behind.discard(outbox)
            if not topic.behind:
                topic.behind = None
                self.behind.discard(topic)
                self._interest.reader_left(topic)
            self.account.ended(BEHIND_BYTES)

    def go_live(self, outbox: Recipient, behind: Mapping[Topic, Encoding]) -> None:
        """Deliver topics that ``outbox`` was behind with from the next message on."""
        for topic, encoding in behind.items():
            self._join(outbox, topic, encoding)
            self.leave_behind(outbox, topic)

    def _leave(self, outbox: Recipient, topic: Topic, encoding: Encoding) -> None:
        """Deliver ``topic`` to ``outbox`` no more, whose subscription has ended."""
        group, nbytes = topic.groups.get(encoding), LIVE_BYTES
        if group is not None:
            self._router.hand_over()
            group.discard(outbox)
            # Handing over may end the subscription of another one, and with it the group.
            if not group and topic.groups.get(encoding) is group:
                del topic.groups[encoding]
                nbytes += GROUP_BYTES
                self._interest.reader_left(topic)
        topic.subscription_changed(outbox)
        topic.unblock(outbox)
        self.account.ended(nbytes)

    @contextmanager
    def excluding(self, outbox: Recipient, topic: Topic) -> Iterator[None]:
        """Return a context in which messages on ``topic`` are not delivered to ``outbox``.

        The subscription stays, and the other subscribers still share one encoding.
        """
        self._router.complete(outbox)
        encoding = outbox.subscriptions.get(topic)
        if encoding is None:
            # It is behind, and its cursor leaves out messages that are not for it.
            yield
            return
        group = topic.groups[encoding]
        group.discard(outbox)
        try:
            yield
        finally:
            self._router.exclude(outbox)
            self._router.hand_over()
            # A flush can evict the subscriber, which ends the subscription, or free its queue.
            if topic in outbox.subscriptions:
                self._return(outbox, topic, group)

    def _return(self, outbox: Recipient, topic: Topic, group: SubscriberGroup) -> None:
        """Add ``outbox`` to its ``group`` again, which may have ended meanwhile."""
        if group.encoding not in topic.groups:
            topic.groups[group.encoding] = group
            self.account.group_began()
        topic.groups[group.encoding].add(outbox)

    def forget(self, outbox: Recipient) -> None:
        """End every subscription of ``outbox``, which is being shut.

        If there are many, their topics are left in slices; messages published meanwhile are not for
        the outbox.
        """
        if len(outbox.subscriptions) <= _FEW:
            for topic in tuple(outbox.subscriptions):
                self.unsubscribe(outbox, topic)
            return
        self._router.complete(outbox)
        subscriptions, outbox.subscriptions = outbox.subscriptions, EMPTY_MAP
        if not self._router.delivering:
            self.gone.add(outbox)
        self._slices.run_later(self._leave_all(outbox, subscriptions))

    def _leave_all(self, outbox: Recipient, subscriptions: Mapping[Topic, Encoding]) -> Work:
        self.gone.add(outbox)
        for topic, encoding in subscriptions.items():
            self._leave(outbox, topic, encoding)
            yield
        self.gone.discard(outbox)

    def end(self, topic: Topic) -> None:
        """End every subscription to ``topic`` and release its publishers."""
        self._router.flush()
        for outbox in topic.subscribers:
            self.unsubscribe(outbox, topic)
        for blocker in tuple(topic.blockers):
            topic.unblock(blocker)
