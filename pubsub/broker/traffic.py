"""Traffic: the messages in and out of one protocol, counted once for each batch or write."""

from __future__ import annotations


class Traffic:
    """The totals of the connections of one protocol since the start of the broker.

    ``messages_in`` and ``bytes_in`` are accepted messages and the bytes of their payloads.
    ``messages_out`` and ``bytes_out`` are messages that were written to connections, and their
    bytes as frames. ``dropped`` are messages that its subscribers did not get.
    """

    __slots__ = ("bytes_in", "bytes_out", "dropped", "messages_in", "messages_out", "protocol")

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        self.messages_in = self.bytes_in = 0
        self.messages_out = self.bytes_out = 0
        self.dropped = 0


class TrafficByProtocol(dict[str, Traffic]):
    """The traffic of each protocol, which is made when it is first needed."""

    def __missing__(self, protocol: str) -> Traffic:
        made = self[protocol] = Traffic(protocol)
        return made
