"""From the addresses that a read brings to the topics that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from pubsub.errors import Refused

if TYPE_CHECKING:
    from pubsub.broker.audience import TopicMix
    from pubsub.broker.router import Router
    from pubsub.broker.topics import Topic
    from pubsub.kernel import Columns

# Combinations of addresses that are remembered.
_MAX_KNOWN = 4096


class AddressMixes:
    """The mixes of the topics of one listener's addresses.

    ``resolve`` returns the topic of an address or raises Refused. A mix is remembered until one of
    its topics is no longer hosted here.
    """

    def __init__(self, router: Router, resolve: Callable[[Any], Topic]) -> None:
        self._router = router
        self._resolve = resolve
        self._known: dict[tuple[Hashable, ...], tuple[TopicMix, list[int]]] = {}

    def find(self, columns: Columns) -> tuple[TopicMix, Columns] | None:
        """Return the mix of the messages' topics, and the messages with its indexes.

        None if an address has no topic, or if a topic is not hosted by this broker.
        """
        key = tuple(columns.addresses)
        known = self._known.get(key)
        if known is None:
            try:
                topics = [self._resolve(address) for address in key]
            except Refused:
                return None
            mix = self._router.mix(set(topics))
            places = {topic: index for index, topic in enumerate(mix.topics)}
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            known = self._known[key] = mix, [places[topic] for topic in topics]
        mix, indexes = known
        for topic in mix.topics:
            if not topic.hosted:
                del self._known[key]
                return None
        return mix, columns.remap(indexes)
