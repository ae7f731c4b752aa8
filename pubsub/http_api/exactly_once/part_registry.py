"""The staged parts, until they are committed, dropped or too old."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from pubsub.http_api.requests.api_error import CONFLICT, FULL, ApiError
from pubsub.http_api.requests.shares import Shares

if TYPE_CHECKING:
    from pubsub.broker.memory_budget import MemoryBudget
    from pubsub.http_api.exactly_once.staged_parts import PartSummary
    from pubsub.http_api.requests.request_body import Body

# Parts that may be staged at a time.
_MAX_PARTS = 10_000
# Estimated bytes of memory of a staged part, and of the name of one of its topics.
_PART_BYTES, _NAME_BYTES = 2048, 128

QueryKey: TypeAlias = tuple[str | None, str]
"""The owner of a query, and its id."""


@dataclass(slots=True, eq=False)
class StagedPart:
    """Messages of one task that wait for the commit of their batch.

    ``client`` is the one whose share it counts to.
    """

    query: QueryKey
    batch: int
    run: str
    body: Body
    summary: PartSummary
    sender: bytes
    client: Hashable
    committing: bool = False
    timer: IDelayedCall | None = field(default=None, repr=False)

    @property
    def held(self) -> int:
        """The estimated bytes of memory beside the body."""
        return _PART_BYTES + sum([_NAME_BYTES + len(name) for name in self.summary.topics])


class PartRegistry:
    """Staged parts by id. Clients share the number there may be; ``memory`` is charged."""

    def __init__(self, memory: MemoryBudget) -> None:
        self._memory = memory
        self._parts: dict[str, StagedPart] = {}
        self._shares = Shares(lambda: _MAX_PARTS)
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._parts)

    def close(self) -> None:
        """The broker stops: drop all parts, those that are being committed after their commit."""
        self._is_closed = True
        for id, part in tuple(self._parts.items()):
            if part.timer is not None and part.timer.active():
                part.timer.cancel()
            self.drop(id)

    def reserve(self, client: Hashable) -> None:
        """Make sure that a part of ``client`` can be added; raises ApiError.

        ``add`` or ``cancel`` follows.
        """
        if not self._shares.take(client, 1):
            own = self._shares.held(client)
            message = f"limit reached: {len(self)} parts are staged, {own} of them by this client"
            raise ApiError(FULL, "staged", message)

    def cancel(self, client: Hashable) -> None:
        """Undo ``reserve``."""
        self._shares.free(client, 1)

    def add(self, part: StagedPart, clock: IReactorTime, seconds: float) -> str:
        """Add a part, which expires after ``seconds``, and return its id."""
        id = secrets.token_hex(16)
        self._parts[id] = part
        self._memory.add(part.held)
        if self._is_closed:
            self.drop(id)
        else:
            part.timer = clock.callLater(seconds, self.drop, id)
        return id

    def nbytes(self, query: QueryKey, batch: int) -> int:
        """Return the bytes that are staged for a batch."""
        own = [p for p in self._parts.values() if (p.query, p.batch) == (query, batch)]
        return sum([part.body.nbytes for part in own])

    def drop(self, id: str) -> None:
        """Drop a part, unless it is being committed or has gone."""
        part = self._parts.get(id)
        if part is not None and not part.committing:
            del self._parts[id]
            if part.timer is not None and part.timer.active():
                part.timer.cancel()
            part.body.close()
            self._shares.free(part.client, 1)
            self._memory.free(part.held)

    def drop_all(self, query: QueryKey, which: Callable[[StagedPart], bool]) -> None:
        """Drop those parts of a query for which ``which`` returns True."""
        for id, part in tuple(self._parts.items()):
            if part.query == query and which(part):
                self.drop(id)

    def claim(self, query: QueryKey, batch: int, ids: list[str]) -> list[StagedPart]:
        """Return the parts, which do not expire until ``release``; raises ApiError."""
        parts = []
        for id in dict.fromkeys(ids):
            part = self._parts.get(id)
            if part is None or (part.query, part.batch) != (query, batch):
                message = "a part is not staged here; run the batch again"
                raise ApiError(CONFLICT, "unknown-part", message, part=id)
            parts.append(part)
        for part in parts:
            part.committing = True
        return parts

    def release(self, ids: list[str]) -> None:
        """Let the parts expire again; those whose time is over do so now."""
        for id in ids:
            part = self._parts.get(id)
            if part is not None:
                part.committing = False
                if part.timer is not None and not part.timer.active():
                    self.drop(id)
