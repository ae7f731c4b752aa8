"""``SharedHistory``: every broker has the messages of all of them in a history of its own.

Clients read the local log, which is also the spool for messages that the stream lacks. A session
begins when the engine is available: it reads the stream to its end, begins a term, and continues to
read while a ``ReplicaSender`` appends its messages from the log. They count as shared when
this broker has read them back. After any failure another session begins, with another term.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from twisted.internet.defer import CancelledError, Deferred, ensureDeferred
from twisted.internet.task import deferLater
from twisted.logger import Logger

from pubsub.backplane.history.awaited_keys import AwaitedKeys
from pubsub.backplane.history.replica_import import ReplicaImport
from pubsub.backplane.history.replica_own import OwnMessages
from pubsub.backplane.history.replica_progress import Progress
from pubsub.backplane.history.replica_record import decode_batches, decode_part
from pubsub.backplane.history.replica_sender import ReplicaSender
from pubsub.backplane.history.replica_stream import StreamAway
from pubsub.backplane.history.sharing_notice import SharingNotice
from pubsub.backplane.history.stream_gaps import StreamGaps
from pubsub.backplane.history.unsent_messages import UnsentMessages
from pubsub.backplane.messages.record import MalformedRecord
from pubsub.backplane.positions.shared_positions import SharedPositions
from pubsub.broker.publishing.held_request import opened
from pubsub.errors import HistoryUnavailable

if TYPE_CHECKING:
    from pubsub.backplane.history.replica_record import RecordPart
    from pubsub.backplane.history.replica_stream import ReplicaStream, StreamMessage
    from pubsub.backplane.history.spool import SharedLimits
    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.service import BrokerService
    from pubsub.interfaces import PublisherGate
    from pubsub.store.shared_store import SharedStore

log = Logger()
REACHED = "replica-reached"
"""The table of the metadata with ``Reached`` by origin."""
# Seconds between two sessions, and of one slice.
_PAUSE, _SLICE = 0.5, 0.005
# Messages that the next start may have to look at, although all of them are shared.
_SURVEYED = 65_536


class SharedHistory:
    """The part of a broker that replicates its history. ``clock`` is the reactor."""

    def __init__(
        self,
        broker: BrokerService,
        store: SharedStore,
        stream: ReplicaStream,
        clock: Any,
        limits: SharedLimits,
        at_tick_end: Callable[[Callable[[], None]], object],
    ) -> None:
        self._store, self._stream, self._clock = store, stream, clock
        self._at_tick_end = at_tick_end
        self._own = OwnMessages(store, broker.queue_keys, broker.dispatcher.run_id)
        self._run = broker.dispatcher.run_id
        self._import = ReplicaImport(broker, store)
        self.keys = AwaitedKeys(broker.queue_keys, clock)
        self.origin = ""
        self._progress = Progress(())
        self.positions = SharedPositions(store, self._run, clock, broker.memory.add)
        self._unsent = UnsentMessages(clock, limits, self._own.is_shared, self._added)
        self.gate = self._unsent.gate
        self.positions.reading = lambda: (self._progress.sequence, self._unsent.settled)
        self._sender: ReplicaSender | None = None
        self._is_surveyed = self._running = self._connected = self._closed = False
        self._is_broken = self._scheduled = False
        self._waiting: Deferred[Any] | None = None
        self._failure = ""
        self._notice, self._gaps = SharingNotice(clock), StreamGaps()
        self._last = self._replicated = self._removed = self._kept = 0
        store.replication = self._unsent
        stream.watch(self)

    # Start and end

    def open(self) -> None:
        """Begin; the store is open, and the engine is connected to later."""
        store, self.origin = self._store, self._store.log_id
        self._progress = Progress(store.items(REACHED))
        self._own.open()
        if self.origin not in self._progress.reached:
            # Messages stored before this were not shared.
            self._keep(self.origin, 0, 0, store.next_offset)
            self.positions.begin_sharing(self.origin)
        self._unsent.reached(self._progress.reached[self.origin].offset)
        self.positions.open(self.origin)
        ensureDeferred(self._run_sessions())

    def close(self) -> None:
        """End the session; the log keeps messages that were not sent."""
        self._closed = True
        self.left()
        self._unsent.end()
        self.positions.close()

    # StreamWatcher

    def joined(self) -> None:
        """See ``StreamWatcher``."""
        self._connected = True
        if not self._running and not self._closed:
            ensureDeferred(self._run_sessions())

    def left(self) -> None:
        """See ``StreamWatcher``."""
        self._connected = False
        self._end_session("the engine is away")

    def _end_session(self, reason: str) -> None:
        self._failure, self._is_broken = reason, True
        self._notice.interrupted()
        if self._sender is not None:
            self._sender.end()
            self._removed += self._sender.removed
            self._sender = None
        self._unsent.release()
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.cancel()

    # Sessions

    async def _run_sessions(self) -> None:
        self._running = True
        try:
            while self._has_work():
                try:
                    if self._is_surveyed:
                        await self._session()
                    offset = self._progress.reached[self.origin].offset
                    self._unsent.found(*await self._own.survey(offset))
                    self._is_surveyed = True
                    continue
                except (StreamAway, HistoryUnavailable, CancelledError) as error:
                    reason = str(error) or self._failure
                except Exception as error:
                    log.failure("backplane: a session of the shared history has failed")
                    reason = str(error)
                self._end_session(reason)
                self._progress.rewind()
                if self._has_work():
                    self._notice.warn(reason)
                    await deferLater(self._clock, _PAUSE)
        finally:
            self._running = False

    def _has_work(self) -> bool:
        # What waits for the stream counts, also if the engine is away.
        return not self._closed and (self._connected or not self._is_surveyed)

    async def _session(self) -> NoReturn:
        self._is_broken = False
        last = self._last = await self._wait(self._stream.begin(self._progress.sequence))
        if self._progress.lacks(last) or self.positions.is_another(self._stream.identity):
            self._gaps.another_stream()
            for origin, reached in self._progress.restart().items():
                self._store.put(REACHED, origin, reached.encode())
            self.positions.missing.expect(self._progress.reached)
            last = self._last = await self._wait(self._stream.begin(0))
        self.positions.joined_stream(self._stream.identity)
        while True:
            if self._sender is None and not self._is_broken and self._progress.sequence >= last:
                await self._wait(ensureDeferred(self.positions.begin_sending()))
                self._begin_term()
            if self._is_broken:
                raise StreamAway(self._failure)
            await self._take_all(await self._wait(self._stream.fetch()))
            self.positions.advanced()
            await self._pass(self._store.gate)

    async def _wait(self, waited: Deferred[Any]) -> Any:
        self._waiting = waited
        try:
            return await waited
        finally:
            if self._waiting is waited:
                self._waiting = None

    async def _pass(self, gate: PublisherGate) -> None:
        """Wait until ``gate`` is open, and continue in a later tick than the call that opens it."""
        while gate.shut:
            await self._wait(opened(gate))
            await self._wait(deferLater(self._clock, 0))

    async def _take_all(self, messages: Sequence[StreamMessage]) -> None:
        since = self._clock.seconds()
        for one in messages:
            await self._pass(self._store.atomic_commits.gate)
            await self._take(one)
            if self._clock.seconds() - since > _SLICE:
                await self._wait(deferLater(self._clock, 0))
                since = self._clock.seconds()

    def _begin_term(self) -> None:
        own = self._progress.reached[self.origin]
        self._sender = ReplicaSender(
            self._store,
            self._stream,
            self.origin,
            own.term + 1,
            self._run,
            min(own.offset, self._store.next_offset),
            self._own.chosen,
            self._own.keyed,
            self._end_session,
            self._settle_idle,
        )
        self._sender.begin()

    # From the stream

    async def _take(self, message: StreamMessage) -> None:
        sequence, origin, data = message
        if self._progress.arrive(sequence):
            self._gaps.removed()
            self.positions.missing.expect(self._progress.reached)
        self._last = max(self._last, sequence)
        try:
            part = decode_part(data)
            if origin == self.origin:
                self._take_own(part)
            elif (record := self._progress.take(origin, part)) is not None:
                await self._take_others(origin, part.run, record)
        except MalformedRecord:
            self._import.refuse("malformed", 1)

    async def _take_others(self, origin: str, run: int, record: bytes) -> None:
        last = self._progress.reached[origin]
        place, keyed = (last.run, last.following), frozenset[str]()
        batches: list[Batch] = []
        if record:
            batches, keyed = decode_batches(record, run)
            await self.keys.arrive(keyed, batches[-1].timestamp, self._wait)
            place = run, batches[-1].sequence + batches[-1].count
            self.positions.learn(origin, run)
        known = self._progress.known(origin, run)
        fresh = [rest for one in batches if (rest := one.since(known)) is not None]
        sender, offset = self._sender, self._store.next_offset
        is_idle = sender is not None and sender.is_idle
        with self._import.together(fresh, keyed):
            # The beginning of a term, too: later parts are not taken without it.
            self._keep(origin, *place)
            began = last.run, last.following
            if self.positions.arrived(origin, run, batches[:1], offset, began):
                self._gaps.missed()
        if sender is not None and is_idle:
            # Nothing in these messages is this broker's own.
            sender.cursor = self._store.next_offset
            self._settle_idle()

    def _take_own(self, part: RecordPart) -> None:
        sender, before = self._sender, self._progress.reached[self.origin]
        mine = sender is not None and part.term == sender.term
        if mine and part.term == before.term and part.number > before.number + 1:
            raise StreamAway("the engine has lost a message")
        if sender is not None and part.term > sender.term:
            raise StreamAway("another broker uses a copy of this broker's history; remove the copy")
        record = self._progress.take(self.origin, part)
        if record is None:
            return
        if not record:
            self._take_own_beginning()
            if sender is not None and mine:
                self._own.prune()
                sender.opened()
        elif sender is None or not mine:
            self._take_former(part, record)
        elif (sent := sender.read_back(part.number)) is not None:
            self._replicated += sent.messages
            self._own.shared(sent.run, sent.following)
            self._notice.recovered()
            self._kept = sent.end
            self._keep(self.origin, sent.run, sent.following, sent.end)
            self._unsent.reached(sent.end)

    def _take_own_beginning(self) -> None:
        """Keep that a term of this broker has begun, before anything is sent in it.

        The next reading begins after this part once a record of another origin was taken. A broker
        that did not know the term by then would use its number again, and the others would leave
        out its messages, as parts that they have already.
        """
        own = self._progress.reached[self.origin]
        self._keep(self.origin, own.run, own.following, own.offset)

    def _take_former(self, part: RecordPart, record: bytes) -> None:
        """Take a record of an earlier session of this broker; the log may have lost it."""
        own = self._progress.reached[self.origin]
        batches, _ = decode_batches(record, part.run)
        lost = self._own.lost(part.run, batches)
        self.positions.recovering(part.run, lost)
        with self._import.recovering(lost):
            self._own.shared(part.run, batches[-1].sequence + batches[-1].count, keep=True)
            self._keep(self.origin, own.run, own.following, own.offset)

    def _keep(self, origin: str, run: int, following: int, offset: int = 0) -> None:
        """Put the progress of ``origin`` into the metadata; see ``Progress.settle``."""
        reached = self._progress.settle(origin, run, following, offset)
        self._store.put(REACHED, origin, reached.encode())

    def _settle_idle(self) -> None:
        """Everything behind the last own message is of others, or not shared."""
        if self._sender is not None:
            self._notice.recovered()
            own, cursor = self._progress.reached[self.origin], self._sender.cursor
            reached = self._progress.settle(self.origin, own.run, own.following, cursor)
            if cursor - self._kept > _SURVEYED:
                self._kept = cursor
                self._store.put(REACHED, self.origin, reached.encode())
            self._unsent.reached(cursor)

    # To the stream

    def _added(self) -> None:
        """There are more messages to send."""
        if self._sender is not None:
            if not self._scheduled:
                self._scheduled = True
                self._at_tick_end(self._pump)
            self._unsent.hold()

    def _pump(self) -> None:
        self._scheduled = False
        if self._sender is not None:
            self._sender.pump()

    def figures(self) -> Mapping[str, Any]:
        """Return the state and the totals; see ``Statistics.snapshot``."""
        return {
            "history_connected": self._sender is not None,
            "history_trouble": self._notice.reason,
            "history_replicated": self._replicated,
            **self._unsent.figures(),
            "history_imported": self._import.imported,
            "history_recovered": self._import.recovered,
            "history_lag": max(self._last - self._progress.sequence, 0),
            "history_gaps": self._progress.gaps + self._gaps.count,
            "history_removed": self._removed + (self._sender.removed if self._sender else 0),
        }
