"""The endpoints that read: bounds, the topics of a range, and a range of the history.

``history_stream.py`` sends the range.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from pubsub.http_api.reading.follow_start import HistoryGap, check_epoch
from pubsub.http_api.reading.history_response import HistoryRange, HistoryResponse, RunInThread
from pubsub.http_api.reading.last_messages import LAST, LastMessages, number_of_last
from pubsub.http_api.reading.shared_ranges import FROM, TO, SharedRanges
from pubsub.http_api.reading.stream_formats import (
    ArrowStream,
    Format,
    JsonLines,
    StoredMessages,
    has_arrow,
    need_arrow,
)
from pubsub.http_api.reading.stream_places import StreamPlaces
from pubsub.http_api.requests.api_error import GONE, NOT_SATISFIABLE, ApiError
from pubsub.http_api.requests.client_share import client_of
from pubsub.http_api.requests.parameters import Parameters, invalid
from pubsub.http_api.requests.request_access import RequestAccess, request_access

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.slices import Work
    from pubsub.http_api.reading.follow_formats import FollowEncoding
    from pubsub.http_api.reading.follow_start import FollowStart
    from pubsub.http_api.requests.api_request import ApiRequest
    from pubsub.store.records.topic_counts import TopicCounts

# Names that one step of the list of topics looks at.
_NAMES = 8
# Estimated bytes of a topic in the list while it is made, for the memory budget.
_ROW_BYTES = 512
_FORMATS = ("arrow", "jsonl")
_COMMON = (
    FROM, TO, "start", "stop", LAST, "format", "headers", "skip_expired", "epoch", "compression",
)  # fmt: skip


class HistoryHandler:
    """The endpoints /v1/bounds, /v1/topics and /v1/history."""

    def __init__(self, listener: Listener, run_in_thread: RunInThread) -> None:
        self._listener = listener
        self._store = listener.store
        self._run_in_thread = run_in_thread
        self._places = StreamPlaces(listener)
        self._shared = SharedRanges(listener)
        self._last = LastMessages(listener, run_in_thread)

    async def bounds(self, request: ApiRequest) -> None:
        """GET /v1/bounds"""
        parameters = Parameters.of_url(request, "timestamp", "at", FROM, "skip_expired")
        # Anyone may ask, but a client learns early that its token is not valid.
        request_access(request, self._listener)
        answer: dict[str, object] = {
            "first": self._store.first_offset,
            "next": self._store.committed,
            "epoch": self._store.epoch,
        }
        if "timestamp" in parameters:
            stamp = parameters.time("timestamp")
            answer["offset"] = await self._store.offset_at(stamp)
        answer.update(await self._shared.latest(parameters))
        request.answer(200, _json(answer))

    async def topics(self, request: ApiRequest) -> None:
        """GET /v1/topics"""
        parameters = Parameters.of_url(request, "start", "stop")
        access = request_access(request, self._listener)
        start = parameters.number("start", self._store.first_offset)
        found = await self._store.topics_in(start, parameters.number("stop", self._store.committed))
        pieces: list[bytes] = []
        held = _ROW_BYTES * len(found)
        self._listener.memory.add(held)
        try:
            await self._listener.slices.finish(self._list_topics(found, access, pieces))
        finally:
            self._listener.memory.free(held)
        request.answer(200, b'{"topics": [' + b", ".join(pieces) + b"]}\n")

    def _list_topics(self, found: TopicCounts, access: RequestAccess, pieces: list[bytes]) -> Work:
        """Add the JSON of the topics in ``found`` that may be read to ``pieces``, by name."""
        topics = self._listener.topics
        # Sorting many names at once would take long; most are those of topics, which are sorted.
        known = (t.name for t in topics.with_prefix(b""))
        others: list[str] = []
        for some in _in_pieces(found):
            others += [name for name in some if name not in topics]
            yield
        # A topic of the others may begin again meanwhile; it is in both then.
        each_once = (name for name, _ in groupby(merge(known, sorted(others))))
        for names in _in_pieces(each_once):
            for name in names:
                if name in found and access.may_read(name):
                    messages, nbytes = found[name]
                    row = {"name": name, "messages": messages, "bytes": nbytes}
                    pieces.append(json.dumps(row, ensure_ascii=False).encode())
            yield

    async def get(self, request: ApiRequest) -> None:
        """GET /v1/history"""
        parameters = Parameters.of_url(request, *_COMMON, "topic")
        await self._read(request, parameters, "topic")

    async def post(self, request: ApiRequest) -> None:
        """POST /v1/history"""
        parameters = Parameters.of_body(request, *_COMMON, "topics")
        await self._read(request, parameters, "topics")

    async def messages(
        self,
        request: ApiRequest,
        access: RequestAccess,
        topics: frozenset[str],
        begin: FollowStart,
        encoding: FollowEncoding,
    ) -> None:
        """Answer with the messages of ``topics`` from ``begin`` on; skip those that expire."""
        first, end = self._store.first_offset, self._store.committed
        gap, start = begin.gap, min(begin.offset, end)
        if start < first:
            gap, start = HistoryGap(start, first, "expired"), first
        format = StoredMessages(encoding, start, gap)
        await self._stream(request, access, HistoryRange(start, end, topics, True), format)

    async def _read(self, request: ApiRequest, parameters: Parameters, topics_key: str) -> None:
        access = request_access(request, self._listener)
        topics = None
        if topics_key in parameters:
            topics = frozenset(parameters.texts(topics_key))
            await self._listener.slices.finish(access.check_read(topics))
        if LAST in parameters:
            requested = await self._last_range(request, parameters, topics)
        else:
            requested = await self._range(parameters, topics)
        if parameters.word("format", *_FORMATS) == _FORMATS[0] and not has_arrow():
            # In a thread, as its import takes long.
            await self._run_in_thread(need_arrow)
        if request.client_left:
            return
        format = self._format(parameters)
        request.require_chunks()
        await self._stream(request, access, requested, format)

    async def _stream(
        self,
        request: ApiRequest,
        access: RequestAccess,
        requested: HistoryRange,
        format: Format,
    ) -> None:
        """Answer with a range."""
        stream = HistoryResponse(
            self._listener, self._run_in_thread, request, access, requested, format
        )
        headers = {
            "Pubsub-Start": str(requested.start),
            "Pubsub-Stop": str(requested.stop),
            "Pubsub-First": str(self._store.first_offset),
            "Pubsub-Epoch": self._store.epoch,
            # nginx would fill a file of 1 GiB, and not read before the client has all of that.
            "X-Accel-Buffering": "no",
        }
        if request.method == b"HEAD":
            request.head(200, headers, format.content_type)
            request.finish()
            return
        client = client_of(request.requestHeaders, self._listener, request.address)
        self._places.begin(stream, client)
        try:
            request.head(200, headers, format.content_type)
            await stream.run()
        finally:
            self._places.end(stream)

    async def _range(self, parameters: Parameters, topics: frozenset[str] | None) -> HistoryRange:
        if FROM in parameters:
            skip = parameters.flag("skip_expired")
            begin, end, between = await self._shared.find(parameters, skip)
            return HistoryRange(begin, end, topics, skip, between)
        if TO in parameters:
            raise invalid("to: only with from")
        first, end = self._store.first_offset, self._store.committed
        start = parameters.number("start")
        stop = parameters.number("stop", end)
        epoch = parameters.text("epoch", self._store.epoch)
        check_epoch(self._store, epoch, start)
        _check_end(max(start, stop), end)
        if stop < start:
            raise invalid("stop: expected an offset at or after start")
        skip = parameters.flag("skip_expired")
        if start < first:
            if not skip:
                raise expired(first)
            start = min(first, stop)
        return HistoryRange(start, stop, topics, skip)

    async def _last_range(
        self, request: ApiRequest, parameters: Parameters, topics: frozenset[str] | None
    ) -> HistoryRange:
        """Return the range of the last messages of ``topics``, before ``stop`` if it is given."""
        number, end = number_of_last(parameters), self._store.committed
        if not topics:
            raise invalid("last: only with topics")
        for name in (FROM, TO, "start", "epoch"):
            if name in parameters:
                raise invalid(f"expected either last or {name}")
        stop = parameters.number("stop", end)
        _check_end(stop, end)
        start = await self._last.start(request, topics, number, stop)
        return HistoryRange(start, stop, topics, skip_expired=True)

    def _format(self, parameters: Parameters) -> Format:
        headers = parameters.flag("headers")
        compression = parameters.word("compression", "none", "zstd", "lz4")
        if parameters.word("format", *_FORMATS) == _FORMATS[0]:
            return ArrowStream(headers, compression)
        if compression != "none":
            raise invalid("compression: only with format=arrow")
        return JsonLines(headers)


def _in_pieces(names: Iterable[str]) -> Iterator[list[str]]:
    iterator = iter(names)
    while piece := list(islice(iterator, _NAMES)):
        yield piece


def expired(first: int) -> ApiError:
    """Return the error for offsets that have expired."""
    return ApiError(GONE, "expired", f"the history begins at offset {first}", first=first)


def _check_end(offset: int, end: int) -> None:
    if offset > end:
        message = f"the history ends at offset {end}"
        raise ApiError(NOT_SATISFIABLE, "beyond-end", message, next=end)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"
