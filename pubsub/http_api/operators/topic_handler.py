"""The endpoints of topics: a list, one of them, its creation, and a new queue key."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pubsub.broker.credentials.queue_key_limit import MAX_KEY
from pubsub.broker.delivery.history_reads import all_on_disk
from pubsub.broker.topic_space.topic_sharing import Requirements
from pubsub.errors import Refused
from pubsub.http_api.requests.api_error import CONFLICT, NOT_FOUND, UNAVAILABLE, ApiError
from pubsub.http_api.requests.paging import PAGING, answer_page, page_request
from pubsub.http_api.requests.parameters import TOPICS, Parameters, invalid, name_in_path
from pubsub.http_api.requests.request_access import request_access
from pubsub.management.listing import Row, fill, to_json
from pubsub.management.topic_rows import is_used, topic_row

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.slices import Work
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.http_api.reading.history_handler import HistoryHandler
    from pubsub.http_api.requests.api_request import ApiRequest
    from pubsub.http_api.requests.request_access import RequestAccess
    from pubsub.management.listing import ListPage

KEY = b"/key"
"""The suffix of the path of a topic's queue key."""
CREATED, DONE = 201, 200


class TopicHandler:
    """The endpoints /v1/topics and below, but for messages and deletion."""

    def __init__(self, listener: Listener, history: HistoryHandler) -> None:
        self._listener = listener
        self._history = history

    async def list(self, request: ApiRequest) -> None:
        """GET /v1/topics: with start or stop, the topics of a range of the history.

        Topics that are only offered are left out, unless ``unused`` is set: a listener offers each
        of its channels, and these would come before most topics of clients.
        """
        if any(name in (request.args or {}) for name in (b"start", b"stop")):
            await self._history.topics(request)
            return
        parameters = Parameters.of_url(request, *PAGING, "unused", "start", "stop")
        asked, unused = page_request(parameters), parameters.flag("unused")
        access = request_access(request, self._listener)
        self._listener.dispatcher.settle()

        def row_of(topic: Topic) -> Row | None:
            listed = asked.matches(topic.name) and (unused or is_used(topic))
            listed = listed and self._may_see(access, topic)
            return topic_row(topic, self._listener.queue_keys) if listed else None

        def rows(page: ListPage) -> Work:
            found = self._listener.topics.after(asked.after.encode())
            return fill(page, found, row_of, lambda topic: topic.name)

        await answer_page(request, self._listener, asked, rows)

    async def one(self, request: ApiRequest) -> None:
        """GET /v1/topics/NAME"""
        Parameters.of_url(request)
        name = name_in_path(request, TOPICS)
        access = request_access(request, self._listener)
        topic = self._listener.topics.get(name)
        if topic is None or not self._may_see(access, topic):
            raise _unknown(name)
        self._listener.dispatcher.settle()
        self._answer(request, topic)

    async def create(self, request: ApiRequest) -> None:
        """PUT /v1/topics/NAME"""
        name = name_in_path(request, TOPICS)
        parameters = Parameters.of_body(request, "queue_key", "sync")
        sync = parameters.flag("sync")
        key = parameters.text("queue_key") if "queue_key" in parameters else None
        access = request_access(request, self._listener)
        access.check_create(name, key)
        make = partial(self._make, request, access, name, key, sync)
        topic, sharing = self._listener.topics.get(name), self._listener.topic_lifecycle.sharing
        is_new = topic is None
        if key is not None and (topic is None or topic not in self._listener.queue_keys):
            _check_length(key)
        if sharing is None:
            topic = await make()
        else:
            if topic is not None:
                self._check_owner(access, topic, key)
            required = Requirements((key or "").encode(), sync or None)
            topic = await sharing.create(name, required, make)
        await self._stored()
        self._answer(request, topic, CREATED if is_new else DONE)

    async def _make(
        self, request: ApiRequest, access: RequestAccess, name: str, key: str | None, sync: bool
    ) -> Topic:
        """Return the topic of this name, creating it if there is none; raises as ``_take``."""
        topics, lifecycle = self._listener.topics, self._listener.topic_lifecycle
        owner, is_new = access.owner or "", name not in topics
        topic = topics.get(name) or topics.create(name, hosted=False)
        try:
            self._check_owner(access, topic, key)
            topics.claim(topic)
            topics.keep(name)
        except (ApiError, Refused):
            if is_new:
                lifecycle.withdraw(name)
            raise
        if sync:
            lifecycle.set_requirements(topic, True, False)
        self._listener.audit.record("create-topic", topic=name, subject=owner, client=request.label)
        if key is not None and topic not in self._listener.queue_keys:
            await self._listener.queue_keys.close(topic, key.encode(), owner, request.label)
        return topic

    def _check_owner(self, access: RequestAccess, topic: Topic, key: str | None) -> None:
        """Raise ApiError if ``topic`` is another broker's or client's."""
        keys = self._listener.queue_keys
        if topic.upstream is not None:
            raise _remote(topic.name)
        has_other_key = topic in keys and not (key and keys.matches(topic, key.encode()))
        if topic.name in keys.exclusive or (has_other_key and not access.is_admin):
            message = f"topic {topic.name!r} exists with another owner or queue key"
            raise ApiError(CONFLICT, "topic-exists", message, topic=topic.name)
        if has_other_key and key is not None:
            message = f"topic {topic.name!r} has another queue key; rotate it instead"
            raise ApiError(CONFLICT, "topic-exists", message, topic=topic.name)

    async def rotate(self, request: ApiRequest) -> None:
        """POST /v1/topics/NAME/key"""
        name = name_in_path(request, TOPICS, KEY)
        key = Parameters.of_body(request, "queue_key").text("queue_key")
        access = request_access(request, self._listener)
        access.check_rotate(name)
        _check_length(key)
        topic, keys = self._listener.topics.get(name), self._listener.queue_keys
        if topic is None:
            raise _unknown(name)
        if topic.upstream is not None:
            raise _remote(name)
        if topic not in keys:
            message = f"topic {name!r} has no queue key; create it with one"
            raise ApiError(CONFLICT, "no-queue-key", message, topic=name)
        sharing, owner = self._listener.topic_lifecycle.sharing, access.owner or ""
        agreed = sharing is not None
        rotate = partial(keys.rotate, topic, key.encode(), owner, request.label, agreed)
        if sharing is None:
            kept, ended = await rotate()
        else:
            kept, ended = await sharing.rotate(topic, key.encode(), rotate)
        await self._stored()
        request.answer(DONE, to_json({"kept": kept, "ended": ended}) + b"\n")

    def _may_see(self, access: RequestAccess, topic: Topic) -> bool:
        return access.is_admin or access.may_read(topic.name)

    def _answer(self, request: ApiRequest, topic: Topic, status: int = DONE) -> None:
        row = topic_row(topic, self._listener.queue_keys)
        request.answer(status, to_json(row) + b"\n")

    async def _stored(self) -> None:
        if not await all_on_disk(self._listener.store):
            message = "the change is not on disk yet"
            raise ApiError(UNAVAILABLE, "history-unavailable", message)


def _unknown(name: str) -> ApiError:
    return ApiError(NOT_FOUND, "unknown-topic", f"no topic {name!r}", topic=name)


def _remote(name: str) -> ApiError:
    message = f"topic {name!r} is hosted by another broker; change it there"
    return ApiError(CONFLICT, "remote-topic", message, topic=name)


def _check_length(key: str) -> None:
    """Raise ApiError for a new queue key that clients of fast could not present."""
    if len(key.encode()) > MAX_KEY:
        raise invalid(
            f"queue_key: expected at most {MAX_KEY} bytes, as a token of fast has no more"
        )
