"""nsd's identities (nsd §1.2): whether each has opened its channel, and its subscriptions.

They are independent of connections. The store has a record for each identity and one for each
subscription, so that a change costs the same however many subscriptions an identity has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterator
from typing import TYPE_CHECKING

from twisted.logger import Logger

from pubsub.errors import LimitReached, MemoryExhausted

if TYPE_CHECKING:
    from pubsub.broker.memory_budget import MemoryBudget
    from pubsub.broker.slices import Work
    from pubsub.interfaces import IStore

log = Logger()
TABLE = "nsd-identities"
"""The table of the store's metadata with whether each identity has opened its channel."""
SUBSCRIPTIONS = "nsd-subscriptions"
"""The table with the subscriptions. A key is an identity and a channel as a JSON array of two
strings, as names may contain any character; the values are empty."""
# Estimated bytes of an identity and of a subscription, for the memory budget.
IDENTITY_BYTES = 1024
SUBSCRIPTION_BYTES = 128


class NsdIdentity:
    """The state of one identity: whether it has opened its channel, and its subscriptions.

    ``idle_since`` is the time at which it was found unused; None if it was used since. ``owner`` is
    the user that its subscriptions belong to; empty if there is none.
    """

    __slots__ = ("channels", "idle_since", "name", "opened", "owner")

    def __init__(self, name: str, opened: bool = False, channels: set[str] | None = None) -> None:
        self.name = name
        self.opened = opened
        self.owner = ""
        self.idle_since: float | None = None
        self.channels = set() if channels is None else channels


class Identities:
    """All identities, kept in the store's metadata so that they survive with a durable store.

    ``left`` is called with a channel when the subscription of an identity that ends to it does.
    """

    def __init__(
        self,
        store: IStore,
        memory: MemoryBudget,
        seconds: Callable[[], float] = lambda: 0.0,
        left: Callable[[str], None] = lambda channel: None,
    ) -> None:
        self._store = store
        self._memory = memory
        self._seconds = seconds
        self._left = left
        self._known: dict[str, NsdIdentity] = {}
        self._load()

    def _load(self) -> None:
        for name, value in self._store.items(TABLE):
            record = json.loads(value)
            identity = self._known[name] = NsdIdentity(name, record["opened"])
            identity.owner = record.get("owner", "")
            self._memory.add(IDENTITY_BYTES)
            if "channels" in record:
                self._convert(identity, record["channels"])
        for key, _ in self._store.items(SUBSCRIPTIONS):
            name, channel = json.loads(key)
            if name in self._known:
                self._add(self._known[name], channel)

    def _add(self, identity: NsdIdentity, channel: str) -> None:
        if channel not in identity.channels:
            identity.channels.add(channel)
            self._memory.add(SUBSCRIPTION_BYTES)

    def _convert(self, identity: NsdIdentity, channels: list[str]) -> None:
        """Store the subscriptions of a record as version 0.1.0 wrote it, which had all of them."""
        for channel in channels:
            self._add(identity, channel)
            self._store.put(SUBSCRIPTIONS, _key(identity.name, channel), b"")
        # Last, because a start after a crash would convert this record again.
        self._save(identity)

    def find(self, name: str) -> NsdIdentity | None:
        """Return the identity of this name, which is used, if it is known."""
        identity = self._known.get(name)
        if identity is not None:
            identity.idle_since = None
        return identity

    def opened(self, name: str) -> bool:
        """Return whether the identity has ever opened its channel."""
        identity = self.find(name)
        return identity is not None and identity.opened

    def has(self, name: str, channel: str) -> bool:
        """Return whether the identity is subscribed to ``channel``."""
        identity = self._known.get(name)
        return identity is not None and channel in identity.channels

    def check_room(self, name: str, channel: str | None, limit: int, subscriptions: int) -> None:
        """Raise the errors of ``open`` and of ``subscribe`` to ``channel``; change nothing."""
        known = self._known.get(name)
        if known is None and len(self._known) >= limit:
            raise LimitReached("identities")
        have = known.channels if known is not None else ()
        if channel is not None and channel not in have and len(have) >= subscriptions:
            raise LimitReached("subscriptions")
        if known is None and self._memory.full:
            raise MemoryExhausted("identities")

    def opened_channels(self) -> Iterator[str]:
        """Yield the channel of every identity that has opened it."""
        return (name for name, identity in self._known.items() if identity.opened)

    def open(self, name: str) -> None:
        """Record that the identity opened its channel; call ``check_room`` before."""
        identity = self._make(name)
        if not identity.opened:
            identity.opened = True
            self._save(identity)

    def subscriptions(self) -> Iterator[str]:
        """Yield the channel of every subscription, once for each identity that has it."""
        for identity in self._known.values():
            yield from identity.channels

    def owner(self, name: str) -> str:
        """Return the user that owns the subscriptions of an identity; empty if there is none."""
        identity = self._known.get(name)
        return "" if identity is None else identity.owner

    def subscribe(
        self, name: str, channel: str, limit: int, subscriptions: int, owner: str = ""
    ) -> bool:
        """Subscribe; return False if it was subscribed. Raises LimitReached or MemoryExhausted.

        ``limit`` bounds the identities, ``subscriptions`` those of one identity. An identity that
        is new belongs to ``owner``.
        """
        known = self.find(name)
        if known is not None and channel in known.channels:
            return False
        self.check_room(name, channel, limit, subscriptions)
        identity = self._make(name, owner)
        self._memory.reserve(SUBSCRIPTION_BYTES)
        identity.channels.add(channel)
        self._store.put(SUBSCRIPTIONS, _key(name, channel), b"")
        return True

    def unsubscribe(self, name: str, channel: str) -> bool:
        """Unsubscribe; return False if it was not subscribed."""
        identity = self.find(name)
        if identity is None or channel not in identity.channels:
            return False
        identity.channels.discard(channel)
        self._memory.free(SUBSCRIPTION_BYTES)
        self._store.delete(SUBSCRIPTIONS, _key(name, channel))
        return True

    # The end

    def expire(self, is_over: Callable[[float | None], bool], holding: Container[str]) -> Work:
        """See ``IdentityKeeper``."""
        ended = 0
        now = self._seconds()
        for name in tuple(self._known):
            identity = self._known.get(name)
            if identity is None:
                continue
            if name in holding:
                identity.idle_since = None
            elif identity.idle_since is None:
                identity.idle_since = now
            elif is_over(identity.idle_since):
                yield from self._end(identity)
                ended += 1
            yield
        if ended:
            log.info("nsd: {count} unused identities have expired", count=ended)

    def delete(self, name: str) -> Work | None:
        """See ``IdentityKeeper``."""
        identity = self._known.get(name)
        return None if identity is None else self._end(identity)

    def _end(self, identity: NsdIdentity) -> Work:
        del self._known[identity.name]
        self._store.delete(TABLE, identity.name)
        self._memory.free(IDENTITY_BYTES)
        while identity.channels:
            channel = identity.channels.pop()
            self._store.delete(SUBSCRIPTIONS, _key(identity.name, channel))
            self._memory.free(SUBSCRIPTION_BYTES)
            self._left(channel)
            yield

    def channel_ended(self, channel: str, has_readers: bool) -> None:
        """``channel`` is removed: no identity has opened it or is subscribed to it any more."""
        owner = self._known.get(channel)
        if owner is not None and owner.opened:
            owner.opened = False
            self._save(owner)
        if has_readers:
            for identity in self._known.values():
                if channel in identity.channels:
                    self.unsubscribe(identity.name, channel)

    def _make(self, name: str, owner: str = "") -> NsdIdentity:
        identity = self.find(name)
        if identity is None:
            self._memory.reserve(IDENTITY_BYTES)
            identity = self._known[name] = NsdIdentity(name)
            identity.owner = owner
            self._save(identity)
        return identity

    def _save(self, identity: NsdIdentity) -> None:
        record: dict[str, object] = {"opened": identity.opened}
        if identity.owner:
            record["owner"] = identity.owner
        self._store.put(TABLE, identity.name, json.dumps(record).encode())


def _key(name: str, channel: str) -> str:
    return json.dumps([name, channel], ensure_ascii=False)
