"""Connections of the client library: with a broker in memory, and with bytes cut anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle

from pubsub.kernel import Columns
from pubsub.wire.client_events import Messages, MixedMessages, WireEvent
from pubsub.wire.client_wire import WireConnection
from tests.unit.streams import House


class Pair:
    """A connection of a client, and the broker's end of it.

    ``sent`` is everything that the client has sent, ``events`` all that was reported. At most
    ``piece`` bytes arrive at once.
    """

    def __init__(
        self,
        house: House,
        protocol: str,
        connection: WireConnection,
        topic: str | None = None,
        piece: int = 65_536,
    ) -> None:
        self.house = house
        self.connection = connection
        self.far = house.connect(protocol)
        self.sent = b""
        self.events: list[WireEvent] = connection.open(topic)
        self._piece = piece
        self.settle()

    def settle(self) -> None:
        """Transfer the output of both sides until nothing changes."""
        moved = True
        while moved:
            out = self.connection.take_output()
            self.sent += out
            if out:
                self.far.send(out)
            # Longer than the pause after a handshake, and than a commit.
            self.house.clock.advance(0.05)
            self.house.pump(3)
            back = self.far.take()
            for at in range(0, len(back), self._piece):
                self.events += self.connection.receive(back[at : at + self._piece])
            due = self.connection.delay == 0
            if due:
                self.events += self.connection.wake()
            moved = bool(out or back or due)

    def take(self) -> list[WireEvent]:
        """Return the events since the last call."""
        self.settle()
        events, self.events = self.events, []
        return events

    def take_sent(self) -> bytes:
        """Return the bytes that the client has sent since the last call."""
        self.settle()
        sent, self.sent = self.sent, b""
        return sent


def publish_two_groups(writer: Pair, topic: str, other: str) -> list[WireEvent]:
    """Publish on both topics, then on ``topic``, with a confirm after each; return the events."""
    writer.connection.publish(topic, Columns.one(b"x"))
    writer.connection.publish(other, Columns.of([b"x", b"y"]))
    writer.connection.confirm()
    writer.connection.publish(topic, Columns.one(b"x"))
    writer.connection.confirm()
    return writer.take()


def flat(events: Sequence[WireEvent]) -> list[tuple[str, bytes | None, bytes]]:
    """Return topic, sender and payload of each message."""
    return [
        (event.topic, None if event.senders is None else event.senders[number], payload)
        for event in runs(events)
        for number, payload in enumerate(event.columns.payloads())
    ]


def runs(events: Sequence[WireEvent]) -> Iterator[Messages]:
    """Yield the messages, those of one topic that follow one another together."""
    for event in events:
        if isinstance(event, MixedMessages):
            yield from event.runs()
        elif isinstance(event, Messages):
            yield event


def others(events: Sequence[WireEvent]) -> list[WireEvent]:
    """Return the events that are not messages."""
    return [event for event in events if not isinstance(event, Messages | MixedMessages)]


def receive_cut(
    connection: WireConnection, data: bytes, sizes: Sequence[int] = (1,)
) -> list[WireEvent]:
    """Return the events of ``data`` when it arrives in pieces of these sizes, repeatedly."""
    events: list[WireEvent] = []
    at = 0
    for size in cycle(sizes):
        if at >= len(data):
            return events
        events += connection.receive(data[at : at + size])
        at += size
    return events
