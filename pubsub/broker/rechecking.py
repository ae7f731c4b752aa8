"""Rechecking: subscriptions whose clients may have other rights than when they began."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pubsub.broker.fan_out import FanOut
    from pubsub.broker.slices import Work
    from pubsub.broker.subscribing import Subscribing
    from pubsub.broker.topics import KeyChange, Recipient, Topic

# Topics whose subscriptions are looked for in one step.
_TOPICS = 32


class Rechecking:
    """Asks subscribers whether their subscriptions may continue, and ends those that may not."""

    def __init__(self, router: FanOut, subscribing: Subscribing) -> None:
        self._router = router
        self._subscribing = subscribing

    def recheck(self, topic: Topic, change: KeyChange | None = None) -> tuple[int, int]:
        """Recheck every subscription to ``topic``; return how many stay and how many end."""
        self._router.writes_later = True
        try:
            results = list(self.recheck_each(topic, change))
        finally:
            self._router.writes_later = False
        return results.count(True), results.count(False)

    def recheck_each(self, topic: Topic, change: KeyChange | None = None) -> Iterator[bool]:
        """Recheck a subscription to ``topic`` a step; yield whether it stays."""
        # Messages published before the change are for those who were permitted then.
        self._router.flush()
        for outbox in topic.subscribers:
            if topic not in outbox.subscriptions and not outbox.is_behind(topic):
                continue
            if self._router.waiting:
                self._router.complete(outbox)
            stays = outbox.recheck(topic, change)
            if not stays:
                self._subscribing.unsubscribe(outbox, topic)
            yield stays

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
            if not outbox.recheck(topic, None):
                self._subscribing.unsubscribe(outbox, topic)
            yield
