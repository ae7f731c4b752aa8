"""The interface of the backplane that shares messages among brokers, as the broker calls it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.interfaces import PublisherGate


class Forwarding(Protocol):
    """Forwards messages of this broker's clients to others; set as ``Router.forwarding``."""

    gate: PublisherGate
    """Shut while too many bytes wait for the way to the other brokers."""

    def published(self, topics: Sequence[Topic], batch: Batch) -> None:
        """Forward messages that a client of this broker has published; never raises."""

    def wanted(self, topic: Topic) -> None:
        """A client of this broker reads ``topic``; called for each reader."""

    def unwanted(self, topic: Topic) -> None:
        """The last reader of ``topic`` has gone."""

    def prefix_wanted(self, prefix: bytes) -> None:
        """A client reads every topic whose name begins with ``prefix``; called for the first."""

    def prefix_unwanted(self, prefix: bytes) -> None:
        """The last reader of ``prefix`` has gone."""
