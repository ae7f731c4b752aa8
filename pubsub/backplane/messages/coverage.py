"""The subjects that a broker subscribes to: the fewest that cover the topics of its clients."""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedSet

from pubsub.backplane.messages.subjects import wildcards_over


class Coverage:
    """The subjects that are wanted, and of these ``active``: those that no other one covers.

    The engine delivers a message once for each subscription that has its subject. So a subject
    that is covered by a wildcard is not subscribed to while the wildcard is.
    """

    def __init__(self) -> None:
        self._wanted: SortedSet[str] = SortedSet()
        self.active: set[str] = set()

    def __len__(self) -> int:
        """The number of subscriptions."""
        return len(self.active)

    def add(self, subject: str) -> tuple[list[str], list[str]]:
        """Return the subscriptions that begin, and those that end after that."""
        if subject in self._wanted:
            return [], []
        self._wanted.add(subject)
        if any(one in self.active for one in wildcards_over(subject)):
            return [], []
        ending = [one for one in self._below(subject) if one in self.active]
        self.active.difference_update(ending)
        self.active.add(subject)
        return [subject], ending

    def discard(self, subject: str) -> tuple[list[str], list[str]]:
        """Return as ``add``."""
        self._wanted.discard(subject)
        if subject not in self.active:
            return [], []
        self.active.discard(subject)
        beginning = [
            one for one in self._below(subject) if self._wanted.isdisjoint(wildcards_over(one))
        ]
        self.active.update(beginning)
        return beginning, [subject]

    def _below(self, subject: str) -> Iterator[str]:
        """Yield the requested subjects that ``subject`` covers, without itself."""
        if not subject.endswith(">"):
            return
        for one in self._wanted.irange(subject[:-1]):
            if not one.startswith(subject[:-1]):
                return
            if one != subject:
                yield one
