"""The connections of a broker: housekeeping sweeps them, shutdown drains them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred

if TYPE_CHECKING:
    from pubsub.interfaces import Client


class ClientRegistry:
    """All connections that were accepted and are not closed yet."""

    def __init__(self) -> None:
        # A dict, as a set takes twice the memory.
        self._clients: dict[Client, None] = {}
        self._drained: Deferred[None] | None = None

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[Client]:
        return iter(tuple(self._clients))

    def __contains__(self, client: object) -> bool:
        return client in self._clients

    def add(self, client: Client) -> None:
        """Add a connection that was accepted."""
        self._clients[client] = None

    def discard(self, client: Client) -> None:
        """Remove a connection that was closed."""
        self._clients.pop(client, None)
        if self._drained is not None and not self._clients:
            drained, self._drained = self._drained, None
            drained.callback(None)

    def drain(self) -> Deferred[None] | None:
        """Drain every connection; the Deferred fires when all are closed. None if none is left."""
        for client in self:
            client.drain()
        if not self._clients:
            return None
        self._drained = Deferred()
        return self._drained

    def abort(self, reason: str) -> None:
        """Close every connection at once."""
        for client in self:
            client.abort(reason)
