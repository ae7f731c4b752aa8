"""What decides whether messages of a topic may be published at once, and for how many topics.

A read brings messages of many topics. To look at each of them takes a tenth of the time of the
read, so a mix of topics remembers the answer until the state of any topic changes.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from pubsub.broker.durability import Durability
from pubsub.kernel import Tally

if TYPE_CHECKING:
    from pubsub.broker.topics import Topic
    from pubsub.interfaces import Holdable

is_hosted: Callable[[Topic], bool] = attrgetter("hosted")
durability_of: Callable[[Topic], Durability] = attrgetter("durability")
blockers_of: Callable[[Topic], set[object]] = attrgetter("blockers")


class _Changes:
    """Counts the changes of the states of all topics."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


_changes: Final = _Changes()


class TopicState(Tally):
    """The host of a topic, its durability, and the subscribers that are too slow for it.

    ``hosted`` and ``durability`` change only by their methods.
    """

    __slots__ = ("blockers", "durability", "hosted", "waiting")

    def __init__(self) -> None:
        super().__init__()
        self.hosted = False
        self.durability = Durability.ASYNC
        self.blockers: set[object] = set()
        self.waiting: dict[Holdable, object] = {}

    def set_hosted(self, hosted: bool) -> None:
        """Set whether this broker hosts the topic."""
        self.hosted = hosted
        _changes.count += 1

    def set_durability(self, durability: Durability) -> None:
        """Set the durability of the messages to come."""
        self.durability = durability
        _changes.count += 1

    def block(self, blocker: object) -> None:
        """Hold publishers after their next batch until ``unblock(blocker)``."""
        self.blockers.add(blocker)
        _changes.count += 1

    def unblock(self, blocker: object) -> None:
        """Remove ``blocker``; publishers that no other blocker holds are released."""
        self.blockers.discard(blocker)
        _changes.count += 1
        for publisher, ignored in tuple(self.waiting.items()):
            if not self.blocked(ignored):
                del self.waiting[publisher]
                publisher.release(self)

    def blocked(self, ignored: object = None) -> bool:
        """Return whether there is a blocker other than ``ignored``."""
        blockers = self.blockers
        return len(blockers) > (ignored in blockers)

    def wait(self, publisher: Holdable, ignored: object = None) -> None:
        """Hold ``publisher`` until nothing but ``ignored`` blocks this topic.

        ``ignored`` is the outbox of a broker to and from which this topic's messages flow. If that
        outbox could hold the broker's own connection, the two brokers would wait for each other
        permanently.
        """
        self.waiting[publisher] = ignored
        publisher.hold(self)


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
        if self._seen != _changes.count:
            self._seen = _changes.count
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
        if self._seen != _changes.count:
            self._asked += asked
            if self._asked < len(self.topics):
                return False
            self._asked = 0
        return self.uniform

    @property
    def stored_alike(self) -> bool:
        """Whether all of the topics are stored, or none of them."""
        topics = self.topics
        return all(map(durability_of, topics)) or not any(map(durability_of, topics))
