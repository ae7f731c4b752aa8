"""Protocols with settings of several kinds."""

from __future__ import annotations

from collections.abc import Mapping

from pubsub.plugin import IWireProtocol
from pubsub.settings import BOOLEAN, COUNT, Setting
from tests.unit.fakes import Toy

SPEED = Setting("speed", COUNT, 5, "how fast")
LOUD = Setting("loud", BOOLEAN, False, "how loud", flag="loud")
PROTOCOLS: Mapping[str, IWireProtocol] = {
    "alpha": Toy("alpha", 7001, [SPEED, LOUD]),
    "beta": Toy("beta", 7002),
}
MIB = 1024**2
ALPHA = {"protocol": "alpha"}
