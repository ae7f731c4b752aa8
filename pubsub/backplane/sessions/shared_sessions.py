"""``SharedSessions``: sessions that another broker can resume.

Each session is a value of the shared state. Sessions of clients that are not behind have no
positions of their own: one value of their broker has the position up to which all of them have
received messages, and it is written only after the values of all sessions that were behind it. So a
broker with a million clients writes one value twice a second, at any rate of delivery, and a broker
that is killed leaves behind values that lose nothing.

A broker that needs a session which is connected elsewhere requests it, and waits for a short time:
one that has been killed does not answer. Then it takes the session on condition that no other
broker was first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred, DeferredSemaphore, ensureDeferred
from twisted.internet.task import LoopingCall, deferLater
from twisted.logger import Logger

from pubsub.backplane.sessions.session_entry import (
    BrokerEntry,
    broker_key,
    encode_broker,
    hash_of,
    requested,
)
from pubsub.backplane.sessions.session_positions import SessionPositions
from pubsub.backplane.sessions.session_taking import SessionTaking
from pubsub.backplane.sessions.session_values import SessionValues, failed
from pubsub.backplane.state import state_format
from pubsub.backplane.state.entry_format import MalformedEntry
from pubsub.backplane.state.outdated import Outdated
from pubsub.backplane.state.shared_state import in_time
from pubsub.errors import BackplaneAway, HistoryUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pubsub.backplane.positions.shared_position import SharedPosition
    from pubsub.backplane.positions.shared_positions import SharedPositions
    from pubsub.backplane.sessions.session_values import SharedValue
    from pubsub.backplane.state.shared_state import ISharedState, StateEntry
    from pubsub.broker.clients.session_sharing import KeyedListener, SessionContent, SharedClient
    from pubsub.broker.service import BrokerService

log = Logger()
TICK = 0.5
"""Seconds between two values of this broker."""
# Sessions that are being taken at a time.
_TAKES = 256
# Seconds for which the taking of a session may wait for others.
_WAIT = 60.0
# Seconds for a request, and between two values of a session that is behind.
_TIMEOUT, _AGAIN = 2.0, 1.0
_STOP_SECONDS = 10.0


class SharedSessions(Service):
    """Shares the sessions of ``broker`` through ``state``."""

    def __init__(
        self, broker: BrokerService, state: ISharedState, positions: SharedPositions, clock: Any
    ) -> None:
        self._broker, self._state, self._clock = broker, state, clock
        self._sessions, self._memory = broker.sessions, broker.memory
        self._store = broker.store
        self.run = f"{broker.dispatcher.run_id:015x}"
        self._positions = SessionPositions(positions, broker.dispatcher.run_id, clock)
        self._taking = SessionTaking(self.run, state, self._positions, self.bounded, clock)
        self._values = SessionValues(
            self.run, state, self._positions, self.bounded, broker.memory, clock, self._forget
        )
        self._values.meet = lambda *one: ensureDeferred(self._meet(*one)).addErrback(failed)
        self._revision = self._seen = 0
        self._bucket = b""
        self._candidate: tuple[int, SharedPosition] | None = None
        self._broker_value = b""
        self._broker_written = -math.inf
        self._is_stopping = False
        self._stop_at = -1
        self._ticker = LoopingCall(self._tick)
        self._ticker.clock = clock
        self._takes = DeferredSemaphore(_TAKES)
        self._taking_now: set[str] = set()
        self._taken = self._lost = 0
        self.also: list[Callable[[], Coroutine[Any, Any, None]]] = []
        """Calls to make before the broker leaves, when all connections are closed."""
        broker.sessions.sharing = self

    def startService(self) -> None:
        """Begin; the store is open."""
        super().startService()  # type: ignore[no-untyped-call]
        self._state.open(self)
        self._ticker.start(TICK, now=False)

    def stopService(self) -> None:
        """End; ``leave`` has said so to the others."""
        super().stopService()  # type: ignore[no-untyped-call]
        self._values.is_there = False
        if self._ticker.running:
            self._ticker.stop()

    def figures(self) -> Mapping[str, float]:
        """Return the figures of shared sessions; see ``Statistics.snapshot``."""
        return {
            "sessions": len(self._values.shared),
            "sessions_waiting": self._values.waiting,
            "sessions_too_large": len(self._values.too_large),
            "sessions_taken": self._taken,
            "sessions_lost": self._lost,
        }

    def bounded(self, done: Deferred[Any]) -> Deferred[Any]:
        """Return ``done``, which fails with BackplaneAway at the deadline."""
        return in_time(done, self._clock, _TIMEOUT)

    # SessionSharing

    def key(self, listener: KeyedListener, *parts: bytes) -> str:
        """See ``SessionSharing``: listeners correspond by their places in the configuration."""
        same = [one for one in self._broker.listeners if one.protocol == listener.protocol]
        place = next((at for at, one in enumerate(same) if one is listener), 0)
        return hash_of([listener.protocol.encode(), b"%d" % place, *parts])

    def share(self, key: str, client: SharedClient) -> None:
        """See ``SessionSharing``."""
        if not self._sessions.window:
            return
        one = self._values.add(key, client)
        if not self._is_at_stop(one):
            self._values.change(key)

    def _is_at_stop(self, one: SharedValue) -> bool:
        """Return whether the last value of this broker says where the client continues."""
        client = one.client
        if not self._is_stopping or client is None or not client.is_lost:
            return False
        if not one.revision or one.behind or one.is_waiting:
            return False
        content = client.content()
        return not content.live and all(at == self._stop_at for at in content.behind.values())

    def has(self, key: str) -> bool:
        """See ``SessionSharing``."""
        one = self._values.shared.get(key)
        return one is not None and one.client is not None

    def end(self, key: str) -> None:
        """See ``SessionSharing``."""
        self._values.end(key)

    def take(
        self, key: str, displace: bool = True, wanted: Callable[[], bool] = lambda: True
    ) -> Deferred[SessionContent | None]:
        """See ``SessionSharing``."""
        until = self._clock.seconds() + _WAIT

        def begin() -> Deferred[SessionContent | None]:
            if self._clock.seconds() > until or not wanted():
                # Later, as thousands may follow.
                return deferLater(self._clock, 0, lambda: None)
            return ensureDeferred(self._take(key, displace))

        return self._takes.run(begin)

    async def _take(self, key: str, displace: bool) -> SessionContent | None:
        values, window = self._values, self._sessions.window
        if not values.is_there or not window or key in values.shared or key in self._taking_now:
            return None
        self._taking_now.add(key)
        try:
            found = await self._taking.take(key, self._values.seconds, displace)
        except (BackplaneAway, HistoryUnavailable, MalformedEntry):
            return None
        except Exception:
            log.failure("a session cannot be taken over")
            return None
        finally:
            self._taking_now.discard(key)
        if found is None:
            return None
        values.took(key, found.revision)
        self._taken += 1
        return found.content

    # StateWatcher

    def state_changed(self, entries: Sequence[StateEntry]) -> None:
        """See ``StateWatcher``: other brokers ask for sessions."""
        for entry in entries:
            if entry.key == state_format.KEY:
                self._at_bucket(entry.value)
            key = requested(entry.key, self.run)
            if key is not None and entry.revision > self._seen:
                self._seen = entry.revision
                ensureDeferred(self._hand_over(key)).addErrback(failed)

    def _at_bucket(self, id: bytes) -> None:
        """``id`` is that of the bucket: another one has no sessions, and small revisions."""
        if self._bucket not in (b"", id):
            self._seen = 0
            self._broker.slices.run_later(self._values.write_all())
        self._bucket = id

    @property
    def _seconds_lost(self) -> int:
        return max(math.ceil(self._sessions.window), 1)

    def state_complete(self) -> None:
        """See ``StateWatcher``."""
        self._values.is_there, self._values.seconds = True, self._seconds_lost
        self._broker_written = -math.inf
        if not self._broker_value:
            # Without it no broker can take sessions of this one.
            self._positions.at(self._store.next_offset).addCallback(self._begin).addErrback(failed)
        self._values.pump()

    def _begin(self, position: SharedPosition) -> None:
        if not self._broker_value:
            ensureDeferred(self._put_broker(BrokerEntry(position))).addErrback(failed)

    def state_away(self) -> None:
        """See ``StateWatcher``."""
        self._values.is_there = False

    async def _hand_over(self, key: str) -> None:
        """Give up a session: its client is at another broker."""
        one = self._values.shared.get(key)
        if one is None or one.client is None:
            return
        if not (one.client.is_lost or one.client.is_movable):
            # Another revision says that it is connected here.
            await self._values.write_again(key)
            return
        await self._broker.slices.finish(one.client.lose())
        # If it cannot be written now, the other broker may not get it, and it must not end here.
        if await self._values.put_now(key) and self._values.shared.get(key) is one:
            self._forget(key)

    def _forget(self, key: str) -> None:
        """Another broker has the session."""
        client = self._values.drop(key)
        if client is not None:
            if client.is_lost or client.is_movable:
                self._lost += 1
            self._broker.slices.run(client.forget())

    async def _meet(self, key: str, client: SharedClient) -> None:
        """``client`` began a session here while another broker had one and could not be asked."""
        content = await self.take(key)
        if content is not None:
            await self._broker.slices.finish(client.merge(content))
            return
        # It has ended, or cannot be taken now.
        await deferLater(self._clock, _AGAIN)
        if self.running and not client.is_lost and key not in self._values.shared:
            self.share(key, client)

    # The value of this broker

    def _tick(self) -> None:
        values = self._values
        if not values.is_there:
            return
        values.seconds = self._seconds_lost
        candidate = self._candidate
        if candidate is not None and values.has_written(candidate[0]):
            self._candidate = None
            ensureDeferred(self._put_broker(BrokerEntry(candidate[1]))).addErrback(failed)
        self._find_behind()
        values.look()
        if self._candidate is None:
            number = values.next_tick()
            at = self._positions.at(self._store.next_offset)
            at.addCallback(lambda position: self._propose(number, position)).addErrback(failed)
        values.pump()

    def _propose(self, number: int, position: SharedPosition) -> None:
        self._candidate = number, position

    def _find_behind(self) -> None:
        """Have the sessions written that are behind, or were."""
        now = self._clock.seconds()
        behind: set[str] = set()
        for outbox in chain(self._broker.cursors.outboxes, self._broker.router.slow):
            keys = getattr(outbox.connection, "shared_sessions", None)
            behind.update(keys() if keys is not None else ())
        for key in behind:
            one = self._values.shared.get(key)
            if one is not None and (not one.behind or now - one.written >= _AGAIN):
                one.behind = True
                self._values.change(key)
        caught_up = self._values.placed - behind
        self._values.placed -= caught_up
        for key in caught_up:
            self._values.change(key)

    async def _put_broker(self, entry: BrokerEntry) -> None:
        value, now = encode_broker(entry), self._clock.seconds()
        if value == self._broker_value and now - self._broker_written < self._values.seconds / 4:
            return
        key = broker_key(self.run)
        try:
            for _ in range(2):
                try:
                    put = self._state.put(key, value, self._revision, self._values.seconds + 1)
                    self._revision = await self.bounded(put)
                    break
                except Outdated as found:
                    self._revision = found.revision
        except BackplaneAway:
            return
        self._broker_value, self._broker_written = value, now

    # The end

    def leaving(self) -> None:
        """See ``SessionSharing``."""
        self._is_stopping, self._stop_at = True, self._store.next_offset

    def leave(self) -> Deferred[None]:
        """See ``SessionSharing``."""
        return ensureDeferred(self._leave_all()).addErrback(failed)

    async def _leave_all(self) -> None:
        others = [ensureDeferred(call()).addErrback(failed) for call in self.also]
        await self._leave()
        for done in others:
            await done

    async def _leave(self) -> None:
        if self._ticker.running:
            self._ticker.stop()
        until = self._clock.seconds() + _STOP_SECONDS
        values = self._values
        while values.is_there and values.waiting:
            if self._clock.seconds() > until:
                return
            values.look()
            values.pump()
            await deferLater(self._clock, 0.01)
        if values.is_there:
            position = await self._positions.at(self._stop_at)
            await self._put_broker(BrokerEntry(position, stopped=True))
