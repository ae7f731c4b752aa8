"""``ChannelFigures``: the messages and bytes that one HTTP connection published and was sent."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pubsub.broker.connection_figures import Figures, figures_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pubsub.broker.outbox import Outbox


class ChannelFigures:
    """The totals of a connection, in messages and bytes, except those of a current response."""

    __slots__ = ("bytes_in", "bytes_out", "messages_in", "messages_out")

    def __init__(self) -> None:
        self.messages_in = self.bytes_in = 0
        self.messages_out = self.bytes_out = 0

    def published(self, messages: int, nbytes: int) -> None:
        """Count published messages and their payload bytes."""
        self.messages_in += messages
        self.bytes_in += nbytes

    def ended(self, outbox: Outbox) -> None:
        """Count what a response that ends has sent."""
        self.messages_out += outbox.messages
        self.bytes_out += outbox.nbytes

    def with_outboxes(self, outboxes: Iterable[Outbox], leaving: bool) -> Figures:
        """Return the figures together with those of the responses that are being sent."""
        found = figures_of(None, outboxes, leaving)
        return replace(
            found,
            messages_in=self.messages_in,
            bytes_in=self.bytes_in,
            messages_out=found.messages_out + self.messages_out,
            bytes_out=found.bytes_out + self.bytes_out,
        )
