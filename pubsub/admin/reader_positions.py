"""The positions of readers: the offset that each reports to have reached, kept with the history.

A position belongs to the subject of the token that reports it, or to nobody if there is no token.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

from pubsub.admin.api_error import (
    CONFLICT,
    FORBIDDEN,
    FULL,
    NOT_SATISFIABLE,
    UNAVAILABLE,
    ApiError,
)
from pubsub.admin.flow_control import all_stored
from pubsub.admin.parameters import Parameters, name_in_path
from pubsub.admin.request_access import request_access

if TYPE_CHECKING:
    from pubsub.admin.api_request import ApiRequest
    from pubsub.broker.listener import Listener

READERS = "readers"
"""The table of the store's metadata with the positions that belong to nobody; keys are names."""
OWNED_READERS = "owned-readers"
"""The table with all others; keys are the owner and the name as a JSON list."""
PREFIX = b"/v1/readers/"
_READER_BYTES = 1500
Reader: TypeAlias = tuple[str | None, str]
"""The owner of a reader, and its name."""


class ReaderPositions:
    """The endpoints below /v1/readers."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._store = listener.store
        self._timestamp = listener.wall.timestamp
        self._known: dict[Reader, dict[str, object]] = {}
        # The number of readers of each owner.
        self._counts: Counter[str | None] = Counter()

    def restore(self) -> None:
        """Load the stored positions."""
        for name, row in self._store.items(READERS):
            self._known[None, name] = json.loads(row)
        for key, row in self._store.items(OWNED_READERS):
            owner, name = json.loads(key)
            self._known[owner, name] = json.loads(row)
        self._counts.update(owner for owner, _ in self._known)
        self._listener.memory.add(_READER_BYTES * len(self._known))

    async def list(self, request: ApiRequest) -> None:
        """GET /v1/readers"""
        access = request_access(request, self._listener)
        end = self._store.committed
        rows = [
            {"name": name, "owner": owner, **row, "lag": max(end - int(str(row["offset"])), 0)}
            for (owner, name), row in self._known.items()
            if owner in (None, access.owner) or access.is_admin
        ]
        rows.sort(key=lambda row: (row["name"], row["owner"] or ""))
        request.answer(200, json.dumps({"readers": rows}, ensure_ascii=False).encode() + b"\n")

    async def put(self, request: ApiRequest) -> None:
        """PUT /v1/readers/NAME"""
        reader = (request_access(request, self._listener).owner, name_in_path(request, PREFIX))
        parameters = Parameters.of_body(request, "offset", "epoch")
        offset = parameters.number("offset")
        epoch = parameters.text("epoch", self._store.epoch)
        if offset > self._store.committed:
            message = f"the history ends at offset {self._store.committed}"
            raise ApiError(NOT_SATISFIABLE, "beyond-end", message, next=self._store.committed)
        self.report(reader, offset, epoch)
        await self._confirm(request)

    def report(self, reader: Reader, offset: int, epoch: str) -> None:
        """Store the position of ``reader``; raises ApiError, or MemoryExhausted."""
        store = self._store
        if not store.continues(epoch, offset):
            message = f"offset {offset} of epoch {epoch} is not part of this history"
            raise ApiError(CONFLICT, "epoch", message, epoch=store.epoch)
        if reader not in self._known:
            self._make_room(reader[0])
        row: dict[str, object] = {"offset": offset, "epoch": epoch, "updated": self._timestamp()}
        self._known[reader] = row
        store.put(*_key(reader), json.dumps(row).encode())

    def position(self, reader: Reader) -> str | None:
        """Return the stored position of ``reader`` as ``epoch:offset``; None without one."""
        row = self._known.get(reader)
        return None if row is None else f"{row['epoch']}:{row['offset']}"

    def _make_room(self, owner: str | None) -> None:
        """Count a new reader; raises ApiError, or MemoryExhausted."""
        limit = self._listener.settings["max-readers"]
        if self._counts[owner] >= limit:
            message = f"limit reached: {limit} readers; delete one or raise --admin-max-readers"
            raise ApiError(FULL, "limit-reached", message)
        self._listener.memory.reserve(_READER_BYTES)
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
        if self._known.pop(reader, None) is not None:
            self._counts[owner] -= 1
            self._listener.memory.free(_READER_BYTES)
            self._store.delete(*_key(reader))
        await self._confirm(request)

    async def _confirm(self, request: ApiRequest) -> None:
        """Answer when the change is on disk."""
        if not await all_stored(self._store):
            message = "the change is not on disk yet"
            raise ApiError(UNAVAILABLE, "history-unavailable", message)
        request.answer(204, b"")


def _key(reader: Reader) -> tuple[str, str]:
    """Return the table and the key of a reader."""
    owner, name = reader
    return (READERS, name) if owner is None else (OWNED_READERS, json.dumps([owner, name]))
