"""``SharedIdentities``: identities of nsd that go on at another broker.

An identity is a value of the shared state, and one broker at a time has it. A broker whose client
names an identity of another broker asks for it, and takes it by compare-and-set. Changes are
answered when they are in the shared state. docs/decisions/0063-numbers-of-nsd.md describes the
numbers of messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from pubsub.backplane.identities.identity_claims import IdentityClaims
from pubsub.backplane.identities.identity_entry import (
    MAX_VALUE,
    IdentityEntry,
    KnownNumber,
    WantedIdentity,
    decode_claim,
    is_claim,
    limit_key,
)
from pubsub.backplane.identities.identity_values import IdentityValues, unexpected
from pubsub.backplane.identities.log_numbers import LogNumbers
from pubsub.backplane.sessions.session_positions import SessionPositions
from pubsub.backplane.state import state_format
from pubsub.backplane.state.entry_format import MalformedEntry
from pubsub.backplane.state.limited_turns import LimitedTurns
from pubsub.backplane.state.name_locks import NameLocks
from pubsub.backplane.state.shared_state import in_time
from pubsub.broker.clients.identity_sharing import MAX_CHANNELS, IdentityClaim, IdentityContent
from pubsub.errors import BackplaneAway

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pubsub.backplane.positions.shared_positions import SharedPositions
    from pubsub.backplane.state.shared_state import ISharedState, StateEntry
    from pubsub.broker.clients.identity_sharing import FormerNumbers, IdentityHolder
    from pubsub.broker.delivery.start_positions import Position
    from pubsub.broker.service import BrokerService
    from pubsub.store.shared_store import SharedStore

log = Logger()
TICK = 0.5
"""Seconds between two looks at the end of the log."""
# Seconds for a request, and for the engine to be reached.
_TIMEOUT, _REACHED = 2.0, 2.0
# Identities that are requested at a time, the seconds for which one waits for others, and those
# that are looked at in a tick.
_CLAIMS, _WAIT, _LOOKED_AT = 128, 10.0, 200
_WITHOUT = "another version of the broker has written a value"


class SharedIdentities(Service):
    """Shares the identities of ``broker``, whose history is ``store``, through ``state``."""

    def __init__(
        self,
        broker: BrokerService,
        store: SharedStore,
        state: ISharedState,
        positions: SharedPositions,
        clock: Any,
    ) -> None:
        self._broker, self._store, self._state, self._clock = broker, store, state, clock
        self.holder: IdentityHolder | None = None
        self.is_there = False
        self._positions = SessionPositions(positions, broker.dispatcher.run_id, clock)
        self._numbers = LogNumbers(state, self._positions, store, self._bounded, clock)
        self._claims = IdentityClaims(
            state, self._numbers, self._positions, store, self._bounded, clock
        )
        self._values = IdentityValues(
            state, self._bounded, broker.memory, clock, self._content, self._lose
        )
        self._turns = LimitedTurns(_CLAIMS, _WAIT, clock)
        self._locks = NameLocks(lambda name: None, lambda done: in_time(done, clock))
        self._looking: Iterator[str] = iter(())
        self._reached: list[Deferred[bool]] = []
        self._seen = self._taken = self._lost = self._confirming = 0
        self._bucket = b""
        self._ticker = LoopingCall(self._tick)
        self._ticker.clock = clock
        broker.sessions.identities = self

    def startService(self) -> None:
        """Begin; the store is open."""
        super().startService()  # type: ignore[no-untyped-call]
        self._values.log = self._numbers.log
        self._numbers.open()
        self._state.open(self)
        self._ticker.start(TICK, now=False)

    def stopService(self) -> None:
        """End."""
        super().stopService()  # type: ignore[no-untyped-call]
        self.is_there = False
        if self._ticker.running:
            self._ticker.stop()

    async def leave(self) -> None:
        """All connections are closed: tell the other brokers where the log ends."""
        if self._ticker.running:
            self._ticker.stop()
        if self.is_there and self._values.held and self.holder is not None:
            await self._numbers.stopped(self.holder.given())

    def figures(self) -> Mapping[str, float]:
        """Return the figures of shared identities; see ``Statistics.snapshot``."""
        return {
            "identities": len(self._values.held),
            "identities_waiting": self._values.waiting,
            "identities_taken": self._taken,
            "identities_lost": self._lost,
        }

    def _bounded(self, done: Deferred[Any]) -> Deferred[Any]:
        return in_time(done, self._clock, _TIMEOUT)

    def _content(self, name: str) -> IdentityContent | None:
        return None if self.holder is None else self.holder.content(name)

    # IdentitySharing

    @property
    def limit(self) -> int:
        """See ``IdentitySharing``."""
        return self._numbers.limit

    @property
    def max_channels(self) -> int:
        """See ``IdentitySharing``."""
        most: int = self._state.max_bytes()
        return min(MAX_CHANNELS, max(most - (MAX_VALUE - MAX_CHANNELS), most // 2))

    def is_current(self, name: str) -> bool:
        """See ``IdentitySharing``."""
        return self._values.is_current(name)

    def when_there(self) -> Deferred[bool]:
        """See ``IdentitySharing``."""
        done: Deferred[bool] = Deferred()
        if self.is_there:
            done.callback(True)
            return done
        self._reached.append(done)
        done.addTimeout(_REACHED, self._clock, lambda result, seconds: False)
        return done.addBoth(self._no_longer, done)

    def _no_longer(self, is_there: bool, done: Deferred[bool]) -> bool:
        if done in self._reached:
            self._reached.remove(done)
        return is_there

    def look(self, name: str) -> Deferred[IdentityContent | None]:
        """See ``IdentitySharing``."""
        return self._turns.run(lambda: self._look(name))

    async def _look(self, name: str) -> IdentityContent | None:
        try:
            found = await self._claims.find(name)
        except MalformedEntry:
            raise BackplaneAway(_WITHOUT) from None
        return None if found is None or found.entry.ended else found.entry.content

    def claim(self, claim: IdentityClaim) -> Deferred[None]:
        """See ``IdentitySharing``."""
        return self._turns.run(lambda: self._claim(claim))

    async def _claim(self, claim: IdentityClaim) -> None:
        await self._numbers.when_ready()
        async with self._locks.of(claim.name):
            # Another client may have claimed it in the meantime.
            if not self._values.is_current(claim.name):
                await self._claim_now(claim)

    async def _claim_now(self, claim: IdentityClaim) -> None:
        holder, name, round = self.holder, claim.name, self._values.round
        assert holder is not None
        try:
            claimed = await self._claims.claim(claim, holder.content(name))
        except MalformedEntry:
            raise BackplaneAway(_WITHOUT) from None
        if claimed is None:
            # It has ended at another broker.
            self._release(name)
            return
        await self._broker.slices.finish(holder.adopt(name, claimed.identity))
        if round != self._values.round:
            raise BackplaneAway("the connection to the engine has ended")
        self._values.have(name, claimed.revision)
        self._taken += claimed.moved

    def place(self, former: FormerNumbers, number: int) -> Deferred[Position]:
        """See ``IdentitySharing``."""
        return self._turns.run(lambda: self._place(former, number))

    async def _place(self, former: FormerNumbers, number: int) -> Position:
        try:
            return await self._numbers.place(former, number)
        except MalformedEntry:
            raise BackplaneAway(_WITHOUT) from None

    def changed(self, name: str) -> None:
        """See ``IdentitySharing``."""
        self._values.change(name)

    def when_written(self, name: str, call: Callable[[str | None], None]) -> None:
        """See ``IdentitySharing``."""
        self._values.when_written(name, call)

    def ended(self, name: str, content: IdentityContent) -> None:
        """See ``IdentitySharing``. While the engine is away, other brokers keep it."""
        if self._values.is_current(name):
            revision = self._values.drop(name, None)
            entry = IdentityEntry(self._numbers.log, content, ended=True)
            ensureDeferred(self._values.put(name, entry, revision)).addErrback(unexpected)

    # StateWatcher

    def state_changed(self, entries: Sequence[StateEntry]) -> None:
        """See ``StateWatcher``: the limit of this broker is in force, or others ask it."""
        if not self.running:
            return
        own = limit_key(self._numbers.log)
        for entry in entries:
            if entry.key == state_format.KEY:
                # The revisions of another bucket are small.
                self._seen = self._seen if entry.value == self._bucket else 0
                self._bucket = entry.value
            elif entry.key == own:
                self._numbers.reported(entry)
            elif is_claim(entry.key, self._numbers.log) and entry.revision > self._seen:
                self._seen = entry.revision
                ensureDeferred(self._hand_over(entry)).addErrback(unexpected)

    def state_complete(self) -> None:
        """See ``StateWatcher``."""
        if not self.running:
            return
        self.is_there = True
        self._values.round += 1
        self._run(self._numbers.raise_limit(is_new=True))
        reached, self._reached = self._reached, []
        for done in reached:
            if not done.called:
                done.callback(True)
        if self.holder is not None:
            self.holder.engine_reached()

    def state_away(self) -> None:
        """See ``StateWatcher``."""
        self.is_there = False

    def _run(self, work: Any) -> None:
        ensureDeferred(work).addErrback(unexpected)

    # Identities that other brokers want

    async def _hand_over(self, request: StateEntry) -> None:
        """Give up an identity: its client is at another broker."""
        wanted = decode_claim(request.value)
        try:
            # A claim that is under way may have taken it already.
            async with self._locks.of(wanted.name):
                await self._hand_over_now(wanted, request.revision)
        except BackplaneAway:
            self._values.drop(wanted.name)

    async def _hand_over_now(self, wanted: WantedIdentity, requested: int) -> None:
        name = wanted.name
        is_current = self._values.is_current(name)
        # Otherwise whoever wants it here looks at its value first.
        revision = self._values.drop(name)
        if not is_current:
            is_here = self._content(name) is not None
            revision = await self._claims.own_revision(name, requested) if is_here else 0
        content = self._content(name)
        if content is None or not revision:
            return
        holder, top = self.holder, self._numbers.top + content.shift
        # A request other than Get may not say how far the client has read.
        after = wanted.after or (0 if holder is None else holder.last_number(name))
        place = None if holder is None or after > top else holder.place(name, after)
        self._release(name)
        known = None
        if place is not None and after > 0:
            known = KnownNumber(after, await self._positions.shared(place))
        entry = IdentityEntry(self._numbers.log, content, top, known)
        await self._values.put(name, entry, revision)

    def _lose(self, name: str) -> None:
        """Another broker has the identity."""
        self._values.drop(name)
        self._release(name)

    def _release(self, name: str) -> None:
        if self.holder is not None and self.holder.content(name) is not None:
            self._lost += 1
            self.holder.release(name)

    # From time to time

    def _tick(self) -> None:
        self._values.retry()
        if not self.is_there or self.holder is None:
            return
        self._run(self._numbers.raise_limit())
        if self._values.held:
            self._run(self._numbers.note())
        if not self._confirming:
            self._run(self._confirm_some(self.holder))

    async def _confirm_some(self, holder: IdentityHolder) -> None:
        """Make sure that some of the identities here are this broker's, and keep their values."""
        self._confirming += 1
        try:
            names = list(islice(self._looking, _LOOKED_AT))
            if not names:
                self._looking = iter(list(holder.names()))
            for name in names:
                is_known = self._values.is_fresh(name) or holder.content(name) is None
                if self.is_there and not is_known:
                    await self._confirm(name)
        finally:
            self._confirming -= 1

    async def _confirm(self, name: str) -> None:
        """Write the value of an identity again, unless another broker has it."""
        if self._values.is_current(name):
            self._values.change(name)
            return
        found = await self._claims.find(name)
        content = self._content(name)
        if content is None or self._values.is_current(name):
            return
        if found is not None and found.entry.log != self._numbers.log:
            self._lose(name)
        else:
            await self._claim(IdentityClaim(name, None, 0, lambda found: None))
