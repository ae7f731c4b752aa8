"""Publishing in slices: a batch of very many runs takes several ticks, and is atomic all the same.

All conditions that can refuse the batch are checked before it begins. After that it is published
whatever happens, in ticks of ``UNITS`` units of some 5 µs, and its outcome is that of the commit of
the history that it is in. Messages of others are delivered at once meanwhile, and are in the same
commit. One batch at a time is published; the next one waits for its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from sys import maxsize
from typing import TYPE_CHECKING, TypeAlias

from twisted.internet.defer import Deferred, DeferredLock
from twisted.python.failure import Failure

if TYPE_CHECKING:
    from pubsub.broker.routing.router import Router
    from pubsub.interfaces import IStore

UNITS = 300
"""Units of work in a tick. A run takes some 5 µs."""

PublishSteps: TypeAlias = Iterator[int]
"""Work that yields the units of each of its steps."""


class SlicedPublishing:
    """Publishes batches; ``turn`` is held by the one that is published."""

    def __init__(
        self,
        store: IStore,
        router: Router,
        at_tick_end: Callable[[Callable[[], None]], object],
    ) -> None:
        self.turn = DeferredLock()
        self._store = store
        self._router = router
        self._at_tick_end = at_tick_end
        self._publication: PublishSteps | None = None
        self._done: Deferred[None] = Deferred()
        self._is_running = False

    def publish(self, publication: PublishSteps) -> Deferred[None]:
        """Carry out ``publication`` in one commit; the result fires when all is published.

        Raises HistoryUnavailable; nothing has been done in that case.
        """
        self._store.begin_commit(self.finish)
        self._publication = publication
        done = self._done = Deferred()
        self._go_on()
        return done

    def finish(self) -> None:
        """Do all that is left in this tick: it cannot wait."""
        self._run(maxsize)

    def _go_on(self) -> None:
        # Outboxes are written to before they get more, as with any publisher.
        if not self._router.gate.shut:
            self._run(UNITS)
        if self._publication is not None:
            self._at_tick_end(self._go_on)

    def _run(self, units: int) -> None:
        publication = self._publication
        if publication is None or self._is_running:
            return
        failure: Failure | None = None
        self._is_running = True
        try:
            with self._store.continuing():
                while units > 0:
                    done = next(publication, None)
                    if done is None:
                        self._publication = None
                        break
                    units -= done
        except Exception:
            self._publication = None
            failure = Failure()
        finally:
            self._is_running = False
        if self._publication is None:
            self._store.end_commit()
            if failure is None:
                self._done.callback(None)
            else:
                self._done.errback(failure)
