"""Messages between the clients of two brokers, for every ordered pair of protocols."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.fanout import Fanout
from pubsub.backplane.memory_engine.memory import MemoryBackplane, MemoryEngine
from tests.contract.drivers import DRIVERS, TOPIC, Driver
from tests.contract.drivers.fast import Fast
from tests.unit import fast_wire
from tests.unit.streams import Client, House

SENT = [b"one", b"two", "drei äöü".encode(), b"four"]


class Bodies:
    """Base cases; a class at the top level would be collected as a test."""

    class Shared(SynchronousTestCase):
        """The publisher is a client of one broker and the subscriber of another"""

        first: type[Driver]
        second: type[Driver]

        def setUp(self) -> None:
            self.engine = MemoryEngine()
            self.backplanes: list[MemoryBackplane] = []
            self.source = self.first(self.make_house(self.first))
            self.target = self.second(self.make_house(self.second))
            self.has_key = Fast in (self.first, self.second)

        def make_house(self, driver: type[Driver]) -> House:
            """Start a broker with this protocol and fast, whose topic with a key is granted."""
            settings: dict[str, Any] = {**driver.settings, "grant": TOPIC}
            also = {} if driver is Fast else {driver.name: settings}
            house = fast_wire.Fast(self, also=also)
            backplane = MemoryBackplane(self.engine, lambda call: house.clock.callLater(0, call))
            self.backplanes.append(backplane)
            Fanout(house.broker, backplane).setServiceParent(house.broker)  # type: ignore[no-untyped-call]
            house.start()
            self.addCleanup(house.broker.stopService)
            return house

        def open(self, *keys: str) -> None:
            """Create the topic at both brokers, with these keys if a protocol needs one."""
            for driver, key in zip((self.source, self.target), keys or ("k1", "k1"), strict=True):
                if self.has_key:
                    Fast(driver.house, key=key).open()
                if not isinstance(driver, Fast):
                    driver.open()

        def settle(self) -> None:
            for _ in range(4):
                self.source.house.pump(3)
                self.target.house.pump(3)

        def publish(self, publisher: Client, *payloads: bytes) -> None:
            answer = self.source.ask(publisher, self.source.publish(publisher, *payloads))
            self.source.accepted(answer, len(payloads))
            self.settle()

        def test_messages_arrive_once_and_in_order(self) -> None:
            self.open()
            subscriber, publisher = self.target.subscriber(), self.source.publisher()
            self.publish(publisher, *SENT)
            assert self.target.messages(subscriber) == SENT
            self.publish(publisher, b"five")
            assert self.target.messages(subscriber) == [b"five"]
            assert self.target.messages(subscriber) == []
            assert self.source.house.broker.counters.dropped == 0
            refusals = self.target.house.broker.counters.refusals
            assert not [key for key in refusals if key[0] == "backplane"]

        def test_messages_without_a_reader_do_not_cross(self) -> None:
            self.open()
            publisher = self.source.publisher()
            self.publish(publisher, *SENT)
            figures = self.target.house.broker.statistics.snapshot()["backplane"]
            # nsd's publisher reads its own channel; no client reads at the other broker.
            assert figures["messages_in"] == (len(SENT) if self.target.opens else 0)

        def test_local_delivery_goes_on_without_the_engine(self) -> None:
            self.open()
            here, there = self.source.house, self.target.house
            subscriber, publisher = self.target.subscriber(), self.source.publisher()
            self.engine.leave("gone")
            self.publish(publisher, *SENT)
            assert self.target.messages(subscriber) == []
            assert here.broker.counters.drop_reasons["backplane-away"] == len(SENT)
            for house in (here, there):
                assert house.broker.readiness.backplane() == "gone"
            self.engine.come_back()
            self.publish(publisher, b"back")
            assert self.target.messages(subscriber) == [b"back"]

        def test_a_topic_with_another_key_stays_closed(self) -> None:
            if not self.has_key or self.second is Fast:
                return
            self.open("k1", "k2")
            subscriber, publisher = self.target.subscriber(), self.source.publisher()
            self.publish(publisher, *SENT)
            assert self.target.messages(subscriber) == []
            refusals = self.target.house.broker.counters.refusals
            assert refusals["backplane", "wrong-queue-key"] == len(SENT)


def _pairs() -> Iterator[tuple[str, str]]:
    for first in DRIVERS:
        for second in DRIVERS:
            yield first, second


for _first, _second in _pairs():
    _name = f"{_first.capitalize()}To{_second.capitalize()}Tests"
    globals()[_name] = type(
        _name,
        (Bodies.Shared,),
        {
            "__doc__": f"From {_first} to {_second}",
            "first": DRIVERS[_first],
            "second": DRIVERS[_second],
        },
    )
