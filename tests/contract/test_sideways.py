"""No way round a queue key: a topic closed over fast is closed over every protocol.

The test bodies run for every ordered pair of protocols: the topic is used over the first, closed
over fast, tried over the second. A protocol that is installed and has no driver fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.plugin import installed_protocols
from tests.contract.drivers import DRIVERS, NOT_AUTHORIZED, TOPIC, WRONG_KEY, Driver
from tests.contract.drivers.fast import Fast
from tests.unit import fast_wire
from tests.unit.streams import Client

SECRET, OPEN = b"secret", b"open"
TOPIC_ID = fast_wire.topic_id(TOPIC)
CLOSE = fast_wire.create(fast_wire.OWNER, TOPIC)
PUBLISH = fast_wire.publish(fast_wire.OWNER, SECRET, topic=TOPIC_ID)


class Sideways(SynchronousTestCase):
    """The topic is used over ``first`` and tried over ``second``."""

    first: type[Driver]
    second: type[Driver]

    def build(self, **settings: object) -> None:
        """A broker with the three protocols, ``settings`` being those of the second."""
        listen: dict[str, dict[str, Any]] = {}
        for driver in (self.first, self.second):
            listen[driver.name] = dict(driver.settings)
        listen[self.second.name] |= settings
        own = {name.replace("-", "_"): value for name, value in listen.pop("fast", {}).items()}
        self.house = fast_wire.Fast(self, also=listen, **own)
        self.maker = self.first(self.house)
        # A client of fast without the key has no more rights than one of any other protocol.
        is_fast = self.second is Fast
        self.trier = Fast(self.house, key="k2") if is_fast else self.second(self.house)
        self.reason = WRONG_KEY if is_fast else NOT_AUTHORIZED

    def use_and_close(self) -> tuple[Client | None, Client | None]:
        """The topic is in use over both protocols, and then closed.

        Returns a subscriber and a publisher of before; there are none where one of the two is
        fast, as its topics are never open.
        """
        subscriber = publisher = None
        if Fast not in (self.first, self.second):
            self.maker.open()
            self.trier.open()
            subscriber, publisher = self.trier.subscriber(), self.trier.publisher()
            maker = self.maker.publisher()
            self.maker.accepted(self.maker.ask(maker, self.maker.publish(maker, OPEN)))
            assert self.trier.messages(subscriber) == [OPEN]
        self.owner = self.house.client(CLOSE)
        assert self.owner.take() == b""
        return subscriber, publisher

    def read(self) -> Client:
        """A reader with the key, who has seen nothing yet."""
        reader = self.house.client(fast_wire.subscribe(fast_wire.OWNER, TOPIC_ID))
        assert reader.take() == b""
        return reader

    def got(self, reader: Client) -> list[bytes]:
        return list(Fast(self.house).payloads(reader.take()))

    def try_to_subscribe(self) -> Client:
        """A new client that is refused."""
        client = self.trier.listener()
        answer = self.trier.ask(client, self.trier.subscribe(client))
        assert answer == self.trier.not_subscribed(self.reason)
        return client

    def try_to_publish(self, publisher: Client) -> None:
        """A publisher that is refused."""
        answer = self.trier.ask(publisher, self.trier.publish(publisher, b"intruder"))
        assert answer == self.trier.refused(self.reason)
        assert not publisher.closed


class Bodies:
    """What runs for each pair; not at the top level, where the runners would take it for tests."""

    class Closed(Sideways):
        """Publish, subscribe, history and listing are refused, live subscriptions end"""

        def test_a_live_subscription_ends(self) -> None:
            self.build()
            subscriber, _ = self.use_and_close()
            if subscriber is None:
                return
            assert subscriber.take() == self.trier.revoked()
            self.owner.send(PUBLISH)
            assert self.trier.messages(subscriber) == []
            assert not subscriber.closed

        def test_nobody_subscribes(self) -> None:
            self.build()
            self.use_and_close()
            client = self.try_to_subscribe()
            self.owner.send(PUBLISH)
            if self.trier.polls:
                assert self.trier.messages(client) == []
            assert client.take() == b""

        def test_nobody_publishes(self) -> None:
            self.build()
            _, publisher = self.use_and_close()
            reader = self.read()
            if publisher is not None:
                self.try_to_publish(publisher)
            if not self.trier.opens:
                self.try_to_publish(self.trier.publisher())
            assert self.got(reader) == []

        def test_who_was_away_does_not_come_back_to_it(self) -> None:
            self.build()
            if Fast in (self.first, self.second):
                return
            self.trier.open()
            subscriber = self.trier.subscriber()
            subscriber.stream.lose()
            self.use_and_close()
            self.owner.send(PUBLISH)
            again = self.trier.come_back(subscriber)
            if again is not None:
                assert self.trier.messages(again) == []
                self.owner.send(PUBLISH)
                assert self.trier.messages(again) == []

        def test_there_is_no_other_way(self) -> None:
            self.build()
            subscriber, _ = self.use_and_close()
            reader = self.read()
            self.owner.send(PUBLISH)
            if subscriber is not None:
                subscriber.stream.lose()
            for name, attempt in self.trier.attempts().items():
                assert attempt() == b"", name
                self.owner.send(PUBLISH)
                assert set(self.got(reader)) == {SECRET}, name

        def test_each_refusal_is_counted(self) -> None:
            self.build()
            _, publisher = self.use_and_close()
            self.try_to_subscribe()
            refusals = self.house.broker.counters.refusals
            assert refusals[self.second.name, self.reason] == 1
            if publisher is not None:
                self.try_to_publish(publisher)
                assert refusals[self.second.name, self.reason] == 2

    class Granted(Sideways):
        """With ``grant`` the topic is open to the listener's clients"""

        def test_it_is_open(self) -> None:
            self.build(grant=TOPIC)
            subscriber, publisher = self.use_and_close()
            trier, reader = self.trier, self.read()
            if subscriber is None:
                trier.open()
                subscriber, publisher = trier.subscriber(), trier.publisher()
            assert publisher is not None
            self.owner.send(PUBLISH)
            assert trier.messages(subscriber) == [SECRET]
            trier.accepted(trier.ask(publisher, trier.publish(publisher, b"welcome")))
            assert self.got(reader) == [SECRET, b"welcome"]
            assert trier.messages(subscriber) == [b"welcome"]

        def test_who_was_away_comes_back_to_it(self) -> None:
            self.build(grant=TOPIC)
            if self.first is Fast:
                return
            self.trier.open()
            subscriber = self.trier.subscriber()
            subscriber.stream.lose()
            self.use_and_close()
            again = self.trier.come_back(subscriber)
            if again is not None:
                self.trier.messages(again)
                self.owner.send(PUBLISH)
                assert self.trier.messages(again) == [SECRET]

        def test_for_another_topic_it_is_none(self) -> None:
            self.build(grant="other*")
            self.use_and_close()
            self.try_to_subscribe()

    class GrantedToFast(Sideways):
        """On a fast listener ``grant`` means nothing"""

        def test_it_is_closed(self) -> None:
            self.build(grant="*")
            self.use_and_close()
            self.try_to_subscribe()
            self.try_to_publish(self.trier.publisher())


class DriverTests(SynchronousTestCase):
    """Nothing is left out"""

    def test_every_installed_protocol_is_tried(self) -> None:
        assert installed_protocols().keys() == DRIVERS.keys()
        assert all(driver.name == name for name, driver in DRIVERS.items())


def _pairs() -> Iterator[tuple[str, type[Sideways]]]:
    for first in DRIVERS.values():
        for second in DRIVERS.values():
            granted = Bodies.GrantedToFast if second is Fast else Bodies.Granted
            for body in (Bodies.Closed, granted):
                name = f"{first.__name__}{second.__name__}{body.__name__}Tests"
                members = {"__module__": __name__, "first": first, "second": second}
                yield name, type(name, (body,), members)


globals().update(_pairs())
