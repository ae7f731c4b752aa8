"""``TopicEnds``: other brokers are told of topics that have ended here."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from itertools import islice
from typing import TYPE_CHECKING, Any

from pubsub.errors import BackplaneAway

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from pubsub.backplane.state.name_locks import NameLocks
    from pubsub.backplane.topics.shared_entries import Known, SharedEntries

# Ends that are tried again at a time.
_AT_ONCE = 100


class TopicEnds:
    """Puts ends into the shared state. ``run`` begins a coroutine, whose errors it handles."""

    def __init__(
        self,
        entries: SharedEntries,
        locks: NameLocks,
        run: Callable[[Coroutine[Any, Any, None]], Deferred[None]],
    ) -> None:
        self._entries, self._locks, self._run = entries, locks, run
        # Those that the shared state has not taken: nobody else ends an exclusive topic of this
        # broker, and a common one that others use would be missing here.
        self._untaken: dict[str, tuple[Known, str]] = {}

    def begin(self, name: str, known: Known, end: str) -> None:
        """Share soon that a topic has ended, whose entry was ``known``."""
        self._run(self.share(name, known, end))

    async def share(self, name: str, known: Known, end: str) -> None:
        """Share it now; raises BackplaneAway, or Outdated if another broker was first."""
        try:
            async with self._locks.of(name):
                await self._entries.put(name, known.entry.ended(end), known.revision)
        except BackplaneAway:
            self._untaken[name] = known, end
            raise

    def retry(self) -> None:
        """Try some of those again that the shared state has not taken."""
        for name in list(islice(self._untaken, _AT_ONCE)):
            known, end = self._untaken.pop(name)
            # Everything is reported again after another connection was made; and the name may be
            # that of another topic.
            if known.round == self._entries.round and self._entries.get(name) is None:
                self.begin(name, known, end)
