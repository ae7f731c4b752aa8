"""Changes of topics that clients of this broker request and all brokers must agree upon."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from pubsub.backplane.state.entry_format import MalformedEntry
from pubsub.backplane.state.outdated import Outdated
from pubsub.backplane.topics.topic_entry import (
    CLOSED,
    DELETED,
    TopicEntry,
    decode,
)
from pubsub.broker.credentials.queue_key_hashing import seal
from pubsub.errors import BackplaneAway, Refused, TopicExists, TopicNotFound, WrongKey

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from pubsub.backplane.state.name_locks import NameLocks
    from pubsub.backplane.topics.leases import Leases
    from pubsub.backplane.topics.shared_entries import SharedEntries
    from pubsub.broker.credentials.queue_keys import QueueKeys
    from pubsub.broker.topic_space.topic_registry import TopicRegistry
    from pubsub.broker.topic_space.topic_sharing import Requirements
    from pubsub.broker.topic_space.topics import Topic

_Result = TypeVar("_Result")
# How often a change is tried again because another broker was first.
_ATTEMPTS = 5


class InThread(Protocol):
    """Runs a slow call in a thread."""

    def __call__(self, call: Callable[[], _Result]) -> Deferred[_Result]: ...


class TopicChanges:
    """Makes changes on condition that no other broker was first.

    Exclusive topics have the lease of their broker, of ``leases``.
    """

    def __init__(
        self,
        leases: Leases,
        entries: SharedEntries,
        locks: NameLocks,
        topics: TopicRegistry,
        keys: QueueKeys,
        run: InThread,
    ) -> None:
        self._holds = topics.holds
        self._leases = leases
        self._entries = entries
        self._locks = locks
        self._keys = keys
        self._in_thread = run

    async def create(
        self, name: str, required: Requirements, apply: Callable[[], Awaitable[_Result]]
    ) -> _Result:
        """See ``TopicSharing``."""
        async with self._locks.of(name):
            owner = await self._leases.hold() if required.exclusive else ""
            found, entry, revision = await self._put(
                name, lambda found: self._required(name, found, required, owner)
            )
            if owner not in ("", self._leases.id):
                await self._withdraw(name, entry, revision)
                raise BackplaneAway("the lease of this broker was ended")
            self._entries.learn(name, entry, revision)
            try:
                return await apply()
            except Refused:
                if found is None or found.id != entry.id:
                    await self._withdraw(name, entry, revision)
                raise

    async def _withdraw(self, name: str, entry: TopicEntry, revision: int) -> None:
        """The topic cannot be here, and it was for this broker."""
        self._entries.forget(name)
        await self._entries.put(name, entry.ended(CLOSED), revision)

    async def _required(
        self, name: str, found: TopicEntry | None, required: Requirements, owner: str
    ) -> TopicEntry:
        """Return the entry that ``found`` becomes, with this ``owner``; raises TopicExists."""
        is_own = found is not None and found.owner == self._leases.id
        if (
            found is not None
            and name not in self._keys.exclusive
            and (is_own or self._leases.has_ended(found.owner))
        ):
            # Its owner was connected to this broker before, or to one that has gone.
            found = None
        if found is None:
            key = await self._hash(required.key)
            return TopicEntry(self._entries.new_id(), bool(required.sync), key, owner=owner)
        if (found.owner or required.exclusive) and not is_own:
            raise TopicExists(name)
        key = found.key
        if required.key and not key:
            key = await self._hash(required.key)
        elif required.key and not await self._is_key(name, key, required.key):
            raise TopicExists(name)
        sync = found.sync if required.sync is None else required.sync
        return replace(found, sync=sync, key=key, owner=owner)

    async def _hash(self, key: bytes) -> bytes:
        return await self._in_thread(partial(self._keys.hasher.make, key)) if key else b""

    async def _is_key(self, name: str, hashed: bytes, key: bytes) -> bool:
        known = self._entries.get(name)
        if known is not None and known.entry.key == hashed and self._keys.plain(name) == key:
            return True
        return await self._in_thread(partial(self._keys.hasher.matches, hashed, key))

    async def rotate(
        self, topic: Topic, key: bytes, apply: Callable[[], Awaitable[_Result]]
    ) -> _Result:
        """See ``TopicSharing``."""
        name = topic.name
        requested = self._entries.get(name)
        if requested is None:
            raise BackplaneAway("the topic is not shared yet")
        agreed = requested.entry.key
        async with self._locks.of(name):
            before = self._keys.plain(name)
            hashed = await self._hash(key)
            sealed = await self._in_thread(partial(seal, before, key, name)) if before else b""

            async def rotated(found: TopicEntry | None) -> TopicEntry:
                if found is None or found.key != agreed:
                    # Another broker has rotated it, or deleted the topic.
                    raise WrongKey(name)
                return replace(found, key=hashed, sealed=sealed)

            _, entry, revision = await self._put(name, rotated)
            if not self._holds(topic):
                # Its owner has left meanwhile.
                await self._withdraw(name, entry, revision)
                raise TopicNotFound(name)
            self._entries.learn(name, entry, revision)
            return await apply()

    async def delete(self, name: str, apply: Callable[[], Deferred[None]]) -> None:
        """See ``TopicSharing``."""
        async with self._locks.of(name):

            async def deleted(found: TopicEntry | None) -> TopicEntry:
                entry = found or TopicEntry(self._entries.id_of(name) or self._entries.new_id())
                return entry.ended(DELETED)

            await self._put(name, deleted)
            self._entries.forget(name)
            await apply()

    async def _put(
        self, name: str, change: Callable[[TopicEntry | None], Awaitable[TopicEntry]]
    ) -> tuple[TopicEntry | None, TopicEntry, int]:
        """Put the result of ``change`` for the current entry, unless it is the same.

        It is called again if another broker has changed the topic meanwhile. Returns the entry
        before, the entry now, and its revision.
        """
        known = self._entries.get(name)
        found, revision = (None, 0) if known is None else (known.entry, known.revision)
        for _ in range(_ATTEMPTS):
            entry = await change(found)
            if entry == found:
                return found, entry, revision
            try:
                return found, entry, await self._entries.put(name, entry, revision)
            except Outdated as outdated:
                found, revision = _current(outdated)
        raise BackplaneAway("other brokers change the topic at the same time")


def _current(outdated: Outdated) -> tuple[TopicEntry | None, int]:
    """Return the entry in place of the expected one: None if the topic has ended."""
    try:
        entry = None if outdated.value is None else decode(outdated.value)
    except MalformedEntry:
        raise BackplaneAway("the topic's value is not one of this version") from None
    return (None if entry is None or entry.end else entry), outdated.revision
