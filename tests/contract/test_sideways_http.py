"""HTTP bypasses neither a queue key nor an access rule: following, WebSockets, replay, publishing.

As ``test_sideways.py`` for pairs of protocols: the topic is used over each protocol and requested
over HTTP.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, ClassVar

from twisted.internet.address import IPv4Address
from twisted.internet.defer import maybeDeferred
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.access_rules.access_table import ACTIONS, AccessRule, AccessTable, Who
from pubsub.broker.listeners.listener_settings import SETTINGS
from pubsub.http_api.server import SETTINGS as OWN
from pubsub.http_api.server import HttpApiFactory
from pubsub.settings import read_all
from tests.contract.drivers import DRIVERS, TOPIC, Driver
from tests.contract.drivers.fast import Fast
from tests.unit import fast_wire
from tests.unit.web import WebClient
from tests.unit.web_sockets import SocketClient

PATH = f"/v1/topics/{TOPIC}/messages"
ANY = frozenset(ACTIONS)
TOPIC_ID = fast_wire.topic_id(TOPIC)
CLOSE = fast_wire.create(fast_wire.OWNER, TOPIC)


class Bodies:
    """Base cases; a class at the top level would be collected as a test."""

    class Http(SynchronousTestCase):
        """The topic is used over ``first``"""

        first: ClassVar[type[Driver]]

        def setUp(self) -> None:
            listen: dict[str, Any] = {self.first.name: dict(self.first.settings)}
            own = {name.replace("-", "_"): value for name, value in listen.pop("fast", {}).items()}
            self.house = fast_wire.Fast(self, also=listen, **own)
            self.clock = self.house.clock
            given = {"allow-anonymous": "on"}
            broker = self.house.broker
            listener = broker.make_listener(
                "admin", {**read_all(SETTINGS, given), **read_all(OWN, given)}
            )
            broker.add_listener(listener)
            self.factory = HttpApiFactory(listener, maybeDeferred)
            self.maker = self.first(self.house)
            self.maker.open()
            self.publisher = self.maker.publisher()

        def connect(self) -> WebClient:
            """Return a client of HTTP; see ``SocketClient``."""
            return WebClient(self.factory, self.clock, IPv4Address("TCP", "192.0.2.9", 4000))

        def publish(self, payload: bytes) -> None:
            maker = self.maker
            maker.accepted(maker.ask(self.publisher, maker.publish(self.publisher, payload)))
            self.house.pump()

        def close(self) -> None:
            """Give the topic a key, unless it has had one from the start."""
            if self.first is not Fast:
                owner = self.house.client(CLOSE)
                assert owner.take() == b""
                owner.send(fast_wire.publish(fast_wire.OWNER, b"secret", topic=TOPIC_ID))
                assert owner.take() == b""
            else:
                self.publish(b"secret")
            self.house.pump()

        def deny(self) -> None:
            """Apply a rule as SIGHUP does; the topic is published to over ``first`` then."""
            broker = self.house.broker
            rule = AccessRule("test", False, ANY, Who(listeners=("admin",)), (TOPIC,))
            may = ANY - {"admin"}
            broker.set_access(AccessTable((rule, AccessRule("test", True, may))))
            broker.reconfigure(broker.tokens.ring, {})
            self.house.pump()
            self.publish(b"secret")

        def check_refused(self) -> None:
            """Check every way to the topic that there is over HTTP."""
            for query in (
                "",
                "?start=0",
                "?follow=1",
                "?follow=1&start=0",
                "?follow=1&format=events",
            ):
                client = self.connect()
                client.ask("GET", PATH + query)
                self.check_nothing(client, query)
            for method, target, body in (
                ("POST", PATH, b"intruder"),
                ("GET", f"/v1/topics/{TOPIC}", None),
                ("PUT", f"/v1/topics/{TOPIC}", {}),
                ("DELETE", f"/v1/topics/{TOPIC}", None),
                ("GET", f"/v1/history?start=0&format=jsonl&topic={TOPIC}", None),
            ):
                client = self.connect()
                client.ask(method, target, body)
                self.check_nothing(client, f"{method} {target}")
            for target in ("/v1/history?start=0&format=jsonl", "/v1/topics"):
                client = self.connect()
                client.ask("GET", target)
                self.house.pump()
                received = bytes(client.stream.received)
                assert received.startswith(b"HTTP/1.1 200 "), target
                assert TOPIC.encode() not in received, target
            self.check_socket_refused()

        def check_nothing(self, client: WebClient, what: str) -> None:
            self.house.pump()
            received = bytes(client.stream.received)
            assert received.startswith((b"HTTP/1.1 403 ", b"HTTP/1.1 404 ")), (what, received)
            for text in (b"secret", base64.b64encode(b"secret")):
                assert text not in received, what

        def check_socket_refused(self) -> None:
            client = SocketClient(self)  # type: ignore[arg-type]
            client.ask("connect")
            for given in ({}, {"start": 0}):
                assert client.refused("subscribe", topic=TOPIC, **given) == "not-authorized"
            assert client.refused("publish", topic=TOPIC, value="x") == "not-authorized"

        def check_live(self, forbid: Any) -> None:
            """Check that the followers of the topic end."""
            follower = self.connect()
            follower.ask("GET", f"{PATH}?follow=1&start=0")
            client = SocketClient(self)  # type: ignore[arg-type]
            client.ask("connect")
            client.ask("subscribe", topic=TOPIC, start=0)
            self.publish(b"open")
            assert client.values() == ["open"]
            self.house.pump()
            assert b"open" in follower.stream.received
            follower.stream.received.clear()
            forbid()
            self.house.clock.advance(1)
            self.house.pump()
            for text in (b"secret", base64.b64encode(b"secret")):
                assert text not in follower.stream.received
            assert client.values() == []
            self.check_socket_refused()

        def test_a_key(self) -> None:
            self.close()
            self.check_refused()

        def test_a_rule(self) -> None:
            self.deny()
            self.check_refused()

        def test_followers_end_with_a_new_key(self) -> None:
            if self.first is not Fast:
                self.check_live(self.close)

        def test_followers_end_with_a_new_rule(self) -> None:
            if self.first is not Fast:
                self.check_live(self.deny)


def _suites() -> Iterator[tuple[str, type[SynchronousTestCase]]]:
    for first in DRIVERS.values():
        name = f"{first.__name__}HttpTests"
        yield name, type(name, (Bodies.Http,), {"__module__": __name__, "first": first})


globals().update(_suites())
