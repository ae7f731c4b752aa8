"""The endpoint GET /v1/topics/NAME/messages: stored messages, and with ``follow`` later ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pubsub.broker.topic_space.topic_names import topic_name
from pubsub.http_api.reading.follow_formats import (
    EVENT_STREAM,
    EventEncoding,
    FollowEncoding,
    LinesEncoding,
)
from pubsub.http_api.reading.follow_start import find_start
from pubsub.http_api.reading.follower import Follower
from pubsub.http_api.requests.parameters import MESSAGES, TOPICS, Parameters, invalid, name_in_path
from pubsub.http_api.requests.request_access import RequestAccess, request_access

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.http_api.reading.follow_start import FollowStart
    from pubsub.http_api.reading.history_handler import HistoryHandler
    from pubsub.http_api.requests.api_request import ApiRequest

_PARAMETERS = ("follow", "start", "timestamp", "epoch", "topic", "prefix", "headers", "format")
_FORMATS = ("", "jsonl", "events")


class MessageReader:
    """Reads the messages of the topics that a request names."""

    def __init__(self, listener: Listener, history: HistoryHandler) -> None:
        self._listener = listener
        self._history = history

    async def get(self, request: ApiRequest) -> None:
        """GET and HEAD /v1/topics/NAME/messages"""
        parameters = Parameters.of_url(request, *_PARAMETERS)
        access = request_access(request, self._listener)
        name = name_in_path(request, TOPICS, MESSAGES)
        names = tuple(dict.fromkeys(map(topic_name, (name, *parameters.texts("topic")))))
        encoding = self._encoding(request, parameters)
        follows, prefixes = parameters.flag("follow"), parameters.texts("prefix")
        if prefixes and not follows:
            raise invalid("prefix: a response with prefixes has follow=1")
        position = _single(request, "last-event-id")
        start = await find_start(self._listener.store, parameters, position, follows)
        if start.past:
            await self._listener.slices.finish(access.check_read(names))
        else:
            access.check_follow(names)
        request.require_chunks()
        if request.client_left:
            return
        if follows:
            await self._follow(request, access, names, encoding, start, prefixes)
        else:
            await self._history.messages(request, access, frozenset(names), start, encoding)

    def _encoding(self, request: ApiRequest, parameters: Parameters) -> FollowEncoding:
        headers, run = parameters.flag("headers"), self._listener.dispatcher.run_id
        accepted = request.requestHeaders.getRawHeaders("accept", [""])
        format = parameters.word("format", *_FORMATS)
        if format == "events" or (not format and any(EVENT_STREAM in one for one in accepted)):
            return EventEncoding(headers, run, self._listener.store.epoch)
        return LinesEncoding(headers, run)

    async def _follow(
        self,
        request: ApiRequest,
        access: RequestAccess,
        names: tuple[str, ...],
        encoding: FollowEncoding,
        start: FollowStart,
        prefixes: list[str],
    ) -> None:
        store = self._listener.store
        headers = {"Pubsub-Start": str(start.offset), "Pubsub-Epoch": store.epoch}
        request.head(200, headers, encoding.content_type)
        if request.method == b"HEAD":
            request.finish()
            return
        follower = Follower(self._listener, request, access, names, encoding, start.past, prefixes)
        await follower.run(start.offset, start.gap)


def _single(request: ApiRequest, name: str) -> str | None:
    values = request.requestHeaders.getRawHeaders(name, [])
    if len(values) > 1:
        raise invalid(f"{name}: expected one value")
    # A browser sends none, or the empty one that an empty id stands for.
    return values[0] if values and values[0] else None
