"""``PublishingState``: the host of a topic, its durability, and subscribers that are too slow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pubsub.broker.topic_space.durability import Durability
from pubsub.kernel import Tally

if TYPE_CHECKING:
    from pubsub.interfaces import Holdable


class StateChanges:
    """Counts the changes of the states of all topics."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


state_changes: Final = StateChanges()


class PublishingState(Tally):
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
        state_changes.count += 1

    def set_durability(self, durability: Durability) -> None:
        """Set the durability of the messages to come."""
        self.durability = durability
        state_changes.count += 1

    def block(self, blocker: object) -> None:
        """Hold publishers after their next batch until ``unblock(blocker)``."""
        self.blockers.add(blocker)
        state_changes.count += 1

    def unblock(self, blocker: object) -> None:
        """Remove ``blocker``; publishers that no other blocker holds are released."""
        self.blockers.discard(blocker)
        state_changes.count += 1
        for publisher, ignored in tuple(self.waiting.items()):
            if not self.blocked(ignored):
                self.leave(publisher)
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

    def leave(self, publisher: Holdable) -> None:
        """``publisher`` does not wait any more."""
        self.waiting.pop(publisher, None)
