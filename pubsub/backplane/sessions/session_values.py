"""``SessionValues``: the values of this broker's sessions, written soon after they have changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import Logger

from pubsub.backplane.sessions.session_entry import (
    MAX_VALUE,
    SessionEntry,
    decode_session,
    encode_session,
    session_key,
)
from pubsub.backplane.state.entry_format import MalformedEntry
from pubsub.backplane.state.outdated import Outdated
from pubsub.errors import BackplaneAway, HistoryUnavailable

if TYPE_CHECKING:
    from twisted.python.failure import Failure

    from pubsub.backplane.sessions.session_positions import SessionPositions
    from pubsub.backplane.state.shared_state import ISharedState
    from pubsub.broker.clients.session_sharing import SharedClient
    from pubsub.broker.memory_budget import MemoryBudget
    from pubsub.broker.slices import Work

log = Logger()
# Values that are being written at a time.
_TOGETHER = 32
# Seconds that values outlive the resume window while the client is connected, after half of which
# they are written again; and how many are looked at in a tick.
LASTING, _LOOKED_AT = 24 * 3600, 100
# Bytes from which on a value is written at most once in this number of seconds.
_LARGE, _PAUSE = 4096, 1.0
# Estimated bytes of a session that is shared, for the memory budget.
_BYTES = 640


class SharedValue:
    """A session: ``client`` is None until its protocol has it, and after its end.

    ``behind`` is true if its value has positions, or is about to have them. ``since`` is the
    tick of the oldest change that is not written; None if there is none.
    """

    __slots__ = (
        "behind",
        "client",
        "ended",
        "is_writing",
        "nbytes",
        "revision",
        "since",
        "until_written",
        "value",
        "written",
    )

    def __init__(self, client: SharedClient | None, revision: int = 0) -> None:
        self.client = client
        self.revision = revision
        self.ended = self.is_writing = self.behind = False
        self.since: int | None = None
        # Fire at the end of the write that is under way.
        self.until_written: tuple[Deferred[None], ...] = ()
        # The hash and the size of the value that was written last, and when.
        self.value = self.nbytes = 0
        self.written = 0.0

    @property
    def is_waiting(self) -> bool:
        """True if something is to be written."""
        return self.since is not None or self.is_writing


class SessionValues:
    """The sessions that the broker ``run`` shares; ``forget`` ends one that another broker has.

    Changes are counted by tick, so that it is known when everything before a tick is written.
    """

    def __init__(
        self,
        run: str,
        state: ISharedState,
        positions: SessionPositions,
        bounded: Callable[[Deferred[int]], Deferred[int]],
        memory: MemoryBudget,
        clock: Any,
        forget: Callable[[str], object],
    ) -> None:
        self._run, self._state, self._positions = run, state, positions
        self._bounded, self._memory, self._clock = bounded, memory, clock
        self._forget = forget
        self.meet: Callable[[str, SharedClient], object] = lambda key, client: None
        """Called for a session that was begun here while another broker had it, to merge both."""
        self.shared: dict[str, SharedValue] = {}
        self.is_there = False
        """Whether the engine is there."""
        self.seconds = 1
        """For how long the value of a session without a connection is kept."""
        self.too_large: set[str] = set()
        """Sessions that are not shared because of their subscriptions."""
        self.placed: set[str] = set()
        """Sessions with a connection whose values have positions, until they are looked at."""
        self._queue: dict[str, None] = {}
        # Those that could not be written, until the next tick.
        self._again: list[str] = []
        self._since: Counter[int] = Counter()
        self._tick = self._writing = 0
        self._looking: Iterator[str] = iter(())

    @property
    def waiting(self) -> int:
        """The number of values that are to be written."""
        return self._since.total()

    # Sessions

    def add(self, key: str, client: SharedClient) -> SharedValue:
        """Return the session of ``key``, which ``client`` has."""
        one = self.shared.get(key)
        if one is None:
            one = self.shared[key] = SharedValue(client)
            self._memory.add(_BYTES)
        one.client, one.ended = client, False
        return one

    def took(self, key: str, revision: int) -> None:
        """This broker has taken a session over; ``add`` or ``end`` follows."""
        before = self.shared.get(key)
        if before is None:
            self._memory.add(_BYTES)
        else:
            self._settle(before)
        one = self.shared[key] = SharedValue(None, revision)
        one.behind = True

    def end(self, key: str) -> None:
        """The session has ended."""
        one = self.shared.get(key)
        if one is None:
            return
        one.client, one.ended = None, True
        if self.is_there and (one.revision or one.is_writing):
            self.change(key)
        else:
            self.drop(key)

    def drop(self, key: str) -> SharedClient | None:
        """Stop sharing a session; return its client."""
        one = self.shared.pop(key, None)
        self.placed.discard(key)
        self.too_large.discard(key)
        if one is None:
            return None
        self._memory.free(_BYTES)
        self._settle(one)
        return one.client

    # Writing

    def change(self, key: str) -> None:
        """Write the session of ``key`` soon."""
        one = self.shared[key]
        if one.since is None:
            one.since = self._tick
            self._since[self._tick] += 1
        if one.nbytes > _LARGE and self._clock.seconds() - one.written < _PAUSE:
            self._again.append(key)
        else:
            self._queue[key] = None
            self.pump()

    async def write_again(self, key: str) -> None:
        """Write the session of ``key`` before all others, even if it has not changed."""
        one = self.shared[key]
        one.value = 0
        if one.is_writing:
            self.change(key)
        else:
            await self._write(key, one)

    def write_all(self) -> Work:
        """Write all sessions, in steps: the shared state has lost them."""
        for key, one in list(self.shared.items()):
            if self.shared.get(key) is one and (one.client or one.ended):
                one.value = one.revision = 0
                self.change(key)
            yield

    def _settle(self, one: SharedValue) -> None:
        """Nothing of ``one`` is left to be written."""
        since, one.since = one.since, None
        if since is not None:
            self._since[since] -= 1
            if not self._since[since]:
                del self._since[since]

    def next_tick(self) -> int:
        """Return the number of this tick; changes from now on belong to the next one."""
        self._tick += 1
        return self._tick - 1

    def has_written(self, tick: int) -> bool:
        """Return whether all changes up to the end of ``tick`` are written."""
        return min(self._since, default=tick + 1) > tick

    def look(self) -> None:
        """Write failed values again, and some whose time would be over."""
        now = self._clock.seconds()
        again, self._again = self._again, []
        keys = list(islice(self._looking, _LOOKED_AT))
        if not keys:
            self._looking = iter(list(self.shared))
        for key in dict.fromkeys(again):
            if key in self.shared:
                self.change(key)
        for key in keys:
            one = self.shared.get(key)
            if one is not None and one.revision and now - one.written > LASTING / 2:
                self.change(key)

    def pump(self) -> None:
        """Begin to write the waiting values."""
        while self.is_there and self._queue and self._writing < _TOGETHER:
            key = next(iter(self._queue))
            del self._queue[key]
            one = self.shared.get(key)
            # A value that changes while it is written is written again afterwards.
            if one is not None and not one.is_writing and (one.client or one.ended):
                ensureDeferred(self._write(key, one)).addErrback(failed)

    async def put_now(self, key: str) -> bool:
        """Write the session of ``key``, after a write that is under way; False if it fails."""
        one = self.shared.get(key)
        while one is not None and one.is_writing:
            ended: Deferred[None] = Deferred()
            one.until_written = (*one.until_written, ended)
            await ended
        if one is not None and self.shared.get(key) is one:
            return await self._write(key, one)
        return False

    async def _write(self, key: str, one: SharedValue) -> bool:
        one.is_writing = True
        self._writing += 1
        # Later changes are counted from zero.
        since, one.since = one.since, None
        is_done = False
        try:
            is_done = await self._put(key, one)
        finally:
            self._writing -= 1
            one.is_writing = False
            changed, one.since = one.since, since
            self._finish(key, one, is_done, changed)
            waiting, one.until_written = one.until_written, ()
            for ended in waiting:
                ended.callback(None)
        return is_done

    def _finish(self, key: str, one: SharedValue, is_done: bool, changed: int | None) -> None:
        """A write has ended; ``changed`` is the tick of a change since it began."""
        is_shared = self.shared.get(key) is one
        if is_done or not is_shared:
            self._settle(one)
            one.since = changed
            if not is_shared:
                self._settle(one)
        elif one.since is None:
            one.since = changed
        elif changed is not None:
            # The older one counts for both.
            one.since, older = changed, one.since
            self._settle(one)
            one.since = older
        if one.since is not None and is_shared:
            if is_done:
                self._queue[key] = None
            else:
                self._again.append(key)
        self.pump()

    async def _put(self, key: str, one: SharedValue) -> bool:
        """Write the value of a session; return False if that is to be tried again."""
        client, seconds = one.client, self.seconds
        entry = SessionEntry(self._run, ended=True)
        try:
            if client is not None:
                content, lost = client.content(), client.is_lost
                seconds += 0 if lost else LASTING
                entry = await self._positions.entry(self._run, content, lost)
            value = encode_session(entry)
            nbytes = len(value)
            self.too_large.discard(key)
            if nbytes > min(MAX_VALUE, self._state.max_bytes()):
                if self.shared.get(key) is one:
                    self.too_large.add(key)
                value = encode_session(SessionEntry(self._run, ended=True))
            now = self._clock.seconds()
            if hash(value) != one.value or now - one.written > LASTING / 2:
                put = self._state.put(session_key(key), value, one.revision, seconds)
                one.revision = await self._bounded(put)
                one.value, one.written, one.nbytes = hash(value), now, nbytes
                self.placed.discard(key)
                if entry.behind and not entry.lost and self.shared.get(key) is one:
                    self.placed.add(key)
            one.behind = bool(entry.behind)
        except (BackplaneAway, HistoryUnavailable):
            return False
        except Outdated as found:
            return self._resolve(key, one, found)
        if one.ended:
            self.drop(key)
        return True

    def _resolve(self, key: str, one: SharedValue, found: Outdated) -> bool:
        """The value is another one than this broker has written: return as ``_put`` does."""
        try:
            entry = None if found.value is None else decode_session(found.value)
        except MalformedEntry:
            entry = SessionEntry("")
        new = entry is not None and entry.ended and not one.revision
        if entry is None or entry.run == self._run or new:
            # Its time was over, an answer of the engine was lost, or a session of this client
            # ended elsewhere before this one began.
            one.revision = found.revision
            return False
        client = one.client
        if not one.revision and client is not None and client.can_merge and not client.is_lost:
            self.drop(key)
            self.meet(key, client)
        else:
            self._forget(key)
        return True


def failed(failure: Failure) -> None:
    """Log an unexpected error."""
    if failure.check(BackplaneAway, Outdated, HistoryUnavailable) is None:
        log.failure("sharing a session failed", failure)
