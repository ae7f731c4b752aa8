"""The last messages of some topics: where they begin in the history.

The history is looked at from its end on, in ranges that grow while they have few bytes of these
topics. A range is read with the sparse index, which passes over what has none of them. The number
of reads is bounded, and each is short: a topic without messages costs no more than that.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from twisted.internet.task import deferLater

from pubsub.broker.delivery.history_reads import read_history
from pubsub.http_api.endpoints import MAX_LAST
from pubsub.http_api.reading.history_response import RunInThread
from pubsub.http_api.requests.parameters import Parameters, invalid
from pubsub.store.records.block import decode_block

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.http_api.requests.api_request import ApiRequest
    from pubsub.store.records.parcel import Parcel

LAST = "last"
READS = 256
"""The most reads for one request. One passes over 256 segments without messages of the topics, or
over 2,000 batches in memory."""
# Bytes of payloads that one read returns, and of those of a range before a smaller one is tried.
_READ_BYTES = 512 * 1024
# The offsets of the first range, at least; and the factor by which the next one is larger.
_SPAN, _GROWTH = 16, 8


def number_of_last(parameters: Parameters) -> int:
    """Return the number of messages that a request wants. Raises ApiError."""
    number = parameters.number(LAST, low=1)
    if number > MAX_LAST:
        raise invalid(f"last: expected at most {MAX_LAST}")
    return number


class LastMessages:
    """Finds the last messages of topics for the requests of ``listener``."""

    def __init__(self, listener: Listener, run_in_thread: RunInThread) -> None:
        self._listener = listener
        self._run_in_thread = run_in_thread

    async def start(
        self, request: ApiRequest, topics: frozenset[str], number: int, stop: int
    ) -> int:
        """Return the offset of the first of the last ``number`` messages before ``stop``.

        It is ``stop`` if there is none. Raises MemoryExhausted.
        """
        search = _LastSearch(self._listener, self._run_in_thread, request, topics)
        self._listener.memory.reserve(_READ_BYTES)
        try:
            return await search.start(number, stop)
        finally:
            self._listener.memory.free(_READ_BYTES)


class _LastSearch:
    """The search of one request, which ends when its client leaves."""

    def __init__(
        self,
        listener: Listener,
        run_in_thread: RunInThread,
        request: ApiRequest,
        topics: frozenset[str],
    ) -> None:
        self._listener = listener
        self._run_in_thread = run_in_thread
        self._request = request
        self._topics = topics
        self._left = READS

    async def start(self, number: int, stop: int) -> int:
        """See ``LastMessages``."""
        first = self._listener.store.first_offset
        begin = found_at = stop
        span = max(number, _SPAN)
        while number and begin > first and self._left and not self._request.client_left:
            # A range of as many offsets as messages are wanted is read, however large they are.
            can_shrink = span > max(number, _SPAN)
            low = max(first, begin - span)
            found = await self._last_in(low, begin, number, can_shrink)
            if found is None:
                span = max(span // _GROWTH, number, _SPAN)
                continue
            if found:
                found_at = found[0].start
                number -= sum(map(len, found))
            begin = low
            span *= _GROWTH
        return found_at

    async def _last_in(
        self, start: int, stop: int, number: int, can_shrink: bool
    ) -> deque[range] | None:
        """Return the last offsets of a range; None if it has too much to be read."""
        found: deque[range] = deque()
        nbytes = 0
        while start < stop:
            if not self._left or (can_shrink and nbytes > _READ_BYTES):
                return None
            self._left -= 1
            store = self._listener.store
            parcel = await read_history(
                self._listener.clock,
                self._request,
                partial(store.read_parcel, start, stop, self._topics, _READ_BYTES),
            )
            # Reads of messages in memory are done at once.
            await deferLater(self._listener.clock, 0)
            nbytes += parcel.nbytes
            if parcel.blocks:
                await self._add_offsets(found, parcel, number)
            start = max(parcel.stop, start + 1)
        return found

    async def _add_offsets(self, found: deque[range], parcel: Parcel, number: int) -> None:
        # A block may have more bytes than were requested, and many runs.
        more = max(parcel.nbytes - _READ_BYTES, 0)
        self._listener.memory.add(more)
        try:
            offsets = await self._run_in_thread(partial(_offsets_of, parcel))
        finally:
            self._listener.memory.free(more)
        found.extend(offsets)
        over = sum(map(len, found)) - number
        while over > 0:
            oldest = found.popleft()
            if len(oldest) > over:
                found.appendleft(oldest[over:])
            over -= len(oldest)


def _offsets_of(parcel: Parcel) -> list[range]:
    """Return the offsets of the messages of a parcel."""
    offsets = []
    for block, topics in parcel.blocks:
        for run in decode_block(block, topics):
            for one in run.split():
                low, high = max(one.offset, parcel.start), min(one.last + 1, parcel.stop)
                if low < high:
                    offsets.append(range(low, high))
    return offsets
