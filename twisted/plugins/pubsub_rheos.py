"""The protocol rheos."""

from pubsub_broker import WireProtocol

rheos = WireProtocol(
    "rheos",
    7072,
    "UUIDs in binary over TCP",
    "pubsub.protocols.rheos",
    contract_driver="tests.contract.drivers.rheos.Rheos",
)
