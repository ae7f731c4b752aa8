"""The differences of two configurations, and the effects of a reload."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.plugin import installed_protocols
from pubsub.server.configuration import CommandLine, Config, merge
from pubsub.server.configuration_changes import (
    Changes,
    carried,
    compare,
    cut,
    cut_both,
    describe,
    text_of,
)
from pubsub.store.upkeep.retention_limits import RETENTION
from tests.unit.fakes import scratch
from tests.unit.tokens import KEY, OTHER_KEY


def config(**document: Any) -> Config:
    """Return the configuration of a file with these keys; without [[listen]], of cafe alone."""
    named = {name.replace("_", "-"): value for name, value in document.items()}
    named.setdefault("listen", [{"protocol": "cafe"}])
    return merge(installed_protocols(), CommandLine(), named)


def changes(old: Config, new: Config) -> Changes:
    return compare(describe(old), describe(new))


class DescriptionTests(SynchronousTestCase):
    """describe"""

    def test_it_is_json(self) -> None:
        described = describe(config(listen=[], admin_port=7080))
        assert json.loads(json.dumps(described)) == described
        assert [one["protocol"] for one in described["listeners"]][-1] == "admin"

    def test_values_are_as_they_are_written(self) -> None:
        described = describe(
            config(store="memory", durability=["a=async", "b*=none"], max_memory="64M", history=0)
        )
        assert described["broker"]["durability"] == "a=async,b*=none"
        assert described["broker"]["max-memory"] == str(64 * 1024**2)
        assert described["broker"]["events"] == "off"
        levels = describe(config(log_level="store=debug,info"))["broker"]["log-level"]
        assert levels == "info,pubsub.store=debug"
        assert text_of({7: "orders", "KEY": "ada"}) == "7:orders,KEY=ada"
        assert text_of(None) == "none"
        assert text_of(0.005) == "0.005"
        assert text_of(Path("/x")) == "/x"
        assert described["broker"]["store"] == "memory"
        for store, shown in (("log:/h", "log:/h"), ("sqlite:/h.db", "log:/h.db.log")):
            assert describe(config(store=store))["broker"]["store"] == shown
        limits = ["a/*=age:90d", "*=age:36h,bytes:10G,messages:7", "b=bytes:1000"]
        assert text_of(RETENTION.parse(limits)) == " ".join(limits)

    def test_secrets_are_named_and_not_shown(self) -> None:
        directory = scratch(self)
        path = directory / "key"
        path.write_bytes(KEY)
        path.chmod(0o600)
        described = describe(config(keys={"main": {"secret-file": str(path)}}))
        assert described["secrets"] == ["main"]
        assert KEY.decode() not in json.dumps(described)


class ComparisonTests(SynchronousTestCase):
    """compare"""

    def test_equal_configurations(self) -> None:
        found = changes(config(), config())
        assert not found.lines()
        assert not found.need_restart

    def test_a_setting_of_the_broker(self) -> None:
        found = changes(config(), config(max_topics=7))
        assert found.lines() == ["max-topics: 100000 becomes 7 (at once)"]

    def test_a_setting_that_needs_a_restart(self) -> None:
        found = changes(config(), config(tuning=False))
        assert found.lines() == ["tuning: on becomes off (needs a restart)"]
        assert found.need_restart

    def test_settings_of_listeners(self) -> None:
        one = {"protocol": "cafe", "port": 7}
        found = changes(
            config(listen=[one]), config(listen=[{**one, "slow-bytes": 9, "channels": "3"}])
        )
        where = "cafe tcp:7:interface=127.0.0.1"
        assert found.lines()[0] == (
            f"{where}: slow-bytes: 67108864 becomes 9 (for new connections)"
        )
        assert found.lines()[1].startswith(f"{where}: channels: '0:cafe/0,1:")
        assert found.lines()[1].endswith(" ...' becomes 3:cafe/3 (needs a restart)")

    def test_listeners_and_secrets(self) -> None:
        directory = scratch(self)
        keys = {}
        for name, key in (("old", KEY), ("new", OTHER_KEY)):
            path = directory / name
            path.write_bytes(key)
            path.chmod(0o600)
            keys[name] = {"secret-file": str(path)}
        found = changes(
            config(listen=[{"protocol": "cafe", "port": 7}], keys={"old": keys["old"]}),
            config(listen=[{"protocol": "nsd", "port": 8}], keys={"new": keys["new"]}),
        )
        assert found.lines() == [
            "listener nsd tcp:8:interface=127.0.0.1 is added",
            "listener cafe tcp:7:interface=127.0.0.1 is removed",
            "secret 'new' is added",
            "secret 'old' is removed",
        ]
        assert not found.need_restart

    def test_long_values_are_cut(self) -> None:
        assert cut("x") == "x"
        assert cut("") == "''"
        assert cut("a b") == "'a b'"
        assert len(cut("x" * 1000)) < 130

    def test_long_values_are_shown_where_they_differ(self) -> None:
        rules = [{"deny": "publish", "topics": f"closed/{number}"} for number in range(20)]
        old = config(access=[*rules, {"allow": "*", "identity": "ada"}])
        (line,) = changes(old, config(access=[*rules, {"allow": "*", "identity": "bob"}])).lines()
        assert line == (
            "access: '... s=closed/19; allow * identity=ada' becomes "
            "'... s=closed/19; allow * identity=bob' (at once)"
        )
        (line,) = changes(old, config(access=rules)).lines()
        assert "; allow * identity=ada' becomes '... " in line
        assert cut_both("a b", "a c") == ("'a b'", "'a c'")
        assert cut_both("x" * 200, "") == (cut("x" * 200), "''")
        for same in (4095, 4096, 9000):
            long = "y" * same
            expected = tuple(cut(f"... {'y' * 30}{end}") for end in ("ab", "cd"))
            assert cut_both(long + "ab", long + "cd") == expected
            assert cut_both(long, long + "z")[1] == cut(f"... {'y' * 30}z")


class CarryTests(SynchronousTestCase):
    """carried"""

    def test_settings_that_need_a_restart_stay(self) -> None:
        one = {"protocol": "cafe", "port": 7}
        running = config(listen=[{**one, "channels": "1"}])
        new = config(listen=[{**one, "channels": "2", "slow-bytes": 9}], tuning=False, max_topics=7)
        found = carried(running, new)
        assert found.broker["tuning"] is True
        assert found.broker["max-topics"] == 7
        (listener,) = found.listeners
        assert listener.settings["channels"] == {1: "cafe/1"}
        assert listener.settings["slow-bytes"] == 9

    def test_a_new_listener_is_as_it_is(self) -> None:
        new = config(listen=[{"protocol": "cafe", "port": 8, "channels": "2"}])
        (listener,) = carried(config(), new).listeners
        assert listener.settings["channels"] == {2: "cafe/2"}
