"""Dispatch: the messages of a read become a batch, which is stored and routed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pubsub.broker.batch import Batch, Headers
from pubsub.errors import HistoryUnavailable

if TYPE_CHECKING:
    from pubsub.broker.router import Router
    from pubsub.broker.topic_mix import TopicMix
    from pubsub.broker.topic_registry import TopicRegistry
    from pubsub.broker.topics import Topic
    from pubsub.interfaces import IStore
    from pubsub.kernel import Columns


class Dispatcher:
    """Numbers, stores and routes the messages of one run of the broker.

    ``run_id`` is the random number from which the ids of these messages are made (see
    ``message_id``); ``timestamp`` returns the time in µs since the Unix epoch.
    """

    def __init__(
        self,
        topics: TopicRegistry,
        store: IStore,
        router: Router,
        timestamp: Callable[[], int],
        run_id: int,
    ) -> None:
        self.run_id = run_id
        self._topics = topics
        self._store = store
        self._router = router
        self._counters = router.counters
        self._timestamp = timestamp
        self._sequence = 0

    def publish(
        self,
        topic: Topic,
        columns: Columns,
        sender: bytes,
        protocol: str,
        headers: Sequence[Headers] | None = None,
    ) -> Batch:
        """Store and route messages whose publisher has been checked (see ``Publisher``).

        Messages of a topic with an ``upstream`` are forwarded there instead. A topic that no
        broker hosts is claimed (see ``TopicRegistry.claim``). Raises TopicUnreachable or
        HistoryUnavailable; nothing has been published in that case.
        """
        batch = self._batch((topic.name,), columns, sender, protocol, headers)
        if topic.upstream is None:
            if not topic.hosted:
                self._topics.claim(topic)
            self._store_and_route(topic, batch)
        else:
            topic.upstream.publish(topic, batch)
        self._count(columns)
        return batch

    def publish_mixed(
        self,
        mix: TopicMix,
        columns: Columns,
        sender: bytes,
        protocol: str,
        headers: Sequence[Headers] | None = None,
    ) -> Batch:
        """Store and route messages of several topics, which this broker hosts.

        All of the topics are stored, or none of them.
        Raises HistoryUnavailable; nothing has been published in that case.
        """
        batch = self._batch(mix.names, columns, sender, protocol, headers)
        if self._topics.expire:
            for topic in mix.topics:
                topic.idle_since = None
        if mix.topics[0].durability:
            self._store.append(batch)
        else:
            batch.offset = self._store.next_offset
        self._router.route_mixed(mix, batch)
        self._count(columns)
        return batch

    def _count(self, columns: Columns) -> None:
        self._sequence += columns.count
        self._counters.published += columns.count
        self._counters.published_bytes += columns.nbytes

    def copy(
        self, topic: Topic, columns: Columns, sender: bytes, protocol: str, live: bool
    ) -> None:
        """Store messages from the history of the broker that hosts ``topic``; see ``relay``.

        They are routed if they are ``live``. Raises HistoryUnavailable; nothing has happened then.
        """
        batch = self._batch((topic.name,), columns, sender, protocol, None)
        self._store.append(batch)
        self._sequence += columns.count
        if live and topic.groups:
            self._router.route(topic, batch)

    def relay_unstored(self, topic: Topic, columns: Columns, sender: bytes, protocol: str) -> None:
        """Do as ``relay``, for messages that are going to be stored in another way."""
        batch = self._batch((topic.name,), columns, sender, protocol, None)
        self._sequence += columns.count
        batch.offset = self._store.next_offset
        if topic.groups:
            self._router.route(topic, batch)

    def relay(self, topic: Topic, columns: Columns, sender: bytes, protocol: str) -> None:
        """Store and route messages that no client of this broker has published.

        They come from the broker that hosts ``topic``, or from this broker itself. They are not
        counted as published and never forwarded.
        """
        batch = self._batch((topic.name,), columns, sender, protocol, None)
        self._sequence += columns.count
        try:
            self._store_and_route(topic, batch)
        except HistoryUnavailable as unavailable:
            # No client waits for a reply here, and live subscribers still get the messages.
            self._counters.drop("history", topic.name, unavailable.reason, columns.count)
            batch.offset = self._store.next_offset
            self._router.route(topic, batch)

    def _batch(
        self,
        topics: tuple[str, ...],
        columns: Columns,
        sender: bytes,
        protocol: str,
        headers: Sequence[Headers] | None,
    ) -> Batch:
        return Batch(
            topics,
            columns,
            self._timestamp(),
            self._sequence,
            sender,
            protocol,
            headers,
        )

    def _store_and_route(self, topic: Topic, batch: Batch) -> None:
        topic.idle_since = None
        if topic.durability:
            self._store.append(batch)
        else:
            # The offset that it would have: a reader that continues from here misses nothing.
            batch.offset = self._store.next_offset
        if topic.groups or topic.behind:
            self._router.route(topic, batch)
