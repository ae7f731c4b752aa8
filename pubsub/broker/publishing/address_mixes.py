"""The topics for the addresses in a read, as a publisher of several topics sends it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from weakref import ReferenceType, ref

from pubsub.broker.publishing.gathering import MOST_BYTES, MOST_MESSAGES
from pubsub.broker.publishing.permitted_topics import PermittedByView, PermittedTopics
from pubsub.broker.routing.combination_cache import (
    MAX_COMBINATION,
    MAX_ENDED,
    CombinationCache,
    PastCombinations,
)
from pubsub.broker.routing.mixed_topics import is_hosted
from pubsub.broker.routing.passing_mix import PassingMix, are_scattered, lasting_mix, passing_mix
from pubsub.broker.routing.wide_mix import WideMix, WideRead
from pubsub.errors import Refused

if TYPE_CHECKING:
    from pubsub.broker.access_rules.access import AccessRules
    from pubsub.broker.routing.router import Router
    from pubsub.broker.routing.topic_mix import TopicMix
    from pubsub.broker.slices import Slices
    from pubsub.broker.topic_space.topic_registry import TopicRegistry
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.kernel import Columns

ReadMix: TypeAlias = "TopicMix | PassingMix | WideRead"
"""The mixes through which a read is published."""
# Topics of addresses that are remembered, as many as a table of heads has, and the estimated bytes
# of each, for the memory budget. Address and topic are counted elsewhere.
_MAX_TOPICS, _TOPIC_BYTES = 131_072, 120
# Addresses of a read that is published at once: each takes some 1 µs, and nobody else is served.
_AT_ONCE = 5000


class RoutedListener(Protocol):
    """The listener, as its mixes use it."""

    router: Router
    slices: Slices
    topics: TopicRegistry

    @property
    def access_version(self) -> object: ...


class ReadPublisher(Protocol):
    """The ``Publisher`` of a read."""

    def publish_mixed_soon(
        self, topics: Sequence[Topic], columns: Columns, sender: bytes | None = None
    ) -> bool: ...

    @property
    def access(self) -> AccessRules: ...

    def use_permitted(self, permitted: PermittedTopics) -> None: ...


class AddressMixes:
    """The mixes of the topics of the addresses of one ``listener``.

    ``resolve`` returns the topic of an address or raises Refused. It is called before the rights of
    the client are known, and so must not keep a provisional topic. A mix is remembered until one of
    its topics is no longer hosted here, but not one whose combination comes for the first time.
    """

    def __init__(self, listener: RoutedListener, resolve: Callable[[Any], Topic]) -> None:
        self._router = router = listener.router
        self._resolve = resolve
        self._registry = listener.topics
        self._wide = WideMix(router, listener.slices)
        # The router, which counts the audiences of the mixes, decides how long there are any.
        self._known: CombinationCache[tuple[ReferenceType[TopicMix], list[int]]] = CombinationCache(
            router.memory
        )
        self._past = PastCombinations(router.memory)
        self._topics: dict[Any, Topic] = {}
        self._account = router.memory.cache(_MAX_TOPICS * _TOPIC_BYTES, self._forget_topics)
        self._permitted = PermittedByView(router.memory, lambda: listener.access_version)
        self._removed = 0
        for watcher in (self._note_removed, self._known.note_ended):
            listener.topics.watch_removal(watcher)

    def find(
        self,
        columns: Columns,
        addresses: Sequence[Any] | None = None,
        access: AccessRules | None = None,
    ) -> tuple[ReadMix, Columns] | None:
        """Return the mix of the messages' topics, and the messages with its indexes.

        ``addresses`` are those that the messages have indexes of, if not those of a scan; each has
        messages. With the ``access`` of the only client that publishes them, the mix may have
        topics without messages, to which this client may publish as well. None if an address has no
        topic, if a topic is not hosted by this broker, or if there are too many addresses to route
        their messages in one tick.
        """
        key = tuple(columns.addresses if addresses is None else addresses)
        if len(key) > _AT_ONCE:
            return None
        if access is not None and not self._registry.expire:
            # Also where the combination is known: the history has one list of topics then.
            whole = self._wide.whole_of(columns, key, access)
            if whole is not None:
                return whole
        known = self._known.get(key)
        mix = None if known is None else known[0]()
        if known is None or mix is None:
            self._known.discard(key)
            if len(key) > MAX_COMBINATION or not self._past.note(key):
                once = self._wide.read_of(key) or self._passing(key)
                if once is not None:
                    return once, columns
            topics = None if len(key) > MAX_COMBINATION else self._topics_of(key)
            if topics is None:
                return None
            mix = self._router.mix(set(topics))
            places = {topic: index for index, topic in enumerate(mix.topics)}
            known = ref(mix), [places[topic] for topic in topics]
            self._known.put(key, known)
        if not mix.uniform and not all(map(is_hosted, mix.topics)):
            self._known.discard(key)
            return None
        return lasting_mix(self._router, mix), columns.remap(known[1])

    def publish_soon(
        self, columns: Columns, publisher: ReadPublisher, sender: bytes | None = None
    ) -> bool:
        """Publish a small read with those of other clients (see ``Publisher.publish_soon``).

        Returns False if that cannot be; then nothing has been published. Without a ``sender`` the
        messages are the publisher's own. Its next ones of the same addresses need not come here
        (see ``Publisher.publish_alike``).
        """
        if not self._router.gathers or columns.nbytes > MOST_BYTES:
            return False
        if columns.count > MOST_MESSAGES:
            # Before their topics are looked up, which may be thousands (see `_AT_ONCE`).
            return False
        topics = self._topics_of(tuple(columns.addresses))
        if topics is None or not publisher.publish_mixed_soon(topics, columns, sender):
            return False
        if sender is None:
            view = publisher.access.view
            publisher.use_permitted(self._permitted.add(view, columns.addresses, topics))
        return True

    def _passing(self, addresses: tuple[Any, ...]) -> PassingMix | None:
        topics = self._topics_of(addresses)
        if topics is None:
            return None
        if not are_scattered(topics):
            self._wide.note_other(len(topics), self._topics)
        return passing_mix(self._router, topics)

    def _topics_of(self, addresses: tuple[Any, ...]) -> list[Topic] | None:
        """Return the topic of each address; None if one has none, or one that is not hosted."""
        known = self._topics
        topics = list(map(known.get, addresses))
        for place, topic in enumerate(topics):
            if topic is None or not topic.hosted:
                address = addresses[place]
                self._wide.discard(address)
                try:
                    topics[place] = topic = self._resolve(address)
                except Refused:
                    return None
                if not topic.hosted:
                    return None
                is_new = address not in known
                known[address] = topic
                if is_new:
                    self._account.charge(_TOPIC_BYTES)
        return topics  # type: ignore[return-value]

    def clear(self) -> None:
        """Forget all mixes, and with them the addresses."""
        self._known.clear()
        self._account.clear()
        self._permitted.clear()
        self._forget_topics()

    def _note_removed(self, _topic: Topic) -> None:
        """Forget topics, as nothing else would let go of them; most only when many have ended."""
        self._permitted.clear()
        self._removed += 1
        if self._removed > max(MAX_ENDED, len(self._topics) // 8):
            self._account.clear()

    def _forget_topics(self) -> None:
        self._removed = 0
        self._topics.clear()
        self._wide.clear()
