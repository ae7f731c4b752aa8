"""One way to use every protocol: a driver each, so that one test body runs over all of them.

Drivers make bytes by hand and compare what comes with the bytes that the specifications promise;
nothing of the protocols' own code is used. A protocol that is installed and has no driver makes
``test_sideways`` fail.
"""

from __future__ import annotations

from collections.abc import Mapping

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
from tests.contract.drivers.cafe import Cafe
from tests.contract.drivers.fast import Fast
from tests.contract.drivers.nsd import Nsd
from tests.contract.drivers.rheos import Rheos
from tests.contract.drivers.spot import Spot

__all__ = [
    "DRIVERS",
    "NOT_AUTHORIZED",
    "NOT_FOUND",
    "OTHER",
    "RATE_LIMITED",
    "TOO_LARGE",
    "TOPIC",
    "WRONG_KEY",
    "Cafe",
    "Driver",
    "Fast",
]

DRIVERS: Mapping[str, type[Driver]] = {
    driver.name: driver for driver in (Cafe, Fast, Nsd, Rheos, Spot)
}
