"""The protocol nsd."""

from pubsub_broker import WireProtocol

nsd = WireProtocol(
    "nsd",
    7071,
    "JSON lines over TCP",
    "pubsub.protocols.nsd",
    contract_driver="tests.contract.drivers.nsd.Nsd",
)
