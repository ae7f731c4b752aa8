"""No way round a queue key: a topic closed over fast is closed over every protocol.

One test body runs for every ordered pair of protocols: the topic is used over the first, closed
over fast, tried over the second. A protocol that is installed and has no driver fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.plugin import installed_protocols
from tests.contract.drivers import DRIVERS, NOT_AUTHORIZED, TOPIC, WRONG_KEY, Driver, Fast
from tests.unit import fast_wire
from tests.unit.streams import Client

SECRET, OPEN = b"secret", b"open"
TOPIC_ID = fast_wire.topic_id(TOPIC)
CLOSE = fast_wire.create(fast_wire.OWNER, TOPIC)
PUBLISH = fast_wire.publish(fast_wire.OWNER, SECRET, topic=TOPIC_ID)


class Sideways:
    """The topic is used over ``first`` and tried over ``second``."""

    first: type[Driver]
    second: type[Driver]

    def build(self, case: SynchronousTestCase, **settings: object) -> None:
        """A broker with the three protocols, ``settings`` being those of the second."""
        also: dict[str, Mapping[str, object]] = {}
        for driver in (self.first, self.second):
            also[driver.name] = dict(driver.settings)
        also[self.second.name] = {**self.second.settings, **settings}
        own = also.pop("fast", {})
        self.house = fast_wire.Fast(case, also=also, **own)
        self.maker = self.first(self.house)
        # A client of fast without the key has no more rights than one of any other protocol.
        is_fast = self.second is Fast
        self.trier = Fast(self.house, key="k2") if is_fast else self.second(self.house)
        self.reason = WRONG_KEY if is_fast else NOT_AUTHORIZED

    def use(self) -> tuple[Client | None, Client | None]:
        """The topic in use over both protocols while it is open: a subscriber, a publisher.

        A topic of fast is never open: there nobody has subscribed before.
        """
        if self.first is Fast or self.second is Fast:
            self.owner = self.house.client(CLOSE)
            assert self.owner.take() == b""
            return None, None
        self.maker.open()
        self.trier.open()
        subscriber = self.trier.subscriber()
        publisher = self.trier.publisher()
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


class ClosedTests(Sideways):
    """Publish, subscribe, history and listing are refused, live subscriptions end"""

    def test_it_is_closed(self: Any) -> None:
        self.build(self)
        subscriber, publisher = self.use()
        trier, reader = self.trier, self.read()
        if subscriber is not None:
            assert subscriber.take() == trier.revoked()
        self.owner.send(PUBLISH)
        assert self.got(reader) == [SECRET]
        if subscriber is not None:
            assert trier.messages(subscriber) == []
            assert not subscriber.closed
        publisher = trier.connect() if publisher is None and self.second is Fast else publisher
        if publisher is None:
            publisher = self.late_publisher()
        if publisher is not None:
            answer = trier.ask(publisher, trier.publish(publisher, b"intruder"))
            assert answer == trier.refused(self.reason)
            assert not publisher.closed
        newcomer = trier.listener()
        assert trier.ask(newcomer, trier.subscribe(newcomer)) == trier.not_subscribed(self.reason)
        for name, attempt in trier.attempts().items():
            assert attempt() == b"", name
        self.owner.send(PUBLISH)
        if not trier.polls or self.second is Fast:
            assert newcomer.take() == b""
        else:
            assert trier.messages(newcomer) == []
        assert set(self.got(reader)) == {SECRET}

    def test_each_refusal_is_counted_with_its_reason(self: Any) -> None:
        self.build(self)
        _, publisher = self.use()
        trier = self.trier
        newcomer = trier.listener()
        trier.ask(newcomer, trier.subscribe(newcomer))
        counted = self.house.broker.counters.refusals[self.second.name, self.reason]
        assert counted == 1
        if publisher is not None:
            trier.ask(publisher, trier.publish(publisher, b"intruder"))
            counted = self.house.broker.counters.refusals[self.second.name, self.reason]
            assert counted == 2

    def late_publisher(self: Any) -> Client | None:
        """One that comes when the topic is closed; None where that is refused to begin with."""
        return None if self.second.name == "nsd" else self.trier.publisher()  # type: ignore[no-any-return]


class GrantTests(Sideways):
    """With ``grant`` the topic is open to the listener's clients"""

    def test_it_is_open(self: Any) -> None:
        if self.second is Fast:
            return
        self.build(self, grant=TOPIC)
        subscriber, publisher = self.use()
        trier, reader = self.trier, self.read()
        if subscriber is None:
            trier.open()
            subscriber = trier.subscriber()
        if publisher is None:
            publisher = trier.publisher()
        self.owner.send(PUBLISH)
        assert trier.messages(subscriber) == [SECRET]
        trier.accepted(trier.ask(publisher, trier.publish(publisher, b"welcome")))
        assert self.got(reader) == [SECRET, b"welcome"]
        assert trier.messages(subscriber) == [b"welcome"]

    def test_a_grant_for_another_topic_is_none(self: Any) -> None:
        if self.second is Fast:
            return
        self.build(self, grant="other")
        self.use()
        newcomer = self.trier.listener()
        answer = self.trier.ask(newcomer, self.trier.subscribe(newcomer))
        assert answer == self.trier.not_subscribed(NOT_AUTHORIZED)

    def test_a_grant_means_nothing_to_fast(self: Any) -> None:
        if self.second is not Fast:
            return
        self.build(self, grant=TOPIC)
        self.use()
        newcomer = self.trier.listener()
        answer = self.trier.ask(newcomer, self.trier.subscribe(newcomer))
        assert answer == self.trier.not_subscribed(self.reason)


class DriverTests(SynchronousTestCase):
    """Nothing is left out"""

    def test_every_installed_protocol_is_tried(self) -> None:
        assert installed_protocols().keys() == DRIVERS.keys()


for _first in DRIVERS.values():
    for _second in DRIVERS.values():
        for _body in (ClosedTests, GrantTests):
            _name = f"{_first.__name__}Then{_second.__name__}{_body.__name__}"
            globals()[_name] = type(
                _name,
                (_body, SynchronousTestCase),
                {"__module__": __name__, "first": _first, "second": _second},
            )
