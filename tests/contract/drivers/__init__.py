"""One way to use every protocol: a driver each, so that one test body runs over all of them.

Drivers make bytes by hand and compare what comes with the bytes that the specifications promise;
nothing of the protocols' own code is used. Each protocol names its driver
(``IWireProtocol.contract_driver``); one that is installed and names none makes ``test_sideways``
fail.
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
    # Not namedAny, which needs this package to be imported in full already.
    module, _, name = dotted.rpartition(".")
    driver: type[Driver] = getattr(import_module(module), name)
    return driver


DRIVERS: Mapping[str, type[Driver]] = {
    name: _load(protocol.contract_driver)
    for name, protocol in installed_protocols().items()
    if protocol.contract_driver is not None
}
