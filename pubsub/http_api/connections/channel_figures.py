"""``ChannelFigures``: the messages and bytes that one HTTP connection published and was sent."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pubsub.broker.figures.connection_figures import ConnectionFigures, figures_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pubsub.broker.delivery.outbox import Outbox


class ChannelFigures:
    """The totals of a connection, in messages and bytes, except those of a current response."""

    __slots__ = ("_bytes_out", "_messages_out", "messages", "nbytes")

    def __init__(self) -> None:
        self.messages = self.nbytes = 0
        """Published messages, and their payload bytes."""
        self._messages_out = self._bytes_out = 0

    def published(self, messages: int, nbytes: int) -> None:
        """Count published messages and their payload bytes."""
        self.messages += messages
        self.nbytes += nbytes

    def ended(self, outbox: Outbox) -> None:
        """Count the messages and bytes of a response that ends."""
        messages, nbytes = outbox.written
        self._messages_out += messages
        self._bytes_out += nbytes

    def with_outboxes(self, outboxes: Iterable[Outbox], leaving: bool) -> ConnectionFigures:
        """Return the figures together with those of the responses that are being sent."""
        found = figures_of(None, outboxes, leaving)
        return replace(
            found,
            messages_in=self.messages,
            bytes_in=self.nbytes,
            messages_out=found.messages_out + self._messages_out,
            bytes_out=found.bytes_out + self._bytes_out,
        )
