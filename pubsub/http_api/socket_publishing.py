"""The op ``publish`` of a WebSocket: one message, or several of one or of several topics."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from pubsub.broker.topic_names import topic_name
from pubsub.errors import Refused
from pubsub.http_api.api_error import ApiError
from pubsub.http_api.flow_control import WAIT_SECONDS
from pubsub.http_api.message_body import MAX_JOINED, SubmittedMessages, joined_messages, message_of
from pubsub.http_api.parameters import check_name, invalid
from pubsub.kernel import Columns

if TYPE_CHECKING:
    from pubsub.broker.batch import Headers
    from pubsub.broker.listener import Listener
    from pubsub.broker.rate_limits import RateLimiter
    from pubsub.http_api.api_request import ApiRequest
    from pubsub.http_api.message_publishing import MessagePublisher, Published, Submitted
    from pubsub.http_api.request_access import RequestAccess

log = Logger()
# Messages of a request that count as a frame (see ``FrameTurns``).
_FRAME_MESSAGES = 40


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

    ``sizes`` divides a payload into several; each of these has the headers of the request. A rate
    limit may admit the first ones only. Messages of several topics are published at once if nothing
    requires to look at each run; otherwise the runs are published one after another, even if some
    are refused: ``refuse`` counts an error of one, and returns it as one of the API. All of them
    together wait for WAIT_SECONDS. Raises ApiError or Refused if the request is
    malformed, or the messages of a single topic are refused.
    """
    row = dict(members)
    sender = check_name("sender", row.pop("sender")).encode() if "sender" in row else sender
    is_divided, is_mixed = row.get("sizes") is not None, row.get("topics") is not None
    names, columns, headers = _parsed(row, payload)
    outcome, clock = PublishOutcome(), listener.clock
    ends = clock.seconds() + WAIT_SECONDS
    if len(names) > 1:
        every = SubmittedMessages(columns, [headers] * columns.count if headers else None)
        done = await _published_at_once(publisher, names, every, sender, access, limiters, refuse)
        if done is not None:
            listener.frame_turns.count(columns.count // _FRAME_MESSAGES + 1)
            return done
    for index, run in columns.runs() if is_mixed else ((0, columns),):
        if outcome.error is not None and clock.seconds() >= ends:
            outcome.refused += run.count
            continue
        messages = SubmittedMessages(run, [headers] * run.count if headers else None)
        work = publisher.submit(names[index], messages, sender, access, limiters, is_divided)
        try:
            outcome.submitted.append(await work)
        except Exception as problem:
            if not is_mixed:
                raise
            error = refuse(problem)
            outcome.error = outcome.error or error
            outcome.refused += run.count
        if listener.frame_turns.count(run.count // _FRAME_MESSAGES + is_mixed) and is_mixed:
            await deferLater(clock, 0)
    return outcome


async def _published_at_once(
    publisher: MessagePublisher,
    names: Sequence[str],
    messages: SubmittedMessages,
    sender: bytes,
    access: RequestAccess,
    limiters: Sequence[RateLimiter],
    refuse: Callable[[Exception], ApiError],
) -> PublishOutcome | None:
    """Publish messages of several topics at once; None if each run has to be looked at."""
    try:
        together = await publisher.submit_mixed(names, messages, sender, access, limiters)
    except Exception as problem:
        return PublishOutcome(error=refuse(problem), refused=messages.columns.count)
    return None if together is None else PublishOutcome([together])


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
