"""``IdentityMoves``: identities of nsd that go on at other brokers; see ``IdentitySharing``.

A request that names an identity which is not certainly here waits until it is. Publishes need only
to know that the identity was opened, at any broker; for them it stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import Logger

from pubsub.broker.clients.identity_sharing import ClaimedIdentity, IdentityClaim, IdentityContent
from pubsub.errors import BackplaneAway, Refused
from pubsub.protocols.nsd.channel_readers import channel_readers
from pubsub.protocols.nsd.codec import Get, Open, Publish, Request, Subscribe
from pubsub.protocols.nsd.identity_proof import check_owner, owner_of
from pubsub.protocols.nsd.message_list import ListStart
from pubsub.protocols.nsd.moved_identity import MovedIdentity

if TYPE_CHECKING:
    from pubsub.broker.clients.identity_sharing import IdentitySharing
    from pubsub.broker.delivery.start_positions import Position
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.slices import Work
    from pubsub.protocols.nsd.identities import Identities
    from pubsub.protocols.nsd.nsd_identity import NsdIdentity
    from pubsub.wire.connection import Connection

    _Check: TypeAlias = Callable[[Connection, Request], None]

log = Logger()
_LARGEST = 2**60
# Ends of lists that this broker shares when it stops.
_GIVEN = 256


class IdentityMoves:
    """The identities of the broker of ``listener``, as ``sharing`` shares them."""

    def __init__(
        self, listener: Listener, identities: Identities, sharing: IdentitySharing
    ) -> None:
        self._topics, self._readers = listener.topics, channel_readers(listener)
        self._slices, self._store = listener.slices, listener.store
        self._identities, self._sharing = identities, sharing
        self._given: dict[int, None] = {}
        identities.is_shared, identities.changed = True, sharing.changed
        identities.max_channels = lambda: sharing.max_channels
        identities.ended = self._ended
        sharing.holder = self

    # IdentityHolder

    def names(self) -> list[str]:
        """See ``IdentityHolder``."""
        return self._identities.names()

    def content(self, name: str) -> IdentityContent | None:
        """See ``IdentityHolder``."""
        identity = self._identities.here(name)
        if identity is None:
            return None
        moved = identity.share()
        if moved.is_too_large(self._sharing.max_channels):
            return None
        return moved.content(identity.opened, identity.owner, identity.channels)

    def place(self, name: str, number: int) -> Position | None:
        """See ``IdentityHolder``."""
        identity = self._identities.here(name)
        return None if identity is None else self._position(identity, number)

    def last_number(self, name: str) -> int:
        """See ``IdentityHolder``."""
        identity = self._identities.here(name)
        return 0 if identity is None else identity.share().last

    def given(self) -> list[int]:
        """See ``IdentityHolder``."""
        return list(self._given)

    def adopt(self, name: str, claimed: ClaimedIdentity) -> Work:
        """See ``IdentityHolder``."""
        identities, content = self._identities, claimed.content
        try:
            moved = MovedIdentity.claimed(claimed)
            identity = identities.adopt(name, moved, content.opened, content.owner)
            if content.opened:
                with suppress(Refused):
                    self._topics.create(name, hosted=False)
            for channel in content.channels:
                if identities.add_channel(identity, channel):
                    self._readers.read(channel)
                yield
            for channel in identity.channels - set(content.channels):
                identities.unsubscribe(name, channel)
                self._readers.leave(channel)
                yield
        except Refused:
            yield from identities.release(name)
            raise

    def release(self, name: str) -> None:
        """See ``IdentityHolder``."""
        self._slices.run(self._identities.release(name))

    def engine_reached(self) -> None:
        """See ``IdentityHolder``."""
        wanted = list(filter(self._identities.is_wanted, self._identities.wanted))
        self._identities.wanted.clear()
        if wanted:
            ensureDeferred(self._open_wanted(wanted)).addErrback(
                lambda failure: log.failure("opened identities are not shared", failure)
            )

    async def _open_wanted(self, names: list[str]) -> None:
        """Share identities that were opened while the engine was away."""
        for name in names:
            new = IdentityContent(opened=True, channels=(name,))
            try:
                found = await self._sharing.look(name)
                if found is None or name not in found.channels or not found.opened:
                    await self._claim(IdentityClaim(name, new, 0, lambda content: None))
                    self._open_here(name)
            except Refused:
                self._identities.wanted.add(name)
            else:
                self._identities.open_elsewhere(name)

    def _open_here(self, name: str) -> None:
        identity = self._identities.here(name)
        if identity is not None and name not in identity.channels:
            self._identities.open(name)
            if self._identities.add_channel(identity, name):
                self._readers.read(name)
                self._sharing.changed(name)

    def _ended(self, identity: NsdIdentity) -> None:
        content = self.content(identity.name)
        if content is not None:
            numbers = IdentityContent(shift=content.shift, former=content.former)
            self._sharing.ended(identity.name, numbers)

    # Requests

    def prepare(self, client: Connection, request: Request, check: _Check) -> Deferred[None] | None:
        """Have the identity of ``request`` here, as far as it is needed; None if it is.

        ``check`` raises the errors of a change. Fails with Refused.
        """
        name = request.identity
        if isinstance(request, Publish):
            if self._identities.opened(name):
                return None
            return ensureDeferred(self._look(client, name))
        if self._is_ready(request):
            return None
        if isinstance(request, Get):
            return ensureDeferred(self._prepare_get(client, request))
        return ensureDeferred(self._prepare_change(client, request, check))

    def _is_ready(self, request: Request) -> bool:
        name = request.identity
        identity = self._identities.here(name)
        if identity is None:
            return False
        is_shared = not identity.share().is_too_large(self._sharing.max_channels)
        if is_shared and not self._sharing.is_current(name):
            return False
        return not isinstance(request, Get) or self._position(identity, request.after) is not None

    async def _look(self, client: Connection, name: str) -> None:
        """Find out whether the identity was opened at another broker."""
        await self._reach()
        found = await self._sharing.look(name)
        if found is not None and found.opened:
            self._check_room(client, name)
            self._identities.open_elsewhere(name)

    async def _reach(self) -> None:
        if not (self._sharing.is_there or await self._sharing.when_there()):
            raise BackplaneAway("the engine is away")

    def _check_room(self, client: Connection, name: str) -> None:
        limit = client.listener.settings["max-identities"]
        self._identities.check_room(name, None, limit, 0)

    def _check(self, client: Connection, name: str, content: IdentityContent) -> None:
        """Raise Refused if the client may not have an identity of another broker."""
        check_owner(client, content.owner)
        self._check_room(client, name)

    async def _claim(self, claim: IdentityClaim) -> None:
        await self._sharing.claim(claim)

    async def _prepare_get(self, client: Connection, request: Get) -> None:
        """A list is empty while it is not known what it has to have."""
        name, after = request.identity, max(min(request.after, _LARGEST), 0)
        with suppress(BackplaneAway):
            if self._identities.here(name) is None or self._sharing.is_there:
                await self._reach()
                if not self._sharing.is_current(name):
                    check = partial(self._check, client, name)
                    await self._claim(IdentityClaim(name, None, after, check))
            identity = self._identities.here(name)
            if identity is None or self._position(identity, request.after) is not None:
                return
            former = identity.share().former_of(request.after)
            if former is not None:
                place = await self._sharing.place(former, request.after)
                self._identities.keep_place(identity, request.after, place)

    async def _prepare_change(self, client: Connection, request: Request, check: _Check) -> None:
        check(client, request)
        name = request.identity
        if isinstance(request, Open):
            readable = client.access.may_subscribe(name)
            if not self._sharing.is_there:
                if self._identities.here(name) is None:
                    self._identities.open_elsewhere(name, wanted=readable)
                    return
            elif await self._is_open(name, readable):
                return
        await self._reach()
        new, after = None, 0
        if isinstance(request, Open):
            new = IdentityContent(opened=True, channels=(name,) if readable else ())
        elif isinstance(request, Subscribe):
            owner, after = owner_of(client, name), request.after
            new = IdentityContent(owner=owner, channels=(request.channel,))
        after = max(min(after, _LARGEST), 0)
        await self._claim(IdentityClaim(name, new, after, partial(self._check, client, name)))

    async def _is_open(self, name: str, readable: bool) -> bool:
        """Return whether an Open changes nothing, wherever the identity is."""
        found = await self._sharing.look(name)
        if found is None or not found.opened or (readable and name not in found.channels):
            return False
        self._identities.open_elsewhere(name)
        return True

    # Numbers

    def _position(self, identity: NsdIdentity, after: int) -> Position | None:
        """Return where a client with the number ``after`` continues; None if it is not known."""
        moved = identity.share()
        if after <= 0:
            return 0
        if moved.former_of(after) is not None:
            return moved.places.get(after)
        return after - moved.shift

    def list_start(self, request: Get) -> ListStart | None:
        """Return where the list that answers ``request`` begins; None if it is to be empty."""
        name = request.identity
        identity = self._identities.here(name)
        if identity is None:
            return None
        if self._sharing.is_there and not self._is_ready(request):
            return None
        position = self._position(identity, request.after)
        if position is None:
            return None
        moved = identity.share()

        def end() -> int:
            # Another broker numbers the messages of an identity that has moved.
            is_same = self._identities.here(name) is identity and identity.moved is moved
            return self._end if is_same else 0

        moved.last = max(request.after, 0)
        return ListStart(position, moved.shift, end, partial(self._gave, moved))

    def _gave(self, moved: MovedIdentity, offset: int) -> None:
        moved.last = offset + moved.shift
        self._given.pop(offset, None)
        self._given[offset] = None
        while len(self._given) > _GIVEN:
            del self._given[next(iter(self._given))]

    @property
    def _end(self) -> int:
        return min(self._store.next_offset, self._sharing.limit)

    def continuation(self, request: Subscribe) -> tuple[int, bool]:
        """Return the number with which a client continues, and whether that is its own (§3.3)."""
        identity, after = self._identities.here(request.identity), request.after
        moved = MovedIdentity() if identity is None else identity.share()
        if request.epoch:
            if after <= 0 or moved.former_of(after) is not None:
                return max(after, 0), True
            found = self._store.continuation(request.epoch, after - moved.shift)
            if found is not None:
                return min(found, self._store.next_offset) + moved.shift, True
        return self._end + moved.shift, False

    def when_written(self, request: Request, call: Callable[[str | None], None]) -> None:
        """See ``IdentitySharing``, for the change that ``request`` has made."""
        name = request.identity
        if isinstance(request, Subscribe) and self._identities.here(name) is None:
            # Another broker has taken it in this moment.
            call(BackplaneAway.reason)
        else:
            self._sharing.when_written(name, call)
