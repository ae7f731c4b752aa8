"""The HTTP API in the configuration: when it is served, where, and its settings."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.errors import ConfigurationError
from pubsub.server.command_line import make_options
from pubsub.server.configuration import CommandLine, ListenerConfig, merge
from pubsub.server.reload import Reloader
from tests.unit.test_configuration import ALPHA, MIB, PROTOCOLS
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
        assert "--admin-port=" in usage
        assert "--admin-max-streams=" in usage


class ReloadTests(SynchronousTestCase):
    """SIGHUP"""

    def test_new_rules_take_effect(self) -> None:
        house = WebHouse()
        house.publish("a", b"1")
        house.listener.endpoint = "tcp:7:interface=127.0.0.1"
        document: dict[str, Any] = {"admin-port": 7, "admin": {"allow-subscribe": "b"}}
        read = partial(merge, PROTOCOLS, CommandLine(), document)
        Reloader(house.broker, read, None).reload()
        assert house.get("/v1/topics").json == {"topics": []}
