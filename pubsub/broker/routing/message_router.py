"""The interface of the router, as routing in slices uses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pubsub.broker.memory_budget import MemoryBudget
    from pubsub.broker.publishing.publisher_gates import Gate
    from pubsub.broker.routing.audience import Audience, Receivers
    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.routing.forwarding import Forwarding
    from pubsub.broker.topic_space.topics import DeliverySource, Recipient


class MessageRouter(Protocol):
    """Delivers batches to outboxes; implemented by ``Router``."""

    gate: Gate
    memory: MemoryBudget
    at_tick_end: Callable[[Callable[[], None]], object]
    forwarding: Forwarding | None
    delivering: bool
    """True while the collected messages are given to outboxes."""

    @property
    def waiting(self) -> Sized:
        """The batches that wait to be routed in slices."""

    def collect(self, audience: Audience, batch: Batch, source: DeliverySource) -> None:
        """Encode ``batch`` for ``audience``, which receives it at the end of the tick."""

    def add(
        self, receivers: Receivers, data: bytes, count: int, offset: int, source: DeliverySource
    ) -> None:
        """Have ``receivers`` get ``count`` messages, which are encoded, at the end of the tick."""

    def hand_over(self) -> None:
        """Deliver the collected messages to the outboxes."""

    def flush(self) -> None:
        """Hand over, and have the outboxes write."""

    def complete(self, outbox: Recipient, with_changes: bool = True) -> None:
        """Deliver to ``outbox`` all that was published before, and make the changes that wait."""

    def change_all(
        self,
        outboxes: Sequence[Recipient],
        change: Callable[[Recipient], None],
        then: Callable[[], None],
    ) -> None:
        """Call ``change`` for each of ``outboxes``, before messages that are published later."""

    def exclude(self, outbox: Recipient) -> None:
        """Do not deliver messages that wait to be routed to ``outbox``."""
