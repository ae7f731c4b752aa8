"""``SharedTopics``: topics and queue keys are the same at every broker.

Each broker works with topics of its own; the shared state lists the topics that exist. It
is applied here in slices, in its order. Topics that clients here create by use are shared
in the background, changes that must be unique before they are answered (``topic_changes.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pubsub.backplane.state import state_format
from pubsub.backplane.state.entry_format import MalformedEntry
from pubsub.backplane.state.name_locks import NameLocks
from pubsub.backplane.state.outdated import Outdated
from pubsub.backplane.state.shared_state import StateEntry
from pubsub.backplane.topics.exclusive_topics import ExclusiveTopics
from pubsub.backplane.topics.shared_entries import SharedEntries
from pubsub.backplane.topics.topic_changes import InThread, TopicChanges
from pubsub.backplane.topics.topic_ends import TopicEnds
from pubsub.backplane.topics.topic_entry import CLOSED, UNUSED, TopicEntry, decode, topic_of
from pubsub.backplane.topics.unshared_topics import UnsharedTopics
from pubsub.broker.access_rules.access import RESERVED
from pubsub.errors import BackplaneAway, Refused

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from pubsub.backplane.state.shared_state import ISharedState
    from pubsub.backplane.topics.leases import Leases
    from pubsub.broker.service import BrokerService
    from pubsub.broker.slices import Work
    from pubsub.broker.topic_space.topic_sharing import Requirements, Result
    from pubsub.broker.topic_space.topics import Topic

log = Logger()
LABEL = "backplane"


class SharedTopics(Service):
    """Shares the topics of ``broker`` through ``state``; ``in_thread`` runs slow calls.

    ``leases`` are those of ``state``.
    """

    def __init__(
        self,
        broker: BrokerService,
        state: ISharedState,
        clock: IReactorTime,
        in_thread: InThread,
        leases: Leases,
    ) -> None:
        self._state = state
        self._store = broker.store
        self._topics = broker.topics
        self._lifecycle = broker.topic_lifecycle
        self._keys = broker.queue_keys
        self._slices = broker.slices
        self._memory = broker.memory
        self._in_thread = in_thread
        self._entries = SharedEntries(state, broker.store, broker.memory, clock)
        self._locks = NameLocks(self._lock_released, self._entries.bounded)
        self._changes = TopicChanges(
            leases, self._entries, self._locks, self._topics, self._keys, in_thread
        )
        self._ends = TopicEnds(self._entries, self._locks, self._run)
        self._exclusive = ExclusiveTopics(
            broker, self._entries, self._locks, leases, self._run, self._ends
        )
        self._arrived: deque[StateEntry | None] = deque()
        self._applying = False
        # The entries that were reported of topics whose locks are held.
        self._postponed: dict[str, StateEntry] = {}
        self._unshared = UnsharedTopics(
            broker, self._entries, self._locks, in_thread, self._run, self._postpone, leases
        )
        self._malformed = self._not_made = 0
        broker.topic_lifecycle.sharing = self
        broker.topics.watch_removal(self._removed)

    def startService(self) -> None:
        """Begin to share; the store is open."""
        super().startService()  # type: ignore[no-untyped-call]
        self._entries.restore()
        self._exclusive.start()
        self._state.open(self)

    def stopService(self) -> Deferred[Any]:
        """End the exclusive topics: their owners will be disconnected."""
        super().stopService()  # type: ignore[no-untyped-call]
        self._unshared.close()
        return Deferred.fromCoroutine(self._exclusive.stop())

    @property
    def is_complete(self) -> bool:
        """Whether this broker has all topics of the shared state."""
        return self._unshared.running

    def figures(self) -> Mapping[str, float]:
        """Return the figures of shared topics; see ``Statistics.snapshot``."""
        return {
            "topics": len(self._entries),
            "topics_waiting": len(self._unshared) + len(self._arrived),
            "topics_malformed": self._malformed,
            "topics_not_made": self._not_made,
            **self._exclusive.figures(),
            **self._state.figures(),
        }

    # TopicSharing

    def claimed(self, topic: Topic) -> None:
        """See ``TopicSharing``."""
        if not topic.name.startswith(RESERVED) and self._entries.current(topic.name) is None:
            self._unshared.add(topic.name)

    def create(
        self, name: str, required: Requirements, apply: Callable[[], Awaitable[Result]]
    ) -> Deferred[Result]:
        """See ``TopicSharing``."""
        return Deferred.fromCoroutine(self._changes.create(name, required, apply))

    def rotate(
        self, topic: Topic, key: bytes, apply: Callable[[], Awaitable[Result]]
    ) -> Deferred[Result]:
        """See ``TopicSharing``."""
        return Deferred.fromCoroutine(self._changes.rotate(topic, key, apply))

    def delete(self, name: str, apply: Callable[[], Deferred[None]]) -> Deferred[None]:
        """See ``TopicSharing``."""
        return Deferred.fromCoroutine(self._changes.delete(name, apply))

    def owned_elsewhere(self, name: str) -> bool:
        """See ``TopicSharing``."""
        return self._exclusive.is_elsewhere(name)

    # Changes of the shared state

    def state_changed(self, entries: Sequence[StateEntry]) -> None:
        """See ``StateWatcher``."""
        for one in entries:
            if one.key == state_format.KEY:
                self._exclusive.at_bucket(one.value)
        self._arrive(entries)

    def state_complete(self) -> None:
        """See ``StateWatcher``."""
        self._arrive([None])

    def state_away(self) -> None:
        """See ``StateWatcher``."""
        self._unshared.stop()
        self._entries.round += 1
        self._memory.free(sum(map(_nbytes, self._arrived)))
        self._arrived.clear()
        self._postponed.clear()

    def _arrive(self, entries: Sequence[StateEntry | None]) -> None:
        self._memory.add(sum(map(_nbytes, entries)))
        self._arrived.extend(entries)
        if not self._applying:
            self._applying = True
            self._slices.run_later(self._apply_all())

    def _apply_all(self) -> Work:
        try:
            while self._arrived:
                entry = self._arrived.popleft()
                self._memory.free(_nbytes(entry))
                try:
                    if entry is not None:
                        self._apply(entry)
                    else:
                        yield from self._reconcile()
                except Exception:
                    # Those behind it are applied nevertheless.
                    log.failure("applying a change of the shared topics failed")
                yield
        finally:
            self._applying = False

    def _apply(self, reported: StateEntry) -> None:
        name = topic_of(reported.key)
        if name is None or name.startswith(RESERVED):
            return
        known = self._entries.get(name)
        if known is not None and reported.revision <= known.revision:
            if reported.revision == known.revision:
                known.round = self._entries.round
                if not known.entry.key and name in self._keys.names:
                    self._unshared.add(name)
        elif name in self._locks:
            self._postpone(name, reported)
        else:
            try:
                self._apply_entry(name, decode(reported.value), reported)
            except MalformedEntry:
                self._count_malformed(name)

    def _count_malformed(self, name: str) -> None:
        if not self._malformed:
            log.warn("backplane: the value of topic {name!r} is malformed", name=name)
        self._malformed += 1

    def _apply_entry(self, name: str, entry: TopicEntry, reported: StateEntry) -> None:
        if self._exclusive.has_lost(name, entry):
            # Only then it is the state that others have set.
            self._end_before(name, reported)
        elif entry.end:
            self._end_here(name, entry)
        elif entry.owner:
            self._exclusive.learn(name, entry, reported.revision)
        else:
            self._adopt(name, entry, reported)

    def _postpone(self, name: str, reported: StateEntry) -> None:
        """Apply ``reported`` when the lock is free, unless there is a later one."""
        known = self._postponed.get(name)
        if known is None or known.revision < reported.revision:
            self._postponed[name] = reported

    def _lock_released(self, name: str) -> None:
        reported = self._postponed.pop(name, None)
        if reported is not None:
            self._arrive([reported])

    def _end_here(self, name: str, entry: TopicEntry) -> None:
        """Another broker has ended the topic."""
        topic = self._topics.get(name)
        own = self._entries.id_of(name)
        if topic is None or not topic.hosted:
            self._entries.forget(name)
        elif own != entry.id or (entry.end == UNUSED and self._is_used(topic)):
            self._entries.forget(name)
            self._unshared.add(name)
        else:
            self._run(self._end(name))

    def _is_used(self, topic: Topic) -> bool:
        return topic.idle_since is None or topic.in_use or topic in self._keys

    async def _end(self, name: str) -> None:
        """End the topic and its state here; the shared state already records the end."""
        async with self._locks.of(name):
            self._entries.forget(name)
            topic = self._topics.get(name)
            if topic is not None:
                await self._slices.finish(self._lifecycle.delete(topic))

    def _end_before(self, name: str, reported: StateEntry) -> None:
        """End the topic, then apply ``reported``."""
        self._postponed[name] = reported
        self._run(self._end(name))

    def _adopt(self, name: str, entry: TopicEntry, reported: StateEntry) -> None:
        """The topic exists at the other brokers."""
        topic = self._topics.get(name)
        own = self._entries.id_of(name)
        if topic is not None and topic.hosted and own not in (None, entry.id):
            # It was deleted and created again.
            self._end_before(name, reported)
            return
        self._entries.learn(name, entry, reported.revision)
        if topic is None or not topic.hosted:
            try:
                topic = self._topics.create(name)
            except Refused as refused:
                self._count_not_made(name, refused)
                return
        if entry.sync != self._lifecycle.is_sync(name):
            self._lifecycle.set_requirements(topic, entry.sync, False)
        if entry.key or topic in self._keys:
            self._run(self._adopt_key(topic, entry))

    def _count_not_made(self, name: str, refused: Refused) -> None:
        self._entries.forget(name)
        if not self._not_made:
            log.warn(
                "backplane: topic {name!r} of other brokers is not created here: {reason}",
                name=name,
                reason=refused.reason,
            )
        self._not_made += 1

    async def _adopt_key(self, topic: Topic, entry: TopicEntry) -> None:
        name, keys = topic.name, self._keys
        async with self._locks.of(name):
            before = keys.plain(name)
            if not entry.key:
                # No topic is opened because other brokers did not know its key.
                self._unshared.add(name)
                return
            if not before:
                key, is_same = b"", keys.hashed(name) == entry.key
            else:
                key = await self._in_thread(
                    partial(keys.hasher.after, entry.key, before, entry.sealed, name)
                )
                is_same = key == before
            if not is_same and self._topics.holds(topic):
                log.info("backplane: topic {name!r} has another queue key now", name=name)
                await keys.adopt(topic, entry.key, key)

    def _reconcile(self) -> Work:
        """The shared state is complete: share the topics that it lacks."""
        now = self._entries.round
        for name in list(self._entries):
            known = self._entries.get(name)
            if known is not None and known.round != now and self.owned_elsewhere(name):
                self._entries.forget(name)
            yield
        for topic in self._topics.with_prefix(b""):
            if topic.hosted and not self._exclusive.is_shared(topic.name):
                self.claimed(topic)
            yield
        if now == self._entries.round:
            log.info("backplane: topics are shared: {count}", count=len(self._entries))
            self._unshared.start()
            self._exclusive.look()

    def _removed(self, topic: Topic) -> None:
        """The topic ends here: it has expired, or its owner's connection has ended."""
        if not topic.hosted or self.owned_elsewhere(topic.name):
            return
        known = self._entries.forget(topic.name)
        if known is not None and self._unshared.running:
            end = CLOSED if known.entry.owner else UNUSED
            self._ends.begin(topic.name, known, end)

    def _run(self, work: Coroutine[Any, Any, None]) -> Deferred[None]:
        """Begin ``work``; changes that it cannot make are reported again later."""
        return Deferred.fromCoroutine(work).addErrback(self._failed)

    def _failed(self, failure: Failure) -> None:
        if failure.check(BackplaneAway, Outdated) is None:
            log.failure("sharing a topic failed", failure)


def _nbytes(entry: StateEntry | None) -> int:
    return 0 if entry is None else 256 + len(entry.key) + len(entry.value)
