"""The op ``publish`` of a WebSocket: one message, or several of one or of several topics."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from pubsub.broker.topic_space.topic_names import topic_name
from pubsub.errors import Refused
from pubsub.http_api.publishing.message_body import (
    MAX_JOINED,
    SubmittedMessages,
    headers_of,
    joined_messages,
    message_of,
)
from pubsub.http_api.publishing.message_publishing import publishing_memory
from pubsub.http_api.requests.api_error import ApiError
from pubsub.http_api.requests.flow_control import WAIT_SECONDS
from pubsub.http_api.requests.parameters import check_name, invalid
from pubsub.kernel import Columns

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.publishing.rate_limits import RateLimiter
    from pubsub.broker.routing.batch import Headers
    from pubsub.http_api.publishing.message_publishing import MessagePublisher, Published, Submitted
    from pubsub.http_api.requests.api_request import ApiRequest
    from pubsub.http_api.requests.request_access import RequestAccess

log = Logger()
# Messages of a request that count as a frame (see ``FrameTurns``).
_FRAME_MESSAGES = 40
# Estimated bytes of memory that a header takes, as JSON has parsed it and as it is published.
_HEADER_BYTES = 1000


@dataclass(slots=True)
class PublishOutcome:
    """The outcome of a request: what was published, and the first error if runs were refused.

    A run is consecutive messages of one topic; ``refused`` is the number of messages of these runs.
    """

    submitted: list[Submitted] = field(default_factory=list)
    error: ApiError | None = None
    refused: int = 0

    def members(self, published: Published) -> dict[str, object]:
        """Return the members of the reply."""
        members = published.members()
        if self.error is not None:
            members["refused"] = published.refused + self.refused
            members["error"] = self.error.members()
        return members


def counted_error(
    request: ApiRequest, connection: Callable[[], dict[str, str]], problem: Exception
) -> ApiError:
    """Count ``problem`` for the WebSocket that ``request`` has opened; return it as an ApiError.

    A defect is logged with the fields of the ``connection``.
    """
    if isinstance(problem, Refused):
        error = ApiError.from_refusal(problem)
    elif isinstance(problem, ApiError):
        error = problem
    else:
        failure = Failure(problem)
        log.failure("http: a request of a WebSocket failed", failure, connection=connection())
        error = ApiError.of_defect()
    request.count_refusal(error)
    return error


@dataclass(frozen=True, slots=True)
class _SocketPublication:
    """Publishes for a request; ``refuse`` counts an error, and returns it as one of the API."""

    listener: Listener
    publisher: MessagePublisher
    sender: bytes
    access: RequestAccess
    limiters: Sequence[RateLimiter]
    refuse: Callable[[Exception], ApiError]

    async def of_one_topic(
        self, name: str, messages: SubmittedMessages, divisible: bool
    ) -> PublishOutcome:
        """Publish messages of one topic; raises as ``MessagePublisher.submit``."""
        done = await self._submit(name, messages, divisible)
        self.listener.frame_turns.count(messages.columns.count // _FRAME_MESSAGES)
        return PublishOutcome([done])

    async def of_several_topics(
        self, names: Sequence[str], messages: SubmittedMessages
    ) -> PublishOutcome:
        """Publish at once if nothing requires to look at each run, and else run by run."""
        count, ends = messages.columns.count, self.listener.clock.seconds() + WAIT_SECONDS
        try:
            together = await self.publisher.submit_mixed(
                names, messages, self.sender, self.access, self.limiters, ends
            )
        except Exception as problem:
            return PublishOutcome(error=self.refuse(problem), refused=count)
        if together is None:
            return await self._run_by_run(names, messages, ends)
        self.listener.frame_turns.count(count // _FRAME_MESSAGES + 1)
        return PublishOutcome([together])

    async def _run_by_run(
        self, names: Sequence[str], messages: SubmittedMessages, ends: float
    ) -> PublishOutcome:
        """Publish all runs, even if some are refused; those that wait do so until ``ends``."""
        outcome, clock, start = PublishOutcome(), self.listener.clock, 0
        for index, run in messages.columns.runs():
            stop = start + run.count
            headers = None if messages.headers is None else messages.headers[start:stop]
            start = stop
            if outcome.error is not None and clock.seconds() >= ends:
                outcome.refused += run.count
                continue
            try:
                one = SubmittedMessages(run, headers)
                done = await self._submit(names[index], one, True, ends)
                outcome.submitted.append(done)
            except Exception as problem:
                error = self.refuse(problem)
                outcome.error = outcome.error or error
                outcome.refused += run.count
            if self.listener.frame_turns.count(run.count // _FRAME_MESSAGES + 1):
                await deferLater(clock, 0)
        return outcome

    async def _submit(
        self, name: str, messages: SubmittedMessages, divisible: bool, ends: float | None = None
    ) -> Submitted:
        return await self.publisher.submit(
            name, messages, self.sender, self.access, self.limiters, divisible, ends
        )


async def publish(
    listener: Listener,
    publisher: MessagePublisher,
    members: dict[str, Any],
    payload: bytes | None,
    sender: bytes,
    access: RequestAccess,
    limiters: Sequence[RateLimiter],
    refuse: Callable[[Exception], ApiError],
) -> PublishOutcome:
    """Publish the messages of a request; ``payload`` is that of a binary frame.

    ``sizes`` divides a payload into several; each of these has the headers of the request, or those
    of a list for each. A rate limit may admit the first ones only. ``refuse`` counts an error of
    some of several topics, and returns it as one of the API. Raises ApiError or Refused if the
    request is malformed, or the messages of a single topic are refused.
    """
    row = dict(members)
    if "sender" in row:
        given = row.pop("sender")
        sender = b"" if given == "" else check_name("sender", given).encode()
    is_divided, is_mixed = row.get("sizes") is not None, row.get("topics") is not None
    each = _pop_headers(row)
    names, columns, common = _parsed(row, payload)
    publication = _SocketPublication(listener, publisher, sender, access, limiters, refuse)
    with publishing_memory(listener, _HEADER_BYTES * sum(map(len, each))):
        headers = await _headers_of_each(listener, each, columns.count, common)
        messages = SubmittedMessages(columns, headers)
        if is_mixed:
            return await publication.of_several_topics(names, messages)
        return await publication.of_one_topic(names[0], messages, is_divided)


def _pop_headers(row: dict[str, Any]) -> list[list[Any]]:
    """Return the headers of each of several messages; none if all have the same."""
    listed = row.get("headers")
    if row.get("sizes") is None or not isinstance(listed, list) or {*map(type, listed)} != {list}:
        return []
    each: list[list[Any]] = row.pop("headers")
    return each


async def _headers_of_each(
    listener: Listener, each: list[list[Any]], count: int, common: Headers
) -> Sequence[Headers] | None:
    """Return the headers of ``count`` messages: of ``each``, or ``common``; None without any.

    Raises ApiError. Others are served meanwhile.
    """
    if not each:
        return [common] * count if common else None
    if len(each) != count:
        raise invalid("headers: expected a list for each of sizes")
    found, since = [], 0
    for listed in each:
        try:
            found.append(headers_of(listed))
        except ValueError as problem:
            raise invalid(str(problem)) from None
        since += 1 + len(listed)
        if since >= _FRAME_MESSAGES:
            since = 0
            if listener.frame_turns.count():
                await deferLater(listener.clock, 0)
    return found if any(found) else None


def _parsed(row: dict[str, Any], payload: bytes | None) -> tuple[list[str], Columns, Headers]:
    """Return the topics of a request, its messages, and the headers of each; raises ApiError."""
    topics, indexes, sizes = [row.pop(name, None) for name in ("topics", "indexes", "sizes")]
    if topics is None:
        names = [topic_name(check_name("topic", row.pop("topic", None)))]
    elif sizes is None or not isinstance(topics, list) or not 0 < len(topics) <= MAX_JOINED:
        raise invalid(f"topics: expected 1 to {MAX_JOINED} names, beside indexes and sizes")
    else:
        names = [topic_name(check_name("topics", name)) for name in topics]
    columns, headers = _messages(row, payload, sizes, _indexes(indexes, sizes, len(names)))
    return names, columns, headers


def _indexes(indexes: object, sizes: object, topics: int) -> bytes:
    """Return the indexes of messages among this number of topics; raises ApiError."""
    if indexes is None and topics == 1:
        return b""
    if not isinstance(indexes, list) or any(type(index) is not int for index in indexes):
        raise invalid("indexes: expected a list of numbers")
    if not isinstance(sizes, list) or len(indexes) != len(sizes):
        raise invalid("indexes: expected as many as sizes")
    if indexes and not 0 <= min(indexes) <= max(indexes) < topics:
        raise invalid(f"indexes: expected numbers below {topics}, the number of topics")
    return array("I", indexes).tobytes()


def _messages(
    row: dict[str, Any], payload: bytes | None, sizes: object, indexes: bytes
) -> tuple[Columns, Headers]:
    """Return the messages, and the headers of each; raises ApiError."""
    if payload is not None:
        if "value" in row or "value_base64" in row:
            raise invalid("the payload of a binary frame follows the object; it has no value")
        row["value"] = ""
    elif sizes is not None:
        raise invalid("sizes: expected a binary frame, whose payload they divide")
    try:
        value, headers = message_of(row)
        if payload is None or sizes is None:
            return Columns.one(value if payload is None else payload), headers
        return joined_messages(payload, sizes, indexes), headers
    except ValueError as problem:
        raise invalid(str(problem)) from None
