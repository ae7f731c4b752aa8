"""The HTTP API in the configuration: when it is served, where, and its settings."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.errors import ConfigurationError
from pubsub.server.command_line import make_options
from pubsub.server.configuration import CommandLine, ListenerConfig, merge
from pubsub.server.reload import LiveConfiguration
from pubsub.tuning import TUNED
from tests.unit.configured_protocols import ALPHA, MIB, PROTOCOLS
from tests.unit.raising import raised
from tests.unit.web import WebHouse


def admin(line: CommandLine | None = None, **document: Any) -> ListenerConfig | None:
    """Return the API's listener, with ``_`` for ``-`` in the keys of the document's top level."""
    given = {key.replace("_", "-"): value for key, value in document.items()}
    return merge(PROTOCOLS, line or CommandLine(), given).admin


def settings(line: CommandLine | None = None, **document: Any) -> Any:
    """Return its settings."""
    found = admin(line, admin_port=7, **document)
    assert found is not None
    return found.settings


class WhereTests(SynchronousTestCase):
    """--admin-port"""

    def test_it_is_served_by_default_if_no_listener_is_configured(self) -> None:
        found = admin()
        assert found is not None
        assert (found.endpoint, found.implied) == (r"tcp:7080:interface=127.0.0.1", True)
        assert admin(CommandLine({}, [("alpha", None)])) is None
        assert admin(listen=[ALPHA]) is None

    def test_it_can_be_requested(self) -> None:
        for where, endpoint in (
            ("7", "tcp:7:interface=127.0.0.1"),
            (8, "tcp:8:interface=127.0.0.1"),
            ("unix:/x/y", "unix:/x/y"),
        ):
            found = admin(listen=[ALPHA], admin_port=where)
            assert found is not None
            assert (found.endpoint, found.implied) == (endpoint, False)
        found = admin(CommandLine({"admin-port": "9"}), admin_port=8, interface="192.0.2.1")
        assert found is not None
        assert found.endpoint == "tcp:9:interface=192.0.2.1"

    def test_it_can_be_turned_off(self) -> None:
        assert admin(admin_port="none") is None

    def test_an_invalid_port(self) -> None:
        for where in ("x", "70000", "tcp"):
            with pytest.raises(ConfigurationError):
                admin(admin_port=where)


class SettingTests(SynchronousTestCase):
    """[admin]"""

    def test_a_table_has_its_own_and_common_settings(self) -> None:
        found = settings(
            grant="top",
            slow_seconds=3,
            admin={"max-batch": "1M", "allow-publish": "a*", "grant": "b"},
        )
        assert found["max-batch"] == MIB
        assert found["allow-publish"] == ("a*",)
        assert found["grant"] == ("b",)
        assert found["slow-seconds"] == 3
        assert found["max-streams"] == 32

    def test_the_command_line_takes_precedence(self) -> None:
        line = CommandLine({"admin-max-batch": "2M"})
        assert settings(line, admin={"max-batch": "1M"})["max-batch"] == 2 * MIB

    def test_mistakes(self) -> None:
        for table in ({"max-batches": 1}, {"max-streams": 0}, {"port": 1}, "x"):
            with pytest.raises(ConfigurationError):
                settings(admin=table)

    def test_help_shows_them(self) -> None:
        usage = make_options(PROTOCOLS).getUsage()
        assert "--admin-port " in usage
        assert "--admin-max-streams " in usage


class PlaceTests(SynchronousTestCase):
    """Where the HTTP API listens"""

    def where(self, line: dict[str, object] | None = None, **document: Any) -> str | None:
        """Return its endpoint."""
        named = {name.replace("_", "-"): value for name, value in document.items()}
        found = merge(PROTOCOLS, CommandLine(line or {}), named).admin
        return None if found is None else found.endpoint

    def refused(self, **document: Any) -> str:
        return str(raised(ConfigurationError, self.where, **document))

    def test_it_may_be_a_listener(self) -> None:
        listen = [{"protocol": "http", "port": 81, "max-streams": 3}]
        assert self.where(listen=listen) == "tcp:81:interface=127.0.0.1"
        found = merge(PROTOCOLS, CommandLine(), {"listen": listen})
        assert found.listeners == []
        assert found.admin is not None
        assert found.admin.settings["max-streams"] == 3
        assert self.where(listen=[{"protocol": "http"}]) == "tcp:7080:interface=127.0.0.1"

    def test_on_the_command_line(self) -> None:
        line = CommandLine({}, [("http", "unix:/a"), ("alpha", None)])
        found = merge(PROTOCOLS, line, {})
        assert found.admin is not None
        assert found.admin.endpoint == "unix:/a"
        assert [one.protocol.name for one in found.listeners] == ["alpha"]

    def test_the_table_may_have_the_address(self) -> None:
        assert self.where(admin={"endpoint": "unix:/a"}) == "unix:/a"
        listen = [{"protocol": "alpha"}]
        assert self.where(admin={"port": 9}, listen=listen) == "tcp:9:interface=127.0.0.1"

    def test_one_address_is_given(self) -> None:
        listen = [{"protocol": "http", "port": 81}]
        assert self.refused(listen=listen, admin_port=82) == (
            "admin-port and listen http: the HTTP API has one address; give one of these"
        )
        assert self.refused(admin={"port": 81}, admin_port=82).startswith("admin-port and [admin]")
        assert self.refused(listen=listen * 2) == (
            "listen http: the HTTP API has one listener; remove the others"
        )
        assert "port and endpoint are given" in self.refused(admin={"port": 1, "endpoint": "a:b"})

    def test_the_command_line_has_precedence(self) -> None:
        listen = [{"protocol": "http", "port": 81}]
        assert self.where({"admin-port": "82"}, listen=listen) == "tcp:82:interface=127.0.0.1"
        assert self.where({"admin-port": "none"}, listen=listen) is None


class ReloadTests(SynchronousTestCase):
    """SIGHUP"""

    def test_new_rules_take_effect(self) -> None:
        house = WebHouse()
        house.publish("a", b"1")
        house.listener.endpoint = "tcp:7:interface=127.0.0.1"
        own = {"allow-subscribe": "b", "allow-anonymous": True}
        document: dict[str, Any] = {"admin-port": 7, "admin": own}
        read = partial(merge, {}, CommandLine(), document)
        LiveConfiguration(house.broker, read(), house.clock, TUNED).apply(read())
        assert house.get("/v1/topics?start=0").json == {"topics": []}
