"""Messages between the clients of two brokers over a nats-server, for each pair of protocols.

Clients and brokers are in memory, as in the contract test of these pairs; the way between the
brokers is real.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.engine.engine_url import ENGINE, EngineOptions
from pubsub.backplane.engine.nats_backplane import NatsBackplane
from pubsub.backplane.fanout import Fanout
from tests.contract.drivers import DRIVERS, TOPIC, Driver
from tests.contract.drivers.fast import Fast
from tests.integration.engine_loop import Loop
from tests.integration.nats_server import nats_server
from tests.unit import fast_wire
from tests.unit.streams import House


class PairsTests(SynchronousTestCase):
    """Two brokers with all protocols"""

    def setUp(self) -> None:
        directory = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.server = self.enterContext(nats_server(directory, "-m", "-1"))
        self.loop = Loop()
        self.here, self.there = self.make_house(), self.make_house()
        self.loop.wait(lambda: not any(map(self.trouble, (self.here, self.there))))

    def make_house(self) -> House:
        """Start a broker with a listener of each protocol."""
        settings: dict[str, Any] = {
            name: {**driver.settings, "grant": TOPIC}
            for name, driver in DRIVERS.items()
            if driver is not Fast
        }
        house = fast_wire.Fast(self, also=settings)
        options = EngineOptions(ENGINE.parse(self.server.url), "", "", "", "", 4 * 1024**2)
        backplane = NatsBackplane(
            options, self.loop, partial(self.loop.callLater, 0), house.broker.counters.drop
        )
        Fanout(house.broker, backplane).setServiceParent(house.broker)  # type: ignore[no-untyped-call]
        house.start()
        self.addCleanup(lambda: self.loop.finish(house.broker.stopService()))
        return house

    @staticmethod
    def trouble(house: House) -> str | None:
        return house.broker.readiness.backplane()

    def drivers(self, house: House) -> list[Driver]:
        """Return a driver of each protocol; the topic exists."""
        Fast(house, key="k1").open()
        made = [driver(house) for driver in DRIVERS.values()]
        for driver in made:
            if not isinstance(driver, Fast):
                driver.open()
        return made

    def arrived(self) -> int:
        for house in (self.here, self.there):
            house.pump(3)
        return int(self.there.broker.statistics.snapshot()["backplane"]["messages_in"])

    def test_messages_arrive_once_and_in_order(self) -> None:
        sources, targets = self.drivers(self.here), self.drivers(self.there)
        subscribers = [driver.subscriber() for driver in targets]
        # Both brokers request the topic, as nsd's identities are subscribed to their own channel.
        self.loop.wait(lambda: sum(map(bool, self.server.subscriptions("pubsub.v1.t."))) == 2)
        expected = 0
        for source in sources:
            publisher = source.publisher()
            sent = [f"{source.name} {number} äöü".encode() for number in range(5)]
            source.accepted(source.ask(publisher, source.publish(publisher, *sent)), len(sent))
            expected += len(sent)
            self.loop.wait(lambda: self.arrived() >= expected)  # noqa: B023
            for target, subscriber in zip(targets, subscribers, strict=True):
                assert target.messages(subscriber) == sent, (source.name, target.name)
        assert self.arrived() == expected
        for house in (self.here, self.there):
            assert house.broker.counters.dropped == 0
            refusals = house.broker.counters.refusals
            assert not [key for key in refusals if key[0] == "backplane"]
