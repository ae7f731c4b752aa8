"""``MixedTopics``: topics whose messages arrive together.

To look at each topic for each read takes a tenth of the time of the read. So the answer to the
question whether they can be treated alike is remembered until the state of any topic changes.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING

from pubsub.broker.topic_space.publishing_state import state_changes

if TYPE_CHECKING:
    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.topic_space.durability import Durability
    from pubsub.broker.topic_space.topics import Topic

is_hosted: Callable[[Topic], bool] = attrgetter("hosted")
durability_of: Callable[[Topic], Durability] = attrgetter("durability")
blockers_of: Callable[[Topic], set[object]] = attrgetter("blockers")


class MixedTopics:
    """Distinct ``topics`` of messages that arrive together, and their ``names``."""

    __slots__ = ("_asked", "_is_uniform", "_seen", "names", "topics")

    def __init__(self, topics: tuple[Topic, ...], names: tuple[str, ...]) -> None:
        self.topics = topics
        self.names = names
        self._is_uniform = False
        self._seen = -1
        self._asked = 0

    @property
    def uniform(self) -> bool:
        """Whether this broker hosts all topics, with one durability, and none is blocked."""
        if self._seen != state_changes.count:
            self._seen = state_changes.count
            topics = self.topics
            self._is_uniform = (
                all(map(is_hosted, topics))
                and min(map(durability_of, topics)) == max(map(durability_of, topics))
                and not any(map(blockers_of, topics))
            )
        return self._is_uniform

    @property
    def durability(self) -> Durability:
        """The highest durability of the topics."""
        return self.topics[0].durability if self.uniform else max(map(durability_of, self.topics))

    def is_known_uniform(self, asked: int) -> bool:
        """Return whether ``uniform`` is known to be true; as many of the topics are ``asked`` for.

        After a change they are looked at when all of them have been asked for, so that many topics
        do not cost more than those of the reads.
        """
        if self._seen != state_changes.count:
            self._asked += asked
            if self._asked < len(self.topics):
                return False
            self._asked = 0
        return self.uniform

    def to_store(self, batch: Batch) -> Batch:
        """Return ``batch`` as the history gets it, if all topics are stored."""
        return batch

    @property
    def stored_alike(self) -> bool:
        """Whether all of the topics are stored, or none of them."""
        topics = self.topics
        return all(map(durability_of, topics)) or not any(map(durability_of, topics))
