"""Dispatch: the messages of a read become a batch, which is stored and routed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pubsub.broker.publishing.gathering import MOST_BYTES, Gathering
from pubsub.broker.routing.batch import Batch, Headers
from pubsub.broker.routing.combination_cache import PastCombinations
from pubsub.broker.routing.gathered_routing import route_gathered
from pubsub.broker.routing.partial_storage import append_stored, let_pass
from pubsub.broker.routing.passing_mix import (
    PassingMix,
    fits_in_tick,
    lasting_mix,
    passing_mix,
    publish_passing,
)
from pubsub.broker.routing.wide_mix import WideRead
from pubsub.errors import HistoryUnavailable
from pubsub.kernel import Columns, Senders, add_to_each

if TYPE_CHECKING:
    from pubsub.broker.figures.traffic import PublisherTally
    from pubsub.broker.publishing.address_mixes import ReadMix
    from pubsub.broker.routing.router import Router
    from pubsub.broker.routing.topic_mix import TopicMix
    from pubsub.broker.topic_space.topic_registry import TopicRegistry
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.interfaces import IStore

# Mixes whose messages are counted together; others are settled before.
_UNSETTLED = 16


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
        self._traffic = router.counters.traffic
        self._timestamp = timestamp
        self._sequence = 0
        self._unsettled: list[TopicMix] = []
        # Combinations of topics that other brokers have sent.
        self._past = PastCombinations(router.memory)
        self.gathering = Gathering(self, store, router)

    def publish(
        self,
        topic: Topic,
        columns: Columns,
        sender: bytes,
        protocol: str,
        headers: Sequence[Headers] | None = None,
        publisher: PublisherTally | None = None,
    ) -> Batch:
        """Store and route messages whose publisher has been checked (see ``Publisher``).

        They are also counted for ``publisher``, which uses ``protocol``. Messages of a topic with
        an ``upstream`` are forwarded there instead. A topic that no broker hosts is claimed (see
        ``TopicRegistry.claim``). Raises TopicUnreachable or HistoryUnavailable; nothing has been
        published in that case.
        """
        router = self._router
        if router.gathered is not None:
            router.gathered()
        batch = Batch(
            (topic.name,), columns, self._timestamp(), self._sequence, sender, protocol, headers
        )
        if topic.upstream is None:
            if not topic.hosted:
                if topic.durability and self._store.trouble is not None:
                    # Before the topic is claimed, which would stay without a message.
                    raise HistoryUnavailable(self._store.trouble)
                self._topics.claim(topic)
            self._store_and_route(topic, batch)
            if publisher is None:
                self._count_without_publisher(columns, protocol, (topic,))
            else:
                if publisher.topic is not topic:
                    publisher.topic = topic
                    publisher.link(topic)
                publisher.count_linked(columns)
            topic.last_timestamp = batch.timestamp
            router.gathers = True
            if router.forwarding is not None:
                router.forwarding.published((topic,), batch)
        else:
            topic.upstream.publish(topic, batch)
            self._count(columns, protocol, publisher)
        self._sequence += columns.count
        return batch

    @property
    def stores_parts(self) -> bool:
        """Whether messages of which some are not stored may be published together.

        Other brokers number the messages that they get with those that are stored.
        """
        return self._router.forwarding is None

    def takes(self, mix: ReadMix, sender: bytes | Senders) -> bool:
        """Return whether messages of ``mix`` may be published together (see ``publish_mixed``).

        Other brokers get messages of one sender at a time.
        """
        alike = mix.uniform or mix.stored_alike
        if isinstance(sender, bytes):
            return alike or self.stores_parts
        return alike and self.stores_parts and fits_in_tick(self._router, mix.topics)

    def publish_mixed(
        self,
        mix: ReadMix,
        columns: Columns,
        sender: bytes | Senders,
        protocol: str,
        headers: Sequence[Headers] | None = None,
        publisher: PublisherTally | None = None,
    ) -> Batch:
        """Store and route messages of several topics, which this broker hosts.

        They are also counted for ``publisher``, which uses ``protocol``. All of the topics are
        stored or none of them, unless this ``stores_parts``. Messages of several senders, which
        have no headers, need what ``takes`` tests. Raises HistoryUnavailable; nothing has been
        published in that case.
        """
        if self._router.gathered is not None:
            self._router.gathered()
        self._router.gathers = columns.nbytes <= MOST_BYTES
        own, senders = (sender, None) if isinstance(sender, bytes) else (b"", sender)
        batch = self._batch(mix.names, columns, own, protocol, headers)
        if self._topics.expire:
            for topic in mix.topics:
                topic.idle_since = None
        append_stored(self._store, mix, batch, senders)
        self._route_mixed(mix, batch, senders)
        if self._router.forwarding is not None:
            self._router.forwarding.published(mix.topics, batch)
        self._sequence += columns.count
        self._count(columns, protocol, publisher)
        return batch

    def publish_together(
        self, topics: Sequence[Topic], columns: Columns, senders: Senders, protocol: str
    ) -> Batch:
        """Store and route messages of several senders that were gathered (see ``Gathering``).

        They have been counted. All of the topics are stored, or none of them. If the history is not
        available any more, the messages are delivered without being stored. Returns all of them,
        without a sender.
        """
        names = (topics[0].name,) if len(topics) == 1 else tuple([one.name for one in topics])
        # As in `publish`, without a call.
        batch = Batch(names, columns, self._timestamp(), self._sequence, b"", protocol)
        for topic in topics:
            topic.idle_since = None
            topic.last_timestamp = batch.timestamp
        self._sequence += columns.count
        let_pass(self._store, batch)
        if topics[0].durability:
            try:
                self._store.append(batch, senders)
                batch.has_place = True
            except HistoryUnavailable as unavailable:
                for index, count, _ in columns.totals():
                    self._counters.drop("history", names[index], unavailable.reason, count)
        route_gathered(self._router, topics, batch, senders)
        return batch

    def copy(
        self, topic: Topic, columns: Columns, sender: bytes, protocol: str, live: bool
    ) -> None:
        """Store messages from the history of the broker that hosts ``topic``; see ``relay``.

        They are routed if they are ``live``. Raises HistoryUnavailable; nothing has happened then.
        """
        batch = self._batch((topic.name,), columns, sender, protocol, None)
        self._store.append(batch)
        self._sequence += columns.count
        topic.count(columns.count, columns.nbytes, batch.timestamp)
        if live and topic.groups:
            self._router.route(topic, batch)

    def relay_unstored(self, topic: Topic, columns: Columns, sender: bytes, protocol: str) -> None:
        """Do as ``relay``, for messages that are going to be stored in another way."""
        batch = self._batch((topic.name,), columns, sender, protocol, None)
        self._sequence += columns.count
        let_pass(self._store, batch)
        topic.count(columns.count, columns.nbytes, batch.timestamp)
        if topic.groups:
            self._router.route(topic, batch)

    def relay(self, topic: Topic, columns: Columns, sender: bytes, protocol: str) -> None:
        """Store and route messages that no client of this broker has published.

        They come from the broker that hosts ``topic``, or from this broker itself. They are not
        counted as published and never forwarded.
        """
        self._receive(topic, self._batch((topic.name,), columns, sender, protocol, None))

    def receive(
        self,
        topics: Sequence[Topic],
        columns: Columns,
        sender: bytes,
        protocol: str,
        headers: Sequence[Headers] | None = None,
    ) -> None:
        """Store and route messages that a client of another broker has published there.

        The indexes of ``columns`` are those of ``topics``. The messages are not counted as
        published and never forwarded. No publisher can be held: while the history is behind, they
        are delivered without being stored, and counted.
        """
        for topic in topics:
            if not topic.hosted:
                self._topics.claim(topic)
        if len(topics) == 1:
            batch = self._batch((topics[0].name,), columns, sender, protocol, headers)
            self._receive(topics[0], batch, self._store.gate.shut)
            return
        mix, columns = self._mix_of(topics, columns)
        batch = self._batch(mix.names, columns, sender, protocol, headers)
        if mix.durability and (self._store.trouble is not None or self._store.gate.shut):
            for index, run in batch.runs():
                self._receive(mix.topics[index], run, self._store.gate.shut)
            return
        append_stored(self._store, mix, batch)
        self._sequence += batch.count
        for topic in mix.topics:
            topic.idle_since = None
        self._route_mixed(mix, batch)

    def _mix_of(
        self, topics: Sequence[Topic], columns: Columns
    ) -> tuple[TopicMix | PassingMix, Columns]:
        """Return the mix of ``topics``, and the messages with its indexes."""
        if not self._past.note(tuple(topics)):
            passing = passing_mix(self._router, topics)
            if passing is not None:
                return passing, columns
        mix = self._router.mix(topics)
        places = {topic: index for index, topic in enumerate(mix.topics)}
        return lasting_mix(self._router, mix), columns.remap([places[topic] for topic in topics])

    def _route_mixed(self, mix: ReadMix, batch: Batch, senders: Senders | None = None) -> None:
        """Route messages of several topics, and count them for their topics."""
        if senders is not None or isinstance(mix, PassingMix):
            publish_passing(self._router, mix.topics, batch, senders, self.gathering.look_again)
            return
        if isinstance(mix, WideRead):
            batch = mix.widened(batch)
            mix = mix.mix
        self._router.route_mixed(mix, batch)
        if not mix.last_timestamp:
            self._begin_count(mix)
        mix.count(batch.columns, batch.timestamp)

    def _receive(self, topic: Topic, batch: Batch, is_behind: bool = False) -> None:
        """Store and route messages of one topic for which no client waits for a reply.

        They are not stored if the history ``is_behind``.
        """
        batch.sequence = self._sequence
        self._sequence += batch.count
        topic.count(batch.count, batch.nbytes, batch.timestamp)
        try:
            if topic.durability and is_behind:
                raise HistoryUnavailable("the history is behind")
            self._store_and_route(topic, batch)
        except HistoryUnavailable as unavailable:
            # Live subscribers still get the messages.
            self._counters.drop("history", topic.name, unavailable.reason, batch.count)
            let_pass(self._store, batch)
            self._router.route(topic, batch)

    def route_stored(self, topics: Sequence[Topic | None], batch: Batch) -> None:
        """Route messages that another broker has numbered and that the store has already.

        ``topics`` are those of the batch; the messages of None are not routed.
        """
        for index, part in batch.runs():
            topic = topics[index]
            if topic is not None:
                topic.idle_since = None
                topic.count(part.count, part.nbytes, part.timestamp)
                if topic.groups or topic.behind:
                    self._router.route(topic, part)

    def _count(self, columns: Columns, protocol: str, publisher: PublisherTally | None) -> None:
        """Count messages, but not for their topics."""
        if publisher is None:
            self._count_without_publisher(columns, protocol, ())
        else:
            publisher.count(columns)

    def _count_without_publisher(
        self, columns: Columns, protocol: str, topics: tuple[Topic, ...]
    ) -> None:
        tallies = (self._traffic[protocol].accepted, *topics)
        add_to_each(tallies, columns.count, columns.nbytes, ())

    def settle(self) -> None:
        """Bring the figures of the topics up to date, which mixed reads do not for each read."""
        unsettled, self._unsettled = self._unsettled, []
        for mix in unsettled:
            mix.settle()

    def _begin_count(self, mix: TopicMix) -> None:
        """Have ``mix`` settled; at once those that wait if they are many, as mixes come and go."""
        if len(self._unsettled) >= _UNSETTLED:
            self.settle()
        self._unsettled.append(mix)

    def _batch(
        self,
        topics: tuple[str, ...],
        columns: Columns,
        sender: bytes,
        protocol: str,
        headers: Sequence[Headers] | None,
    ) -> Batch:
        return Batch(topics, columns, self._timestamp(), self._sequence, sender, protocol, headers)

    def _store_and_route(self, topic: Topic, batch: Batch) -> None:
        topic.idle_since = None
        if topic.durability:
            self._store.append(batch)
        else:
            let_pass(self._store, batch)
        if topic.groups or topic.behind:
            self._router.route(topic, batch)
