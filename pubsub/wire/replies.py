"""Answers in the order of their requests, though some of them have to wait for the disk."""

from __future__ import annotations

from itertools import takewhile
from operator import attrgetter
from typing import Protocol

from pubsub.errors import HistoryUnavailable

_known = attrgetter("known")


class ReplyingConnection(Protocol):
    """A connection, as far as its answers go."""

    closing: bool

    def refuse(self, reason: str, count: int = 1) -> None:
        """Count requests that were answered with an error."""

    def send_ready(self) -> None:
        """Send the answers that need not wait any more."""


class Answer:
    """``data`` answers ``count`` requests on ``connection``: at once, or, if ``failed`` is given,
    when all that was published is on disk; that is sent instead if it cannot be."""

    __slots__ = ("_connection", "_count", "_failed", "data", "known")

    def __init__(
        self,
        connection: ReplyingConnection,
        data: bytes,
        failed: bytes | None = None,
        count: int = 1,
    ) -> None:
        self.data = data
        self.known = failed is None
        self._connection = connection
        self._failed = failed
        self._count = count

    def stored(self, done: bool) -> None:
        """See ``IStore.when_stored``."""
        connection = self._connection
        if connection.closing:
            return
        if not done:
            connection.refuse(HistoryUnavailable.reason, self._count)
            self.data = self._failed or b""
        self.known = True
        connection.send_ready()


def take_ready(answers: list[Answer]) -> bytes:
    """What can be sent of ``answers``, which are in order: all before the first that waits."""
    if len(answers) == 1 and answers[0].known:
        return answers.pop().data
    known = [answer.data for answer in takewhile(_known, answers)]
    del answers[: len(known)]
    return b"".join(known)
