"""Traffic: the messages in and out of one protocol, counted once for each batch or write."""

from __future__ import annotations

from typing import Protocol

from pubsub.kernel import LinkedTally, Tally

# Audiences that are settled together at most.
_UNSETTLED = 256


class CountedAudience(Protocol):
    """An audience that has counted messages for its outboxes."""

    def settle(self) -> None:
        """Count the messages for each of the outboxes."""


class UnsettledDeliveries:
    """The audiences that have counted messages for which ``settle`` has not been called.

    An audience counts what is written to all of its outboxes: two additions to attributes. A call
    into the kernel for each flush takes longer, as its code has left the processor's cache since
    the last flush.
    """

    __slots__ = ("_audiences",)

    def __init__(self) -> None:
        self._audiences: list[CountedAudience] = []

    def add(self, audience: CountedAudience) -> None:
        """Have ``audience`` settled; all that wait are settled first if they are many."""
        if len(self._audiences) >= _UNSETTLED:
            self.settle()
        self._audiences.append(audience)

    def settle(self) -> None:
        """Count the messages for the outboxes, for their protocols, and in total."""
        audiences, self._audiences = self._audiences, []
        for audience in audiences:
            audience.settle()


class PublisherTally(LinkedTally):
    """The messages of one publisher, counted in ``accepted`` as well; that of its protocol.

    ``topic`` is the one that is linked: that of its last messages.
    """

    __slots__ = ("topic",)

    def __init__(self, accepted: Tally) -> None:
        super().__init__(accepted)
        self.topic: Tally | None = None


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
