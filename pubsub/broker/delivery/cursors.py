"""The state that the cursors of a broker share, and the order in which they read pages."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol, TypeVar

from twisted.internet.interfaces import IReactorTime

if TYPE_CHECKING:
    from pubsub.broker.delivery.behind_outbox import BehindOutbox
    from pubsub.broker.routing.router import Router
    from pubsub.broker.topic_space.topic_registry import TopicRegistry
    from pubsub.interfaces import IStore

_Result = TypeVar("_Result")
# Pages that are read in one tick of the reactor or at a time, for all readers together.
_PAGES = 2


class Turn(Protocol):
    """A reader of the history whose turn comes: a cursor, or a protocol's own."""

    def read(self) -> None:
        """Read a page."""


class Cursors:
    """The state that the cursors of a broker share; they take turns in reading."""

    def __init__(
        self, clock: IReactorTime, store: IStore, topics: TopicRegistry, router: Router
    ) -> None:
        self.clock = clock
        self.store = store
        self.topics = topics
        self.router = router
        self._ready: deque[Turn] = deque()
        self._scheduled = False
        # Pages that are being read in threads, which compete with the reactor for the processor.
        self._under_way = 0
        self.outboxes: set[BehindOutbox] = set()
        """Those of the subscribers that are behind."""
        self.places = 0
        """The sum of the offsets at which their next pages begin."""

    @property
    def end(self) -> int:
        """The offset of the next message."""
        return self.store.next_offset

    @property
    def number(self) -> int:
        """Subscribers that are behind."""
        return len(self.outboxes)

    @property
    def distance(self) -> int:
        """The sum of the offsets between the places of all cursors and the end of the history."""
        return max(self.number * self.end - self.places, 0)

    def schedule(self, cursor: Turn) -> None:
        """Let ``cursor`` read a page at the end of a tick, soon."""
        self._ready.append(cursor)
        self._schedule()

    def page_begun(self) -> None:
        """A page is not there at once: fewer others are read meanwhile."""
        self._under_way += 1

    def page_ended(self, result: _Result) -> _Result:
        """The page is there, or will not come."""
        self._under_way -= 1
        self._schedule()
        return result

    def _schedule(self) -> None:
        if self._ready and not self._scheduled and self._under_way < _PAGES:
            self._scheduled = True
            self.router.at_tick_end(self._read)

    def _read(self) -> None:
        self._scheduled = False
        if self.router.gathered is not None:
            # So that the pages have these messages, too: otherwise there may be others each time.
            self.router.gathered()
        for _ in range(min(_PAGES - self._under_way, len(self._ready))):
            self._ready.popleft().read()
        self._schedule()
