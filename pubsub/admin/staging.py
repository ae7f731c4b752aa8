"""Writing exactly once: parts of a batch are staged, and committed together, one time only.

A batch is known by the id of the query that makes it and its number there. That it was committed
is remembered with the history, in the transaction that stored it: whoever does not know whether
that happened does it again. Staged parts are not kept through a restart of the broker; their query
finds that out when it commits, and runs the batch again.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.interfaces import IDelayedCall

from pubsub.admin.api_error import (
    CONFLICT,
    FULL,
    TOO_LARGE,
    TOO_MANY,
    UNAVAILABLE,
    ApiError,
)
from pubsub.admin.flow_control import until_free
from pubsub.admin.http_channel import Body
from pubsub.admin.parameters import Query
from pubsub.admin.request_access import Rights, rights_of
from pubsub.admin.staged_parts import Piece, pieces_of, summary_of
from pubsub.errors import HistoryUnavailable

if TYPE_CHECKING:
    from pubsub.admin.http_channel import ApiRequest
    from pubsub.admin.server import AdminFactory
    from pubsub.broker.topics import Topic

COMMITS = "commits"
"""The table of the store's metadata: by query, the last batch that was committed."""
# Queries that are remembered, and parts there may be at a time.
_QUERIES = 10_000
_PARTS = 10_000
PROTOCOL = "http"
"""What messages that came this way have as their protocol."""


@dataclass(slots=True, eq=False)
class _Part:
    """Messages that wait to be committed."""

    query: str
    batch: int
    run: str
    body: Body
    topics: frozenset[str]
    messages: int
    sender: bytes
    busy: bool = False
    timer: IDelayedCall | None = field(default=None, repr=False)


class Staging:
    """The part of the API that writes."""

    def __init__(self, server: AdminFactory) -> None:
        self._server = server
        self._listener = server.listener
        self._broker = server.listener.broker
        self._parts: dict[str, _Part] = {}
        self._committed: dict[str, dict[str, int]] = {}
        self._locks: dict[str, DeferredLock] = {}

    def restore(self) -> None:
        """Take up what the store kept."""
        rows = [(query, json.loads(row)) for query, row in self._broker.store.items(COMMITS)]
        self._committed = dict(sorted(rows, key=lambda row: row[1]["at"]))

    # Staging

    async def stage(self, request: ApiRequest) -> None:
        """POST /v1/stage"""
        query = Query.of_url(request, "query", "batch", "run")
        name, batch = query.text("query"), query.number("batch")
        run = query.text("run") if "run" in query else ""
        rights = rights_of(request, self._listener)
        if len(self._parts) >= _PARTS:
            raise ApiError(FULL, "staged", f"there are {_PARTS} parts")
        body = request.keep_body()
        try:
            messages, topics = await self._server.run(lambda: summary_of(body))
            rights.check_write(topics)
            self._drop_all(name, lambda part: part.run != run)
            self._admit(name, batch, body.nbytes, messages)
        except BaseException:
            body.close()
            raise
        sender = b"" if rights.token is None else rights.token.subject.encode()
        id = secrets.token_hex(16)
        part = self._parts[id] = _Part(name, batch, run, body, topics, messages, sender)
        seconds = self._listener.settings["stage-seconds"]
        part.timer = self._broker.clock.callLater(seconds, self._drop, id)
        if request.gone:
            # Nobody will know its id.
            self._drop(id)
        elif messages:
            request.count_published(0, 0)
        answer = {"part": id, "messages": messages}
        request.answer(201, json.dumps(answer).encode() + b"\n")

    def _admit(self, query: str, batch: int, nbytes: int, messages: int) -> None:
        """Raises ApiError if the batch becomes too large, or the listener's rate too high."""
        limit = self._listener.settings["max-batch"]
        there = sum(
            p.body.nbytes for p in self._parts.values() if (p.query, p.batch) == (query, batch)
        )
        if there + nbytes > limit:
            message = f"a batch has {limit} bytes at the most: take fewer rows for one"
            raise ApiError(TOO_LARGE, "too-large", message)
        limiter = self._listener.limiter
        if limiter is not None:
            if not limiter.admissible([b""], 0):
                raise ApiError(TOO_MANY, "rate-limited", "more than the listener takes a second")
            limiter.take(messages, nbytes)

    def _drop(self, id: str) -> None:
        part = self._parts.get(id)
        if part is not None and not part.busy:
            del self._parts[id]
            if part.timer is not None and part.timer.active():
                part.timer.cancel()
            part.body.close()

    def _drop_all(self, query: str, which: Callable[[_Part], bool]) -> None:
        """Of a query's parts those that nobody will commit."""
        for id, part in tuple(self._parts.items()):
            if part.query == query and which(part):
                self._drop(id)

    async def abort(self, request: ApiRequest) -> None:
        """POST /v1/abort"""
        query = Query.of_body(request, "query", "batch")
        batch = query.number("batch")
        self._drop_all(query.text("query"), lambda part: part.batch == batch)
        request.answer(204, b"")

    # Committing

    async def commit(self, request: ApiRequest) -> None:
        """POST /v1/commit"""
        query = Query.of_body(request, "query", "batch", "parts")
        name, batch, ids = query.text("query"), query.number("batch"), query.texts("parts")
        rights = rights_of(request, self._listener)
        lock = self._locks.setdefault(name, DeferredLock())
        await lock.acquire()
        try:
            answer = await self._commit(request, name, batch, ids, rights)
        finally:
            lock.release()
            if not lock.locked:
                self._locks.pop(name, None)
        request.answer(200, json.dumps(answer).encode() + b"\n")

    async def _commit(
        self, request: ApiRequest, query: str, batch: int, ids: list[str], rights: Rights
    ) -> dict[str, object]:
        known = self._committed.get(query)
        if known is not None and batch <= known["batch"]:
            await self._stored()
            same = {key: known[key] for key in ("first", "next", "messages")}
            self._drop_all(query, lambda part: part.batch <= batch)
            return {**(same if batch == known["batch"] else {}), "duplicate": True}
        parts = self._take(query, batch, ids)
        try:
            names = frozenset().union(*[part.topics for part in parts])
            rights.check_write(names)
            pieces = await self._server.run(lambda: list(_all_pieces(parts)))
            topics = {name: self._topic(name) for name in names}
            await until_free(self._broker, topics.values())
            # A key may have been set or changed meanwhile.
            rights.check_write(names)
            row = self._publish(query, batch, pieces, topics)
            if row["messages"]:
                request.count_published(row["messages"], sum(piece.run.nbytes for piece in pieces))
        finally:
            self._let_go(ids)
        # Those too that tasks staged which failed afterwards.
        self._drop_all(query, lambda part: part.batch <= batch)
        await self._stored()
        return {**{key: row[key] for key in ("first", "next", "messages")}, "duplicate": False}

    def _take(self, query: str, batch: int, ids: list[str]) -> list[_Part]:
        """The parts, which from now on neither expire nor are aborted; raises ApiError."""
        parts = []
        for id in dict.fromkeys(ids):
            part = self._parts.get(id)
            if part is None or (part.query, part.batch) != (query, batch):
                message = "a part is not there any more: stage the batch again"
                raise ApiError(CONFLICT, "unknown-part", message, part=id)
            parts.append(part)
        for part in parts:
            part.busy = True
        return parts

    def _let_go(self, ids: list[str]) -> None:
        """The parts may expire again; those whose time is over do so now."""
        for id in ids:
            part = self._parts.get(id)
            if part is not None:
                part.busy = False
                if part.timer is not None and not part.timer.active():
                    self._drop(id)

    def _topic(self, name: str) -> Topic:
        topic = self._broker.topics.create(name)
        if topic.upstream is not None:
            message = f"{name!r} is hosted by another broker"
            raise ApiError(CONFLICT, "remote-topic", message, topic=name)
        return topic

    def _publish(
        self, query: str, batch: int, pieces: list[Piece], topics: dict[str, Topic]
    ) -> dict[str, int]:
        """All of it, in one turn and one transaction; raises HistoryUnavailable, and nothing is."""
        store = self._broker.store
        first = store.next_offset
        with store.together():
            for piece in pieces:
                topic = topics[piece.topic]
                self._broker.publish(topic, piece.run, piece.sender, PROTOCOL, piece.headers)
            messages = sum(len(piece.run.payloads) for piece in pieces)
            row = {
                "batch": batch,
                "first": first,
                "next": store.next_offset,
                "messages": messages,
                "at": self._broker.timestamp(),
            }
            self._remember(query, row)
        return row

    def _remember(self, query: str, row: dict[str, int]) -> None:
        # The newest last.
        self._committed.pop(query, None)
        self._committed[query] = row
        self._broker.store.put(COMMITS, query, json.dumps(row).encode())
        while len(self._committed) > _QUERIES:
            oldest = next(iter(self._committed))
            del self._committed[oldest]
            self._broker.store.delete(COMMITS, oldest)

    async def _stored(self) -> None:
        stored: Deferred[bool] = self._server.stored()
        if not await stored:
            message = "it is not on disk yet; commit again to find out when it is"
            raise ApiError(UNAVAILABLE, HistoryUnavailable.reason, message)


def _all_pieces(parts: list[_Part]) -> Iterator[Piece]:
    for part in parts:
        yield from pieces_of(part.body, part.sender)
