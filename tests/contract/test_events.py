"""What each protocol's connections tell on ``$SYS/events``."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.events import TOPIC
from tests.contract.drivers import DRIVERS, Driver
from tests.contract.drivers.fast import Fast
from tests.unit import fast_wire


class Told(SynchronousTestCase):
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
        self.told()

    def told(self) -> list[dict[str, Any]]:
        """The events since the last time."""
        self.house.pump(3)
        page = self.successResultOf(self.house.store.read(0, frozenset({TOPIC}), 2**24))
        events = [json.loads(data) for batch in page.batches for data in batch.payloads()]
        seen, self._seen = getattr(self, "_seen", 0), len(events)
        return events[seen:]


class Bodies:
    """What runs for each protocol; not at the top level, where it would run for none."""

    class Events(Told):
        """Of a connection"""

        def test_a_connection_from_its_beginning_to_its_end(self) -> None:
            self.build()
            driver = self.driver
            publisher = driver.publisher()
            self.told()
            driver.accepted(driver.ask(publisher, driver.publish(publisher, b"12345", b"678")), 2)
            assert self.told() == []
            publisher.stream.lose()
            (gone,) = self.told()
            assert gone["event"] == "disconnect"
            assert gone["protocol"] == self.kind.name
            assert gone["listener"] == self.house.listeners[self.kind.name].endpoint
            assert "192.0.2.1:" in gone["client"]
            assert gone["reason"] == "left"
            assert (gone["messages"], gone["bytes"]) == (2, 8)

        def test_both_ends_have_one_mark(self) -> None:
            self.build()
            first, second = self.house.connect(self.kind.name), self.house.connect(self.kind.name)
            connects = self.told()
            assert [event["event"] for event in connects] == ["connect", "connect"]
            assert len({event["session"] for event in connects}) == 2
            assert [len(event["session"]) for event in connects] == [16, 16]
            second.stream.lose()
            first.stream.lose()
            ends = self.told()
            assert [event["session"] for event in ends] == [
                connects[1]["session"], connects[0]["session"],
            ]  # fmt: skip
            assert [(event["messages"], event["bytes"]) for event in ends] == [(0, 0), (0, 0)]

        def test_a_malformed_frame(self) -> None:
            self.build()
            client = self.house.connect(self.kind.name)
            if self.kind.name == "spot":
                client = self.driver.connect()
            (*_, connect) = self.told()
            raw, _, closes = self.driver.malformed()
            client.send(raw)
            told = self.told()
            assert told[0]["event"] == "malformed"
            assert told[0]["session"] == connect["session"]
            shown = None if self.kind is Fast else b64encode(raw.removesuffix(b"\n")).decode()
            assert told[0].get("frame") == shown
            if closes:
                assert told[1]["event"] == "disconnect"
                assert told[1]["reason"] == told[0]["reason"]
            assert len(told) == 1 + closes

        def test_what_is_refused(self) -> None:
            self.build(**{"rate-messages": 2})
            driver = self.driver
            publisher = driver.publisher()
            self.told()
            driver.ask(publisher, driver.publish(publisher, b"1", b"2", b"3", b"4", b"5"))
            (refused,) = self.told()
            assert refused["event"] == "refused"
            assert refused["reason"] == "rate-limited"
            assert refused["topic"] == "shared"
            assert refused["messages"] == 3
            assert len(refused["session"]) == 16

        def test_who_does_not_read(self) -> None:
            self.build(**{"slow-bytes": 400_000, "slow-consumer": "disconnect"})
            driver = self.driver
            if driver.polls:
                # It is sent nothing that it does not ask for.
                return
            slow, publisher = driver.subscriber(), driver.publisher()
            connects = self.told()
            slow.stream.stop_reading()
            for _ in range(20):
                driver.ask(publisher, driver.publish(publisher, b"x" * 60_000))
            dropped, evicted, gone, *queued = self.told()
            told = [event["event"] for event in (dropped, evicted, gone)]
            assert told == ["dropped", "evicted", "disconnect"]
            assert {event["reason"] for event in queued} <= {"disconnected"}
            assert dropped["reason"] == "slow-consumer"
            assert (dropped["topic"], dropped["messages"]) == ("shared", 1)
            assert evicted["reason"] == gone["reason"] == "slow consumer: over 400000 bytes behind"
            assert evicted["session"] == gone["session"]
            assert evicted["session"] in {event["session"] for event in connects}

        def test_who_is_turned_away_has_no_mark(self) -> None:
            self.build(**{"max-connections": 1})
            while not self.house.connect(self.kind.name).closed:
                self.told()
            (refused,) = self.told()
            assert (refused["event"], refused["reason"]) == ("refused", "limit-reached")
            assert "session" not in refused

        def test_the_broker_stops(self) -> None:
            self.build()
            self.driver.connect()
            self.told()
            self.house.broker.stopService()
            self.house.pump(3)
            reasons = {event["reason"] for event in self.told() if event["event"] == "disconnect"}
            assert reasons == {"stopped"}


def _bodies() -> Iterator[tuple[str, type[Told]]]:
    for kind in DRIVERS.values():
        name = f"{kind.__name__}EventsTests"
        yield name, type(name, (Bodies.Events,), {"__module__": __name__, "kind": kind})


globals().update(_bodies())
