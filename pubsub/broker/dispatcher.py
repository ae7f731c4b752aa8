"""Dispatch: a run becomes a batch, which is stored and routed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pubsub.broker.batch import Batch, Headers
from pubsub.errors import HistoryUnavailable

if TYPE_CHECKING:
    from pubsub.broker.message_run import MessageRun
    from pubsub.broker.router import Router
    from pubsub.broker.topic_registry import TopicRegistry
    from pubsub.broker.topics import Topic
    from pubsub.interfaces import IStore


class Dispatcher:
    """Numbers, stores and routes the messages of one run of the broker.

    ``run_id`` is the random number from which the ids of these messages are made (see
    ``message_id``); ``seconds`` is the reactor's clock.
    """

    def __init__(
        self,
        topics: TopicRegistry,
        store: IStore,
        router: Router,
        seconds: Callable[[], float],
        run_id: int,
    ) -> None:
        self.run_id = run_id
        self._topics = topics
        self._store = store
        self._router = router
        self._counters = router.counters
        self._seconds = seconds
        self._sequence = 0
        self._timestamp = 0

    def timestamp(self) -> int:
        """Return the time in µs since the Unix epoch, never less than it was before."""
        now = int(self._seconds() * 1_000_000)
        if now > self._timestamp:
            self._timestamp = now
        return self._timestamp

    def publish(
        self,
        topic: Topic,
        run: MessageRun,
        sender: bytes,
        protocol: str,
        headers: Sequence[Headers] | None = None,
    ) -> Batch:
        """Store and route messages whose publisher has been checked (see ``Publisher``).

        Messages of a topic with an ``upstream`` are forwarded there instead. A topic that no
        broker hosts is claimed (see ``TopicRegistry.claim``). Raises TopicUnreachable or
        HistoryUnavailable; nothing has been published in that case.
        """
        batch = self._batch(topic, run, sender, protocol, headers)
        if topic.upstream is None:
            if not topic.hosted:
                self._topics.claim(topic)
            self._store_and_route(topic, batch)
        else:
            topic.upstream.publish(topic, batch)
        count = len(batch.payloads)
        self._sequence += count
        self._counters.published += count
        self._counters.published_bytes += batch.nbytes
        return batch

    def relay(self, topic: Topic, run: MessageRun, sender: bytes, protocol: str) -> None:
        """Store and route messages that no client of this broker has published.

        They come from the broker that hosts ``topic``, or from this broker itself. They are not
        counted as published and never forwarded.
        """
        batch = self._batch(topic, run, sender, protocol, None)
        self._sequence += len(batch.payloads)
        try:
            self._store_and_route(topic, batch)
        except HistoryUnavailable as unavailable:
            # No client waits for a reply here, and live subscribers still get the messages.
            self._counters.drop("history", topic.name, unavailable.reason, len(batch.payloads))
            batch.offset = self._store.next_offset
            self._router.route(topic, batch)

    def _batch(
        self,
        topic: Topic,
        run: MessageRun,
        sender: bytes,
        protocol: str,
        headers: Sequence[Headers] | None,
    ) -> Batch:
        return Batch(
            topic.name,
            run.payloads,
            run.nbytes,
            run.size,
            self.timestamp(),
            self._sequence,
            sender,
            protocol,
            headers,
        )

    def _store_and_route(self, topic: Topic, batch: Batch) -> None:
        if topic.durability:
            self._store.append(batch)
        else:
            # The offset that it would have: a reader that continues from here misses nothing.
            batch.offset = self._store.next_offset
        if topic.groups:
            self._router.route(topic, batch)
