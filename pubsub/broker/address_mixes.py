"""The topics for the addresses in a read, as a publisher of several topics sends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pubsub.broker.combination_cache import MAX_COMBINATION, CombinationCache
from pubsub.errors import Refused

if TYPE_CHECKING:
    from pubsub.broker.router import Router
    from pubsub.broker.topic_mix import TopicMix
    from pubsub.broker.topics import Topic
    from pubsub.kernel import Columns


class AddressMixes:
    """The mixes of the topics of one listener's addresses.

    ``resolve`` returns the topic of an address or raises Refused. A mix is remembered until one of
    its topics is no longer hosted here.
    """

    def __init__(self, router: Router, resolve: Callable[[Any], Topic]) -> None:
        self._router = router
        self._resolve = resolve
        self._known: CombinationCache[tuple[TopicMix, list[int]]] = CombinationCache(router.memory)

    def find(self, columns: Columns) -> tuple[TopicMix, Columns] | None:
        """Return the mix of the messages' topics, and the messages with its indexes.

        None if an address has no topic, if a topic is not hosted by this broker, or if there are
        more than ``MAX_COMBINATION`` addresses.
        """
        key = tuple(columns.addresses)
        if len(key) > MAX_COMBINATION:
            return None
        known = self._known.get(key)
        if known is None:
            try:
                topics = [self._resolve(address) for address in key]
            except Refused:
                return None
            mix = self._router.mix(set(topics))
            places = {topic: index for index, topic in enumerate(mix.topics)}
            known = mix, [places[topic] for topic in topics]
            self._known.put(key, known)
        mix, indexes = known
        for topic in mix.topics:
            if not topic.hosted:
                self._known.discard(key)
                return None
        return mix, columns.remap(indexes)

    def clear(self) -> None:
        """Forget all mixes, and with them the addresses."""
        self._known.clear()
