"""nsd's identities (nsd §1.2): whether each has opened its channel, and its subscriptions.

They are independent of connections. The store has a record for each identity and one for each
subscription, so that a change costs the same however many subscriptions an identity has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator
from typing import TYPE_CHECKING

from twisted.logger import Logger

from pubsub.broker.clients.identity_sharing import MAX_CHANNELS
from pubsub.errors import LimitReached, MemoryExhausted
from pubsub.protocols.nsd.moved_identity import MovedIdentity
from pubsub.protocols.nsd.nsd_identity import NsdIdentity

if TYPE_CHECKING:
    from pubsub.broker.delivery.start_positions import Position
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
SUBSCRIPTION_BYTES = 256
# Estimated bytes of the place here of a number that another broker gave.
PLACE_BYTES = 1024


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
        self.changed: Callable[[str], None] = lambda name: None
        """Is called with an identity that has changed."""
        self.ended: Callable[[NsdIdentity], None] = lambda identity: None
        """Is called with an identity that ends, before."""
        self.is_shared = False
        """Whether other brokers may have the identities."""
        self.max_channels: Callable[[], int] = lambda: MAX_CHANNELS
        """Returns the number of channels that an identity from another broker may have."""
        self.wanted: set[str] = set()
        """Names that were opened while the engine was away, and perhaps some others."""
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
            identity.moved = MovedIdentity.of(record)
            if self.is_wanted(name):
                self.wanted.add(name)
            self._memory.add(IDENTITY_BYTES)
            if "channels" in record:
                self._convert(identity, record["channels"])
        for key, _ in self._store.items(SUBSCRIPTIONS):
            name, channel = json.loads(key)
            known = self.here(name)
            if known is not None:
                self._add(known, channel)

    def _add(self, identity: NsdIdentity, channel: str) -> None:
        if channel not in identity.channels:
            identity.add(channel)
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

    def opened(self, name: str, is_used: bool = True) -> bool:
        """Return whether the identity, which is used for this, has ever opened its channel."""
        identity = self.find(name) if is_used else self._known.get(name)
        return identity is not None and identity.opened

    def are_open(self, names: Iterable[str]) -> bool:
        """Return whether ``names`` are opened, if they may be at another broker."""
        return not self.is_shared or all(map(self.opened, names))

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
        if channel is not None and channel not in have:
            moved, most = None if known is None else known.moved, self.max_channels()
            if len(have) >= subscriptions or not (moved is None or moved.has_room(channel, most)):
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
            self.changed(name)

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
        self._reserve(identity, channel)
        self.changed(name)
        return True

    def _reserve(self, identity: NsdIdentity, channel: str) -> None:
        self._memory.reserve(SUBSCRIPTION_BYTES)
        identity.add(channel)
        self._store.put(SUBSCRIPTIONS, _key(identity.name, channel), b"")

    def unsubscribe(self, name: str, channel: str) -> bool:
        """Unsubscribe; return False if it was not subscribed."""
        identity = self.find(name)
        if identity is None or channel not in identity.channels:
            return False
        identity.discard(channel)
        self._memory.free(SUBSCRIPTION_BYTES)
        self._store.delete(SUBSCRIPTIONS, _key(name, channel))
        self.changed(name)
        if identity.is_blank and not self.is_shared:
            self._remove(identity)
        return True

    # Identities of other brokers

    def keep_all(self) -> None:
        """The broker shares no identities, or no more."""
        for identity in self._known.values():
            identity.moved = None

    def here(self, name: str) -> NsdIdentity | None:
        """Return the identity if this broker has it."""
        identity = self._known.get(name)
        if identity is None or (identity.moved is not None and identity.moved.elsewhere):
            return None
        return identity

    def names(self) -> list[str]:
        """Return the names of all identities that are known."""
        return list(self._known)

    def adopt(self, name: str, moved: MovedIdentity, opened: bool, owner: str) -> NsdIdentity:
        """Return the identity, which may have been another broker's; see ``add_channel``."""
        identity = self._make(name)
        self._forget_places(identity)
        self._memory.add(PLACE_BYTES * len(moved.places))
        moved.count(identity.channels)
        identity.opened, identity.owner, identity.moved = opened, owner, moved
        self._save(identity)
        return identity

    def add_channel(self, identity: NsdIdentity, channel: str) -> bool:
        """Add a channel of an identity that is adopted; return False if it was there."""
        if channel in identity.channels:
            return False
        self._reserve(identity, channel)
        return True

    def open_elsewhere(self, name: str, wanted: bool = False) -> None:
        """The identity is open, at another broker or, if it is ``wanted``, soon; see ``moved``."""
        if self.here(name) is None:
            identity = self._make(name)
            identity.opened, identity.moved = True, MovedIdentity(elsewhere=True, wanted=wanted)
            self._save(identity)
            if wanted:
                self.wanted.add(name)

    def is_elsewhere(self, name: str) -> bool:
        """Return whether the identity is known, and not here."""
        return name in self._known and self.here(name) is None

    def is_wanted(self, name: str) -> bool:
        """Return whether the identity was opened here, and no broker has it yet."""
        identity = self._known.get(name)
        return identity is not None and identity.moved is not None and identity.moved.wanted

    def release(self, name: str) -> Work:
        """Another broker has the identity; return the work of forgetting its subscriptions."""
        identity = self._known.get(name)
        channels: set[str] = set()
        if identity is not None:
            channels, identity.channels = identity.channels, channels
            self._forget_places(identity)
            identity.owner, identity.moved = "", MovedIdentity(elsewhere=True)
            if identity.opened:
                self._save(identity)
            else:
                self._remove(identity)
        return self._forget(name, channels)

    def _forget(self, name: str, channels: set[str]) -> Work:
        for channel in channels:
            self._memory.free(SUBSCRIPTION_BYTES)
            if not self.has(name, channel):
                self._store.delete(SUBSCRIPTIONS, _key(name, channel))
            self._left(channel)
            yield

    def keep_place(self, identity: NsdIdentity, number: int, place: Position) -> None:
        """Keep where a client with a number of another broker continues here."""
        moved = identity.share()
        if self._known.get(identity.name) is identity and not moved.elsewhere:
            before = len(moved.places)
            moved.keep(number, place)
            self._memory.add(PLACE_BYTES * (len(moved.places) - before))

    def _forget_places(self, identity: NsdIdentity) -> None:
        if identity.moved is not None:
            self._memory.free(PLACE_BYTES * len(identity.moved.places))
            identity.moved.places.clear()

    def _remove(self, identity: NsdIdentity) -> None:
        self._forget_places(identity)
        del self._known[identity.name]
        self._store.delete(TABLE, identity.name)
        self._memory.free(IDENTITY_BYTES)

    # The end

    def expire(self, is_over: Callable[[float | None], bool], holding: Container[str]) -> Work:
        """See ``IdentityKeeper``."""
        ended = 0
        now = self._seconds()
        for name in tuple(self._known):
            if (identity := self._known.get(name)) is None:
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
            log.info("nsd: unused identities have expired: {count}", count=ended)

    def delete(self, name: str) -> Work | None:
        """See ``IdentityKeeper``."""
        identity = self.here(name)
        return None if identity is None else self._end(identity)

    def _end(self, identity: NsdIdentity) -> Work:
        self.ended(identity)
        self._remove(identity)
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
            self.changed(channel)
        if has_readers:
            for identity in tuple(self._known.values()):
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
        if identity.moved is not None:
            record |= identity.moved.record()
        self._store.put(TABLE, identity.name, json.dumps(record).encode())


def _key(name: str, channel: str) -> str:
    return json.dumps([name, channel], ensure_ascii=False)
