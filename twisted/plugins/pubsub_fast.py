"""The protocol fast."""

from pubsub_broker import WireProtocol

fast = WireProtocol(
    "fast",
    7074,
    "a JWT in each request, over TCP",
    "pubsub.protocols.fast",
    contract_driver="tests.contract.drivers.fast.Fast",
)
