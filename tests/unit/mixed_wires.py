"""Publishers of several topics and their readers, over wires that need different encodings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.unit import cafe_wire, rheos_wire
from tests.unit.cafe_wire import Cafe
from tests.unit.rheos_wire import ALICE, Rheos
from tests.unit.streams import Client

NUMBERS = range(1, 6)
Step = tuple[str, Any]
"""A read of messages by number of the topic, or the subscriptions of a reader that change."""
READS = st.lists(st.tuples(st.sampled_from(NUMBERS), st.binary(max_size=3)), min_size=2, max_size=8)
WANTED = st.lists(st.sets(st.sampled_from(NUMBERS)), min_size=1, max_size=4)
CHANGES = st.tuples(st.integers(0, 3), st.sampled_from(NUMBERS))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), READS),
        st.tuples(st.sampled_from(("join", "leave")), CHANGES),
    ),
    max_size=10,
)


class CafeWire:
    """Topics are channels."""

    def __init__(self) -> None:
        self.house = Cafe()
        self.publisher = self.house.publisher()

    def reader(self, wanted: set[int]) -> Client:
        return self.house.subscriber(bytes(sorted(wanted)))

    def join(self, reader: Client, number: int) -> None:
        reader.send(cafe_wire.subscribe(number))

    def leave(self, reader: Client, number: int) -> None:
        reader.send(cafe_wire.unsubscribe(number))

    def publish(self, number: int, payload: bytes) -> bytes:
        return cafe_wire.publish(number, payload)

    def name(self, number: int) -> str:
        return f"cafe/{number}"


class RheosWire:
    """The sender is in each response."""

    def __init__(self) -> None:
        self.house = Rheos()
        for number in NUMBERS:
            self.house.broker.topics.create(self.name(number))
        self.publisher = self.house.connect("rheos")
        self._ids: dict[Client, bytes] = {}

    def reader(self, wanted: set[int]) -> Client:
        own = bytes(15) + bytes([100 + len(self._ids)])
        reader = self.house.reader(own, *map(self.name, sorted(wanted)))
        self._ids[reader] = own
        return reader

    def join(self, reader: Client, number: int) -> None:
        reader.send(rheos_wire.subscribe(self._ids[reader], self.name(number).encode()))

    def leave(self, reader: Client, number: int) -> None:
        """The topic makes no difference: rheos has no request for it."""
        reader.stream.lose()

    def publish(self, number: int, payload: bytes) -> bytes:
        return rheos_wire.publish(ALICE, payload, name=self.name(number).encode())

    def name(self, number: int) -> str:
        return f"t{number}"


Wire = CafeWire | RheosWire


def outcome(make: Callable[[], Wire], wanted: list[set[int]], steps: list[Step]) -> object:
    """Return all that clients receive, and the figures of the topics."""
    wire = make()
    publisher = wire.publisher
    for number in NUMBERS:
        publisher.send(wire.publish(number, b"first"))
    readers = [wire.reader(each) for each in wanted]
    for kind, value in steps:
        if kind == "read":
            publisher.send(b"".join([wire.publish(*one) for one in value]))
        elif value[0] < len(readers) and not readers[value[0]].stream.lost:
            change = wire.join if kind == "join" else wire.leave
            change(readers[value[0]], value[1])
    wire.house.broker.dispatcher.settle()
    topics = [wire.house.broker.topics.named(wire.name(number)) for number in NUMBERS]
    return (
        [client.take() for client in (publisher, *readers)],
        [(one.messages, one.nbytes, one.last_timestamp) for one in topics],
        wire.house.store.next_offset,
    )
