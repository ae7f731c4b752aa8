"""Batches that may be committed at any of the brokers that share a history."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pubsub.backplane.batches.shared_batches import BegunElsewhere, CommittedElsewhere
from pubsub.errors import BackplaneAway
from pubsub.http_api.reading.shared_ranges import shared_positions
from pubsub.http_api.requests.api_error import CONFLICT, ApiError

if TYPE_CHECKING:
    from pubsub.backplane.batches.shared_batches import SharedBatches
    from pubsub.http_api.exactly_once.committed_batches import CommittedBatches
    from pubsub.http_api.exactly_once.part_registry import QueryKey
    from pubsub.interfaces import IStore


class SharedCommits:
    """Asks the other brokers before a batch is committed here, and notifies them afterwards."""

    def __init__(self, store: IStore, committed: CommittedBatches) -> None:
        self._store = store
        self._committed = committed

    @property
    def _batches(self) -> SharedBatches | None:
        positions = shared_positions(self._store)
        return None if positions is None else positions.batches

    def restore(self) -> None:
        """Report the outcome of the batches that were reserved before a restart."""
        if self._batches is not None:
            self._batches.resume(self._last)

    def _last(self, query: QueryKey) -> int:
        commit = self._committed.last(*query)
        return -1 if commit is None else commit.batch

    async def is_committed(self, query: QueryKey, batch: int, shared: bool) -> bool:
        """Return whether another broker has committed the batch. Raises ApiError.

        Unless the commit is ``shared``, the answer may be missing while the engine is away.
        """
        batches = self._batches
        if batches is None:
            if shared:
                message = "this broker has no shared history; commit at one broker only"
                raise ApiError(CONFLICT, "not-shared", message)
            return False
        try:
            await batches.check(query, batch)
        except CommittedElsewhere:
            return True
        except BegunElsewhere:
            raise _begun() from None
        except BackplaneAway:
            if shared:
                raise
        return False

    @asynccontextmanager
    async def reserved(self, query: QueryKey, batch: int, shared: bool) -> AsyncIterator[None]:
        """Let no other broker commit the batch. Raises ApiError, also if one has done so."""
        batches = self._batches if shared else None
        if batches is None:
            yield
            return
        try:
            await batches.reserve(query, batch)
        except (BegunElsewhere, CommittedElsewhere):
            # What was committed meanwhile, the next try finds out.
            raise _begun() from None
        try:
            yield
        except BaseException:
            if self._last(query) < batch:
                batches.settle(query, batch, False)
            else:
                batches.published(query, batch)
            raise

    def published(self, query: QueryKey, batch: int, shared: bool) -> None:
        """The batch is published, and not stored yet as required: notify the others when it is."""
        if shared and self._batches is not None:
            self._batches.published(query, batch)

    def stored(self, query: QueryKey, batch: int, shared: bool) -> None:
        """The batch is on disk: notify the others."""
        if shared and self._batches is not None:
            self._batches.settle(query, batch, True)


def _begun() -> ApiError:
    message = (
        "another broker has begun to commit the batch, and has not said whether it has published "
        "it; repeat the commit when it is back"
    )
    return ApiError(CONFLICT, "batch-elsewhere", message)
