"""Deleting topics and identities over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, succeed

from pubsub.broker.delivery.history_reads import all_on_disk
from pubsub.http_api.requests.api_error import CONFLICT, NOT_FOUND, UNAVAILABLE, ApiError
from pubsub.http_api.requests.parameters import TOPICS, Parameters, name_in_path
from pubsub.http_api.requests.request_access import RequestAccess, request_access

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.http_api.requests.api_request import ApiRequest

IDENTITIES = b"/v1/identities/"
"""The prefix of the paths of identities."""


class Deletions:
    """The endpoints below /v1/topics and /v1/identities."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    async def delete_topic(self, request: ApiRequest) -> None:
        """DELETE /v1/topics/NAME"""
        name, access = self._requested(request, TOPICS)
        topic, lifecycle = self._listener.topics.get(name), self._listener.topic_lifecycle
        sharing = lifecycle.sharing
        if topic is None and sharing is not None and sharing.owned_elsewhere(name):
            await self._carry_out(request, access, partial(sharing.delete, name, _nothing), name)
            return
        if topic is None:
            raise ApiError(NOT_FOUND, "unknown-topic", f"no topic {name!r}", topic=name)
        if topic.upstream is not None:
            message = f"topic {name!r} is hosted by another broker; delete it there"
            raise ApiError(CONFLICT, "remote-topic", message, topic=name)

        def delete() -> Deferred[None]:
            return self._listener.slices.finish(lifecycle.delete(topic))

        if sharing is not None:
            delete = partial(sharing.delete, name, delete)
        await self._carry_out(request, access, delete, name)

    async def delete_identity(self, request: ApiRequest) -> None:
        """DELETE /v1/identities/NAME"""
        name, access = self._requested(request, IDENTITIES)
        work = self._listener.unused_names.delete_identity(name)
        if work is None:
            raise ApiError(NOT_FOUND, "unknown-identity", f"no identity {name!r}")
        delete = partial(self._listener.slices.finish, work)
        await self._carry_out(request, access, delete, name, "identity")

    def _requested(self, request: ApiRequest, prefix: bytes) -> tuple[str, RequestAccess]:
        """Return the name in the path and the access of a client that may delete it."""
        Parameters.of_url(request)
        name = name_in_path(request, prefix)
        access = request_access(request, self._listener)
        access.check_delete(name)
        return name, access

    async def _carry_out(
        self,
        request: ApiRequest,
        access: RequestAccess,
        delete: Callable[[], Deferred[None]],
        name: str,
        kind: str = "topic",
    ) -> None:
        self._listener.audit.record(
            "delete", **{kind: name}, subject=access.owner or "", client=request.label
        )
        await delete()
        if not await all_on_disk(self._listener.store):
            message = "the change is not on disk yet"
            raise ApiError(UNAVAILABLE, "history-unavailable", message)
        request.answer(204, b"")


def _nothing() -> Deferred[None]:
    return succeed(None)
