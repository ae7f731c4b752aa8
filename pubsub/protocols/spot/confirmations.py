"""Confirmations between brokers: whether published messages have reached their host (spot §7.7)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from pubsub.broker.topic_space.durability import Durability
from pubsub.protocols.spot.broker_commands import Confirm, Confirmation, encode_broker_command
from pubsub.wire.replies import stored_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pubsub.broker.topic_space.topics import Topic
    from pubsub.protocols.spot.connection import ZmtpConnection


class HostConfirmations:
    """The host's side: counts and confirms the messages that another broker has published here."""

    __slots__ = ("_accepted", "_confirmed", "_connection", "_durability")

    def __init__(self, connection: ZmtpConnection) -> None:
        self._connection = connection
        # The number in the last CONFIRM, and the messages that were accepted since.
        self._confirmed = 0
        self._accepted = 0
        # The largest of their topics.
        self._durability = Durability.NONE

    def accepted(self, count: int, topics: Iterable[Topic]) -> None:
        """Count messages of ``topics`` that have been published."""
        self._accepted += count
        self._durability = max(self._durability, *[topic.durability for topic in topics])

    def confirm(self, request: Confirm) -> None:
        """Reply to CONFIRM as soon as the messages are stored as their topics require."""
        connection = self._connection
        since, self._confirmed = self._confirmed, request.number
        accepted, self._accepted = self._accepted, 0
        durability, self._durability = self._durability, Durability.NONE

        def reply(failure: str | None) -> None:
            if not connection.closing:
                stored = accepted if failure is None else 0
                confirmed = Confirmation(since, request.number, stored)
                connection.reply_latest("confirmed", encode_broker_command(confirmed))

        stored_in(connection.listener.store, durability)(reply)


class PendingConfirmations:
    """The publishing side: the calls that wait until the host has confirmed messages.

    ``send`` sends a request for a confirmation behind the messages that were published. There is
    one request at a time, so that replies do not accumulate. ``number`` counts the messages.
    """

    __slots__ = ("_asked", "_seconds", "_send", "_waiting", "number")

    def __init__(self, send: Callable[[int], None], seconds: Callable[[], float]) -> None:
        self.number = 0
        self._send = send
        self._seconds = seconds
        # The number in the request that has no reply yet.
        self._asked: int | None = None
        self._waiting: deque[tuple[int, float, Callable[[bool], None]]] = deque()

    def wait(self, call: Callable[[bool], None]) -> None:
        """Call ``call`` with True when all messages so far are confirmed, with False if not."""
        self._waiting.append((self.number, self._seconds(), call))
        self._ask()

    def _ask(self) -> None:
        if self._asked is None and self._waiting:
            self._asked = self.number
            self._send(self.number)

    def confirmed(self, reply: Confirmation) -> None:
        """The host has replied. Replies that are too late are ignored."""
        if reply.number != self._asked:
            return
        self._asked = None
        complete = reply.accepted == reply.number - reply.since
        for number, call in self._take(reply.number):
            call(complete and number > reply.since)
        self._ask()

    def expire(self, seconds: float) -> int:
        """Give up requests that are older than ``seconds``; return how many calls waited."""
        if not self._waiting or self._seconds() - self._waiting[0][1] <= seconds:
            return 0
        asked, self._asked = self._asked, None
        # There is a request whenever a call waits.
        assert asked is not None
        expired = self._take(asked)
        for _number, call in expired:
            call(False)
        self._ask()
        return len(expired)

    def fail(self) -> None:
        """The connection has ended."""
        for _number, call in self._take(self.number):
            call(False)

    def _take(self, number: int) -> list[tuple[int, Callable[[bool], None]]]:
        """Remove and return the calls that wait for messages up to ``number``."""
        waiting, taken = self._waiting, []
        while waiting and waiting[0][0] <= number:
            first, _since, call = waiting.popleft()
            taken.append((first, call))
        return taken
