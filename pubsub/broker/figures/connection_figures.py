"""The figures of one connection: messages and bytes published and delivered, and its lag."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pubsub.broker.delivery.outbox import Outbox
    from pubsub.broker.publishing.publisher import Publisher

LIVE, CATCHING_UP, PAUSED, LEAVING = "live", "catching_up", "paused", "leaving"


@dataclass(frozen=True, slots=True)
class ConnectionFigures:
    """Of a connection, since it was accepted. ``messages_in`` to ``bytes_out`` as in ``Traffic``.

    ``queued_bytes`` wait to be sent to it. ``state`` is LIVE, CATCHING_UP (it reads the history),
    PAUSED (its transport takes no more) or LEAVING. ``behind`` is the number of offsets between
    its place in the history and the end, while it catches up; otherwise 0.
    """

    subscriptions: int = 0
    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    queued_bytes: int = 0
    state: str = LIVE
    behind: int = 0

    def with_sent(self, messages: int, nbytes: int) -> ConnectionFigures:
        """Return the figures with as many more messages sent."""
        if not messages:
            return self
        return replace(
            self, messages_out=self.messages_out + messages, bytes_out=self.bytes_out + nbytes
        )


def figures_of(
    publisher: Publisher | None, outboxes: Iterable[Outbox], leaving: bool
) -> ConnectionFigures:
    """Return the figures of a connection with this publisher and these outboxes."""
    boxes = tuple(outboxes)
    sent = [box.written for box in boxes]
    return ConnectionFigures(
        subscriptions=sum([box.subscription_count for box in boxes]),
        messages_in=0 if publisher is None else publisher.messages,
        bytes_in=0 if publisher is None else publisher.nbytes,
        messages_out=sum([messages for messages, _ in sent]),
        bytes_out=sum([nbytes for _, nbytes in sent]),
        queued_bytes=sum([max(box.queued, box.held) for box in boxes]),
        state=LEAVING if leaving else _state_of(boxes),
        behind=sum([box.behind for box in boxes]),
    )


def _state_of(boxes: Iterable[Outbox]) -> str:
    state = LIVE
    for box in boxes:
        if box.cursor is not None:
            return CATCHING_UP
        if box.paused:
            state = PAUSED
    return state
