"""A reload in which a part fails: nothing has changed afterwards, and the next one takes effect."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.access_rules.access_table import AccessRule
from pubsub.errors import ConfigurationError
from pubsub.server import listener_set
from pubsub.server.configuration import Config
from pubsub.server.configuration_changes import describe
from pubsub.server.reload import LiveConfiguration, Reloader
from pubsub.tuning import TUNED
from pubsub.wire.listener_service import ListenerService
from tests.unit.fakes import scratch
from tests.unit.signalled import Signalled
from tests.unit.streams import House, logged
from tests.unit.tokens import KEY, OTHER_KEY


class FailureCase(SynchronousTestCase):
    """A broker with a cafe listener whose reload changes everything that can change."""

    def setUp(self) -> None:
        self.directory = scratch(self)
        for name, key in (("first", KEY), ("second", OTHER_KEY)):
            path = self.directory / name
            path.write_bytes(key)
            path.chmod(0o600)
        users = self.directory / "users"
        users.write_text("")
        users.chmod(0o600)
        self.house = House({"cafe": {}, "spot": {}}, top=self.top("first"))
        self.house.document["listen"] = [{"protocol": "cafe"}]
        self.broker = self.house.broker
        spot = self.house.listeners.pop("spot")
        self.broker.remove_listener(spot)
        self.addCleanup(self.house.audit.close)
        self.house.config = self.house.read()
        self.levels: list[object] = []
        self.live = LiveConfiguration(
            self.broker,
            self.house.config,
            self.house.clock,
            TUNED,
            lambda settings: self.levels.append(settings["log-level"]),
        )
        self.lines = logged(self)
        self.before = self.state()
        self.change()

    def top(self, name: str, **more: object) -> dict[str, object]:
        secret = {"secret-file": str(self.directory / name)}
        return {"keys": {name: secret}, "audit-log": str(self.directory / "audit"), **more}

    def change(self) -> None:
        """Write another configuration into the document."""
        more: dict[str, object] = {
            "password-file": str(self.directory / "users"),
            "access": [{"allow": "*", "identity": "ada"}],
            "max-topics": 7,
            "log-level": "debug",
            "durability": "news=none",
        }
        self.house.document.clear()
        self.house.document |= self.top("second", **more)
        self.house.document["listen"] = [
            {"protocol": "cafe", "idle-timeout": 77},
            {"protocol": "spot", "peers": "tcp://192.0.2.9:5556", "port": 5557},
            {"protocol": "spot", "port": 5558},
        ]

    def state(self) -> dict[str, Any]:
        """Return the state on which requests and connections depend."""
        broker = self.broker
        (cafe,) = [one for one in broker.listeners if one.protocol == "cafe"]
        return {
            "secrets": [secret.id for secret in broker.tokens.ring],
            "users": broker.passwords.hashes,
            "access": str(broker.served.objects.access_table),
            "listeners": [(one.protocol, one.endpoint) for one in broker.listeners],
            "idle": cafe.idle_timeout,
            "settings": {**cafe.settings},
            "topics": broker.topics.limit,
            "durability": broker.topic_lifecycle.rules.rules,
            "shown": broker.configuration.content,
            "services": sorted(type(one).__name__ for one in broker),
        }

    def reload(self) -> None:
        reloader = Reloader(
            self.live, self.house.read, None, done=lambda ok: self.levels.append(f"applied: {ok}")
        )
        reloader.reload()

    def fails(self, line: str) -> None:
        """Reload, and compare the state; the reload after it takes effect."""
        self.levels.clear()
        self.reload()
        assert any(line in found for found in self.lines), self.lines
        assert self.state() == self.before
        # The service manager gets the end, and the levels are the earlier ones.
        assert self.levels[-1] == "applied: False"
        assert self.levels[-2:-1] in ([], [self.house.config.broker["log-level"]])

    def succeeds(self) -> None:
        self.reload()
        after = self.state()
        assert after["secrets"] == ["second"]
        assert after["idle"] == 77
        assert after["topics"] == 7


class PartTests(FailureCase):
    """Each part of a reload in turn"""

    def failing(self, target: object, name: str, error: Exception, calls: int = 1) -> None:
        """Let the first ``calls`` calls fail, and the reload with them; then none."""
        original = getattr(target, name)
        left = iter(range(calls))

        def call(*arguments: Any, **named: Any) -> Any:
            if next(left, None) is not None:
                raise error
            return original(*arguments, **named)

        mock = patch.object(target, name, call)
        mock.start()
        self.addCleanup(mock.stop)

    def test_an_error_of_the_system_while_listeners_are_prepared(self) -> None:
        self.failing(
            listener_set,
            "ListenerService",
            PermissionError(13, "Permission denied", "/run/x"),
        )
        self.fails("reload failed, nothing is changed: [Errno 13] Permission denied: '/run/x'")
        self.succeeds()

    def test_the_last_of_several_listeners(self) -> None:
        original: Callable[..., Any] = ListenerService
        made: list[object] = []

        def make(*arguments: Any) -> Any:
            made.append(arguments)
            if len(made) == 2:
                raise OSError("no more descriptors")
            return original(*arguments)

        mock = patch.object(listener_set, "ListenerService", make)
        mock.start()
        self.addCleanup(mock.stop)
        # The listener before it has peers, to which nothing is connected.
        self.fails("no more descriptors")
        self.succeeds()
        assert "Cluster" in self.state()["services"]

    def test_parts_that_should_not_fail(self) -> None:
        errors: list[Exception] = [OSError("broken"), RuntimeError("broken")]
        parts: list[tuple[object, str]] = [
            (self.broker.passwords, "replace"),
            (self.broker, "set_access"),
            (self.broker.tokens, "replace"),
            (self.broker, "reconfigure"),
            (self.broker.listeners[0], "reconfigure"),
        ]
        for target, name in parts:
            for error in errors:
                self.failing(target, name, error)
                self.fails("reload failed, nothing is changed")
        self.flushLoggedErrors(RuntimeError)  # type: ignore[no-untyped-call]
        self.succeeds()

    def test_each_part_of_the_broker(self) -> None:
        parts = self.broker._reconfiguration.appliers
        for index in range(len(parts)):
            parts[index] = _once(parts[index])
            self.fails("reload failed, nothing is changed")
        self.succeeds()

    def test_the_levels_of_the_log(self) -> None:
        self.live._applied = _once(lambda settings: None)
        self.fails("reload failed, nothing is changed: broken")

    def test_the_audit_log(self) -> None:
        self.house.document["audit-log"] = str(self.directory / "missing" / "audit")
        self.fails("reload failed, nothing is changed: audit-log: ")
        self.change()
        self.succeeds()

    def test_files_that_cannot_be_read(self) -> None:
        def read() -> Any:
            raise OSError("the disk is broken")

        done: list[bool] = []
        Reloader(self.live, read, None, done=done.append).reload()
        assert done == [False]
        assert any("nothing is changed: the disk is broken" in line for line in self.lines)
        assert self.state() == self.before

    def reading_later(
        self, reactor: Signalled
    ) -> tuple[Reloader, list[Deferred[Config]], list[bool]]:
        """Return a reloader, the readings that have begun, and whether each reload was applied."""
        reading: list[Deferred[Config]] = []
        done: list[bool] = []

        def run_in_thread(_call: object) -> Deferred[Config]:
            reading.append(Deferred())
            return reading[-1]

        reloader = Reloader(
            self.live,
            self.house.read,
            reactor,
            done=done.append,
            run_in_thread=run_in_thread,
        )
        return reloader, reading, done

    def test_the_configuration_is_read_in_a_thread(self) -> None:
        reloader, reading, done = self.reading_later(Signalled())
        self.house.document["max-topics"] = 7
        reloader.reload()
        reloader.reload()
        assert (len(reading), done, self.state()) == (1, [], self.before)
        reading[0].callback(self.house.read())
        self.house.advance(1)
        assert done == [True]
        assert self.broker.topics.limit == 7

    def test_the_text_of_the_rules_is_made_in_the_thread(self) -> None:
        """It takes long for thousands of them."""
        reading: Deferred[Config] = Deferred()
        calls: list[Callable[[], Config]] = []

        def run_in_thread(call: Callable[[], Config]) -> Deferred[Config]:
            calls.append(call)
            return reading

        self.house.document["access"] = [{"allow": "*", "identity": "ada"}]
        Reloader(self.live, self.house.read, Signalled(), run_in_thread=run_in_thread).reload()
        config = calls[0]()
        with patch.object(AccessRule, "__str__", side_effect=AssertionError):
            reading.callback(config)
        assert str(self.broker.served.objects.access_table) == str(config.access) != "none"

    def test_the_broker_stops_while_the_configuration_is_read(self) -> None:
        reading: Deferred[Config] = Deferred()
        reported: list[str] = []
        reactor = Signalled()
        reloader = Reloader(
            self.live,
            self.house.read,
            reactor,
            begun=lambda: reported.append("begun"),
            done=lambda _: reported.append("done"),
            run_in_thread=lambda _: reading,
        )
        self.house.document["max-topics"] = 7
        reloader.reload()
        reloader.reload()
        with patch.object(signal, "signal"):
            reloader.stopService()
        reading.callback(self.house.read())
        # The service manager knows that the broker stops, and is not told that it is ready.
        assert (reported, reactor.calls) == (["begun"], [])
        reloader.reload()
        assert reported == ["begun"]
        assert self.state() == self.before

    def test_files_that_cannot_be_read_in_time(self) -> None:
        reactor = Signalled()
        reloader, reading, done = self.reading_later(reactor)
        self.house.document["max-topics"] = 7
        reloader.reload()
        reactor.clock.advance(59)
        assert done == []
        reactor.clock.advance(1)
        assert done == [False]
        assert any("the files could not be read within 60 s" in line for line in self.lines)
        # Too late.
        reading[0].callback(self.house.read())
        assert self.state() == self.before
        reloader.reload()
        reading[1].callback(self.house.read())
        self.house.advance(1)
        assert done == [False, True]
        assert self.broker.topics.limit == 7
        assert not reactor.clock.getDelayedCalls()

    def test_a_program_gets_the_error(self) -> None:
        self.failing(self.broker, "reconfigure", OSError("broken"))
        with pytest.raises(ConfigurationError, match="broken"):
            self.live.apply(self.house.read())
        assert self.state() == self.before

    def test_a_part_that_cannot_be_restored_is_reported_and_the_others_are_restored(self) -> None:
        self.failing(self.broker, "reconfigure", OSError("broken"))
        self.failing(self.broker, "put_back", RuntimeError("as well"))
        self.reload()
        assert any("a setting could not be restored" in line for line in self.lines)
        assert self.state() == self.before
        assert self.flushLoggedErrors(RuntimeError)  # type: ignore[no-untyped-call]
        assert describe(self.house.config) == self.before["shown"]


def _once(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a part that fails once."""
    failed: list[bool] = []

    def part(settings: Any) -> Any:
        if not failed:
            failed.append(True)
            raise OSError("broken")
        return call(settings)

    return part
