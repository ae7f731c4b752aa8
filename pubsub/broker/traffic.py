"""Traffic: the messages in and out of one protocol, counted once for each batch or write."""

from __future__ import annotations

from typing import Protocol

from pubsub.kernel import Tally, add_to_each


class CountedOutbox(Protocol):
    """An outbox: a tally of what was written to it, and the ``traffic`` of its protocol."""

    messages: int
    nbytes: int
    traffic: Traffic


class UnsettledDeliveries:
    """Messages that were written to the same outboxes, and that ``settle`` counts for each of them.

    Most flushes are to the outboxes of the last one. For these two additions to attributes are
    enough: a call into the kernel for each flush takes longer, as its code has left the processor's
    cache since the last flush.
    """

    __slots__ = ("messages", "nbytes", "targets")

    def __init__(self) -> None:
        self.targets: tuple[CountedOutbox, ...] | None = None
        """The outboxes, which are of one protocol."""
        self.messages = self.nbytes = 0
        """The messages that were written to each of them, and their bytes as frames."""

    def start(self, targets: tuple[CountedOutbox, ...] | None, messages: int, nbytes: int) -> None:
        """Settle, and go on with other outboxes, to which so many messages are written."""
        self.settle()
        self.targets, self.messages, self.nbytes = targets, messages, nbytes

    def settle(self) -> None:
        """Count the messages for the outboxes, for their protocol, and in total."""
        if self.messages and self.targets:
            totals = self.targets[0].traffic.delivered
            add_to_each(self.targets, self.messages, self.nbytes, totals)
        self.messages = self.nbytes = 0


class PublisherTally(Tally):
    """The messages of one publisher; ``accepted`` are those of its protocol."""

    __slots__ = ("accepted",)

    def __init__(self, accepted: Tally) -> None:
        super().__init__()
        self.accepted = accepted


class Traffic:
    """The totals of the connections of one protocol since the start of the broker.

    ``accepted`` are messages of publishers and the bytes of their payloads. ``dropped`` are
    messages that its subscribers did not get. Messages that are written when they are delivered are
    counted in the tallies ``delivered``: that of ``written``, and that of all protocols; those that
    are written later only in ``queued``, the first of them.
    """

    __slots__ = ("_unsettled", "accepted", "delivered", "dropped", "protocol", "queued")

    def __init__(self, protocol: str, deliveries: Tally, unsettled: UnsettledDeliveries) -> None:
        self.protocol = protocol
        self._unsettled = unsettled
        self.accepted = Tally()
        self.delivered = (Tally(), deliveries)
        self.queued = self.delivered[:1]
        self.dropped = 0

    @property
    def written(self) -> Tally:
        """Messages that were written to connections, and their bytes as frames."""
        self.settle()
        return self.delivered[0]

    def settle(self) -> None:
        """Bring the figures of all outboxes up to date."""
        self._unsettled.settle()


class TrafficByProtocol(dict[str, Traffic]):
    """The traffic of each protocol, which is made when it is first needed."""

    def __init__(self) -> None:
        super().__init__()
        self.unsettled = UnsettledDeliveries()
        self._deliveries = Tally()

    @property
    def deliveries(self) -> Tally:
        """The messages delivered over all protocols; not all of their bytes are counted."""
        self.unsettled.settle()
        return self._deliveries

    def __missing__(self, protocol: str) -> Traffic:
        made = self[protocol] = Traffic(protocol, self._deliveries, self.unsettled)
        return made
