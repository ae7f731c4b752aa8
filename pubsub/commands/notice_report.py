"""The notices of the client library, as lines on standard error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pubsub.broker.quantity_text import quantity

if TYPE_CHECKING:
    from pubsub.client import Notice
    from pubsub.commands.destination import Destination


class NoticeReport:
    """Prints notices, unless ``quiet``; ``failed`` counts messages that may not be published.

    They are those of a client of ``where``.
    """

    def __init__(self, where: Destination, quiet: bool = False) -> None:
        self.failed = 0
        self._where = where
        self._quiet = quiet

    def __call__(self, notice: Notice) -> None:
        """Report ``notice``."""
        from pubsub.client import Refusal, Uncertain

        lost = isinstance(notice, Refusal | Uncertain)
        if isinstance(notice, Refusal | Uncertain):
            self.failed += notice.count
        if lost or not self._quiet:
            advice = self._where.hint_of_right(notice.reason) if isinstance(notice, Refusal) else ""
            click.echo(f"pubsub: {line_of(notice)}{advice}", err=True)


def line_of(notice: Notice) -> str:
    """Return a notice as a line of text."""
    from pubsub.client import Disconnected, Ended, Gap, Reconnected, Refusal

    match notice:
        case Disconnected(reason=reason):
            return f"the connection was lost: {reason}; connecting again"
        case Reconnected(resumed=resumed):
            # A Gap before it says what may be missing, and why.
            return "connected again" + (", the session was resumed" if resumed else "")
        case Gap(topics=topics, reason=reason, offset=offset):
            after = "" if offset is None else f" after offset {offset}"
            return f"{', '.join(topics)}: messages may be missing{after}: {reason}"
        case Ended(reason=reason):
            return f"the broker has ended a subscription: {reason}"
        case Refusal(count=count, reason=reason):
            be = "was" if count == 1 else "were"
            return f"{quantity(count, 'message')} {be} refused: {reason}"
        case _:
            messages = quantity(notice.count, "message")
            return f"{messages} may not have been published: {notice.reason}"
