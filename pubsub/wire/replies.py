"""Replies in the order of their requests, although some of them wait for the disk."""

from __future__ import annotations

from itertools import takewhile
from operator import attrgetter
from typing import Protocol

from pubsub.errors import HistoryUnavailable

_is_ready = attrgetter("ready")


class ReplyingConnection(Protocol):
    """What the replies need of their connection."""

    closing: bool
    replies: ReplyQueue | None
    """Set to None by the queue when it is empty."""

    def refuse(self, reason: str, count: int = 1) -> None:
        """Count requests that were answered with an error."""

    def send_reply(self, data: bytes) -> None:
        """Send the bytes of one reply or more."""

    def answered(self) -> None:
        """Nothing waits any more."""


class Reply:
    """``data`` answers ``count`` requests.

    Without ``failed`` it is ready at once. With it, the reply is ready when everything that was
    published before is on disk; ``failed`` is sent instead if the history cannot be written.
    """

    __slots__ = ("_count", "_failed", "_queue", "data", "ready")

    def __init__(
        self, queue: ReplyQueue, data: bytes, failed: bytes | None = None, count: int = 1
    ) -> None:
        self.data = data
        self.ready = failed is None
        self._queue = queue
        self._failed = failed
        self._count = count

    def stored(self, done: bool) -> None:
        """See ``IStore.when_stored``."""
        connection = self._queue.connection
        if connection.closing:
            return
        if not done:
            connection.refuse(HistoryUnavailable.reason, self._count)
            self.data = self._failed or b""
        self.ready = True
        self._queue.send_ready()


class ReplyQueue:
    """The replies of ``connection`` that wait for the disk, or behind one that does.

    It exists only while a reply waits, so that an idle connection does not pay for it.
    """

    __slots__ = ("_replies", "connection")

    def __init__(self, connection: ReplyingConnection) -> None:
        self.connection = connection
        self._replies: list[Reply] = []

    def add(self, data: bytes, failed: bytes | None = None, count: int = 1) -> Reply:
        """Add a reply behind the others (see ``Reply``)."""
        reply = Reply(self, data, failed, count)
        self._replies.append(reply)
        return reply

    def send_ready(self) -> None:
        """Send the replies before the first that has to wait."""
        replies = self._replies
        if len(replies) == 1 and replies[0].ready:
            data = replies.pop().data
        else:
            ready = [reply.data for reply in takewhile(_is_ready, replies)]
            del replies[: len(ready)]
            data = b"".join(ready)
        if data:
            self.connection.send_reply(data)
        if not replies:
            self.connection.replies = None
            self.connection.answered()
