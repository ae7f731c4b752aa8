"""Rechecking: subscriptions are checked again when the rights of clients may have changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pubsub.broker.clients.connection_marks import log_fields

if TYPE_CHECKING:
    from pubsub.broker.delivery.subscribing import Subscribing
    from pubsub.broker.routing.message_router import MessageRouter
    from pubsub.broker.slices import Work
    from pubsub.broker.topic_space.topics import KeyChange, Recipient, Topic

log = Logger()
# Topics whose subscriptions are looked for in one step.
_TOPICS = 32


class Rechecking:
    """Asks subscribers whether their subscriptions may continue, and ends those that may not."""

    def __init__(self, router: MessageRouter, subscribing: Subscribing) -> None:
        self._router = router
        self._subscribing = subscribing

    def recheck(self, topic: Topic, change: KeyChange | None = None) -> Deferred[tuple[int, int]]:
        """Recheck every subscription to ``topic`` before messages that are published afterwards.

        The result is how many stay and how many end, when all are rechecked.
        """
        results: Counter[bool] = Counter()
        done: Deferred[tuple[int, int]] = Deferred()

        def recheck(outbox: Recipient) -> None:
            if topic in outbox.subscriptions or outbox.is_behind(topic):
                results[self._recheck(outbox, topic, change)] += 1

        self._router.change_all(
            topic.subscribers, recheck, lambda: done.callback((results[True], results[False]))
        )
        return done

    def _recheck(self, outbox: Recipient, topic: Topic, change: KeyChange | None) -> bool:
        """Recheck a subscription and end it if it may not continue; return whether it may."""
        try:
            stays = outbox.recheck(topic, change)
        except Exception:
            # The others are to be rechecked nevertheless.
            log.failure(
                "rechecking the subscription of {client!r} to {topic!r} failed: it ends",
                client=outbox.label,
                topic=topic.name,
                connection=log_fields(outbox.connection),
            )
            stays = False
        if not stays:
            self._subscribing.unsubscribe(outbox, topic)
        return stays

    def recheck_each(self, topic: Topic) -> Iterator[bool]:
        """Recheck a subscription to ``topic`` a step; yield whether it stays."""
        # Messages published before the change are for subscribers that were permitted then.
        self._router.flush()
        for outbox in topic.subscribers:
            if self._router.waiting:
                self._router.complete(outbox)
            if topic in outbox.subscriptions or outbox.is_behind(topic):
                yield self._recheck(outbox, topic, None)

    def recheck_all(self, topics: Iterable[Topic], results: Counter[bool]) -> Work:
        """Recheck every subscription to ``topics``; ``results`` counts those that stay or end."""
        iterator = iter(topics)
        while some := list(islice(iterator, _TOPICS)):
            for topic in some:
                if topic.has_readers:
                    for stays in self.recheck_each(topic):
                        results[stays] += 1
                        yield
            yield

    def recheck_subscriber(self, outbox: Recipient) -> Work:
        """Recheck every subscription of ``outbox``, one a step: its client has other rights now."""
        # Messages published before are for the client as it was then.
        self._router.complete(outbox)
        self._router.flush()
        for topic in outbox.topics():
            if topic not in outbox.subscriptions and not outbox.is_behind(topic):
                continue
            self._recheck(outbox, topic, None)
            yield
