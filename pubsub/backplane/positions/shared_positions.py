"""``SharedPositions``: the shared positions of a broker's log, and where those of others are in it.

It follows the messages that the log gets. Earlier ones it reads from checkpoints, and from the log
between them. The log of a broker that had none is read once, in the background.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from twisted.internet.defer import CancelledError, Deferred, ensureDeferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from pubsub.backplane.positions.missing_messages import MISSING, MissingBefore, MissingMessages
from pubsub.backplane.positions.position_index import (
    KNOWN,
    POINTS,
    OriginMessages,
    PositionIndex,
    Range,
    messages_of,
)
from pubsub.broker.delivery.history_reads import all_on_disk, require_written
from pubsub.errors import BackplaneAway, HistoryUnavailable

if TYPE_CHECKING:
    from pubsub.backplane.batches.shared_batches import SharedBatches
    from pubsub.backplane.positions.shared_position import SharedPosition
    from pubsub.broker.routing.batch import Batch
    from pubsub.store.shared_store import SharedStore

log = Logger()
STREAM = "shared-stream"
"""The table of the metadata with the identity of the stream, and the last run that sent to it."""
# Bytes that one read of the log takes. Its blocks, which may have one message each, are looked at
# in the reactor thread.
_PAGE = 64 * 1024
# Estimated bytes of a checkpoint in memory.
_POINT_BYTES = 256


class ReaderSharing(Protocol):
    """Shares the positions of readers, identified by owner and name; see ``SharedReaders``."""

    def report(self, reader: tuple[str | None, str], place: int | SharedPosition | None) -> None:
        """Share the offset or position of ``reader`` soon; None if it was deleted."""

    async def elsewhere(self, reader: tuple[str | None, str]) -> SharedPosition | None:
        """Return the position that ``reader`` has reported to another broker last."""

    def close(self) -> None:
        """The broker ends."""


class SharedPositions:
    """The positions of ``store``, whose messages the present ``run`` of the broker numbers.

    ``charge`` counts bytes of memory. ``clock`` is the reactor.
    """

    def __init__(
        self,
        store: SharedStore,
        run: int,
        clock: Any,
        charge: Callable[[int], object],
    ) -> None:
        self._store, self._run, self._clock = store, run, clock
        self._charge = charge
        self.reading: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Returns how far the stream has been read, and the offset before which it has all that
        this broker shares."""
        self._index = PositionIndex(store.put, store.delete)
        self.missing = MissingMessages(store.put, store.delete)
        self.identity = ""
        """The same text at all brokers of one shared history; empty while it is not known."""
        self.origin = ""
        """The id of this history."""
        self.readers: ReaderSharing | None = None
        """Shares the positions of readers, if brokers have a shared state."""
        self.batches: SharedBatches | None = None
        """The batches that are committed exactly once, if brokers have a shared state."""
        # Messages that are appended before the index is ready.
        self._early: list[OriginMessages] = []
        # Fires when the index is ready, or with the reason why it will not be; None once it is.
        self._ready: Deferred[str] | None = Deferred()
        self._opened = -1
        self._waiting: dict[Deferred[bool], tuple[SharedPosition, Any]] = {}
        self._points = 0
        self._ended = self._recovered = False
        self._sent = b""
        store.positions = self

    # The log

    def begin_sharing(self, origin: str) -> None:
        """This history is shared from now on; its present messages stay at this broker."""
        if self._store.next_offset:
            self.missing.keep(origin, MissingBefore(self._run, 0, self._store.next_offset))

    def arrived(
        self, origin: str, run: int, first: Sequence[Batch], offset: int, last: tuple[int, int]
    ) -> bool:
        """Messages of ``origin`` were taken at ``offset``, if there is a ``first`` batch.

        ``last`` is the run of the messages before, and the sequence that follows them. Return
        whether messages between them may be missing.
        """
        gaps = [MissingBefore(run, batch.sequence, offset) for batch in first]
        return any(self.missing.arrived(origin, gap, last) for gap in gaps)

    def is_another(self, identity: str) -> bool:
        """Return whether the stream with this identity is not the one that was read before."""
        return bool(self.identity and identity) and identity != self.identity

    def joined_stream(self, identity: str) -> None:
        """The stream with this identity is read."""
        if identity != self.identity:
            self.identity = identity
            self._store.put(STREAM, "identity", identity.encode())

    def open(self, origin: str) -> None:
        """Begin; the store is open, and ``origin`` is its id."""
        store, index = self._store, self._index
        self.origin = origin
        self.missing.restore(store.items(MISSING))
        stored = dict(store.items(STREAM))
        self.identity, self._sent = stored.get("identity", b"").decode(), stored.get("run", b"")
        if self._opened < 0:
            self._opened = store.next_offset
        begin = index.restore(store.items(KNOWN), store.items(POINTS), self._opened)
        ensureDeferred(self._restore(begin)).addErrback(self._failed)
        if self.batches is not None:
            self.batches.open()

    def _failed(self, failure: Failure) -> None:
        if failure.check(HistoryUnavailable, CancelledError) is None and not self._ended:
            log.failure("backplane: the shared positions are not known", failure)
        self._give_up("the shared positions of this broker are not known")

    def _give_up(self, reason: str) -> None:
        """The index will not be ready: all that waits for it fails."""
        if self._ready is not None and not self._ready.called:
            self._ready.callback(reason)

    async def _restore(self, begin: int | None) -> None:
        index = self._index
        if begin is None:
            begin = self._store.first_offset
            index.begin(begin)
        if self._sent:
            # The checkpoints that are made from now on need the run, too.
            index.learn(self.origin, int(self._sent, 16))
            index.kept = (int(self._sent, 16),)
        at = begin
        while at < self._opened and not self._ended:
            parcel = await self._store.read_parcel(at, self._opened, None, _PAGE)
            if parcel.stop <= at:
                break
            for block, _ in parcel.blocks:
                for messages in messages_of(block, at, self._opened):
                    self._learn_stored(messages[1])
                    index.add(*messages)
            at = parcel.stop
        if self._ended:
            return
        if not self._recovered and not self._sent:
            # Version 0.1.0 did not keep which run has sent.
            known = index.runs.of(self.origin)
            index.kept = tuple([run for run in known if run in index.state][:1])
        index.learn(self.origin, self._run)
        for messages in self._early:
            index.add(*messages)
        self._early = []
        self._count_points()
        ready, self._ready = self._ready, None
        assert ready is not None
        ready.callback("")
        self.advanced()

    def _learn_stored(self, run: int) -> None:
        """The log has messages of ``run``, which may have ended before its index was ready."""
        if self._run in self._index.runs:
            self._index.learn_former(run, self._run)
        else:
            self._index.learn(self.origin, run)

    def close(self) -> None:
        """End all that waits."""
        self._ended = True
        self._give_up("the broker stops")
        for shared in (self.batches, self.readers):
            if shared is not None:
                shared.close()
        for done in list(self._waiting):
            self._decide(done, False)

    def appended(self, batch: Batch) -> None:
        """The log has ``batch``; the run of another broker was learned before."""
        messages = (batch.offset, batch.run or self._run, batch.sequence, batch.count, batch.nbytes)
        if self._ready is None:
            self._index.add(*messages)
            if self._index.points != self._points:
                self._index.forget(self._store.first_offset)
                self._count_points()
        else:
            if self._opened < 0:
                self._opened = batch.offset
            self._early.append(messages)

    def _count_points(self) -> None:
        points = self._index.points
        self._charge(_POINT_BYTES * (points - self._points))
        self._points = points

    def learn(self, origin: str, run: int) -> None:
        """Messages that ``run`` of ``origin`` has numbered follow."""
        self._index.learn(origin, run)

    def recovering(self, run: int, batches: Sequence[Batch]) -> None:
        """Messages of a former run of this broker follow that its log had lost."""
        if not batches:
            return
        index, end = self._index, self._store.next_offset + sum([one.count for one in batches])
        index.learn(self.origin, self._run)
        index.learn_former(run, self._run)
        index.recovered(run, end)

    async def begin_sending(self) -> None:
        """The log has everything of former runs that the stream has, and this run sends now.

        Returns when the disk has that. A later run that did not know of this one would say that
        all of its messages lie before a position. Raises HistoryUnavailable.
        """
        self._recovered = True
        self._index.kept = ()
        sent = f"{self._run:015x}".encode()
        if sent != self._sent:
            self._store.put(STREAM, "run", sent)
            if not await all_on_disk(self._store):
                raise HistoryUnavailable(str(self._store.trouble))
            self._sent = sent

    # Positions

    @property
    def settled(self) -> int:
        """The offset before which other brokers can have all messages that are shared."""
        return min(self.reading()[1], self._store.committed)

    def at(self, offset: int) -> Deferred[SharedPosition]:
        """Return the position at ``offset``; it may be beyond ``settled``.

        Fails with HistoryUnavailable, or BackplaneAway if positions will not be known.
        """
        return ensureDeferred(self._at(min(offset, self._store.next_offset)))

    async def _at(self, offset: int) -> SharedPosition:
        await self._until_ready()
        index = self._index
        state = index.recent(offset)
        if state is None:
            if offset > self._store.committed:
                await require_written(self._store)
            at, state = index.before(offset)
            while at < offset:
                parcel = await self._store.read_parcel(at, offset, None, _PAGE)
                if parcel.stop <= at:
                    break
                for block, _ in parcel.blocks:
                    for _, run, sequence, count, _ in messages_of(block, at, offset):
                        state[run] = sequence + count
                at = parcel.stop
        found = index.position(state, offset, self.reading()[0])
        missing = self.missing.before(offset)
        return index.runs.joined(found, missing) if missing.origins else found

    def find(self, position: SharedPosition, strict: bool = True) -> Deferred[Range]:
        """Return where ``position`` is in this log.

        Unless it is reached, more messages before it may follow. Fails with UnknownPosition if it
        is ``strict`` and a run of it is not known here, and as ``at`` does.
        """
        return self._until_ready().addCallback(lambda _: self._index.find(position, strict))

    def lacks(self, low: SharedPosition, high: SharedPosition | None) -> bool:
        """Return whether this log never gets some messages between two positions, or may not.

        Raises UnknownPosition.
        """
        return self._index.lacks(self.missing, low, high)

    def joined(self, one: SharedPosition, other: SharedPosition) -> SharedPosition:
        """Return the position after all messages before either; raises UnknownPosition."""
        return self._index.runs.joined(one, other)

    def _until_ready(self) -> Deferred[None]:
        if self._ready is None:
            return succeed(None)
        done: Deferred[None] = Deferred()

        def tell(problem: str) -> str:
            if problem:
                done.errback(BackplaneAway(problem))
            else:
                done.callback(None)
            return problem

        self._ready.addCallback(tell)
        return done

    # How far this broker is

    def covers(self, position: SharedPosition) -> bool:
        """Return whether the log has, or had, every message before ``position``."""
        return self._ready is None and self._index.covers(position, strict=False)

    def reached(self, position: SharedPosition) -> bool:
        """Return whether the log has every message before ``position`` that it can get."""
        if self._ready is not None:
            return False
        return position.stream <= self.reading()[0] or self.covers(position)

    def when_reached(self, position: SharedPosition, seconds: float) -> Deferred[bool]:
        """Return whether ``position`` is reached within this number of seconds."""
        if self.reached(position):
            return succeed(True)
        done: Deferred[bool] = Deferred(self._forget)
        timer = self._clock.callLater(seconds, self._decide, done, False)
        self._waiting[done] = (position, timer)
        return done

    def advanced(self) -> None:
        """More of the stream has been read, or the index is ready."""
        for done, (position, _) in list(self._waiting.items()):
            if self.reached(position):
                self._decide(done, True)

    def _decide(self, done: Deferred[bool], reached: bool) -> None:
        if done in self._waiting:
            self._forget(done)
            done.callback(reached)

    def _forget(self, done: Deferred[bool]) -> None:
        _, timer = self._waiting.pop(done)
        if timer.active():
            timer.cancel()
