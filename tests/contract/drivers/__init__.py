"""A driver for each protocol, so that one test body runs over all of them.

Drivers build requests by hand and compare replies with the bytes of the specifications; they use
none of the protocols' own code. Each protocol names its driver (``IWireProtocol.contract_driver``);
an installed protocol without a driver makes ``test_sideways`` fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from pubsub.plugin import installed_protocols
from tests.contract.drivers.base import (
    NOT_AUTHORIZED,
    NOT_FOUND,
    OTHER,
    RATE_LIMITED,
    TOO_LARGE,
    TOPIC,
    WRONG_KEY,
    Driver,
)

__all__ = [
    "DRIVERS",
    "NOT_AUTHORIZED",
    "NOT_FOUND",
    "OTHER",
    "RATE_LIMITED",
    "TOO_LARGE",
    "TOPIC",
    "WRONG_KEY",
    "Driver",
]


def _load(dotted: str) -> type[Driver]:
    # namedAny would need this package to be imported in full.
    module, _, name = dotted.rpartition(".")
    driver: type[Driver] = getattr(import_module(module), name)
    return driver


DRIVERS: Mapping[str, type[Driver]] = {
    name: _load(protocol.contract_driver)
    for name, protocol in installed_protocols().items()
    if protocol.contract_driver is not None
}
