"""The topics of messages that are published together or not at all."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from pubsub.errors import LimitReached, Refused

if TYPE_CHECKING:
    from pubsub.broker.routing.router import Router
    from pubsub.broker.slices import Work
    from pubsub.broker.topic_space.topic_registry import TopicRegistry
    from pubsub.broker.topic_space.topics import Topic


class ProvisionalTopics:
    """The topics of such messages, by name.

    A topic that does not exist is created, and removed again by ``withdraw`` if the messages are
    refused, unless another client has requested it meanwhile. This broker does not host it before
    its messages are published.
    """

    def __init__(self, registry: TopicRegistry, router: Router) -> None:
        self._registry = registry
        self._router = router
        self._topics: dict[str, Topic] = {}

    def __getitem__(self, name: str) -> Topic:
        return self._topics[name]

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._topics.values())

    def add(self, names: Collection[str]) -> Work:
        """Add the topics of ``names``, one a step; raises LimitReached or MemoryExhausted."""
        registry = self._registry
        if len(names) > registry.limit:
            raise LimitReached("topics")
        for name in names:
            self._topics[name] = registry.create_provisional(name)
            yield

    def hosted(self, name: str) -> Topic:
        """Return the topic of this name, which this broker hosts from now on if that is possible.

        One that has ended meanwhile begins again. Nothing is raised: the messages are published.
        """
        topic = self._topics[name]
        if topic.hosted:
            return topic
        registry = self._registry
        with suppress(Refused):
            if not registry.holds(topic):
                topic = registry.create(name, hosted=False)
                self._topics[name] = topic
            registry.claim(topic)
        return topic

    def keep(self) -> Work:
        """The messages are published: the topics stay."""
        for name in self._topics:
            self._registry.keep(name)
            yield

    def keep_hosted(self) -> None:
        """Some of the messages are published: the topics that this broker hosts stay."""
        for name, topic in self._topics.items():
            if topic.hosted:
                self._registry.keep(name)

    def withdraw(self) -> Work:
        """The messages are refused: remove the topics that were created for them."""
        for topic in self._topics.values():
            if self._registry.withdraw(topic):
                self._router.end(topic)
                self._registry.remove(topic)
            yield
