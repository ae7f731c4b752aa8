"""No protocol bypasses a queue key or an access rule.

A topic closed over fast is closed over every protocol, and so is one that a rule denies.

The test bodies run for every ordered pair of protocols: the topic is used over the first, closed
over fast, and requested over the second. An installed protocol without a driver is a failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_network
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.access_rules.access_table import ACTIONS, AccessRule, AccessTable, Who
from pubsub.plugin import installed_protocols
from tests.contract.drivers import DRIVERS, NOT_AUTHORIZED, TOPIC, WRONG_KEY, Driver
from tests.contract.drivers.fast import Fast
from tests.unit import fast_wire
from tests.unit.streams import Client

SECRET, OPEN = b"secret", b"open"
TOPIC_ID = fast_wire.topic_id(TOPIC)
CLOSE = fast_wire.create(fast_wire.OWNER, TOPIC)
ANY = frozenset(ACTIONS)
EVERYBODY = AccessRule("test", True, ANY)
PUBLISH = fast_wire.publish(fast_wire.OWNER, SECRET, topic=TOPIC_ID)


class Sideways(SynchronousTestCase):
    """The topic is used over ``first`` and requested over ``second``."""

    first: type[Driver]
    second: type[Driver]

    def build(self, **settings: object) -> None:
        """Start a broker with the three protocols; ``settings`` are those of the second."""
        listen: dict[str, dict[str, Any]] = {}
        for driver in (self.first, self.second):
            listen[driver.name] = dict(driver.settings)
        listen[self.second.name] |= settings
        own = {name.replace("-", "_"): value for name, value in listen.pop("fast", {}).items()}
        self.house = fast_wire.Fast(self, also=listen, **own)
        self.maker = self.first(self.house)
        # A client of fast without the key has the rights of a client of any other protocol.
        is_fast = self.second is Fast
        self.target = Fast(self.house, key="k2") if is_fast else self.second(self.house)
        self.reason = WRONG_KEY if is_fast else NOT_AUTHORIZED

    def use_and_close(self) -> tuple[Client | None, Client | None]:
        """Use the topic over both protocols, then close it. Return a subscriber and a publisher
        from before the closing, or None for both if one of the protocols is fast, whose topics are
        never open.
        """
        subscriber = publisher = None
        if Fast not in (self.first, self.second):
            self.maker.open()
            self.target.open()
            subscriber, publisher = self.target.subscriber(), self.target.publisher()
            maker = self.maker.publisher()
            self.maker.accepted(self.maker.ask(maker, self.maker.publish(maker, OPEN)))
            assert self.target.messages(subscriber) == [OPEN]
        self.owner = self.house.client(CLOSE)
        assert self.owner.take() == b""
        return subscriber, publisher

    def read(self) -> Client:
        """Return a subscriber with the key."""
        reader = self.house.client(fast_wire.subscribe(fast_wire.OWNER, TOPIC_ID))
        assert reader.take() == b""
        return reader

    def got(self, reader: Client) -> list[bytes]:
        return list(Fast(self.house).payloads(reader.take()))

    def check_subscribe_refused(self) -> Client:
        """Check that a new client cannot subscribe."""
        client = self.target.listener()
        answer = self.target.ask(client, self.target.subscribe(client))
        assert answer == self.target.not_subscribed(self.reason)
        return client

    def check_publish_refused(self, publisher: Client) -> None:
        """Check that a publisher is refused."""
        answer = self.target.ask(publisher, self.target.publish(publisher, b"intruder"))
        assert answer == self.target.refused(self.reason)
        assert not publisher.closed


class Bodies:
    """Base cases; a class at the top level would be collected as a test."""

    class Closed(Sideways):
        """Publish, subscribe, history and listing are refused, live subscriptions end"""

        def test_a_live_subscription_ends(self) -> None:
            self.build()
            subscriber, _ = self.use_and_close()
            if subscriber is None:
                return
            assert subscriber.take() == self.target.revoked()
            self.owner.send(PUBLISH)
            assert self.target.messages(subscriber) == []
            assert not subscriber.closed

        def test_subscribing_is_refused(self) -> None:
            self.build()
            self.use_and_close()
            client = self.check_subscribe_refused()
            self.owner.send(PUBLISH)
            if self.target.polls:
                assert self.target.messages(client) == []
            assert client.take() == b""

        def test_publishing_is_refused(self) -> None:
            self.build()
            _, publisher = self.use_and_close()
            reader = self.read()
            if publisher is not None:
                self.check_publish_refused(publisher)
            if not self.target.opens:
                self.check_publish_refused(self.target.publisher())
            assert self.got(reader) == []

        def test_resumption_does_not_restore_the_subscription(self) -> None:
            self.build()
            if Fast in (self.first, self.second):
                return
            self.target.open()
            subscriber = self.target.subscriber()
            subscriber.stream.lose()
            self.use_and_close()
            self.owner.send(PUBLISH)
            again = self.target.resume(subscriber)
            if again is not None:
                assert self.target.messages(again) == []
                self.owner.send(PUBLISH)
                assert self.target.messages(again) == []

        def test_other_requests_reveal_nothing(self) -> None:
            self.build()
            subscriber, _ = self.use_and_close()
            reader = self.read()
            self.owner.send(PUBLISH)
            if subscriber is not None:
                subscriber.stream.lose()
            for name, attempt in self.target.attempts().items():
                assert attempt() == b"", name
                self.owner.send(PUBLISH)
                assert set(self.got(reader)) == {SECRET}, name

        def test_each_refusal_is_counted(self) -> None:
            self.build()
            _, publisher = self.use_and_close()
            self.check_subscribe_refused()
            refusals = self.house.broker.counters.refusals
            assert refusals[self.second.name, self.reason] == 1
            if publisher is not None:
                self.check_publish_refused(publisher)
                assert refusals[self.second.name, self.reason] == 2

    class Granted(Sideways):
        """With ``grant`` the topic is open to the listener's clients"""

        def test_the_topic_is_open(self) -> None:
            self.build(grant=TOPIC)
            subscriber, publisher = self.use_and_close()
            target, reader = self.target, self.read()
            if subscriber is None:
                target.open()
                subscriber, publisher = target.subscriber(), target.publisher()
            assert publisher is not None
            self.owner.send(PUBLISH)
            assert target.messages(subscriber) == [SECRET]
            target.accepted(target.ask(publisher, target.publish(publisher, b"welcome")))
            assert self.got(reader) == [SECRET, b"welcome"]
            assert target.messages(subscriber) == [b"welcome"]

        def test_resumption_restores_the_subscription(self) -> None:
            self.build(grant=TOPIC)
            if self.first is Fast:
                return
            self.target.open()
            subscriber = self.target.subscriber()
            subscriber.stream.lose()
            self.use_and_close()
            again = self.target.resume(subscriber)
            if again is not None:
                self.target.messages(again)
                self.owner.send(PUBLISH)
                assert self.target.messages(again) == [SECRET]

        def test_a_grant_for_another_topic_does_not_count(self) -> None:
            self.build(grant="other*")
            self.use_and_close()
            self.check_subscribe_refused()

    class GrantedToFast(Sideways):
        """On a fast listener ``grant`` means nothing"""

        def test_the_topic_is_closed(self) -> None:
            self.build(grant="*")
            self.use_and_close()
            self.check_subscribe_refused()
            self.check_publish_refused(self.target.publisher())

    class Ruled(Sideways):
        """A rule denies the topic to the clients of the second listener; the key is granted"""

        def start(self) -> Client:
            """Use the topic over both, then deny it; return its subscriber over the second."""
            grants = {} if self.second is Fast else {"grant": TOPIC}
            self.build(**grants)
            if self.second is Fast:
                self.target = Fast(self.house)
            self.reason = NOT_AUTHORIZED
            subscriber, publisher = self.use_and_close()
            target = self.target
            if subscriber is None:
                if self.second is not Fast:
                    target.open()
                subscriber, publisher = target.subscriber(), target.publisher()
            assert publisher is not None
            self.publisher = publisher
            self.owner.send(PUBLISH)
            assert target.messages(subscriber) == [SECRET]
            return subscriber

        def apply(self, *rules: AccessRule) -> None:
            """Apply rules as SIGHUP does."""
            broker = self.house.broker
            broker.set_access(AccessTable(rules))
            broker.reconfigure(broker.tokens.ring, {})
            self.house.pump(3)

        def deny(self) -> None:
            who = Who(networks=(ip_network("192.0.2.0/24"),), listeners=(self.second.name,))
            self.apply(AccessRule("test", False, ANY, who, (TOPIC,)), EVERYBODY)

        def publish(self) -> list[bytes]:
            """Publish over fast, if the rules allow it; return the messages of a reader of fast."""
            if self.second is Fast:
                return [SECRET]
            reader = self.read()
            self.owner.send(PUBLISH)
            return self.got(reader)

        def test_a_live_subscription_ends(self) -> None:
            subscriber = self.start()
            self.deny()
            expected = self.target.revoked()
            if self.second is Fast:
                expected = fast_wire.error(0x02, fast_wire.ENDED, TOPIC_ID)
            assert subscriber.take() == expected
            assert self.publish() == [SECRET]
            assert self.target.messages(subscriber) == []
            assert not subscriber.closed

        def test_subscribing_is_refused(self) -> None:
            self.start()
            self.deny()
            self.check_subscribe_refused()

        def test_publishing_is_refused(self) -> None:
            self.start()
            self.deny()
            self.check_publish_refused(self.publisher)

        def test_resumption_does_not_restore_the_subscription(self) -> None:
            subscriber = self.start()
            subscriber.stream.lose()
            self.publish()
            self.deny()
            again = self.target.resume(subscriber)
            if again is not None:
                assert self.target.messages(again) == []
                assert self.publish() == [SECRET]
                assert self.target.messages(again) == []

        def test_other_requests_reveal_nothing(self) -> None:
            subscriber = self.start()
            subscriber.stream.lose()
            self.deny()
            if self.second is not Fast:
                for name, attempt in self.target.attempts().items():
                    assert attempt() == b"", name
                return
            for kind, request in (
                (0x01, CLOSE),
                (0x07, fast_wire.rotate(fast_wire.OWNER, b"mine", TOPIC_ID)),
            ):
                answer = self.target.ask(self.target.connect(), request)
                assert answer == fast_wire.error(kind, fast_wire.NO_PERMISSION, TOPIC_ID)

        def test_a_topic_allowed_again_is_delivered(self) -> None:
            self.start()
            self.deny()
            self.apply(EVERYBODY)
            subscriber = self.target.subscriber()
            self.owner.send(PUBLISH)
            assert SECRET in self.target.messages(subscriber)

        def test_no_rule_denies(self) -> None:
            self.start()
            self.apply()
            self.check_subscribe_refused()
            self.check_publish_refused(self.publisher)


class DriverTests(SynchronousTestCase):
    """Completeness"""

    def test_every_installed_protocol_has_a_driver(self) -> None:
        assert installed_protocols().keys() == DRIVERS.keys()
        assert all(driver.name == name for name, driver in DRIVERS.items())


def _pairs() -> Iterator[tuple[str, type[Sideways]]]:
    for first in DRIVERS.values():
        for second in DRIVERS.values():
            granted = Bodies.GrantedToFast if second is Fast else Bodies.Granted
            for body in (Bodies.Closed, Bodies.Ruled, granted):
                name = f"{first.__name__}{second.__name__}{body.__name__}Tests"
                members = {"__module__": __name__, "first": first, "second": second}
                yield name, type(name, (body,), members)


globals().update(_pairs())
