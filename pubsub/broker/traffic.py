"""Traffic: the messages in and out of one protocol, counted once for each batch or write."""

from __future__ import annotations

from pubsub.kernel import Tally


class Traffic:
    """The totals of the connections of one protocol since the start of the broker.

    ``accepted`` are messages of publishers and the bytes of their payloads. ``written`` are
    messages that were written to connections, and their bytes as frames. ``dropped`` are messages
    that its subscribers did not get.
    """

    __slots__ = ("accepted", "dropped", "protocol", "written")

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        self.accepted, self.written = Tally(), Tally()
        self.dropped = 0


class TrafficByProtocol(dict[str, Traffic]):
    """The traffic of each protocol, which is made when it is first needed."""

    def __missing__(self, protocol: str) -> Traffic:
        made = self[protocol] = Traffic(protocol)
        return made
