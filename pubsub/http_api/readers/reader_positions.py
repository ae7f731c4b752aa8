"""The positions of readers: the offset that each reports to have reached, kept with the history.

A position belongs to the subject of the token that reports it; without a token it has no owner.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from sortedcontainers import SortedDict
from twisted.logger import Logger

from pubsub.broker.delivery.history_reads import all_on_disk, written
from pubsub.http_api.endpoints import MAX_QUIET_TOPICS
from pubsub.http_api.reading.shared_ranges import shared_positions
from pubsub.http_api.requests.api_error import (
    CONFLICT,
    FORBIDDEN,
    FULL,
    NOT_FOUND,
    NOT_SATISFIABLE,
    UNAVAILABLE,
    Absent,
    ApiError,
)
from pubsub.http_api.requests.paging import PAGING, answer_page, page_request
from pubsub.http_api.requests.parameters import Parameters, invalid, name_in_path
from pubsub.http_api.requests.request_access import request_access
from pubsub.management.listing import Row, fill

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.http_api.requests.api_request import ApiRequest
    from pubsub.http_api.requests.request_access import RequestAccess

log = Logger()
READERS = "readers"
"""The table of the store's metadata with the positions without an owner; keys are names."""
OWNED_READERS = "owned-readers"
"""The table with all others; keys are the owner and the name as a JSON list."""
PREFIX = b"/v1/readers/"
_READER_BYTES = 1500
# All positions take at most this part of max-memory: they stay until someone deletes them.
_SHARE = 4
# Readers that one look-up in the sorted list takes.
_PAGE = 64
_DIGITS = 4
ReaderKey: TypeAlias = tuple[str | None, str]
"""The owner of a reader, and its name."""


class _ListPlace(NamedTuple):
    """The place of a reader in lists: by name, then by owner, with "=" before one that exists."""

    name: str
    owner: str

    @classmethod
    def of(cls, reader: ReaderKey) -> _ListPlace:
        owner, name = reader
        return cls(name, "" if owner is None else f"={owner}")

    @classmethod
    def parse(cls, key: str) -> _ListPlace:
        """Return the place with this key; raises ApiError."""
        length, _, rest = key.partition(" ")
        if not length.isdecimal() or len(length) > _DIGITS:
            raise invalid("after: expected the member next of a page")
        return cls(rest[: int(length)], rest[int(length) :])

    @property
    def key(self) -> str:
        """The place as text."""
        return f"{len(self.name)} {self.name}{self.owner}"

    @property
    def reader(self) -> ReaderKey:
        return self.owner[1:] if self.owner else None, self.name


class _KnownReaders:
    """The readers of all HTTP listeners of a broker, and the number of those of each owner."""

    def __init__(self) -> None:
        self.rows: SortedDict[_ListPlace, dict[str, object]] = SortedDict()
        self.counts: Counter[str | None] = Counter()
        self.are_restored = False


class ReaderPositions:
    """The endpoints below /v1/readers."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._store = listener.store
        self._timestamp = listener.wall.timestamp
        self._readers = listener.shared(_KnownReaders, _KnownReaders)
        self._known, self._counts = self._readers.rows, self._readers.counts

    def restore(self) -> None:
        """Load the stored positions, once for all listeners."""
        if self._readers.are_restored:
            return
        self._readers.are_restored = True
        for name, row in self._store.items(READERS):
            self._restore((None, name), row)
        for key, row in self._store.items(OWNED_READERS):
            owner, name = json.loads(key)
            self._restore((owner, name), row)
        memory, number = self._listener.memory, len(self._known)
        memory.add(_READER_BYTES * number)
        if number * _READER_BYTES > memory.part(_SHARE):
            log.warn(
                "the positions of {number} readers take more than a quarter of max-memory; delete "
                "those that are not needed, or raise it",
                number=number,
            )

    def _restore(self, reader: ReaderKey, row: bytes) -> None:
        self._known[_ListPlace.of(reader)] = json.loads(row)
        self._counts[reader[0]] += 1

    async def list(self, request: ApiRequest) -> None:
        """GET /v1/readers"""
        asked = page_request(Parameters.of_url(request, *PAGING))
        access = request_access(request, self._listener)
        after = _ListPlace.parse(asked.after) if asked.after else None
        owners = self._owners_seen(access)

        def row_of(place: _ListPlace) -> Row | None:
            owner, name = place.reader
            seen = access.is_admin or owner in owners
            matches = asked.matches(name) or (owner is not None and asked.matches(owner))
            return self._row(place) if seen and matches else None

        await answer_page(
            request,
            self._listener,
            asked,
            lambda page: fill(page, self._after(after), row_of, lambda place: place.key),
        )

    def _owners_seen(self, access: RequestAccess) -> set[str | None]:
        """Return the owners whose readers a client sees: itself, and None."""
        return {None, access.owner} if access.may_read_some else set()

    def _after(self, place: _ListPlace | None) -> Iterator[_ListPlace]:
        """Yield the readers behind ``place``, in order; others may come and go meanwhile."""
        while True:
            following = self._known.irange(place, None, inclusive=(False, True))
            page = list(islice(following, _PAGE))
            for place in page:
                if place in self._known:
                    yield place
            if len(page) < _PAGE:
                return

    def _row(self, place: _ListPlace) -> Row:
        owner, name = place.reader
        row = self._known[place]
        lag = max(self._store.committed - int(str(row["offset"])), 0)
        return {"name": name, "owner": owner, **row, "lag": lag}

    async def get(self, request: ApiRequest) -> None:
        """GET /v1/readers/NAME"""
        Parameters.of_url(request)
        access = request_access(request, self._listener)
        reader = access.owner, name_in_path(request, PREFIX)
        access.require_readers()
        found = await self.position(reader)
        if found is None:
            # A program asks before it stores its first position.
            raise Absent(NOT_FOUND, "not-found", f"reader {reader[1]!r} has no position")
        epoch, _, offset = found.rpartition(":")
        answer: dict[str, object] = {"name": reader[1], "owner": reader[0]}
        answer |= {"offset": int(offset), "epoch": epoch}
        positions = shared_positions(self._store)
        if positions is not None:
            shared = None
            if positions.readers is not None:
                shared = await positions.readers.elsewhere(reader)
            answer["position"] = (shared or await positions.at(int(offset))).encode()
        request.answer(200, json.dumps(answer, ensure_ascii=False).encode() + b"\n")

    async def put(self, request: ApiRequest) -> None:
        """PUT /v1/readers/NAME"""
        access = request_access(request, self._listener)
        reader = access.owner, name_in_path(request, PREFIX)
        parameters = Parameters.of_body(request, "offset", "epoch", "quiet_from", "quiet_topics")
        offset = parameters.number("offset")
        epoch = parameters.text("epoch", self._store.epoch)
        # First, as the end of this history says nothing to a reader of another one.
        self.check(offset, epoch)
        access.require_readers()
        # Followers get messages before they are written.
        if offset > self._store.committed and not await written(self._store):
            message = "the messages before the position are not on disk yet"
            raise ApiError(UNAVAILABLE, "history-unavailable", message)
        if offset > self._store.committed:
            message = f"the history ends at offset {self._store.committed}"
            raise ApiError(NOT_SATISFIABLE, "beyond-end", message, next=self._store.committed)
        self.report(reader, offset, epoch, _quiet(parameters, offset))
        await self._confirm(request)

    def report(
        self, reader: ReaderKey, offset: int, epoch: str, quiet: Mapping[str, object] | None = None
    ) -> None:
        """Store the position of ``reader``, with its notes; raises ApiError, or
        MemoryExhausted.
        """
        store = self._store
        self.check(offset, epoch)
        place = _ListPlace.of(reader)
        if place not in self._known:
            self._make_room(reader[0])
        row: dict[str, object] = {"offset": offset, "epoch": epoch, "updated": self._timestamp()}
        row.update(quiet or {})
        self._known[place] = row
        store.put(*_key(reader), json.dumps(row).encode())
        self._share(reader, offset)

    def check(self, offset: int, epoch: str) -> None:
        """Raise ApiError unless the position belongs to this history, perhaps behind its end."""
        store = self._store
        if not store.continues(epoch, offset):
            message = f"offset {offset} of epoch {epoch} is not part of this history"
            raise ApiError(CONFLICT, "epoch", message, epoch=store.epoch)

    def _share(self, reader: ReaderKey, offset: int | None) -> None:
        positions = shared_positions(self._store)
        if positions is not None and positions.readers is not None:
            positions.readers.report(reader, offset)

    async def position(self, reader: ReaderKey) -> str | None:
        """Return the stored position of ``reader`` as ``epoch:offset``; None without one.

        If the reader has reported to another broker last, it is one before which it has everything.
        """
        positions = shared_positions(self._store)
        if positions is not None and positions.readers is not None:
            elsewhere = await positions.readers.elsewhere(reader)
            if elsewhere is not None:
                found = await positions.find(elsewhere, strict=False)
                return f"{self._store.epoch}:{min(found.start, self._store.committed)}"
        row = self._known.get(_ListPlace.of(reader))
        return None if row is None else f"{row['epoch']}:{row['offset']}"

    def _make_room(self, owner: str | None) -> None:
        """Count a new reader; raises ApiError, or MemoryExhausted."""
        limit = self._listener.settings["max-readers"]
        if self._counts[owner] >= limit:
            message = f"limit reached: {limit} readers; delete one or raise --admin-max-readers"
            raise ApiError(FULL, "limit-reached", message)
        memory = self._listener.memory
        if (len(self._known) + 1) * _READER_BYTES > memory.part(_SHARE):
            message = (
                f"limit reached: the readers of all owners, {len(self._known)}, take a quarter of "
                "max-memory; delete some of them or raise it"
            )
            raise ApiError(FULL, "limit-reached", message)
        memory.reserve(_READER_BYTES)
        self._counts[owner] += 1

    async def delete(self, request: ApiRequest) -> None:
        """DELETE /v1/readers/NAME"""
        access = request_access(request, self._listener)
        parameters = Parameters.of_url(request, "owner")
        owner = parameters.text("owner") if "owner" in parameters else access.owner
        if owner != access.owner and not access.is_admin:
            message = f"permission denied: delete readers of {owner!r}"
            raise ApiError(FORBIDDEN, "not-authorized", message)
        reader = (owner, name_in_path(request, PREFIX))
        if not access.is_admin:
            access.require_readers()
        if self._known.pop(_ListPlace.of(reader), None) is not None:
            self._counts[owner] -= 1
            if not self._counts[owner]:
                # There may be any number of owners over time.
                del self._counts[owner]
            self._listener.memory.free(_READER_BYTES)
            self._store.delete(*_key(reader))
        self._share(reader, None)
        await self._confirm(request)

    async def _confirm(self, request: ApiRequest) -> None:
        """Answer when the change is on disk."""
        if not await all_on_disk(self._store):
            message = "the change is not on disk yet"
            raise ApiError(UNAVAILABLE, "history-unavailable", message)
        request.answer(204, b"")


def _quiet(parameters: Parameters, offset: int) -> dict[str, object]:
    """Return the note that nothing had to be read from an offset up to the position."""
    if "quiet_from" not in parameters:
        return {}
    begin = parameters.number("quiet_from")
    if begin > offset:
        raise invalid("quiet_from: expected an offset up to offset")
    topics = parameters.text("quiet_topics", "")
    if len(topics) > MAX_QUIET_TOPICS:
        raise invalid(f"quiet_topics: expected at most {MAX_QUIET_TOPICS} characters")
    return {"quiet_from": begin, "quiet_topics": topics}


def _key(reader: ReaderKey) -> tuple[str, str]:
    """Return the table and the key of a reader."""
    owner, name = reader
    return (READERS, name) if owner is None else (OWNED_READERS, json.dumps([owner, name]))
