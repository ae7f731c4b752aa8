"""Traffic: the messages in and out of one protocol, counted once for each batch or write."""

from __future__ import annotations

from pubsub.kernel import Tally


class Traffic:
    """The totals of the connections of one protocol since the start of the broker.

    ``accepted`` are messages of publishers and the bytes of their payloads. ``written`` are
    messages that were written to connections, and their bytes as frames. ``dropped`` are messages
    that its subscribers did not get. ``delivered`` are the tallies of what is written at once:
    ``written``, and ``deliveries``, which is that of all protocols.
    """

    __slots__ = ("accepted", "delivered", "dropped", "protocol", "written")

    def __init__(self, protocol: str, deliveries: Tally) -> None:
        self.protocol = protocol
        self.accepted, self.written = Tally(), Tally()
        self.delivered = (self.written, deliveries)
        self.dropped = 0


class TrafficByProtocol(dict[str, Traffic]):
    """The traffic of each protocol, which is made when it is first needed.

    ``deliveries`` are the messages delivered over all of them; their bytes are not counted on every
    way.
    """

    def __init__(self) -> None:
        super().__init__()
        self.deliveries = Tally()

    def __missing__(self, protocol: str) -> Traffic:
        made = self[protocol] = Traffic(protocol, self.deliveries)
        return made
