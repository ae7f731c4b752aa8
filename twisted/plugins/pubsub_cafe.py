"""The protocol cafe."""

from pubsub_broker import WireProtocol

cafe = WireProtocol(
    "cafe",
    7070,
    "0xCAFE binary over TCP and UDP",
    "pubsub.protocols.cafe",
    contract_driver="tests.contract.drivers.cafe.Cafe",
)
