"""``ExclusiveTopics``: topics that a client of one broker owns, as long as its broker lives.

A topic has the lease of its broker (``leases.py``). If this broker's lease was ended, its
exclusive topics end here, as others may have them. Those of another broker whose lease was ended
are released, so that clients may also use them without creating them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, DeferredList
from twisted.logger import Logger

from pubsub.backplane.topics.topic_entry import CLOSED
from pubsub.errors import TopicUnreachable

if TYPE_CHECKING:
    from pubsub.backplane.state.name_locks import NameLocks
    from pubsub.backplane.topics.leases import Leases
    from pubsub.backplane.topics.shared_entries import SharedEntries
    from pubsub.backplane.topics.topic_ends import TopicEnds
    from pubsub.backplane.topics.topic_entry import TopicEntry
    from pubsub.broker.service import BrokerService

log = Logger()
# Changes of the shared state that are made at the same time.
_AT_ONCE = 100
# Seconds after which a broker that stops begins no more of them, at an engine that hardly answers.
_STOP_SECONDS = 5.0
LEASE = "lease-id"
"""The table of the store's metadata with the id of this broker's lease."""


class ExclusiveTopics:
    """Those of ``broker`` and of others; ``leases`` are its own lease and theirs.

    ``run`` begins a coroutine, whose errors it handles. ``ends`` tells the others of topics that
    have ended here.
    """

    def __init__(
        self,
        broker: BrokerService,
        entries: SharedEntries,
        locks: NameLocks,
        leases: Leases,
        run: Callable[[Coroutine[Any, Any, None]], Deferred[None]],
        ends: TopicEnds,
    ) -> None:
        self._store = broker.store
        self._topics = broker.topics
        self._lifecycle = broker.topic_lifecycle
        self._slices = broker.slices
        self._names = broker.queue_keys.exclusive
        self._entries = entries
        self._locks = locks
        self._leases = leases
        self._run = run
        self._ends = ends
        self._releasing: set[str] = set()
        self._released = 0
        leases.lost = self._lost
        leases.ticked = self.look
        broker.topics.claim_checks.append(self._check_claim)

    def start(self) -> None:
        """Begin; the store is open."""
        found = dict(self._store.items(LEASE)).get("")
        if found is not None:
            self._leases.former.add(found.decode())
        self._keep_id()
        self._leases.open()

    def _keep_id(self) -> None:
        self._store.put(LEASE, "", self._leases.id.encode())

    async def stop(self) -> None:
        """End the exclusive topics: their owners will be disconnected."""
        # All of them are free at once, however many there are; the rest spares others work.
        until = self._entries.clock.seconds() + _STOP_SECONDS
        await self._run(self._leases.close())
        await self._each(tuple(self._names), self._close, until)

    async def _close(self, name: str) -> None:
        known = self._entries.get(name)
        if known is not None and known.entry.owner == self._leases.id:
            self._entries.forget(name)
            await self._ends.share(name, known, CLOSED)

    async def _each(
        self,
        names: Sequence[str],
        work: Callable[[str], Coroutine[Any, Any, None]],
        until: float = inf,
    ) -> None:
        for first in range(0, len(names), _AT_ONCE):
            if self._entries.clock.seconds() >= until:
                return
            batch = names[first : first + _AT_ONCE]
            await DeferredList([self._run(work(name)) for name in batch])

    def figures(self) -> Mapping[str, float]:
        """Return totals; see ``Statistics.snapshot``."""
        return {"leases_lost": self._leases.losses, "topics_released": self._released}

    # Changes of the shared state

    def at_bucket(self, id: bytes) -> None:
        """``id`` is that of the bucket. Another one than before has neither leases nor topics."""
        if self._entries.at_bucket(id):
            log.warn(
                "backplane: the shared state was lost and made again; this broker puts back what "
                "it knows; find out why NATS has lost the bucket 'pubsub'"
            )
            self._leases.begin_again()
            self._keep_id()

    def is_shared(self, name: str) -> bool:
        """Return whether ``name`` is exclusive here, and the shared state had it."""
        return name in self._names and self._entries.get(name) is not None

    def is_elsewhere(self, name: str) -> bool:
        """Return whether the owner of ``name`` is a client of another broker."""
        known = self._entries.get(name)
        return known is not None and known.entry.owner not in ("", self._leases.id)

    def _check_claim(self, name: str) -> None:
        if self.is_elsewhere(name):
            raise TopicUnreachable(name)

    def has_lost(self, name: str, entry: TopicEntry) -> bool:
        """Return whether ``name`` is exclusive here, and ``entry`` has another owner or none."""
        return name in self._names and entry.owner != self._leases.id

    def learn(self, name: str, entry: TopicEntry, revision: int) -> None:
        """``name`` is exclusive."""
        self._entries.learn(name, entry, revision)
        if entry.owner == self._leases.id and name not in self._names:
            # It was created too late, or its owner has left while the engine was away.
            known = self._entries.forget(name)
            assert known is not None
            self._ends.begin(name, known, CLOSED)

    # This broker's

    def _lost(self) -> None:
        """Another broker has ended the lease."""
        self._keep_id()
        names = tuple(self._names)
        if names:
            log.error(
                "backplane: other brokers saw no sign of life of this broker for as long as its "
                "lease; exclusive topics that end: {count}",
                count=len(names),
            )
            self._run(self._each(names, self._end))

    async def _end(self, name: str) -> None:
        async with self._locks.of(name):
            topic = self._topics.get(name)
            known = self._entries.get(name)
            is_own = known is not None and known.entry.owner == self._leases.id
            if topic is not None and name in self._names and not is_own:
                await self._slices.finish(self._lifecycle.delete(topic))

    # Those of other brokers

    def look(self) -> None:
        """Release the topics of leases that are over, and those here that could not be."""
        self._ends.retry()
        for owner in self._leases.silent(self._entries.owners):
            if owner not in self._releasing:
                self._releasing.add(owner)
                self._run(self._release(owner)).addBoth(partial(self._ended, owner))

    def _ended(self, owner: str, result: object) -> None:
        self._releasing.discard(owner)

    async def _release(self, owner: str) -> None:
        if not await self._leases.advance(owner):
            return
        before = self._released
        await self._each(self._entries.owned_by(owner), partial(self._release_one, owner))
        count = self._released - before
        if count:
            log.warn(
                "backplane: a broker has ended without closing its exclusive topics, which are "
                "free now: {count}",
                count=count,
            )

    async def _release_one(self, owner: str, name: str) -> None:
        async with self._locks.of(name):
            known = self._entries.get(name)
            if known is not None and known.entry.owner == owner:
                # If another broker was first, that is reported.
                await self._entries.put(name, known.entry.ended(CLOSED), known.revision)
                self._entries.forget(name)
                self._released += 1
