"""Topics that exist here and that the shared state is to have: they are put there one by one."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger

from pubsub.backplane.state.entry_format import MalformedEntry
from pubsub.backplane.state.later_calls import LaterCalls
from pubsub.backplane.state.outdated import Outdated
from pubsub.backplane.state.shared_state import StateEntry
from pubsub.backplane.topics.topic_entry import (
    DELETED,
    UNUSED,
    TopicEntry,
    decode,
    key_of,
)
from pubsub.errors import BackplaneAway

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from pubsub.backplane.state.name_locks import NameLocks
    from pubsub.backplane.topics.leases import Leases
    from pubsub.backplane.topics.shared_entries import Known, SharedEntries
    from pubsub.backplane.topics.topic_changes import InThread
    from pubsub.broker.service import BrokerService

log = Logger()
# Topics that are shared at once, and seconds until one that was not taken is tried again.
_AT_ONCE, _PAUSE = 64, 1.0


class UnsharedTopics:
    """The names of such topics.

    ``run`` begins a coroutine, whose errors it handles. ``postpone`` is given the entry that
    another broker has put first, to be applied after the turn of the topic. Exclusive topics, which
    a new shared state lacks, have the lease of this broker, of ``leases``.
    """

    def __init__(
        self,
        broker: BrokerService,
        entries: SharedEntries,
        locks: NameLocks,
        in_thread: InThread,
        run: Callable[[Coroutine[Any, Any, None]], Deferred[None]],
        postpone: Callable[[str, StateEntry], None],
        leases: Leases,
    ) -> None:
        self._topics = broker.topics
        self._lifecycle = broker.topic_lifecycle
        self._keys = broker.queue_keys
        self._entries = entries
        self._locks = locks
        self._in_thread = in_thread
        self._run = run
        self._postpone = postpone
        self._leases = leases
        self._later = LaterCalls(entries.clock)
        self._names: dict[str, None] = {}
        self._under_way = 0
        self._beginning = False
        # Why the shared state has not taken the last one; no other is begun for a moment.
        self._trouble = ""
        self._paused = False
        self.running = False
        """True if the shared state is there, and all of it is known."""

    def __len__(self) -> int:
        return len(self._names) + self._under_way

    def add(self, name: str) -> None:
        """Share the topic ``name`` as soon as possible."""
        self._names[name] = None
        self._begin()

    def start(self) -> None:
        """The shared state is complete: begin with those that it lacks."""
        self.running = True
        self._begin()

    def stop(self) -> None:
        """The shared state is away. Which topics it lacks is found when it is back."""
        self.running = False
        self._names.clear()

    def close(self) -> None:
        """The broker ends."""
        self._later.close()

    def _begin(self) -> None:
        if self._beginning:
            return
        self._beginning = True
        while self._may_begin:
            name = next(iter(self._names))
            del self._names[name]
            self._under_way += 1
            self._run(self._share(name)).addBoth(self._ended)
        self._beginning = False

    @property
    def _may_begin(self) -> bool:
        may = self.running and not self._paused and self._under_way < _AT_ONCE
        return may and bool(self._names)

    def _ended(self, result: object) -> None:
        self._under_way -= 1
        self._begin()

    async def _share(self, name: str) -> None:
        try:
            async with self._locks.of(name):
                await self._share_now(name)
        except BackplaneAway as error:
            # Also if other changes of the topic have taken too long.
            self._pause(name, str(error))

    async def _share_now(self, name: str) -> None:
        topic = self._topics.get(name)
        is_exclusive = name in self._keys.exclusive
        if topic is None or not topic.hosted or (is_exclusive and self._entries.get(name)):
            return
        known = self._entries.current(name)
        if known is not None and (known.entry.key or topic not in self._keys):
            return
        try:
            await self._put(name, known)
            self._shared()
        except Outdated as outdated:
            # Another broker was first.
            value = outdated.value or b""
            self._postpone(name, StateEntry(key_of(name), value, outdated.revision))
        if not self._topics.holds(topic):
            await self._withdraw(name)

    def _pause(self, name: str, reason: str) -> None:
        """Try again later: nobody reports a topic that the shared state has not taken."""
        if not self.running:
            return
        self._names[name] = None
        if not self._trouble:
            log.warn("backplane: topics are not shared: {reason}", reason=reason)
        self._trouble = reason
        if not self._paused:
            self._paused = True
            self._later.add(_PAUSE, self._resume)

    def _resume(self) -> None:
        self._paused = False
        self._begin()

    def _shared(self) -> None:
        if self._trouble:
            self._trouble = ""
            log.info("backplane: topics are shared again")

    async def _put(self, name: str, known: Known | None) -> None:
        """Put the local state of a topic that the shared state lacks, or whose key it lacks."""
        key = await self._key(name)
        id = self._entries.id_of(name) or self._entries.new_id()
        owner = await self._leases.hold() if name in self._keys.exclusive else ""
        entry = TopicEntry(id, self._lifecycle.is_sync(name), key, owner=owner)
        expected = 0 if known is None else known.revision
        try:
            revision = await self._entries.put(name, entry, expected)
        except Outdated as outdated:
            if not _may_replace(outdated, id):
                raise
            revision = await self._entries.put(name, entry, outdated.revision)
        self._entries.learn(name, entry, revision)

    async def _key(self, name: str) -> bytes:
        """Return the hash of the topic's key; empty without a key."""
        if before := self._keys.plain(name):
            return await self._in_thread(partial(self._keys.hasher.make, before))
        return self._keys.hashed(name) or b""

    async def _withdraw(self, name: str) -> None:
        """The topic has ended here while it was shared."""
        known = self._entries.forget(name)
        if known is not None:
            await self._entries.put(name, known.entry.ended(UNUSED), known.revision)


def _may_replace(outdated: Outdated, id: str) -> bool:
    """Return whether the topic has ended at the other brokers, and this one is another of ``id``.

    A topic that has expired is shared again by the brokers that still use it.
    """
    if outdated.value is None:
        return True
    try:
        entry = decode(outdated.value)
    except MalformedEntry:
        return False
    return bool(entry.end) and not (entry.end == DELETED and entry.id == id)
