"""The events of each protocol's connections on ``$SYS/events``."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.figures.events import TOPIC
from tests.contract.drivers import DRIVERS, Driver
from tests.contract.drivers.fast import Fast
from tests.unit import fast_wire


class EventCase(SynchronousTestCase):
    """A broker with events and one listener of ``kind``."""

    kind: type[Driver]

    def build(self, **settings: object) -> None:
        own: dict[str, Any] = {**self.kind.settings, **settings}
        also = {} if self.kind is Fast else {self.kind.name: own}
        own = {name.replace("-", "_"): value for name, value in own.items()}
        self.house = fast_wire.Fast(
            self, also=also, top={"events": True}, **(own if self.kind is Fast else {})
        )
        self.house.start()
        self.driver = self.kind(self.house)
        self.driver.open()
        self.new_events()

    def new_events(self) -> list[dict[str, Any]]:
        """Return the events since the last call."""
        self.house.pump(3)
        page = self.successResultOf(self.house.store.read(0, frozenset({TOPIC}), 2**24))
        events = [json.loads(data) for batch in page.batches for data in batch.payloads()]
        seen, self._seen = getattr(self, "_seen", 0), len(events)
        return events[seen:]


class Bodies:
    """Base cases; a class at the top level would be collected without a protocol."""

    class Events(EventCase):
        """The events of a connection"""

        def test_a_connection_has_a_connect_and_a_disconnect_event(self) -> None:
            self.build()
            driver = self.driver
            publisher = driver.publisher()
            self.new_events()
            driver.accepted(driver.ask(publisher, driver.publish(publisher, b"12345", b"678")), 2)
            assert self.new_events() == []
            publisher.stream.lose()
            (gone,) = self.new_events()
            assert gone["event"] == "disconnect"
            assert gone["protocol"] == self.kind.name
            assert gone["listener"] == self.house.listeners[self.kind.name].endpoint
            assert "192.0.2.1:" in gone["client"]
            assert gone["reason"] == "left"
            assert (gone["messages"], gone["bytes"]) == (2, 8)

        def test_events_of_a_connection_have_the_same_mark(self) -> None:
            self.build()
            first, second = self.house.connect(self.kind.name), self.house.connect(self.kind.name)
            connects = self.new_events()
            assert [event["event"] for event in connects] == ["connect", "connect"]
            assert len({event["session"] for event in connects}) == 2
            assert [len(event["session"]) for event in connects] == [16, 16]
            second.stream.lose()
            first.stream.lose()
            ends = self.new_events()
            assert [event["session"] for event in ends] == [
                connects[1]["session"], connects[0]["session"],
            ]  # fmt: skip
            assert [(event["messages"], event["bytes"]) for event in ends] == [(0, 0), (0, 0)]

        def test_a_malformed_frame_has_an_event(self) -> None:
            self.build()
            client = self.house.connect(self.kind.name)
            if self.kind.name == "spot":
                client = self.driver.connect()
            (*_, connect) = self.new_events()
            raw, _, closes = self.driver.malformed()
            client.send(raw)
            new_events = self.new_events()
            assert new_events[0]["event"] == "malformed"
            assert new_events[0]["session"] == connect["session"]
            shown = None if self.kind is Fast else b64encode(raw.removesuffix(b"\n")).decode()
            assert new_events[0].get("frame") == shown
            if closes:
                assert new_events[1]["event"] == "disconnect"
                assert new_events[1]["reason"] == new_events[0]["reason"]
            assert len(new_events) == 1 + closes

        def test_refusals_have_events(self) -> None:
            self.build(**{"rate-messages": 2})
            driver = self.driver
            publisher = driver.publisher()
            self.new_events()
            driver.ask(publisher, driver.publish(publisher, b"1", b"2", b"3", b"4", b"5"))
            (refused,) = self.new_events()
            assert refused["event"] == "refused"
            assert refused["reason"] == "rate-limited"
            assert refused["topic"] == "shared"
            assert refused["messages"] == 3
            assert len(refused["session"]) == 16

        def test_eviction_of_a_slow_subscriber_has_an_event(self) -> None:
            self.build(**{"slow-bytes": 400_000, "slow-consumer": "disconnect"})
            driver = self.driver
            if driver.polls:
                # Its clients poll, so they are never slow.
                return
            slow, publisher = driver.subscriber(), driver.publisher()
            connects = self.new_events()
            slow.stream.stop_reading()
            for _ in range(20):
                driver.ask(publisher, driver.publish(publisher, b"x" * 60_000))
            dropped, evicted, gone, *queued = self.new_events()
            new_events = [event["event"] for event in (dropped, evicted, gone)]
            assert new_events == ["dropped", "evicted", "disconnect"]
            assert {event["reason"] for event in queued} <= {"disconnected"}
            assert dropped["reason"] == "slow-consumer"
            assert (dropped["topic"], dropped["messages"]) == ("shared", 1)
            assert evicted["reason"] == gone["reason"] == "slow consumer: over 400000 bytes behind"
            assert evicted["session"] == gone["session"]
            assert evicted["session"] in {event["session"] for event in connects}

        def test_a_refused_connection_has_a_mark(self) -> None:
            self.build(**{"max-connections": 1})
            while not self.house.connect(self.kind.name).closed:
                self.new_events()
            (refused,) = self.new_events()
            assert (refused["event"], refused["reason"]) == ("refused", "limit-reached")
            assert len(refused["session"]) == 16

        def test_shutdown_ends_connections_with_events(self) -> None:
            self.build()
            self.driver.connect()
            self.new_events()
            self.house.broker.stopService()
            self.house.pump(3)
            reasons = {
                event["reason"] for event in self.new_events() if event["event"] == "disconnect"
            }
            assert reasons == {"stopped"}


def _bodies() -> Iterator[tuple[str, type[EventCase]]]:
    for kind in DRIVERS.values():
        name = f"{kind.__name__}EventsTests"
        yield name, type(name, (Bodies.Events,), {"__module__": __name__, "kind": kind})


globals().update(_bodies())
