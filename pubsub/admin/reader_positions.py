"""The positions of readers: the offset that each reports to have reached, kept with the history."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from pubsub.admin.api_error import CONFLICT, FULL, NOT_SATISFIABLE, UNAVAILABLE, ApiError
from pubsub.admin.flow_control import all_stored
from pubsub.admin.parameters import Parameters, check_name, invalid

if TYPE_CHECKING:
    from pubsub.admin.http_channel import ApiRequest
    from pubsub.broker.listener import Listener

READERS = "readers"
"""The table of the store's metadata."""
PREFIX = b"/v1/readers/"


class ReaderPositions:
    """The endpoints below /v1/readers."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._store = listener.store
        self._timestamp = listener.wall.timestamp
        self._known: dict[str, dict[str, object]] = {}

    def restore(self) -> None:
        """Load the stored positions."""
        self._known = {name: json.loads(row) for name, row in self._store.items(READERS)}

    async def list(self, request: ApiRequest) -> None:
        """GET /v1/readers"""
        end = self._store.committed
        rows = [
            {"name": name, **row, "lag": max(end - int(str(row["offset"])), 0)}
            for name, row in sorted(self._known.items())
        ]
        request.answer(200, json.dumps({"readers": rows}, ensure_ascii=False).encode() + b"\n")

    async def put(self, request: ApiRequest) -> None:
        """PUT /v1/readers/NAME"""
        name = _name(request)
        parameters = Parameters.of_body(request, "offset", "epoch")
        offset = parameters.number("offset")
        store = self._store
        epoch = parameters.text("epoch", store.epoch)
        if not store.continues(epoch, offset):
            message = f"offset {offset} of epoch {epoch} is not part of this history"
            raise ApiError(CONFLICT, "epoch", message, epoch=store.epoch)
        if offset > store.committed:
            message = f"the history ends at offset {store.committed}"
            raise ApiError(NOT_SATISFIABLE, "beyond-end", message, next=store.committed)
        limit = self._listener.settings["max-readers"]
        if name not in self._known and len(self._known) >= limit:
            message = f"limit reached: {limit} readers; delete one or raise --admin-max-readers"
            raise ApiError(FULL, "limit-reached", message)
        row: dict[str, object] = {"offset": offset, "epoch": epoch, "updated": self._timestamp()}
        self._known[name] = row
        store.put(READERS, name, json.dumps(row).encode())
        await self._confirm(request)

    async def delete(self, request: ApiRequest) -> None:
        """DELETE /v1/readers/NAME"""
        name = _name(request)
        self._known.pop(name, None)
        self._store.delete(READERS, name)
        await self._confirm(request)

    async def _confirm(self, request: ApiRequest) -> None:
        """Answer when the change is on disk."""
        if not await all_stored(self._store):
            message = "the change is not on disk yet"
            raise ApiError(UNAVAILABLE, "history-unavailable", message)
        request.answer(204, b"")


def _name(request: ApiRequest) -> str:
    try:
        return check_name("name", unquote_to_bytes(request.path[len(PREFIX) :]).decode())
    except UnicodeDecodeError:
        raise invalid("name: expected UTF-8") from None
