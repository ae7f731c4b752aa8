"""The requests of a publishing link, and the groups in which they are confirmed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pubsub.client.client_errors import NotPublished, NotSent, OutcomeUnknown
from pubsub.client.notices import Notice, Refusal, Uncertain
from pubsub.client.tickets import Ticket
from pubsub.kernel import Columns
from pubsub.wire.client_events import Confirmed, Level
from pubsub.wire.client_wire import Headers

OVERHEAD = 64
"""Bytes that count for each request in addition to its payloads."""
# A group of this size is confirmed, even if another is awaited. A confirmation divides the bytes
# that a broker reads at once, so there are few of them; several groups are in flight, so that it
# goes on.
GROUP_MESSAGES = 16 * 1024
GROUP_BYTES = 1024 * 1024
WINDOW_BYTES = 4 * 1024 * 1024
"""The most bytes in flight, unless one request is larger."""
PIECE_BYTES = 128 * 1024
"""The bytes of one ``pump``, so that they are sent while they are in the processor's cache."""
RIPE_BYTES = 32 * 1024
"""So many queued bytes are sent without waiting for more."""


class PublishRequest:
    """Messages of one ``publish``; ``ticket`` if a call waits for their confirmation."""

    __slots__ = ("columns", "headers", "nbytes", "sender", "ticket", "topic")

    def __init__(
        self,
        topic: str,
        columns: Columns,
        sender: bytes | None = None,
        headers: Headers | None = None,
        ticket: Ticket[Level] | None = None,
    ) -> None:
        self.topic = topic
        self.columns = columns
        self.sender = sender
        self.headers = headers
        self.ticket = ticket
        self.nbytes = columns.nbytes + OVERHEAD


@dataclass(slots=True)
class RequestGroup:
    """Requests that one ``confirm`` covers."""

    messages: int = 0
    nbytes: int = 0
    ticket: Ticket[Level] | None = None

    def settle(self, event: Confirmed, where: str, report: Callable[[Notice], None]) -> None:
        """Tell the outcome to the call that waits; without one, report messages with another."""
        if event.unknown:
            if self.ticket is not None:
                # The count of refused messages would state that the others are published.
                self.ticket.fail(OutcomeUnknown(f"{where}: {event.reason}"))
                return
            report(Uncertain(event.unknown, event.reason))
        if event.refused:
            messages = "1 message was" if event.refused == 1 else f"{event.refused} messages were"
            text = f"{where}: {messages} refused: {event.reason}"
            if self.ticket is None:
                report(Refusal(event.refused, event.reason))
            else:
                self.ticket.fail(NotPublished(text, event.refused, self.messages))
        elif self.ticket is not None:
            self.ticket.succeed(event.level)


SILENT = "the broker has not answered the attempt to connect"
"""The reason for messages that are not sent while the connection is made."""


def unknown(where: str, why: str) -> OutcomeUnknown:
    """Return the error for messages that were sent and not confirmed."""
    return OutcomeUnknown(
        f"{where}: {why}; the messages that were sent may or may not have been published"
    )


def not_sent(where: str, why: str) -> NotSent:
    """Return the error for messages whose time in the queue is over; ``why`` may be empty."""
    why = why or "the broker does not take more messages"
    return NotSent(f"{where}: not sent in time: {why}; the messages are not published")
