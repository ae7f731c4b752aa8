"""Deleting topics and identities over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pubsub.admin.api_error import CONFLICT, NOT_FOUND, UNAVAILABLE, ApiError
from pubsub.admin.flow_control import all_stored
from pubsub.admin.parameters import TOPICS, Parameters, name_in_path
from pubsub.admin.request_access import RequestAccess, request_access

if TYPE_CHECKING:
    from pubsub.admin.api_request import ApiRequest
    from pubsub.broker.listener import Listener
    from pubsub.broker.slices import Work

IDENTITIES = b"/v1/identities/"
"""The prefix of the paths of identities."""


class Deletions:
    """The endpoints below /v1/topics and /v1/identities."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    async def delete_topic(self, request: ApiRequest) -> None:
        """DELETE /v1/topics/NAME"""
        name, access = self._requested(request, TOPICS)
        topic = self._listener.topics.get(name)
        if topic is None:
            raise ApiError(NOT_FOUND, "unknown-topic", f"no topic {name!r}", topic=name)
        if topic.upstream is not None:
            message = f"topic {name!r} is hosted by another broker; delete it there"
            raise ApiError(CONFLICT, "remote-topic", message, topic=name)
        await self._carry_out(request, access, self._listener.topic_lifecycle.delete(topic), name)

    async def delete_identity(self, request: ApiRequest) -> None:
        """DELETE /v1/identities/NAME"""
        name, access = self._requested(request, IDENTITIES)
        work = self._listener.expiry.delete_identity(name)
        if work is None:
            raise ApiError(NOT_FOUND, "unknown-identity", f"no identity {name!r}")
        await self._carry_out(request, access, work, name, "identity")

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
        work: Work,
        name: str,
        kind: str = "topic",
    ) -> None:
        self._listener.audit.record(
            "delete", **{kind: name}, subject=access.owner or "", client=request.label
        )
        await self._listener.slices.finish(work)
        if not await all_stored(self._listener.store):
            message = "the change is not on disk yet"
            raise ApiError(UNAVAILABLE, "history-unavailable", message)
        request.answer(204, b"")
