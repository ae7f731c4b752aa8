"""The durability of a topic, and its setting."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.topic_space.durability import DURABILITY, Durability, DurabilityRules
from pubsub.store.history_location import STORE, StoreLocation, default_path
from tests.unit.raising import raised

NONE, ASYNC, SYNC = Durability.NONE, Durability.ASYNC, Durability.SYNC


class RuleTests(SynchronousTestCase):
    """The setting ``durability``"""

    def test_the_first_match_counts(self) -> None:
        rules = DurabilityRules(DURABILITY.parse(["orders/*=sync", "orders/log=none", "tmp*=none"]))
        found = [rules.durability(name) for name in ("orders/1", "orders/log", "tmp", "users")]
        assert found == [SYNC, SYNC, NONE, ASYNC]
        assert DurabilityRules().durability("orders/1") is ASYNC

    def test_text(self) -> None:
        assert DURABILITY.parse("") == ()
        assert DURABILITY.parse("a=b=sync") == (("a=b", SYNC),)
        assert DURABILITY.parse(["x=async", "y=none"]) == (("x", ASYNC), ("y", NONE))

    def test_invalid_rules(self) -> None:
        for wrong in (
            "orders",
            "=sync",
            "orders=always",
            ["orders=sync", 5],
            5,
            {"orders": "sync"},
        ):
            assert "expected PATTERN=none" in str(raised(ValueError, DURABILITY.parse, wrong))

    def test_several_rules_in_one_text(self) -> None:
        """They would be one for topics that nobody has."""
        error = raised(ValueError, DURABILITY.parse, "a=none,b=sync")
        assert "expected one rule, not 'a=none,b=sync'" in str(error)
        assert DURABILITY.parse("a,b=sync") == (("a,b", Durability.SYNC),)


class LocationTests(SynchronousTestCase):
    """The setting ``store``"""

    def test_the_directory_that_systemd_gives(self) -> None:
        given = {"STATE_DIRECTORY": "/var/lib/pubsub:/var/lib/other", "XDG_STATE_HOME": "/x"}
        assert default_path(given) == Path("/var/lib/pubsub/history")

    def test_the_directory_of_the_user(self) -> None:
        assert default_path({"XDG_STATE_HOME": "/x"}) == Path("/x/pubsub/history")
        home = Path("~/.local/state/pubsub/history").expanduser()
        assert default_path({}) == home
        # The XDG specification ignores relative paths.
        assert default_path({"XDG_STATE_HOME": "x"}) == home

    def test_a_user_without_a_home(self) -> None:
        with patch.object(Path, "home", side_effect=RuntimeError):
            assert default_path({"XDG_STATE_HOME": "/x"}) == Path("/x/pubsub/history")
            assert "expected log:DIR" in str(raised(ValueError, default_path, {}))

    def test_text(self) -> None:
        assert STORE.parse("memory") is None
        assert STORE.parse("log").directory.name == "history"
        assert STORE.parse("log:~/h") == StoreLocation(Path("~/h").expanduser())
        assert STORE.parse("log:h") == StoreLocation(Path("h").absolute())

    def test_a_history_of_version_0_1(self) -> None:
        for text in ("log", "sqlite"):
            found = STORE.parse(text)
            assert found.migrate == found.directory.with_name("history.db")
        old = Path("h.db").absolute()
        found = STORE.parse("sqlite:h.db")
        assert (found.directory, found.migrate) == (Path(f"{old}.log"), old)

    def test_paths_without_a_beginning(self) -> None:
        with patch("os.getcwd", side_effect=FileNotFoundError):
            assert STORE.parse("log:/srv/h") == StoreLocation(Path("/srv/h"))
            text = str(raised(ValueError, STORE.parse, "log:h"))
        assert text == "the working directory does not exist: expected an absolute path, not 'h'"
        text = str(raised(ValueError, STORE.parse, "log:~no-such-user/h"))
        assert text == "there is no home directory for '~no-such-user/h'"

    def test_invalid_stores(self) -> None:
        for wrong in ("sqlite:", "log:", "postgres", "", 5, None):
            assert "expected memory, log" in str(raised(ValueError, STORE.parse, wrong))
