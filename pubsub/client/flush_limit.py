"""The time limit of a flush, which counts from the last reply of the broker to messages."""

from __future__ import annotations

from pubsub.client.client_errors import OutcomeUnknown
from pubsub.client.link import LinkState
from pubsub.client.publishing_link import PublishingLink
from pubsub.client.runtime import Cancel, Runtime
from pubsub.client.tickets import Ticket


class FlushLimit:
    """Fails ``idle``, the ticket of a flush, after ``seconds`` without a reply to a message.

    A long queue takes any time as long as the broker confirms its messages.
    """

    def __init__(
        self, runtime: Runtime, link: PublishingLink, idle: Ticket[None], seconds: float
    ) -> None:
        self._runtime = runtime
        self._link = link
        self._idle = idle
        self._seconds = seconds
        self._began = runtime.now()
        self._timer: Cancel = runtime.call_later(seconds, self._check)

    def _check(self) -> None:
        last = max(self._began, self._link.progress_at)
        left = last + self._seconds - self._runtime.now()
        if left > 0:
            self._timer = self._runtime.call_later(left, self._check)
        else:
            self._idle.fail(OutcomeUnknown(self._text()))

    def _text(self) -> str:
        link = self._link
        text = f"{link.where}: messages not confirmed: no reply within {self._seconds:g} s"
        return text if link.state is LinkState.READY else f"{text}; not connected: {link.trouble}"

    def cancel(self) -> None:
        """The flush has ended."""
        self._timer()
