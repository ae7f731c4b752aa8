"""Reserved topics are closed over every protocol unless ``grant`` names them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.figures.events import TOPIC
from pubsub.broker.figures.stats_topic import TOPIC as STATS
from pubsub.broker.routing.batch import Batch
from tests.contract.drivers import DRIVERS, NOT_AUTHORIZED, NOT_FOUND, WRONG_KEY, Driver
from tests.contract.drivers.cafe import Cafe
from tests.contract.drivers.fast import Fast
from tests.unit import fast_wire
from tests.unit.brokers import message, ready


class Reserved(SynchronousTestCase):
    """A client of ``kind`` and the topic of events."""

    kind: type[Driver]

    def build(self, topic: str = TOPIC, **settings: object) -> None:
        """Start a broker with events; ``settings`` are those of the tested listener.

        Clients of cafe can name ``topic``, of the broker's own.
        """
        own: dict[str, Any] = {**self.kind.settings, **settings}
        if self.kind is Cafe:
            own["channels"] = f"1:shared,2:other,3:{topic}"
        also = {} if self.kind is Fast else {self.kind.name: own}
        self.house = fast_wire.Fast(
            self, also=also, top={"events": True}, **(own if self.kind is Fast else {})
        )
        self.house.start()
        self.driver = self.kind(self.house)

    def batches(self) -> list[Batch]:
        """Return the whole history."""
        self.house.pump(3)
        page = self.successResultOf(self.house.store.read(0, frozenset({TOPIC}), 2**24))
        return page.batches


class Bodies:
    """Base cases; a class at the top level would be collected without a protocol."""

    class Closed(Reserved):
        """Without a grant"""

        def refusals(self) -> set[bytes]:
            reasons = [WRONG_KEY] if self.kind is Fast else [NOT_AUTHORIZED]
            if self.driver.opens:
                # The channel was never opened.
                reasons.append(NOT_FOUND)
            return {self.driver.refused(reason, TOPIC) for reason in reasons}

        def test_publishing_is_refused(self) -> None:
            for grant in ("", "*", "*events", "other"):
                self.build(grant=grant)
                driver = self.driver
                publisher = driver.connect() if driver.opens else driver.publisher(TOPIC)
                answer = driver.ask(publisher, driver.publish(publisher, b"lie", topic=TOPIC))
                assert answer in self.refusals()
                assert {batch.protocol for batch in self.batches()} == {"pubsub"}

        def test_subscribing_is_refused(self) -> None:
            for grant in ("", "*", "*events", "other"):
                self.build(grant=grant)
                driver = self.driver
                client = driver.listener()
                answer = driver.ask(client, driver.subscribe(client, TOPIC))
                reason = WRONG_KEY if self.kind is Fast else NOT_AUTHORIZED
                assert answer == driver.not_subscribed(reason, TOPIC)
                driver.connect()
                assert driver.messages(client) == []

        def test_the_statistics_are_refused(self) -> None:
            for grant in ("", "*", "*stats", TOPIC):
                self.build(STATS, grant=grant)
                driver = self.driver
                client = driver.listener()
                answer = driver.ask(client, driver.subscribe(client, STATS))
                reason = WRONG_KEY if self.kind is Fast else NOT_AUTHORIZED
                assert answer == driver.not_subscribed(reason, STATS)
                self.house.advance(2)
                assert driver.messages(client) == []

        def test_other_requests_reveal_nothing(self) -> None:
            self.build()
            for name, attempt in self.driver.attempts(TOPIC).items():
                assert attempt() == b"", name
            assert {batch.protocol for batch in self.batches()} == {"pubsub"}
            assert not self.house.broker.topics.named(TOPIC).groups

        def test_a_reserved_topic_is_not_created(self) -> None:
            self.build()
            driver = self.driver
            if self.kind is not Cafe:
                client = driver.listener()
                driver.ask(client, driver.subscribe(client, "$SYS/mine"))
                driver.ask(client, driver.publish(client, b"x", topic="$SYS/mine"))
            if self.kind is Fast:
                driver.ask(driver.connect(), fast_wire.create(fast_wire.OWNER, "$SYS/mine"))
            assert "$SYS/mine" not in self.house.broker.topics

    class Granted(Reserved):
        """With a pattern that names them"""

        def follow(self, topic: str) -> Any:
            """Return a client that is subscribed to a reserved topic."""
            driver = self.driver
            if self.kind is Fast:
                # Over fast every topic has a key, which its first creator sets.
                assert driver.ask(driver.connect(), fast_wire.create(fast_wire.OWNER, topic)) == b""
            client = driver.listener()
            self.house.pump(3)
            assert driver.ask(client, driver.subscribe(client, topic)) == driver.subscribed(topic)
            return client

        def test_events_can_be_read(self) -> None:
            self.build(grant="$SYS/*")
            driver, client = self.driver, self.follow(TOPIC)
            self.house.connect("fast")
            self.house.pump(3)
            events = [json.loads(message) for message in driver.messages(client)]
            assert ["connect", "fast"] in [[e["event"], e["protocol"]] for e in events]

        def test_statistics_can_be_followed(self) -> None:
            self.build(STATS, grant="$SYS/*")
            driver, client = self.driver, self.follow(STATS)
            found = []
            for _ in range(2):
                self.house.advance(1)
                found += [json.loads(message) for message in driver.messages(client)]
            assert [int(figures["uptime"]) for figures in found] == [1, 2]
            for figures in found:
                assert figures["protocols"][self.kind.name]["connections"] >= 1
            page = self.successResultOf(self.house.store.read(0, frozenset({STATS}), 2**24))
            assert page.batches == []


class EverythingTests(SynchronousTestCase):
    """A spot subscription to every topic"""

    def test_omitting_reserved_topics_is_not_a_refusal(self) -> None:
        house = fast_wire.Fast(self, also={"spot": {}}, top={"events": True})
        house.start()
        client = house.connect("spot")
        client.send(ready(b"SUB") + message(b"\x01"))
        house.connect("fast")
        house.pump(3)
        assert not house.broker.topics.named(TOPIC).groups
        assert not house.broker.topics.named(STATS).groups
        assert house.broker.counters.refused == 0


def _bodies() -> Iterator[tuple[str, type[Reserved]]]:
    for kind in DRIVERS.values():
        for body in (Bodies.Closed, Bodies.Granted):
            name = f"{kind.__name__}{body.__name__}Tests"
            yield name, type(name, (body,), {"__module__": __name__, "kind": kind})


globals().update(_bodies())
