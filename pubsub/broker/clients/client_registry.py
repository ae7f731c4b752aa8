"""The connections of a broker: housekeeping sweeps them, shutdown drains them, lists show them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from sortedcontainers import SortedDict
from twisted.internet.defer import Deferred
from twisted.logger import Logger

if TYPE_CHECKING:
    from pubsub.interfaces import ConnectedClient

log = Logger()
# Connections that one look-up in the sorted marks takes.
_PAGE = 64


class ClientRegistry:
    """All connections that were accepted and are not closed yet, by their marks."""

    def __init__(self) -> None:
        self._clients: SortedDict[int, ConnectedClient] = SortedDict()
        self._drains: list[_Drain] = []

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[ConnectedClient]:
        return iter(tuple(self._clients.values()))

    def __contains__(self, client: object) -> bool:
        return self._clients.get(getattr(client, "mark", 0)) is client

    def add(self, client: ConnectedClient) -> None:
        """Add a connection that was accepted; it has its mark."""
        self._clients[client.mark] = client

    def discard(self, client: ConnectedClient) -> None:
        """Remove a connection that was closed."""
        if client in self:
            del self._clients[client.mark]
        for drain in tuple(self._drains):
            drain.clients.discard(client)
            if not drain.clients:
                self._drains.remove(drain)
                drain.done.callback(None)

    def get(self, mark: int) -> ConnectedClient | None:
        """Return the connection with this mark."""
        found: ConnectedClient | None = self._clients.get(mark)
        return found

    def after(self, mark: int) -> Iterator[ConnectedClient]:
        """Yield the connections with higher marks, in order.

        Connections may begin and end meanwhile; new ones are yielded.
        """
        while True:
            following = self._clients.irange(mark, None, inclusive=(False, True))
            page = list(islice(following, _PAGE))
            for mark in page:
                client = self._clients.get(mark)
                if client is not None:
                    yield client
            if len(page) < _PAGE:
                return

    def of_listener(self, listener: object) -> list[ConnectedClient]:
        """Return the connections that ``listener`` has accepted."""
        return [client for client in self if client.accepted_by is listener]

    def drain(self, clients: Iterable[ConnectedClient] | None = None) -> Deferred[None] | None:
        """Drain ``clients``, by default all; the Deferred fires when they are closed.

        None if none is left.
        """
        drained = list(self if clients is None else clients)
        for client in drained:
            try:
                client.drain()
            except Exception:
                # A defect of one connection must not cut the others off.
                log.failure("a connection cannot be drained; it is aborted at the deadline")
        left = {client for client in drained if client in self}
        if not left:
            return None
        drain = _Drain(left)
        self._drains.append(drain)
        return drain.done

    def abort(self, reason: str, clients: Iterable[ConnectedClient] | None = None) -> None:
        """Close ``clients`` at once, by default every connection."""
        for client in self if clients is None else clients:
            if client in self:
                client.abort(reason)


class _Drain:
    """Connections that are being drained; ``done`` fires when all are closed."""

    def __init__(self, clients: set[ConnectedClient]) -> None:
        self.clients = clients
        self.done: Deferred[None] = Deferred()
