"""Exactly-once writing: parts of a batch are staged, then committed together, once.

A batch is identified by the id of the query that produces it, the owner of that query (see
``committed_batches``) and its number there. The commit is
recorded with the history, in the transaction that stores the messages, so a client that does not
know whether its commit succeeded repeats it. Staged parts do not survive a restart of the broker;
their query finds out when it commits, and runs the batch again.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from twisted.internet.defer import DeferredLock
from twisted.internet.interfaces import IDelayedCall

from pubsub.admin.api_error import (
    CONFLICT,
    FULL,
    TOO_LARGE,
    TOO_MANY,
    UNAVAILABLE,
    ApiError,
)
from pubsub.admin.committed_batches import Commit, CommittedBatches
from pubsub.admin.flow_control import all_stored, wait_for_backpressure
from pubsub.admin.history_handler import RunInThread
from pubsub.admin.parameters import Parameters
from pubsub.admin.request_access import RequestAccess, request_access
from pubsub.admin.staged_parts import PublishableRun, read_runs, summarize
from pubsub.broker.provisional_topics import ProvisionalTopics
from pubsub.errors import HistoryUnavailable, LimitReached
from pubsub.kernel import Columns

if TYPE_CHECKING:
    from pubsub.admin.http_channel import ApiRequest
    from pubsub.admin.request_body import Body
    from pubsub.broker.listener import Listener
    from pubsub.broker.topics import Topic

# Parts that may be staged at a time.
_MAX_PARTS = 10_000
PROTOCOL = "http"
"""The protocol of messages that were published over HTTP."""


_Query: TypeAlias = tuple[str | None, str]
"""The owner of a query, and its id."""


@dataclass(slots=True, eq=False)
class _StagedPart:
    """Messages of one task that wait for the commit of their batch."""

    query: _Query
    batch: int
    run: str
    body: Body
    topics: frozenset[str]
    messages: int
    sender: bytes
    committing: bool = False
    timer: IDelayedCall | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch to commit; ``address`` is that of the client if the query belongs to nobody."""

    query: _Query
    number: int
    address: str


class StagingHandler:
    """The endpoints /v1/stage, /v1/commit and /v1/abort."""

    def __init__(self, listener: Listener, run_in_thread: RunInThread) -> None:
        self._listener = listener
        self._store = listener.store
        self._run_in_thread = run_in_thread
        self._parts: dict[str, _StagedPart] = {}
        self._committed = CommittedBatches(listener.store, listener.memory)
        self._locks: dict[_Query, DeferredLock] = {}

    def restore(self) -> None:
        """Load the stored commits."""
        self._committed.restore()

    # Staging

    async def stage(self, request: ApiRequest) -> None:
        """POST /v1/stage"""
        parameters = Parameters.of_url(request, "query", "batch", "run")
        name, batch = parameters.text("query"), parameters.number("batch")
        run = parameters.text("run") if "run" in parameters else ""
        access = request_access(request, self._listener)
        query = (access.owner, name)
        if len(self._parts) >= _MAX_PARTS:
            message = f"limit reached: {_MAX_PARTS} parts are staged"
            raise ApiError(FULL, "staged", message)
        sender = b"" if access.token is None else access.token.subject.encode()
        body = request.keep_body()
        try:
            messages, topics = await self._run_in_thread(lambda: summarize(body, sender))
            if len(topics) > self._listener.topics.limit:
                raise LimitReached("topics")
            await self._listener.slices.finish(access.check_publish(topics))
            self._drop_all(query, lambda part: part.run != run)
            self._check_limits(query, batch, body.nbytes, messages)
        except BaseException:
            body.close()
            raise
        id = secrets.token_hex(16)
        part = self._parts[id] = _StagedPart(query, batch, run, body, topics, messages, sender)
        seconds = self._listener.settings["stage-seconds"]
        part.timer = self._listener.clock.callLater(seconds, self._drop, id)
        if request.client_left:
            # The client does not get the id.
            self._drop(id)
        elif messages:
            request.count_published(0, 0)
        answer = {"part": id, "messages": messages}
        request.answer(201, json.dumps(answer).encode() + b"\n")

    def _check_limits(self, query: _Query, batch: int, nbytes: int, messages: int) -> None:
        """Raise ApiError if the batch becomes too large or exceeds the listener's rate."""
        limit = self._listener.settings["max-batch"]
        staged = sum(
            p.body.nbytes for p in self._parts.values() if (p.query, p.batch) == (query, batch)
        )
        if staged + nbytes > limit:
            message = f"the batch is larger than {limit} bytes; use fewer rows for a batch"
            raise ApiError(TOO_LARGE, "too-large", message)
        limiter = self._listener.limiter
        if limiter is not None:
            if not limiter.admissible(Columns.one(b"")):
                raise ApiError(TOO_MANY, "rate-limited", "rate limit of the listener exceeded")
            limiter.take(messages, nbytes)

    def _drop(self, id: str) -> None:
        part = self._parts.get(id)
        if part is not None and not part.committing:
            del self._parts[id]
            if part.timer is not None and part.timer.active():
                part.timer.cancel()
            part.body.close()

    def _drop_all(self, query: _Query, which: Callable[[_StagedPart], bool]) -> None:
        """Drop those parts of a query for which ``which`` returns True."""
        for id, part in tuple(self._parts.items()):
            if part.query == query and which(part):
                self._drop(id)

    async def abort(self, request: ApiRequest) -> None:
        """POST /v1/abort"""
        parameters = Parameters.of_body(request, "query", "batch")
        batch = parameters.number("batch")
        query = (request_access(request, self._listener).owner, parameters.text("query"))
        self._drop_all(query, lambda part: part.batch == batch)
        request.answer(204, b"")

    # Committing

    async def commit(self, request: ApiRequest) -> None:
        """POST /v1/commit"""
        parameters = Parameters.of_body(request, "query", "batch", "parts")
        name, batch = parameters.text("query"), parameters.number("batch")
        ids = parameters.texts("parts")
        access = request_access(request, self._listener)
        query = (access.owner, name)
        lock = self._locks.setdefault(query, DeferredLock())
        await lock.acquire()
        try:
            answer = await self._commit(request, query, batch, ids, access)
        finally:
            lock.release()
            if not lock.locked:
                self._locks.pop(query, None)
        request.answer(200, json.dumps(answer).encode() + b"\n")

    async def _commit(
        self, request: ApiRequest, query: _Query, batch: int, ids: list[str], access: RequestAccess
    ) -> dict[str, object]:
        known = self._committed.last(*query)
        if known is not None and batch <= known.batch:
            await self._stored()
            self._drop_all(query, lambda part: part.batch <= batch)
            return {**(_range(known) if batch == known.batch else {}), "duplicate": True}
        parts = self._claim(query, batch, ids)
        try:
            runs, names = await self._run_in_thread(lambda: _contents(parts))
            address = request.address if access.owner is None else ""
            identified = _Batch(query, batch, address)
            commit = await self._publish_all(identified, runs, names, access)
            if commit.messages:
                request.count_published(commit.messages, sum(one.columns.nbytes for one in runs))
        finally:
            self._release(ids)
        # This includes the parts of tasks that failed after staging.
        self._drop_all(query, lambda part: part.batch <= batch)
        await self._stored()
        return {**_range(commit), "duplicate": False}

    def _claim(self, query: _Query, batch: int, ids: list[str]) -> list[_StagedPart]:
        """Return the parts, which do not expire until ``_release``; raises ApiError."""
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

    def _release(self, ids: list[str]) -> None:
        """Let the parts expire again; those whose time is over do so now."""
        for id in ids:
            part = self._parts.get(id)
            if part is not None:
                part.committing = False
                if part.timer is not None and not part.timer.active():
                    self._drop(id)

    async def _publish_all(
        self,
        batch: _Batch,
        runs: list[PublishableRun],
        names: frozenset[str],
        access: RequestAccess,
    ) -> Commit:
        """Publish all runs, on the topics of ``names``, or change nothing and raise."""
        listener = self._listener
        topics = ProvisionalTopics(listener.topics, listener.router)
        try:
            version = access.version
            await listener.slices.finish(access.check_publish(names))
            await listener.slices.finish(topics.add(names))
            await wait_for_backpressure(listener, topics)
            while access.version != version:
                # A queue key was set or rotated in the meantime.
                version = access.version
                await listener.slices.finish(access.check_publish(names))
            self._check_hosts(topics)
            commit = self._publish(batch, runs, topics)
        except BaseException:
            await listener.slices.finish(topics.withdraw())
            raise
        await listener.slices.finish(topics.keep())
        return commit

    def _check_hosts(self, topics: ProvisionalTopics) -> None:
        """Raise unless this broker hosts the topics, or may begin to."""
        for topic in topics:
            if topic.upstream is not None:
                message = f"topic {topic.name!r} is hosted by another broker; publish there"
                raise ApiError(CONFLICT, "remote-topic", message, topic=topic.name)
            if not topic.hosted:
                self._listener.topics.check_claim(topic.name)

    def _publish(
        self, batch: _Batch, runs: list[PublishableRun], topics: ProvisionalTopics
    ) -> Commit:
        """Publish all runs in one reactor tick and one transaction.

        A batch without messages is not recorded: nothing is lost if it is committed again. Raises
        HistoryUnavailable; nothing has been published in that case.
        """
        store = self._store
        first = store.next_offset
        with store.together():
            for topic in topics:
                if not topic.hosted:
                    self._listener.topics.claim(topic)
            for one in runs:
                self._publish_run(one, [topics[name] for name in one.topics])
            messages = sum(one.columns.count for one in runs)
            at = self._listener.wall.timestamp()
            commit = Commit(batch.number, first, store.next_offset, messages, at, batch.address)
            if messages:
                self._committed.record(*batch.query, commit)
        return commit

    def _publish_run(self, run: PublishableRun, topics: list[Topic]) -> None:
        dispatcher = self._listener.dispatcher
        if len(topics) == 1:
            dispatcher.publish(topics[0], run.columns, run.sender, PROTOCOL, run.headers)
        elif len({topic.durability > 0 for topic in topics}) == 1:
            mix = self._listener.router.mix(topics)
            places = {topic: index for index, topic in enumerate(mix.topics)}
            columns = run.columns.remap([places[topic] for topic in topics])
            dispatcher.publish_mixed(mix, columns, run.sender, PROTOCOL, run.headers)
        else:
            # Some are stored and some are not.
            start = 0
            for index, columns in run.columns.runs():
                stop = start + columns.count
                headers = None if run.headers is None else run.headers[start:stop]
                dispatcher.publish(topics[index], columns, run.sender, PROTOCOL, headers)
                start = stop

    async def _stored(self) -> None:
        if not await all_stored(self._store):
            message = "the batch is not on disk yet; repeat the commit to learn when it is"
            raise ApiError(UNAVAILABLE, HistoryUnavailable.reason, message)


def _contents(parts: list[_StagedPart]) -> tuple[list[PublishableRun], frozenset[str]]:
    """Return the runs of all parts, and their topics."""
    runs = [run for part in parts for run in read_runs(part.body, part.sender)]
    return runs, frozenset().union(*[part.topics for part in parts])


def _range(commit: Commit) -> dict[str, object]:
    """Return the place of a batch in the history, as responses show it."""
    return {"first": commit.first, "next": commit.next, "messages": commit.messages}
