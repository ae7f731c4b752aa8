"""``SharedBatches``: a batch that is committed exactly once is known to all brokers.

Before a broker publishes a batch it reserves the batch in the shared state, and afterwards records
there that it has published it. So a commit that is repeated at another broker publishes nothing
again. If the broker that has reserved the batch is unavailable, the outcome is unknown, and a
commit waits for it. It notes in its own history what it has reserved, and finds that out when it is
back. It also keeps the last batches that were published, and puts them back if the shared state is
lost (``returning_batches.py``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pubsub.backplane.batches.returning_batches import ReturningBatches
from pubsub.backplane.batches.settled_batches import KEPT, QueryName, SettledBatches, key_of
from pubsub.backplane.state.later_calls import LaterCalls
from pubsub.backplane.state.outdated import Outdated
from pubsub.backplane.state.shared_state import in_time
from pubsub.broker.delivery.history_reads import all_on_disk
from pubsub.errors import BackplaneAway, HistoryUnavailable

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from pubsub.backplane.state.shared_state import ISharedState
    from pubsub.broker.memory_budget import MemoryBudget
    from pubsub.store.shared_store import SharedStore

log = Logger()
RESERVED_BATCHES = "reserved-batches"
"""The table of the metadata with the number of the batch that is reserved, by query."""
_VERSION = 1
_PAUSE = 2.0
_ATTEMPTS = 8


class CommittedElsewhere(Exception):
    """Another broker has published the batch, or a later one of the query."""


class BegunElsewhere(Exception):
    """Another broker, which is away, has begun to publish the batch."""


class _UnknownVersion(BackplaneAway):
    """Another version of the broker has written a value."""


class _Reservation(NamedTuple):
    """The value of a key: ``broker`` publishes ``batch``; empty if anyone may do so."""

    batch: int
    broker: str
    done: bool

    def encode(self) -> bytes:
        members = {"v": _VERSION, "batch": self.batch, "broker": self.broker, "done": self.done}
        return json.dumps(members, separators=(",", ":")).encode()

    def is_after(self, batch: int) -> bool:
        """Return whether ``batch`` has been published."""
        return self.batch > batch or (self.batch == batch and self.done)


class SharedBatches:
    """The batches in ``state``; ``store`` is this broker's history, whose memory is ``memory``.

    ``clock`` is monotonic, ``time`` returns seconds since the Unix epoch.
    """

    def __init__(
        self,
        state: ISharedState,
        store: SharedStore,
        clock: IReactorTime,
        memory: MemoryBudget,
        time: Callable[[], float],
    ) -> None:
        self._state, self._store = state, store
        self._clock, self._later = clock, LaterCalls(clock)
        self._settled = SettledBatches(store, memory, time)
        self._returning = ReturningBatches(state, store, clock, self._queries, self._put_back)
        # Published or given up, and not in the shared state yet: whether it was published.
        self._unsettled: dict[QueryName, tuple[int, bool]] = {}
        self._under_way: set[QueryName] = set()
        # Those that are tried again soon.
        self._paused: set[QueryName] = set()
        # Reserved since the start, until the shared state has the outcome.
        self._open: dict[QueryName, int] = {}
        self._is_closed = False

    def open(self) -> None:
        """Begin; the store is open, and the engine is connected to later."""
        self._settled.restore()
        self._returning.open()

    def close(self) -> None:
        """The broker ends; the next one resumes what is not settled."""
        self._is_closed = True
        self._later.close()
        self._returning.close()

    async def check(self, query: QueryName, batch: int) -> None:
        """Raise CommittedElsewhere or BegunElsewhere if it was; or BackplaneAway."""
        await self._get_free(query, batch)

    async def _get_free(self, query: QueryName, batch: int) -> tuple[_Reservation | None, int]:
        """Return the value and its revision if this broker may reserve the batch, or raise."""
        if self._settled.last(query) >= batch:
            raise CommittedElsewhere
        found, revision = await self._get(query)
        if found is not None and found.is_after(batch):
            # The broker of a batch that is begun has published the one before, or another has.
            self._settled.keep(query, found.batch if found.done else found.batch - 1)
        self._check(found, batch)
        self._returning.require_complete()
        return found, revision

    async def reserve(self, query: QueryName, batch: int) -> None:
        """Let only this broker publish the batch.

        Raises CommittedElsewhere, BegunElsewhere, BackplaneAway or HistoryUnavailable.
        """
        at = await self._get_free(query, batch)
        self._unsettled.pop(query, None)
        self._open[query] = batch
        self._store.put(RESERVED_BATCHES, key_of(query), str(batch).encode())
        value = _Reservation(batch, self._store.log_id, False)
        try:
            # After a power cut the reservation would otherwise stay, and no broker could settle it.
            if not await all_on_disk(self._store):
                raise HistoryUnavailable(str(self._store.trouble))
            await self._change(query, value, at, lambda found: self._check(found, batch))
            await self._returning.require_same()
        except (BegunElsewhere, CommittedElsewhere, BackplaneAway, HistoryUnavailable):
            # It may have come about, or be under way: the client may continue at another broker.
            # Of one that another broker was first to reserve, nothing is kept here.
            self.settle(query, batch, False)
            raise

    def _check(self, found: _Reservation | None, batch: int) -> bool:
        """Return True if this broker may reserve the batch; raise the reason if it may not."""
        if found is None or found.batch < batch:
            return True
        if found.is_after(batch):
            raise CommittedElsewhere
        if found.broker not in ("", self._store.log_id):
            raise BegunElsewhere
        return True

    def settle(self, query: QueryName, batch: int, done: bool) -> None:
        """Share soon whether this broker has published the batch that it has reserved."""
        self._unsettled[query] = batch, done
        if query not in self._under_way:
            self._under_way.add(query)
            Deferred.fromCoroutine(self._settle_all(query)).addErrback(
                lambda failure: log.failure("backplane: sharing a batch has failed", failure)
            )

    def published(self, query: QueryName, batch: int) -> None:
        """Share that this broker has published the batch, as soon as it is stored as required."""

        def stored(is_stored: bool) -> None:
            if self._open.get(query) != batch or self._is_closed:
                return
            if is_stored:
                self.settle(query, batch, True)
            else:
                self._later.add(_PAUSE, lambda: self.published(query, batch))

        self._store.when_stored(stored)

    def resume(self, last: Callable[[QueryName], int]) -> None:
        """Settle what was reserved before a restart; ``last`` returns the last batch of a query."""
        for query, batch in list(self._reserved()):
            self.settle(query, batch, last(query) >= batch)

    def _reserved(self) -> Iterator[tuple[QueryName, int]]:
        for key, value in self._store.items(RESERVED_BATCHES):
            owner, name = json.loads(key)
            yield (owner, name), int(value)

    async def _settle_all(self, query: QueryName) -> None:
        try:
            while query in self._unsettled:
                settled = self._unsettled[query]
                try:
                    await self._settle(query, *settled)
                except BackplaneAway:
                    if query not in self._paused:
                        self._paused.add(query)
                        self._later.add(_PAUSE, lambda: self._again(query))
                    return
                if self._unsettled.get(query) == settled:
                    del self._unsettled[query]
                    self._open.pop(query, None)
                    self._store.delete(RESERVED_BATCHES, key_of(query))
        finally:
            self._under_way.discard(query)

    def _again(self, query: QueryName) -> None:
        self._paused.discard(query)
        if query in self._unsettled:
            self.settle(query, *self._unsettled[query])

    async def _settle(self, query: QueryName, batch: int, done: bool) -> None:
        def is_open(found: _Reservation | None) -> bool:
            if self._unsettled.get(query) != (batch, done):
                # It is reserved again, for another try.
                return False
            if found is not None and found.is_after(batch):
                return False
            if done or found is None or found.batch < batch:
                # A reservation of this broker may still be under way: it is refused then.
                return True
            return found.broker == self._store.log_id

        if done:
            self._settled.keep(query, batch)
        value = _Reservation(batch, self._store.log_id if done else "", done)
        await self._change(query, value, await self._get(query), is_open)

    def _queries(self) -> Iterator[QueryName]:
        """Return the queries whose batches this broker can put back."""
        return chain(list(self._open), self._settled.queries())

    async def _put_back(self, query: QueryName) -> None:
        """Put the last batch of ``query`` back that this broker knows of, unless there is a later.

        A batch that this broker publishes now is reserved again.
        """
        batch, done = self._open.get(query, -1), False
        if batch < 0:
            batch, done = self._settled.last(query), True
        if batch < 0 or query in self._unsettled:
            return

        def is_newer(found: _Reservation | None) -> bool:
            if not done and (self._open.get(query) != batch or query in self._unsettled):
                return False
            return found is None or found.batch < batch or (done and not found.is_after(batch))

        try:
            value, at = _Reservation(batch, self._store.log_id, done), await self._get(query)
            seconds = self._settled.seconds(query) if done else KEPT
            await self._change(query, value, at, is_newer, seconds)
        except _UnknownVersion:
            # A newer one.
            return

    async def _change(
        self,
        query: QueryName,
        value: _Reservation,
        at: tuple[_Reservation | None, int],
        may_replace: Callable[[_Reservation | None], bool],
        seconds: int = KEPT,
    ) -> None:
        """Replace the value of ``query``, which was ``at`` with its revision, by ``value``.

        That is done only if ``may_replace`` returns True for the value that is there then.
        """
        found, revision = at
        for _ in range(_ATTEMPTS):
            if not may_replace(found):
                return
            try:
                done = self._state.put(_state_key(query), value.encode(), revision, seconds)
                await in_time(done, self._clock)
            except Outdated as outdated:
                found, revision = _decode(outdated.value), outdated.revision
            else:
                return
        raise BackplaneAway("other brokers change the batch at the same time")

    async def _get(self, query: QueryName) -> tuple[_Reservation | None, int]:
        done = self._state.get(_state_key(query))
        entry = await in_time(done, self._clock)
        return (None, 0) if entry is None else (_decode(entry.value), entry.revision)


def _state_key(query: QueryName) -> str:
    return f"q.{hashlib.sha256(key_of(query).encode()).hexdigest()[:32]}"


def _decode(data: bytes | None) -> _Reservation | None:
    """Return the value; None without one. Raises _UnknownVersion."""
    if data is None:
        return None
    try:
        found = json.loads(data)
        if found["v"] == _VERSION:
            return _Reservation(int(found["batch"]), str(found["broker"]), bool(found["done"]))
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        pass
    raise _UnknownVersion("another version of the broker has written the value")
