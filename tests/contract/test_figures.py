"""Figures of every protocol: messages and bytes, in and out, of a connection and of all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.figures.connection_figures import LEAVING, LIVE, PAUSED
from tests.contract.drivers import DRIVERS, Driver
from tests.contract.drivers.fast import Fast
from tests.unit import fast_wire
from tests.unit.streams import Client


class FigureCase(SynchronousTestCase):
    """A broker with one listener of ``kind``."""

    kind: type[Driver]

    def build(self, **settings: object) -> None:
        own: dict[str, Any] = {**self.kind.settings, **settings}
        also = {} if self.kind is Fast else {self.kind.name: own}
        own = {name.replace("-", "_"): value for name, value in own.items()}
        self.house = fast_wire.Fast(self, also=also, **(own if self.kind is Fast else {}))
        self.house.start()
        self.driver = self.kind(self.house)
        self.driver.open()

    def of_protocol(self) -> dict[str, int]:
        found: dict[str, int] = self.house.broker.statistics.snapshot()["protocols"][self.kind.name]
        return found

    def publish(self, client: Client, *payloads: bytes) -> None:
        driver = self.driver
        driver.accepted(driver.ask(client, driver.publish(client, *payloads)), len(payloads))


class Bodies:
    """Base cases; a class at the top level would be collected without a protocol."""

    class Figures(FigureCase):
        """Published and delivered messages"""

        def test_messages_are_counted_for_the_protocol_and_the_connection(self) -> None:
            self.build()
            subscriber, publisher = self.driver.subscriber(), self.driver.publisher()
            before = self.of_protocol()
            self.publish(publisher, b"12345", b"678")
            self.publish(publisher, b"9")
            assert len(self.driver.messages(subscriber)) == 3
            after = self.of_protocol()
            new = {name: after[name] - before[name] for name in after}
            assert (new["messages_in"], new["bytes_in"]) == (3, 9)
            assert new["messages_out"] == 3
            assert new["bytes_out"] > 9
            assert (new["connections"], new["dropped"], new["refused"]) == (0, 0, 0)
            sent, received = publisher.protocol.figures(), subscriber.protocol.figures()
            assert (sent.messages_in, sent.bytes_in, sent.messages_out) == (3, 9, 0)
            assert (received.messages_in, received.messages_out) == (0, 3)
            assert received.bytes_out == new["bytes_out"]
            assert (received.state, received.behind, received.queued_bytes) == (LIVE, 0, 0)
            assert received.subscriptions == (0 if self.driver.polls else 1)

        def test_a_subscriber_that_does_not_read_is_paused(self) -> None:
            self.build()
            if self.driver.polls:
                # Its clients ask for messages.
                return
            subscriber, publisher = self.driver.subscriber(), self.driver.publisher()
            subscriber.stream.stop_reading()
            for _ in range(4):
                self.publish(publisher, b"x" * 60_000)
            figures = subscriber.protocol.figures()
            assert figures.state == PAUSED
            assert figures.queued_bytes > 60_000
            slow = self.house.broker.statistics.snapshot()["slow"]
            assert (slow["paused"], slow["queued_bytes"]) == (1, figures.queued_bytes)
            subscriber.stream.read()
            self.house.pump(3)
            figures = subscriber.protocol.figures()
            assert (figures.state, figures.queued_bytes) == (LIVE, 0)
            assert figures.messages_out == 4

        def test_a_connection_that_has_ended_is_leaving_and_not_counted(self) -> None:
            self.build()
            before = self.of_protocol()["connections"]
            publisher = self.driver.publisher()
            self.publish(publisher, b"12345")
            with_publisher = self.of_protocol()["connections"]
            assert with_publisher > before
            publisher.stream.lose()
            assert self.of_protocol()["connections"] == with_publisher - 1
            figures = publisher.protocol.figures()
            assert (figures.state, figures.messages_in) == (LEAVING, 1)

        def test_a_refused_request_is_counted(self) -> None:
            self.build()
            before = self.of_protocol()["refused"]
            client = self.driver.connect()
            client.send(self.driver.malformed()[0])
            self.house.pump(3)
            assert self.of_protocol()["refused"] == before + 1


def _bodies() -> Iterator[tuple[str, type[FigureCase]]]:
    for kind in DRIVERS.values():
        name = f"{kind.__name__}FiguresTests"
        yield name, type(name, (Bodies.Figures,), {"__module__": __name__, "kind": kind})


globals().update(_bodies())
