"""The positions of readers: how far each says it has got, kept with the history."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from pubsub.admin.api_error import CONFLICT, FULL, NOT_SATISFIABLE, UNAVAILABLE, ApiError
from pubsub.admin.parameters import Query, a_name, bad

if TYPE_CHECKING:
    from pubsub.admin.http_channel import ApiRequest
    from pubsub.admin.server import AdminFactory

READERS = "readers"
"""The table of the store's metadata."""
PREFIX = b"/v1/readers/"


class Positions:
    """The part of the API that readers report to."""

    def __init__(self, server: AdminFactory) -> None:
        self._server = server
        self._broker = server.listener.broker
        self._known: dict[str, dict[str, object]] = {}

    def restore(self) -> None:
        """Take up what the store kept."""
        self._known = {name: json.loads(row) for name, row in self._broker.store.items(READERS)}

    async def list(self, request: ApiRequest) -> None:
        """GET /v1/readers"""
        end = self._broker.store.committed
        rows = [
            {"name": name, **row, "lag": max(end - int(str(row["offset"])), 0)}
            for name, row in sorted(self._known.items())
        ]
        request.answer(200, json.dumps({"readers": rows}, ensure_ascii=False).encode() + b"\n")

    async def put(self, request: ApiRequest) -> None:
        """PUT /v1/readers/NAME"""
        name = _name(request)
        query = Query.of_body(request, "offset", "epoch")
        offset = query.number("offset")
        store = self._broker.store
        epoch = query.text("epoch", store.epoch)
        if not store.continues(epoch, offset):
            raise ApiError(CONFLICT, "epoch", f"{epoch} is not of this log", epoch=store.epoch)
        if offset > store.committed:
            message = f"the log goes up to {store.committed}"
            raise ApiError(NOT_SATISFIABLE, "beyond-end", message, next=store.committed)
        limit = self._server.listener.settings["max-readers"]
        if name not in self._known and len(self._known) >= limit:
            raise ApiError(FULL, "limit-reached", f"there are {limit} readers")
        row: dict[str, object] = {
            "offset": offset,
            "epoch": epoch,
            "updated": self._broker.timestamp(),
        }
        self._known[name] = row
        store.put(READERS, name, json.dumps(row).encode())
        await self._stored(request)

    async def delete(self, request: ApiRequest) -> None:
        """DELETE /v1/readers/NAME"""
        name = _name(request)
        self._known.pop(name, None)
        self._broker.store.delete(READERS, name)
        await self._stored(request)

    async def _stored(self, request: ApiRequest) -> None:
        if not await self._server.stored():
            raise ApiError(UNAVAILABLE, "history-unavailable", "it is not stored yet")
        request.answer(204, b"")


def _name(request: ApiRequest) -> str:
    try:
        return a_name("name", unquote_to_bytes(request.path[len(PREFIX) :]).decode())
    except UnicodeDecodeError:
        raise bad("a reader's name is UTF-8") from None
