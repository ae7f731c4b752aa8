"""The protocols the load generator can speak: one module and one entry in `WIRES` each.

A wire says how to introduce a publisher and a subscriber and which bytes surround a payload;
sockets, batches, sequence numbers and timing are the same for all and live elsewhere. Frames of
one run all have the same size, so a wire never parses: offsets are arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tests.bench.wires import fast, nats, nsd, zmq
from tests.bench.wires.cafe import CafeWire
from tests.bench.wires.fast import FastWire
from tests.bench.wires.frame import Frame
from tests.bench.wires.mqtt import MqttWire
from tests.bench.wires.nats import NatsWire
from tests.bench.wires.nsd import NsdWire
from tests.bench.wires.preparation import Preparation
from tests.bench.wires.resp import RespWire
from tests.bench.wires.rheos import RheosWire
from tests.bench.wires.spot import SpotWire
from tests.bench.wires.traits import NO_TRAITS, BrokerTraits, PollRequest
from tests.bench.wires.zmq import ZmqWire

__all__ = ["PEER_WIRES", "PREPARATIONS", "WIRES"]
__all__ += ["BrokerTraits", "Frame", "PollRequest", "Preparation", "Wire", "traits_of"]


class Wire(Protocol):
    """What the generator must know of a protocol.

    `topic` is a small number from 0 to `topics` - 1 that the wire turns into whatever the
    protocol addresses by; `payload` is a size in bytes.
    """

    @property
    def name(self) -> str:
        """As the broker's ``--listen`` option and its start-up line spell it."""

    @property
    def max_payload(self) -> int:
        """The largest payload the protocol can deliver, in bytes."""

    @property
    def topics(self) -> int:
        """How many topics there can be."""

    def publisher_hello(self, topic: int, client: str) -> bytes:
        """All a publisher sends before its first message."""

    def subscriber_hello(self, topic: int, client: str) -> bytes:
        """All a subscriber sends before it gets the messages of `topic`."""

    def welcomed(self, answer: bytes) -> bool:
        """Whether `answer` is the broker's whole answer to a hello.

        Raises BenchError if the broker refused.
        """

    def publication(self, topic: int, payload: int) -> Frame:
        """The frame of one published message."""

    def delivery(self, topic: int, payload: int) -> Frame:
        """The frame of one delivered message."""


WIRES: Mapping[str, Wire] = {
    wire.name: wire for wire in (CafeWire(), FastWire(), NsdWire(), RheosWire(), SpotWire())
}
"""Of our own protocols."""
PEER_WIRES: Mapping[str, Wire] = {
    wire.name: wire for wire in (MqttWire(), NatsWire(), RespWire(), ZmqWire())
}
"""Of the brokers that ours is compared with."""
PREPARATIONS: Mapping[str, Preparation] = {"fast": fast.PREPARATION, "nsd": nsd.PREPARATION}
"""Of the wires that need one."""
_TRAITS = {"nats": nats.TRAITS, "nsd": nsd.TRAITS, "zmq": zmq.TRAITS}


def traits_of(wire: Wire) -> BrokerTraits:
    """What is special about the brokers that speak ``wire``."""
    return _TRAITS.get(wire.name, NO_TRAITS)
