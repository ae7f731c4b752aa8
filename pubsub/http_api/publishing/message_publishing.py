"""Publishing over HTTP: messages of one topic, by the access of a request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from twisted.internet.defer import Deferred

from pubsub.broker.publishing.address_mixes import AddressMixes
from pubsub.broker.publishing.publisher import publish_mix
from pubsub.broker.routing.batch import MAX_SENDER, messages_nbytes
from pubsub.broker.topic_space.provisional_topics import ProvisionalTopics
from pubsub.errors import BadToken, RateLimited, SenderTooLong
from pubsub.http_api.publishing.message_body import SubmittedMessages, many_messages, one_message
from pubsub.http_api.reading.stream_formats import JSONL
from pubsub.http_api.requests.api_error import TOO_LARGE, UNAVAILABLE, UNSUPPORTED, ApiError
from pubsub.http_api.requests.flow_control import WAIT_SECONDS, wait_for_backpressure
from pubsub.http_api.requests.header_names import SENDER_HEADER
from pubsub.http_api.requests.parameters import (
    MESSAGES,
    TOPICS,
    Parameters,
    check_name,
    invalid,
    name_in_path,
)
from pubsub.http_api.requests.request_access import RequestAccess, request_access
from pubsub.http_api.requests.request_body import IN_MEMORY
from pubsub.wire.replies import UNCONFIRMED, Condition, all_of, confirmed_by_host, stored_in

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.publishing.rate_limits import RateLimiter
    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.topic_space.durability import Durability
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.http_api.reading.history_response import RunInThread
    from pubsub.http_api.requests.api_request import ApiRequest

PROTOCOL = "http"
"""The protocol of messages that were published over HTTP."""
HANDLED, STORED = "handled", "stored"
"""Levels of a confirmation: the broker has accepted the messages; the history has them too."""
# Estimated bytes of memory that a byte of lines of JSON takes while they are parsed.
_PARSING_COST = 8
# Bytes of lines that are parsed at once, rather than in a thread.
_PARSED_AT_ONCE = 8 * 1024


def publishing_memory(listener: Listener, nbytes: int) -> AbstractContextManager[None]:
    """Return a context in which ``nbytes`` are counted for the messages of a request.

    Small requests are admitted up to the bound, where they wait as publishers over other protocols
    do; larger ones raise MemoryExhausted before it (see ``MemoryBudget.work``).
    """
    memory = listener.memory
    return memory.work(nbytes) if nbytes > IN_MEMORY else memory.counted(nbytes)


@dataclass(frozen=True, slots=True)
class Published:
    """Messages that were published, to the level that their topic's durability requires.

    ``offset`` is that of the first one; None if they are not in this broker's history. ``refused``
    is the number of messages behind them that a rate limit has refused.
    """

    offset: int | None
    messages: int
    level: str
    refused: int = 0

    def members(self) -> dict[str, object]:
        """Return the members of a reply."""
        refused = {"refused": self.refused} if self.refused else {}
        return {"offset": self.offset, "messages": self.messages, "level": self.level, **refused}


class Submitted(NamedTuple):
    """Messages that are published and perhaps not stored yet; ``refused`` as in ``Published``.

    Only messages of one topic can have been refused. ``durabilities`` are those of the ``topics``
    when the messages were published: later ones are no promise for them. ``are_here`` is True if
    all of them are for this broker's history; ``offset`` is None if the first one is not.
    """

    topics: Sequence[Topic]
    batch: Batch
    refused: int
    durabilities: frozenset[Durability]
    are_here: bool
    offset: int | None

    @classmethod
    def now(cls, topics: Sequence[Topic], batch: Batch, refused: int = 0) -> Submitted:
        """Return messages that have just been published."""
        durabilities = frozenset([topic.durability for topic in topics])
        are_here = min(durabilities) > 0 and all(topic.upstream is None for topic in topics)
        is_first_here = are_here
        if batch.unstored:
            is_first_here = batch.slice(0, 1).columns.indexes()[0] not in batch.unstored
        offset = batch.offset if is_first_here else None
        return cls(topics, batch, refused, durabilities, are_here, offset)


class MessagePublisher:
    """Publishes for the clients of one listener."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._mixes = AddressMixes(listener, listener.topics.existing)

    async def submit(
        self,
        name: str,
        messages: SubmittedMessages,
        sender: bytes,
        access: RequestAccess,
        limiters: Sequence[RateLimiter],
        divisible: bool = False,
        ends: float | None = None,
    ) -> Submitted:
        """Publish messages, after a wait for backpressure, until ``ends`` at most.

        A topic that does not exist is created. Either all messages are published or none; of
        ``divisible`` ones as many as the rate limits admit, from the first on. Raises ApiError,
        RateLimited, SenderTooLong, HistoryUnavailable and the errors that the creation of a topic
        raises; nothing has been published then.
        """
        topics = ProvisionalTopics(self._listener.topics, self._listener.router)
        try:
            self._check(name, sender, access)
            for _ in topics.add((name,)):
                pass
            topic = topics[name]
            await wait_for_backpressure(self._listener, (topic,), ends)
            if not self._listener.topics.holds(topic):
                raise RateLimited("the topic was deleted meanwhile")
            # A queue key may have been set or rotated in the meantime, and the token have ended.
            self._check(name, sender, access)
            admitted = self._take(messages, sender, limiters, divisible)
            batch = self._listener.dispatcher.publish(
                topic, admitted.columns, sender, PROTOCOL, admitted.headers
            )
        except BaseException:
            for _ in topics.withdraw():
                pass
            raise
        for _ in topics.keep():
            pass
        return Submitted.now((topic,), batch, messages.columns.count - batch.count)

    async def submit_mixed(
        self,
        names: Sequence[str],
        messages: SubmittedMessages,
        sender: bytes,
        access: RequestAccess,
        limiters: Sequence[RateLimiter],
        ends: float,
    ) -> Submitted | None:
        """Publish messages with the topics ``names`` at once, after a wait for backpressure.

        It waits until ``ends`` at most. Returns None, and has published nothing, if each run of a
        topic has to be looked at: it may be refused, wait for its topic, or create it. Raises
        RateLimited.
        """
        listener, columns = self._listener, messages.columns
        await wait_for_backpressure(listener, (), ends)
        if not access.token_is_valid or len(sender) > MAX_SENDER:
            return None
        # Rights are needed for topics that have messages.
        used = len(columns.totals())
        found = self._mixes.find(columns, names) if 1 < used == len(names) else None
        if found is None:
            return None
        mix, columns = found
        if any(topic.blocked() for topic in mix.topics):
            return None
        if not access.may_publish_all(mix.names, mix.lasts):
            return None
        batch = publish_mix(
            listener.dispatcher, mix, columns, sender, PROTOCOL, limiters, messages.headers
        )
        return None if batch is None else Submitted.now(mix.topics, batch)

    @staticmethod
    def _check(name: str, sender: bytes, access: RequestAccess) -> None:
        if not access.token_is_valid:
            raise BadToken("the token is not valid any more")
        access.require_publish(name)
        if len(sender) > MAX_SENDER:
            raise SenderTooLong(len(sender))

    @staticmethod
    def _take(
        messages: SubmittedMessages,
        sender: bytes,
        limiters: Sequence[RateLimiter],
        divisible: bool,
    ) -> SubmittedMessages:
        """Charge the rate limits; return the messages that they admit.

        Raises RateLimited if they do not admit all, or none of ``divisible`` ones, and ApiError if
        they never will: the client is not told to send the same again.
        """
        columns, headers = messages
        wanted = count = columns.count
        if divisible:
            wanted = min(count, 1)
        for limiter in limiters:
            most = limiter.admissible_at_best(columns, sender, headers)
            if most < wanted:
                message = f"the rate limit admits {most} of {columns.count} messages at once"
                raise ApiError(TOO_LARGE, "too-large", f"{message}; send fewer in a request")
            count = min(count, limiter.admissible(columns, sender, headers))
            if count < wanted:
                raise RateLimited("the rate limit is exceeded; send fewer messages, or send later")
        admitted = messages.first(count)
        nbytes = messages_nbytes(admitted.columns, sender, admitted.headers)
        for limiter in limiters:
            limiter.take(count, nbytes)
        return admitted

    async def confirmed(self, submitted: Sequence[Submitted]) -> Published:
        """Wait until the messages, of a topic at least, are as durable as their topics require.

        The outcome is that of all: the offset of the first message, and the least level. Raises
        ApiError if that is not known: they have been published.
        """
        listener = self._listener
        topics = {topic: None for one in submitted for topic in one.topics}
        durabilities = frozenset().union(*[one.durabilities for one in submitted])
        conditions = [stored_in(listener.store, one) for one in durabilities]
        conditions += [confirmed_by_host(topic) for topic in topics if topic.upstream is not None]
        failure = await _result(listener, all_of(conditions))
        if failure is not None:
            message = "the messages are published; it is not known whether they are stored"
            raise ApiError(UNAVAILABLE, failure, message, outcome="unknown")
        messages = sum([one.batch.count for one in submitted])
        refused = sum([one.refused for one in submitted])
        are_here = all(one.are_here for one in submitted)
        level = STORED if are_here and listener.store.durable else HANDLED
        return Published(submitted[0].offset, messages, level, refused)


async def _result(listener: Listener, condition: Condition) -> str | None:
    """Wait for ``condition``, for WAIT_SECONDS; return why it does not hold, or None."""
    done: Deferred[str | None] = Deferred()

    def report(failure: str | None) -> None:
        if not done.called:
            done.callback(failure)

    condition(report)
    timeout = listener.clock.callLater(WAIT_SECONDS, report, UNCONFIRMED)
    failure = await done
    if timeout.active():
        timeout.cancel()
    return failure


class PublishHandler:
    """The endpoint POST /v1/topics/NAME/messages."""

    def __init__(
        self, listener: Listener, publisher: MessagePublisher, run_in_thread: RunInThread
    ) -> None:
        self._listener = listener
        self._publisher = publisher
        self._run_in_thread = run_in_thread

    async def post(self, request: ApiRequest) -> None:
        """POST /v1/topics/NAME/messages"""
        Parameters.of_url(request)
        name = name_in_path(request, TOPICS, MESSAGES)
        access = request_access(request, self._listener)
        sender = self._sender(request, access)
        # Before the body is parsed.
        access.require_publish(name)
        messages = await self._messages(request)
        limiters = request.channel.limiters()
        # The body, which is counted too, ends with the connection; they may have to wait longer.
        with publishing_memory(self._listener, messages.memory):
            submitted = await self._publisher.submit(name, messages, sender, access, limiters)
        published = await self._publisher.confirmed([submitted])
        request.count_published(published.messages, messages.columns.nbytes)
        answer = {**published.members(), "epoch": self._listener.store.epoch}
        request.answer(200, json.dumps(answer).encode() + b"\n")

    @staticmethod
    def _sender(request: ApiRequest, access: RequestAccess) -> bytes:
        given = request.requestHeaders.getRawHeaders(SENDER_HEADER)
        if given is None:
            return (access.owner or "").encode()
        if len(given) > 1:
            raise invalid("Pubsub-Sender: expected one value")
        return check_name("Pubsub-Sender", given[0]).encode()

    async def _messages(self, request: ApiRequest) -> SubmittedMessages:
        """Return the messages of the body; raises ApiError or MemoryExhausted."""
        content_type = request.requestHeaders.getRawHeaders("content-type", [""])[-1]
        codings = request.requestHeaders.getRawHeaders("content-encoding", [])
        if any(coding.strip().lower() != "identity" for coding in codings):
            message = "Content-Encoding is not supported; send the body uncompressed"
            raise ApiError(UNSUPPORTED, "compressed", message)
        body = request.body.read()
        if content_type.partition(";")[0].strip().lower() != JSONL:
            return one_message(body, request.requestHeaders)
        needed = _PARSING_COST * len(body)
        if needed > self._listener.memory.work_limit:
            message = f"the request needs {needed} bytes of memory; send fewer messages at a time"
            raise ApiError(TOO_LARGE, "too-large", message)
        with publishing_memory(self._listener, needed):
            if len(body) <= _PARSED_AT_ONCE:
                return many_messages(body)
            parsed: SubmittedMessages = await self._run_in_thread(lambda: many_messages(body))
            return parsed
