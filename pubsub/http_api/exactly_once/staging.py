"""Exactly-once writing: parts of a batch are staged, then committed together, once.

A batch is identified by the id of the query that produces it, the owner of that query (see
``committed_batches``) and its number there. The commit is
recorded with the history, in the transaction that stores the messages, so a client that does not
know whether its commit succeeded repeats it. Staged parts do not survive a restart of the broker;
their query finds out when it commits, and runs the batch again.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from twisted.internet.defer import DeferredLock

from pubsub.broker.delivery.history_reads import all_on_disk
from pubsub.broker.publishing.sliced_publishing import SlicedPublishing
from pubsub.broker.topic_space.durability import Durability
from pubsub.broker.topic_space.provisional_topics import ProvisionalTopics
from pubsub.errors import HistoryUnavailable, LimitReached
from pubsub.http_api.exactly_once.batch_publication import BatchPublication
from pubsub.http_api.exactly_once.batch_state import BatchState
from pubsub.http_api.exactly_once.committed_batches import Commit
from pubsub.http_api.exactly_once.part_registry import QueryKey, StagedPart
from pubsub.http_api.exactly_once.staged_parts import PartSummary, StagedRows, read_rows, summarize
from pubsub.http_api.reading.history_response import RunInThread
from pubsub.http_api.requests.api_error import (
    CONFLICT,
    TOO_LARGE,
    TOO_MANY,
    UNAVAILABLE,
    ApiError,
)
from pubsub.http_api.requests.client_share import client_of
from pubsub.http_api.requests.flow_control import all_stored, wait_for_backpressure
from pubsub.http_api.requests.parameters import Parameters, invalid
from pubsub.http_api.requests.request_access import RequestAccess, request_access
from pubsub.kernel import Columns

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.slices import Work
    from pubsub.http_api.requests.api_request import ApiRequest
    from pubsub.http_api.requests.request_body import Body

# Estimated bytes of memory that a byte of a part takes while it is parsed.
_PARSING_COST = 3
# Topics that a commit looks at to find out whether it has to wait, before it reads its parts.
_LOOKED_AT = 1000


@dataclass(frozen=True, slots=True)
class _UploadedBatch:
    """A batch to commit; ``address`` is that of the client if the query has no owner."""

    query: QueryKey
    number: int
    address: str


class StagingHandler:
    """The endpoints /v1/stage, /v1/commit and /v1/abort."""

    def __init__(self, listener: Listener, run_in_thread: RunInThread) -> None:
        self._listener = listener
        self._store = listener.store
        self._run_in_thread = run_in_thread
        # A query may stage at one listener of the broker and commit at another one.
        self._batches = state = listener.shared(BatchState, lambda: _batches_of(listener))
        self._parts, self._committed, self._shared = state.parts, state.committed, state.commits
        self._publishing = listener.shared(
            SlicedPublishing,
            lambda: SlicedPublishing(listener.store, listener.router, listener.at_tick_end),
        )
        self._locks = state.locks

    def restore(self) -> None:
        """Load the stored commits."""
        self._batches.restore()

    # Staging

    async def limits(self, request: ApiRequest) -> None:
        """GET /v1/limits"""
        Parameters.of_url(request)
        # Anyone may ask, but a client learns early that its token is not valid.
        request_access(request, self._listener)
        settings = self._listener.settings
        # Parsing a batch and publishing it have to fit into the memory for one request.
        fits = self._listener.memory.work_limit // (_PARSING_COST + 1)
        limits = {
            "batch_bytes": min(settings["max-batch"], fits),
            "message_bytes": settings["max-message"],
        }
        request.answer(200, json.dumps(limits).encode() + b"\n")

    async def stage(self, request: ApiRequest) -> None:
        """POST /v1/stage"""
        parameters = Parameters.of_url(request, "query", "batch", "run")
        name, batch = parameters.text("query"), parameters.number("batch")
        run = parameters.text("run") if "run" in parameters else ""
        access = request_access(request, self._listener)
        query = (access.owner, name)
        client = client_of(request.requestHeaders, self._listener, request.address)
        self._parts.reserve(client)
        sender = (access.owner or "").encode()
        body = request.keep_body()
        try:
            summary = await self._summarize(body, sender)
            await self._listener.slices.finish(access.check_publish(summary.topics))
            self._parts.drop_all(query, lambda part: part.run != run)
            self._check_limits(query, batch, body.nbytes, summary.messages)
        except BaseException:
            body.close()
            self._parts.cancel(client)
            raise
        part = StagedPart(query, batch, run, body, summary, sender, client)
        seconds = self._listener.settings["stage-seconds"]
        id = self._parts.add(part, self._listener.clock, seconds)
        if request.client_left:
            # The client does not get the id.
            self._parts.drop(id)
        elif summary.messages:
            request.count_published(0, 0)
        answer = {"part": id, "messages": summary.messages}
        request.answer(201, json.dumps(answer).encode() + b"\n")

    async def _summarize(self, body: Body, sender: bytes) -> PartSummary:
        """Return the contents of a part; raises ApiError or Refused."""
        needed = _PARSING_COST * body.nbytes
        self._check_memory(needed)
        with self._listener.memory.work(needed):
            summary: PartSummary = await self._run_in_thread(lambda: summarize(body, sender))
        if len(summary.topics) > self._listener.topics.limit:
            raise LimitReached("topics")
        return summary

    def _check_memory(self, needed: int) -> None:
        """Raise ApiError for work that needs more memory than there can be for it."""
        if needed > self._listener.memory.work_limit:
            message = f"the batch needs {needed} bytes of memory; use fewer rows for a batch"
            raise ApiError(TOO_LARGE, "too-large", message)

    def _check_limits(self, query: QueryKey, batch: int, nbytes: int, messages: int) -> None:
        """Raise ApiError if the batch becomes too large or exceeds the listener's rate."""
        limit = self._listener.settings["max-batch"]
        if self._parts.nbytes(query, batch) + nbytes > limit:
            message = f"the batch is larger than {limit} bytes; use fewer rows for a batch"
            raise ApiError(TOO_LARGE, "too-large", message)
        limiter = self._listener.limiter
        if limiter is not None:
            if not limiter.admissible(Columns.one(b"")):
                raise ApiError(TOO_MANY, "rate-limited", "rate limit of the listener exceeded")
            limiter.take(messages, nbytes)

    async def abort(self, request: ApiRequest) -> None:
        """POST /v1/abort"""
        parameters = Parameters.of_body(request, "query", "batch")
        batch = parameters.number("batch")
        access = request_access(request, self._listener)
        access.require_publishing()
        query = (access.owner, parameters.text("query"))
        self._parts.drop_all(query, lambda part: part.batch == batch)
        request.answer(204, b"")

    # Committing

    async def commit(self, request: ApiRequest) -> None:
        """POST /v1/commit"""
        parameters = Parameters.of_body(request, "query", "batch", "parts", "shared")
        name, batch = parameters.text("query"), parameters.number("batch")
        if "parts" not in parameters:
            # Without them nothing would be published, and the staged parts would be dropped.
            raise invalid("parts: expected a list")
        ids, shared = parameters.texts("parts"), parameters.flag("shared")
        access = request_access(request, self._listener)
        query = (access.owner, name)
        lock = self._locks.setdefault(query, DeferredLock())
        await lock.acquire()
        try:
            answer = await self._commit(request, query, batch, ids, access, shared)
            self._shared.stored(query, batch, shared)
        finally:
            lock.release()
            # The next commit may be done by now, and a later one have another lock.
            if not lock.locked and self._locks.get(query) is lock:
                del self._locks[query]
        request.answer(200, json.dumps(answer).encode() + b"\n")

    async def _commit(
        self,
        request: ApiRequest,
        query: QueryKey,
        batch: int,
        ids: list[str],
        access: RequestAccess,
        shared: bool,
    ) -> dict[str, object]:
        known = self._committed.last(*query)
        if known is not None and batch <= known.batch:
            await self._stored(known, shared)
            self._parts.drop_all(query, lambda part: part.batch <= batch)
            return {**(_range(known) if batch == known.batch else {}), "duplicate": True}
        if await self._shared.is_committed(query, batch, shared):
            self._parts.drop_all(query, lambda part: part.batch <= batch)
            return {"duplicate": True}
        parts = self._parts.claim(query, batch, ids)
        try:
            address = request.address if access.owner is None else ""
            identified = _UploadedBatch(query, batch, address)
            async with self._shared.reserved(query, batch, shared):
                commit, nbytes = await self._publish_parts(identified, parts, access)
            if commit.messages:
                request.count_published(commit.messages, nbytes)
        finally:
            self._parts.release(ids)
        # This includes the parts of tasks that failed after staging.
        self._parts.drop_all(query, lambda part: part.batch <= batch)
        try:
            await self._stored(commit, shared)
        except ApiError:
            self._shared.published(query, batch, shared)
            raise
        return {**_range(commit), "duplicate": False}

    async def _publish_parts(
        self, batch: _UploadedBatch, parts: list[StagedPart], access: RequestAccess
    ) -> tuple[Commit, int]:
        """Publish all parts; return the commit, and the bytes of the payloads."""
        memory, topics = self._listener.memory, self._listener.topics
        names: frozenset[str] = frozenset().union(*[part.summary.topics for part in parts])
        needed = sum([part.summary.memory for part in parts])
        self._check_memory(needed)
        # A batch that has to wait takes no memory meanwhile.
        found = [topics.get(name) for name in islice(names, _LOOKED_AT)]
        await wait_for_backpressure(self._listener, [topic for topic in found if topic])
        with memory.work(needed):
            rows = await self._run_in_thread(lambda: _rows_of(parts))
            return await self._publish_all(batch, rows, names, access)

    async def _publish_all(
        self,
        batch: _UploadedBatch,
        rows: deque[StagedRows],
        names: frozenset[str],
        access: RequestAccess,
    ) -> tuple[Commit, int]:
        """Publish all rows, on the topics of ``names``, or change nothing and raise.

        A batch without messages is not recorded: nothing is lost if it is committed again. Raises
        HistoryUnavailable; nothing has been published in that case.
        """
        listener, store = self._listener, self._store
        topics = ProvisionalTopics(listener.topics, listener.router)
        publication = BatchPublication(listener.dispatcher, topics, rows)
        try:
            version = access.version
            await listener.slices.finish(access.check_publish(names))
            await listener.slices.finish(topics.add(names))
            await self._take_turn(topics)
            try:
                while True:
                    await listener.slices.finish(self._check_hosts(topics))
                    if access.version == version:
                        break
                    # A queue key was set or rotated in the meantime.
                    version = access.version
                    await listener.slices.finish(access.check_publish(names))
                first = store.next_offset
                commits: list[Commit] = []

                def record() -> None:
                    at, messages = listener.wall.timestamp(), publication.messages
                    next = store.next_offset
                    sync = any(topic.durability is Durability.SYNC for topic in topics)
                    commit = Commit(batch.number, first, next, messages, at, batch.address, sync)
                    commits.append(commit)
                    if messages:
                        self._committed.record(*batch.query, commit)

                await self._publishing.publish(publication.steps(record))
            finally:
                self._publishing.turn.release()
        except BaseException:
            if publication.messages:
                topics.keep_hosted()
            await listener.slices.finish(topics.withdraw())
            raise
        await listener.slices.finish(topics.keep())
        return commits[0], publication.nbytes

    async def _take_turn(self, topics: ProvisionalTopics) -> None:
        """Wait until nothing holds publishers, and no other batch is being published."""
        while True:
            await wait_for_backpressure(self._listener, topics)
            await self._publishing.turn.acquire()
            if not self._store.gate.shut:
                return
            # The batch before has filled the history.
            self._publishing.turn.release()

    def _check_hosts(self, topics: ProvisionalTopics) -> Work:
        """Raise unless this broker hosts the topics, or may begin to."""
        for topic in topics:
            if topic.upstream is not None:
                message = f"topic {topic.name!r} is hosted by another broker; publish there"
                raise ApiError(CONFLICT, "remote-topic", message, topic=topic.name)
            if not topic.hosted:
                self._listener.topics.check_claim(topic.name)
            yield

    async def _stored(self, commit: Commit, shared: bool) -> None:
        # Without either, a commit does not need the other brokers.
        stored = all_stored if shared or commit.sync else all_on_disk
        if not await stored(self._store):
            message = "the batch is not on disk yet; repeat the commit to find out when it is"
            raise ApiError(UNAVAILABLE, HistoryUnavailable.reason, message)


def _batches_of(listener: Listener) -> BatchState:
    state = BatchState(listener.store, listener.memory)
    listener.sessions.at_stop.append(state.parts.close)
    return state


def _rows_of(parts: list[StagedPart]) -> deque[StagedRows]:
    return deque(rows for part in parts for rows in read_rows(part.body, part.sender))


def _range(commit: Commit) -> dict[str, object]:
    """Return the place of a batch in the history, as responses show it."""
    return {"first": commit.first, "next": commit.next, "messages": commit.messages}
