"""The protocol spot."""

from pubsub_broker import WireProtocol

spot = WireProtocol(
    "spot",
    7073,
    "topics over ZeroMQ sockets",
    "pubsub.protocols.spot",
    contract_driver="tests.contract.drivers.spot.Spot",
)
