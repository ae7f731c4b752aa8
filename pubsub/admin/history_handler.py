"""Reading: bounds, the topics of a range, and the range itself as a stream.

A stream takes one parcel after another from the store, each made into bytes in a thread. One waits
while another is on its way. That is what a client costs that does not read, until it has not read
for so long that it is given up.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IPushProducer
from twisted.logger import Logger
from zope.interface import implementer

from pubsub.admin.api_error import CONFLICT, GONE, NOT_SATISFIABLE, UNAVAILABLE, VERSION, ApiError
from pubsub.admin.parameters import Query, bad
from pubsub.admin.request_access import Rights, rights_of
from pubsub.admin.stream_formats import ArrowStream, Format, JsonLines
from pubsub.broker.access import RESERVED
from pubsub.broker.topics import topic_name

if TYPE_CHECKING:
    from pubsub.admin.http_channel import ApiRequest
    from pubsub.admin.server import AdminFactory
    from pubsub.store.block_ranges import Parcel

log = Logger()
# Payload bytes of a parcel.
_PIECE = 1024**2
_COMMON = ("start", "stop", "format", "headers", "skip_expired", "epoch", "compression")


@dataclass(frozen=True, slots=True)
class _Range:
    """What is read; ``topics`` is None for all that may be."""

    start: int
    stop: int
    topics: frozenset[str] | None
    skip_expired: bool


class History:
    """The part of the API that reads."""

    def __init__(self, server: AdminFactory) -> None:
        self._server = server
        self._listener = server.listener
        self._store = server.listener.broker.store
        self._streams = 0

    async def bounds(self, request: ApiRequest) -> None:
        """GET /v1/bounds"""
        query = Query.of_url(request, "timestamp")
        answer: dict[str, object] = {
            "first": self._store.first_offset,
            "next": self._store.committed,
            "epoch": self._store.epoch,
        }
        if "timestamp" in query:
            stamp = query.number("timestamp", low=-(2**63))
            answer["offset"] = await self._store.offset_at(stamp)
        request.answer(200, _json(answer))

    async def topics(self, request: ApiRequest) -> None:
        """GET /v1/topics"""
        query = Query.of_url(request, "start", "stop")
        rights = rights_of(request, self._listener)
        start = query.number("start", self._store.first_offset)
        found = await self._store.topics_in(start, query.number("stop", self._store.committed))
        rows = [
            {"name": name, "messages": messages, "bytes": nbytes}
            for name, (messages, nbytes) in sorted(found.items())
            if rights.may_read(name)
        ]
        request.answer(200, _json({"topics": rows}))

    async def get(self, request: ApiRequest) -> None:
        """GET /v1/history"""
        query = Query.of_url(request, *_COMMON, "topic")
        await self._read(request, query, query.texts("topic") if "topic" in query else None)

    async def post(self, request: ApiRequest) -> None:
        """POST /v1/history"""
        query = Query.of_body(request, *_COMMON, "topics")
        await self._read(request, query, query.texts("topics") if "topics" in query else None)

    async def _read(self, request: ApiRequest, query: Query, names: list[str] | None) -> None:
        rights = rights_of(request, self._listener)
        topics = None if names is None else frozenset(map(topic_name, names))
        if topics is not None:
            rights.check_read(topics)
        wanted = self._range(query, topics)
        made = self._format(query)
        if request.clientproto != b"HTTP/1.1":
            message = "HTTP/1.1 is needed: before, nobody could tell a stream that was cut"
            raise ApiError(VERSION, "version", message)
        if self._streams >= self._listener.settings["max-streams"]:
            raise ApiError(UNAVAILABLE, "streams", f"{self._streams} streams are being read")
        headers = {
            "Pubsub-Start": str(wanted.start),
            "Pubsub-Stop": str(wanted.stop),
            "Pubsub-First": str(self._store.first_offset),
            "Pubsub-Epoch": self._store.epoch,
        }
        self._streams += 1
        try:
            request.head(200, headers, made.kind)
            await _Stream(self._server, request, rights, wanted, made).run()
        finally:
            self._streams -= 1

    def _range(self, query: Query, topics: frozenset[str] | None) -> _Range:
        first, end = self._store.first_offset, self._store.committed
        start = query.number("start")
        stop = query.number("stop", end)
        epoch = query.text("epoch", self._store.epoch)
        if not self._store.continues(epoch, start):
            raise ApiError(
                CONFLICT, "epoch", f"offset {start} of epoch {epoch} is not of this log",
                epoch=self._store.epoch,
            )  # fmt: skip
        if start > end or stop > end:
            message = f"the log goes up to {end}"
            raise ApiError(NOT_SATISFIABLE, "beyond-end", message, next=end)
        if stop < start:
            raise bad("stop is before start")
        skip = query.flag("skip_expired")
        if start < first:
            if not skip:
                raise expired(first)
            start = min(first, stop)
        return _Range(start, stop, topics, skip)

    def _format(self, query: Query) -> Format:
        headers = query.flag("headers")
        compression = query.word("compression", "none", "zstd", "lz4")
        if query.word("format", "arrow", "jsonl") == "arrow":
            return ArrowStream(headers, compression)
        if compression != "none":
            raise bad("compression: that is for format=arrow")
        return JsonLines(headers)


def expired(first: int) -> ApiError:
    """What was asked for is no longer there."""
    return ApiError(GONE, "expired", f"the log begins at {first}", first=first)


@implementer(IPushProducer)
class _Stream:
    """One range on its way to one client."""

    def __init__(
        self,
        server: AdminFactory,
        request: ApiRequest,
        rights: Rights,
        wanted: _Range,
        made: Format,
    ) -> None:
        self._server = server
        self._broker = server.listener.broker
        self._request = request
        self._channel = request.channel
        self._rights = rights
        self._range = wanted
        self._format = made
        self._full = False
        self._ended = False
        self._waiting: Deferred[None] | None = None
        self._patience: IDelayedCall | None = None

    async def run(self) -> None:
        """Send all of it. A stream that cannot be completed is cut off and looks it."""
        self._channel.cut = self._cut
        self._request.notifyFinish().addErrback(lambda _: self._end())
        self._request.registerProducer(self, True)
        try:
            await self._send()
        except Exception:
            if not self._ended:
                log.failure("history: a stream")
                self._cut("an error")
        finally:
            self._forgive()
        if not self._ended:
            self._channel.cut = None
            self._request.unregisterProducer()
            self._request.finish()

    async def _send(self) -> None:
        at, stop = self._range.start, self._range.stop
        while at < stop and not self._ended:
            parcel = await self._broker.store.read_parcel(at, stop, self._range.topics, _PIECE)
            if self._ended or not self._allowed(parcel, at):
                return
            at = parcel.stop
            parcel = parcel.of(self._wanted)
            if parcel.blocks or parcel.damaged:
                await self._write(partial(self._format.encode, parcel))
        if not self._ended:
            await self._write(self._format.end)

    async def _write(self, make: Callable[[], bytes]) -> None:
        # Made while what came before is on its way.
        data = await self._server.run(make)
        if self._full and not self._ended:
            self._waiting = Deferred()
            await self._waiting
        if data and not self._ended:
            self._request.write(data)

    def _wanted(self, name: str) -> bool:
        """Is this topic among what is read? The broker's own have to be named."""
        if self._range.topics is None and name.startswith(RESERVED):
            return False
        return self._rights.may_read(name)

    def _allowed(self, parcel: Parcel, at: int) -> bool:
        """Is what comes next still there, and still this client's to read?"""
        if parcel.first > at and not self._range.skip_expired:
            self._cut("what comes next has expired")
        elif not self._rights.hold:
            self._cut("its token has expired")
        elif self._range.topics and not all(map(self._rights.may_read, self._range.topics)):
            self._cut("a topic may not be read any more")
        return not self._ended

    # The client

    def pauseProducing(self) -> None:
        """See IPushProducer: it does not read as fast as it could."""
        if not self._full and not self._ended:
            self._full = True
            seconds = self._server.listener.slow.seconds
            self._patience = self._broker.clock.callLater(seconds, self._slow)

    def resumeProducing(self) -> None:
        """See IPushProducer."""
        self._full = False
        self._forgive()
        self._go_on()

    def stopProducing(self) -> None:
        """See IPushProducer."""
        self._end()

    def _slow(self) -> None:
        self._cut(f"it has not read for {self._server.listener.slow.seconds:g} s")

    def _forgive(self) -> None:
        if self._patience is not None and self._patience.active():
            self._patience.cancel()
        self._patience = None

    def _cut(self, reason: str) -> None:
        """End it so that nobody takes it for complete."""
        if self._ended:
            return
        label = self._request.label
        self._channel.count_refusal("stream-cut")
        log.info("history: the stream to {client} is cut: {reason}", client=label, reason=reason)
        self._end()
        self._channel.abort(reason)

    def _end(self) -> None:
        self._ended = True
        self._forgive()
        self._go_on()

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.callback(None)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"
