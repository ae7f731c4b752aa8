"""Leases of readers' names: a name that a running query holds is refused to other queries.

A lease ends by itself, so that a query that was killed blocks its name for ``LEASE_SECONDS`` only.
Leases are not stored: after a restart of the broker the first query to ask holds a name.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pubsub.http_api.readers.reader_positions import ReaderKey
from pubsub.http_api.requests.api_error import CONFLICT, FULL, ApiError
from pubsub.http_api.requests.parameters import Parameters, name_in_path
from pubsub.http_api.requests.request_access import request_access

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.http_api.requests.api_request import ApiRequest

LEASES = b"/v1/leases/"
LEASE_SECONDS = 10
LEASE_BYTES = 1500


@dataclass(frozen=True, slots=True)
class _Lease:
    holder: str
    end: float


def _no_leases() -> tuple[OrderedDict[ReaderKey, _Lease], Counter[str | None]]:
    """Return the leases of all HTTP listeners, and the number of those of each owner."""
    return OrderedDict(), Counter()


class ReaderLeases:
    """The endpoints below /v1/leases."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._clock = listener.clock
        # All leases last equally long, so the first one here is the first to end.
        self._leases, self._counts = listener.shared(_Lease, _no_leases)
        # So that leases that have ended are not charged until the next request.
        listener.statistics.each_second.append(self._end_leases)

    async def put(self, request: ApiRequest) -> None:
        """PUT /v1/leases/NAME"""
        access = request_access(request, self._listener)
        reader = access.owner, name_in_path(request, LEASES)
        holder = Parameters.of_body(request, "holder").text("holder")
        access.require_readers()
        self._end_leases()
        lease = self._leases.get(reader)
        if lease is None:
            self._make_room(reader[0])
        elif lease.holder != holder:
            left = round(lease.end - self._clock.seconds(), 3)
            message = f"another program holds the reader {reader[1]!r}"
            raise ApiError(CONFLICT, "reader-in-use", message, seconds=left)
        self._leases[reader] = _Lease(holder, self._clock.seconds() + LEASE_SECONDS)
        self._leases.move_to_end(reader)
        request.answer(200, json.dumps({"seconds": LEASE_SECONDS}).encode() + b"\n")

    async def delete(self, request: ApiRequest) -> None:
        """DELETE /v1/leases/NAME"""
        reader = request_access(request, self._listener).owner, name_in_path(request, LEASES)
        holder = Parameters.of_url(request, "holder").text("holder")
        lease = self._leases.get(reader)
        if lease is not None and lease.holder == holder:
            self._remove(reader)
        request.answer(204, b"")

    def _make_room(self, owner: str | None) -> None:
        """Count a new lease; raises ApiError, or MemoryExhausted."""
        limit = self._listener.settings["max-readers"]
        if self._counts[owner] >= limit:
            message = f"limit reached: {limit} held readers; raise --admin-max-readers"
            raise ApiError(FULL, "limit-reached", message)
        self._listener.memory.reserve(LEASE_BYTES)
        self._counts[owner] += 1

    def _end_leases(self) -> None:
        now = self._clock.seconds()
        while self._leases:
            reader, lease = next(iter(self._leases.items()))
            if lease.end > now:
                return
            self._remove(reader)

    def _remove(self, reader: ReaderKey) -> None:
        del self._leases[reader]
        self._counts[reader[0]] -= 1
        if not self._counts[reader[0]]:
            # There may be any number of owners over time.
            del self._counts[reader[0]]
        self._listener.memory.free(LEASE_BYTES)
