"""The protocols of the load generator: one module and one entry in `WIRES` for each.

A wire defines the handshakes of a publisher and a subscriber, and the bytes around a payload.
Sockets, batches, sequence numbers and timing are elsewhere, as they are the same for all. All
frames of a run have the same size, so a wire never parses: offsets are arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """The properties of a protocol that the generator needs.

    `topic` is a number from 0 to `topics` - 1, which the wire converts to an address of the
    protocol. `payload` is a size in bytes. A hello names one or more topics.
    """

    @property
    def name(self) -> str:
        """The name in the broker's ``--listen`` option and in its start-up line."""

    @property
    def max_payload(self) -> int:
        """The largest payload of the protocol, in bytes."""

    @property
    def topics(self) -> int:
        """The number of topics."""

    def publisher_hello(self, topics: Sequence[int], client: str) -> bytes:
        """Return all bytes of a publisher before its first message."""

    def subscriber_hello(self, topics: Sequence[int], client: str) -> bytes:
        """Return all bytes of a subscriber before its first delivery."""

    def welcomed(self, answer: bytes, topics: int = 1) -> bool:
        """Return whether `answer` is the broker's complete reply to a hello with `topics` topics.

        Raises BenchError if the broker refused.
        """

    def publication(self, topic: int, payload: int) -> Frame:
        """Return the frame of one published message."""

    def delivery(self, topic: int, payload: int) -> Frame:
        """Return the frame of one delivered message."""


WIRES: Mapping[str, Wire] = {
    wire.name: wire for wire in (CafeWire(), FastWire(), NsdWire(), RheosWire(), SpotWire())
}
"""The wires of this project's protocols."""
PEER_WIRES: Mapping[str, Wire] = {
    wire.name: wire for wire in (MqttWire(), NatsWire(), RespWire(), ZmqWire())
}
"""The wires of the other brokers in the comparison."""
PREPARATIONS: Mapping[str, Preparation] = {"fast": fast.PREPARATION, "nsd": nsd.PREPARATION}
"""The preparations of the wires that need one."""
_TRAITS = {"nats": nats.TRAITS, "nsd": nsd.TRAITS, "zmq": zmq.TRAITS}


def traits_of(wire: Wire) -> BrokerTraits:
    """Return the special properties of the brokers that speak ``wire``."""
    return _TRAITS.get(wire.name, NO_TRAITS)
