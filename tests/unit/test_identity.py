"""Identities of connections, and the rules that belong to them."""

from __future__ import annotations

import gc
from typing import Any
from unittest.mock import patch

import pytest
from twisted.internet.address import IPv4Address
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.access_rules.access import View
from pubsub.broker.access_rules.access_table import AccessTable, make_view
from pubsub.broker.access_rules.listener_access import ListenerAccess
from pubsub.broker.credentials.identity import CERTIFICATE, NOBODY, PASSWORD, Identity
from pubsub.errors import NotAuthorized
from pubsub.kernel import Columns
from tests.unit.connections import Frames, Setup
from tests.unit.fakes import Lines, Reader, make_broker, make_listener

ADA = Identity("ada", CERTIFICATE, host="192.0.2.7")


class IdentityTests(SynchronousTestCase):
    """Identity"""

    def test_an_anonymous_client_has_only_an_address(self) -> None:
        assert NOBODY.is_anonymous
        assert not ADA.is_anonymous
        assert str(NOBODY) == "anonymous"
        assert str(ADA) == "ada"

    def test_the_same_identity_at_another_address(self) -> None:
        assert ADA.at("192.0.2.8") == Identity("ada", CERTIFICATE, host="192.0.2.8")
        assert ADA.at("192.0.2.7") is ADA


class ListenerAccessTests(SynchronousTestCase):
    """ListenerAccess"""

    def test_one_object_for_each_identity(self) -> None:
        listener = make_listener(make_broker())
        rules = listener.access_for(ADA)
        assert listener.access_for(Identity("ada", CERTIFICATE, host="192.0.2.7")) is rules
        assert listener.access_for(NOBODY) is listener.access

    def test_rules_in_use_follow_a_change(self) -> None:
        listener = make_listener(make_broker())
        rules, version = listener.access_for(ADA), listener.access_version
        rules.check_publish("out")
        listener.reconfigure({**listener.settings, "allow-publish": ("in",)})
        rules.check_publish("in")
        with pytest.raises(NotAuthorized):
            rules.check_publish("out")
        assert listener.access_version != version

    def test_the_rules_of_clients_that_have_left_are_forgotten(self) -> None:
        listener = make_listener(make_broker())
        for number in range(2000):
            listener.access_for(Identity(str(number)))
        gc.collect()
        assert len(listener._access._rules) < 300

    def test_rules_are_looked_up_once_for_a_change(self) -> None:
        listener = make_listener(make_broker())
        found: list[Identity] = []
        find = ListenerAccess._find_view

        def recording(access: ListenerAccess, identity: Identity) -> View:
            found.append(identity)
            return find(access, identity)

        with patch.object(ListenerAccess, "_find_view", recording):
            rules = listener.access_for(ADA)
            for _ in range(3):
                rules.check_publish("a")
                rules.may_subscribe("b")
            listener.reconfigure(listener.settings)
            rules.check_publish("a")
        assert found == [ADA, ADA]


class ConnectionTests(SynchronousTestCase):
    """A connection's identity"""

    def connect(self, **settings: Any) -> tuple[Setup, Frames]:
        setup = Setup(**settings)
        return setup, setup.connect(IPv4Address("TCP", "192.0.2.7", 4711))[1]

    def test_it_begins_with_the_address(self) -> None:
        _, connection = self.connect()
        assert connection.identity == Identity(host="192.0.2.7")

    def test_an_idle_connection_has_none(self) -> None:
        _, connection = self.connect()
        assert "_identity" not in vars(connection)
        assert "_access" not in vars(connection)

    def test_the_publisher_gets_the_new_rights(self) -> None:
        setup, connection = self.connect()
        publisher = setup.listener.publisher(connection, b"")
        topic = setup.broker.topics.create("a")
        publisher.publish(topic, Columns.one(b"x"))
        assert publisher.access is setup.listener.access_for(connection.identity)
        connection.identify(ADA)
        assert publisher.access is connection.access is setup.listener.access_for(ADA)

    def test_live_subscriptions_are_checked_again(self) -> None:
        setup, connection = self.connect()
        router = setup.broker.router
        a, b = setup.broker.topics.create("a"), setup.broker.topics.create("b")
        router.subscribe(connection.open_outbox(), a, Lines())
        router.subscribe(connection.open_outbox(), b, Lines())
        settings = {**setup.listener.settings, "allow-subscribe": ("b",)}
        denied = make_view(AccessTable().listed(settings), "", settings, False, 9)
        with patch.object(ListenerAccess, "_find_view", lambda self, identity: denied):
            connection.identify(ADA)
        assert list(connection.open_outbox().subscriptions) == [b]
        assert setup.broker.counters.refusals == {("toy", "revoked"): 1}

    def test_the_same_identity_changes_nothing(self) -> None:
        setup, connection = self.connect()
        connection.identify(ADA)
        router = setup.broker.router
        router.subscribe(connection.open_outbox(), setup.broker.topics.create("a"), Lines())
        with patch.object(router, "recheck_subscriber", side_effect=AssertionError):
            connection.identify(Identity("ada", CERTIFICATE, host="192.0.2.7"))

    def test_a_subscriber_that_is_behind_is_checked_too(self) -> None:
        setup = Setup()
        listener, broker = setup.listener, setup.broker
        topic = broker.topics.create("a")
        listener.publisher(None, b"").publish(topic, Columns.of([b"x"] * 3))
        refusing = Reader(recheck=lambda topic, change: False)
        box = listener.outbox(setup.connect()[0].stream, refusing)
        box.hold()
        broker.router.subscribe(box, topic, Lines(), 0)
        assert box.topics() == (topic,)
        for _ in broker.router.recheck_subscriber(box):
            pass
        assert box.topics() == ()

    def test_passwords_and_groups(self) -> None:
        one = Identity("ada", PASSWORD, frozenset({"ops"}), "unix")
        assert one != Identity("ada", PASSWORD, host="unix")
