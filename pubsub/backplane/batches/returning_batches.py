"""``ReturningBatches``: batches are put back into a shared state that was recreated.

Every broker puts back what it knows. Until all that are connected have probably done so, no new
batch is begun: another broker may have published it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pubsub.backplane.state import state_format
from pubsub.backplane.state.shared_state import in_time
from pubsub.errors import BackplaneAway

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall, IReactorTime

    from pubsub.backplane.batches.settled_batches import QueryName
    from pubsub.backplane.state.shared_state import ISharedState, StateEntry
    from pubsub.interfaces import IStore

log = Logger()
STATE = "shared-batches-state"
"""The table of the metadata with the id of the shared state that has this broker's batches."""
# Seconds that connected brokers have to notice another shared state, and to put back what they
# know; and seconds between two tries.
_OTHERS, _PAUSE = 15.0, 2.0
# Batches that are put back at a time.
_TOGETHER = 16


class _Left:
    """An iterator over queries: those of ``again`` first, which may be added meanwhile.

    One iterator chained to another at each try would nest without a bound while NATS is away.
    """

    def __init__(self, queries: Iterable[QueryName]) -> None:
        self.again: deque[QueryName] = deque()
        self._queries = iter(queries)

    def __iter__(self) -> Iterator[QueryName]:
        return self

    def __next__(self) -> QueryName:
        return self.again.popleft() if self.again else next(self._queries)


class ReturningBatches:
    """Has ``put_back`` called for all ``queries`` when ``state`` was recreated."""

    def __init__(
        self,
        state: ISharedState,
        store: IStore,
        clock: IReactorTime,
        queries: Callable[[], Iterable[QueryName]],
        put_back: Callable[[QueryName], Awaitable[None]],
    ) -> None:
        self._state, self._store, self._clock = state, store, clock
        self._queries, self._put_back = queries, put_back
        # The id of the state: as reported last, and of the one that has everything.
        self._id = self._complete = b""
        self._timer: IDelayedCall | None = None
        self._is_closed = False

    def open(self) -> None:
        """Begin; the store is open."""
        self._complete = dict(self._store.items(STATE)).get("id", b"")
        self._state.open(self)

    def close(self) -> None:
        """End."""
        self._is_closed = True
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()

    def require_complete(self) -> None:
        """Raise BackplaneAway if the state may lack batches that other brokers have published."""
        if self._id != self._complete and self._id:
            _refuse()

    async def require_same(self) -> None:
        """Raise BackplaneAway if the state was recreated, which may not be reported yet."""
        entry = await in_time(self._state.get(state_format.KEY), self._clock)
        known = self._id or self._complete
        if entry is None or (known and entry.value != known):
            _refuse()
        self.require_complete()

    # StateWatcher

    def state_changed(self, entries: Sequence[StateEntry]) -> None:
        """See ``StateWatcher``."""
        for entry in entries:
            is_another = entry.key == state_format.KEY and entry.value != self._id
            if is_another and not self._is_closed:
                self._at(entry.value)

    def state_complete(self) -> None:
        """See ``StateWatcher``."""

    def state_away(self) -> None:
        """See ``StateWatcher``."""

    def _at(self, id: bytes) -> None:
        """``id`` is that of the state."""
        self._stop_timer()
        self._id = id
        if not self._complete:
            # Nothing was shared before.
            self._finish(id)
        elif id != self._complete:
            log.info("backplane: the shared state was recreated; batches are put back")
            self._run(id, _Left(self._queries()), self._clock.seconds() + _OTHERS)

    def _run(self, id: bytes, left: _Left, until: float) -> None:
        Deferred.fromCoroutine(self._put_all(id, left, until))

    async def _put_all(self, id: bytes, left: _Left, until: float) -> None:
        failed: list[QueryName] = []
        workers = [
            Deferred.fromCoroutine(self._put_some(id, left, failed)) for _ in range(_TOGETHER)
        ]
        for worker in workers:
            await worker
        if self._is_closed or self._id != id:
            return
        if failed:
            left.again.extend(failed)
            self._timer = self._clock.callLater(_PAUSE, self._run, id, left, until)
        else:
            wait = max(until - self._clock.seconds(), 0)
            self._timer = self._clock.callLater(wait, self._finish, id)

    async def _put_some(self, id: bytes, left: _Left, failed: list[QueryName]) -> None:
        for query in left:
            if self._is_closed or self._id != id:
                return
            try:
                await self._put_back(query)
            except BackplaneAway:
                failed.append(query)
                return
            except Exception:
                log.failure("backplane: putting back a batch has failed")

    def _finish(self, id: bytes) -> None:
        self._complete = id
        self._store.put(STATE, "id", id)


def _refuse() -> NoReturn:
    raise BackplaneAway("the shared state was recreated and may not have all batches yet")
