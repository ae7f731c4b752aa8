"""Settings: every kind, from text and from TOML values, and invalid values."""

from __future__ import annotations

import fnmatch
import os
from datetime import date
from ipaddress import ip_network
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.listeners.tls_settings import TLS_SETTINGS
from pubsub.plugin import installed_protocols
from pubsub.server.broker_settings import BROKER_SETTINGS
from pubsub.settings import (
    BOOLEAN,
    COUNT,
    FILE,
    NETWORKS,
    PATTERNS,
    SECONDS,
    SIZE,
    TEXT,
    Kind,
    Setting,
    choice,
    integer,
    is_credential,
    matcher,
    number,
    parse_size,
    read_all,
)
from tests.unit.raising import raised

ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.dates(),
    st.lists(st.one_of(st.integers(), st.text())),
    st.dictionaries(st.text(), st.integers()),
)


class KindTests(SynchronousTestCase):
    """Valid and invalid values of each kind"""

    def refuses(self, kind: Kind, *values: object) -> None:
        for value in values:
            with pytest.raises(ValueError, match="expected"):
                kind.parse(value)

    def test_booleans(self) -> None:
        for value in (True, 1, "1", "true", "YES", " on "):
            assert BOOLEAN.parse(value) is True
        for value in (False, 0, "0", "False", "no", "off"):
            assert BOOLEAN.parse(value) is False
        self.refuses(BOOLEAN, "", "maybe", 2, "truee", [], None)

    def test_text(self) -> None:
        assert TEXT.parse(" as it is ") == " as it is "
        self.refuses(TEXT, 1, True, None, ["x"])

    def test_sizes(self) -> None:
        for value, expected in (
            (0, 0),
            (65536, 65536),
            ("65536", 65536),
            ("64K", 65536),
            ("64k", 65536),
            ("64KB", 65536),
            ("64 KiB", 65536),
            (" 8M ", 8 * 1024**2),
            ("1GiB", 1024**3),
            ("2t", 2 * 1024**4),
            ("10b", 10),
        ):
            assert SIZE.parse(value) == expected, value
        self.refuses(SIZE, "", "K", "-1", -1, "1.5M", 1.5, True, "1X", "1 M M", None, [1])

    def test_whole_numbers(self) -> None:
        kind = integer(-2, 5)
        assert [kind.parse(value) for value in (-2, 5, "3", " 4 ")] == [-2, 5, 3, 4]
        self.refuses(kind, -3, 6, "6", 1.0, "1.0", True, "", "x", None, [1], "0x1")

    def test_numbers(self) -> None:
        kind = number(0.5, 10)
        assert [kind.parse(value) for value in (0.5, 10, "2.5", "1e0")] == [0.5, 10, 2.5, 1]
        self.refuses(kind, 0.4, 11, "inf", "nan", float("nan"), True, "", "x", None, [1])

    def test_choices(self) -> None:
        kind = choice("pause", "drop")
        assert kind.parse("drop") == "drop"
        assert kind.syntax == "pause|drop"
        self.refuses(kind, "Drop", "", None, 1, ["drop"])
        with pytest.raises(ValueError, match="pause, drop"):
            kind.parse("stop")

    def test_patterns(self) -> None:
        assert PATTERNS.parse("a, b/*,,c ") == ("a", "b/*", "c")
        assert PATTERNS.parse(["a,b", " c"]) == ("a,b", "c")
        assert PATTERNS.parse("") == PATTERNS.parse([]) == ()
        self.refuses(PATTERNS, 1, None, ["a", 1], {"a": 1}, True)

    def test_networks(self) -> None:
        networks = (ip_network("192.0.2.0/24"), ip_network("::1"))
        assert NETWORKS.parse("192.0.2.0/24, ::1,") == NETWORKS.parse(["192.0.2.0/24", "::1"])
        assert NETWORKS.parse("192.0.2.0/24,::1") == networks
        assert NETWORKS.parse("") == NETWORKS.parse([]) == ()
        self.refuses(NETWORKS, 1, None, "x", "192.0.2.1/24", ["::1", 1], "192.0.2.0/33")

    def test_common_bounds(self) -> None:
        assert COUNT.parse(0) == 0
        assert SECONDS.parse("0.25") == 0.25
        self.refuses(COUNT, -1, 2**31 + 1)
        self.refuses(SECONDS, -1, 86_400 * 366)

    @given(
        st.sampled_from(
            [BOOLEAN, TEXT, SIZE, COUNT, SECONDS, PATTERNS, choice("a"), integer(0, 9)]
        ),
        ANYTHING,
    )
    @example(COUNT, True)
    @example(COUNT, "٣")
    @example(COUNT, 1.0)
    @example(SECONDS, "nan")
    @example(SECONDS, "inf")
    @example(SECONDS, True)
    @example(SIZE, "5 gib")
    @example(SIZE, -1)
    @example(SIZE, "-1")
    @example(PATTERNS, [1])
    @example(PATTERNS, ",")
    def test_any_value_is_parsed_or_a_value_error(self, kind: Kind, value: object) -> None:
        message = "expected"
        try:
            parsed = kind.parse(value)
        except ValueError as error:
            message = str(error)
        else:
            again = list(parsed) if kind is PATTERNS else parsed
            assert kind.parse(again) == parsed
        assert "expected" in message

    @given(st.integers(0, 2**40), st.sampled_from("kKmMgG"), st.sampled_from(["", "b", "iB"]))
    def test_a_unit_multiplies(self, count: int, unit: str, ending: str) -> None:
        power = "kmg".index(unit.lower()) + 1
        assert parse_size(f"{count}{unit}{ending}") == count * 1024**power


class SettingTests(SynchronousTestCase):
    """Setting and read_all"""

    settings = (
        Setting("max-things", COUNT, 10, "how many"),
        Setting("buffer", SIZE, "64K", "how large"),
    )

    def test_defaults_have_the_syntax_of_the_file(self) -> None:
        assert read_all(self.settings, {}) == {"max-things": 10, "buffer": 65536}

    def test_a_value_replaces_the_default(self) -> None:
        given = {"buffer": "1M", "max-things": "3"}
        assert read_all(self.settings, given) == {"max-things": 3, "buffer": 1024**2}

    def test_zero_and_false_are_values(self) -> None:
        assert read_all(self.settings, {"max-things": 0, "buffer": 0}) == {
            "max-things": 0,
            "buffer": 0,
        }

    def test_unknown_keys_are_ignored(self) -> None:
        assert "other" not in read_all(self.settings, {"other": 1})

    def test_an_error_names_the_setting_and_the_value(self) -> None:
        with pytest.raises(ValueError, match=r"^buffer: expected a size .*'lots'$"):
            read_all(self.settings, {"buffer": "lots"})
        with pytest.raises(ValueError, match=r"^max-things: "):
            self.settings[0].read(date(2026, 1, 1))


class MatcherTests(SynchronousTestCase):
    """matcher"""

    def test_a_star_anywhere_in_the_list_matches_all(self) -> None:
        assert matcher(["a", "*"])("anything\nat all")

    def test_nothing_matches_no_pattern(self) -> None:
        assert not matcher([])("")
        assert not matcher([])("a")

    def test_patterns_are_case_sensitive(self) -> None:
        assert matcher(["News"])("News")
        assert not matcher(["News"])("news")

    @given(
        st.lists(st.text("ab*?[]!-|.", max_size=5), max_size=4),
        st.text("ab*?[]!-|.\n", max_size=6),
    )
    @example([], "")
    @example([""], "")
    @example(["["], "[")
    @example(["[!"], "[!")
    @example(["[!]a]"], "b")
    @example(["[b-a]"], "a")
    @example(["a?"], "a\n")
    @example(["*"], "\n")
    def test_it_agrees_with_the_shell(self, patterns: list[str], name: str) -> None:
        expected = any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        assert matcher(patterns)(name) == expected


class FileTests(SynchronousTestCase):
    """FILE"""

    def test_the_directory_of_credentials(self) -> None:
        with patch.dict(os.environ, {"CREDENTIALS_DIRECTORY": "/run/credentials/pubsub"}):
            for path in ("$CREDENTIALS_DIRECTORY/key", "${CREDENTIALS_DIRECTORY}/key"):
                assert FILE.parse(path) == "/run/credentials/pubsub/key"
            assert is_credential("/run/credentials/pubsub/key")
            assert not is_credential("/run/credentials/pubsub2/key")

    def test_other_paths_are_as_they_are(self) -> None:
        for path in ("", "key", "/etc/$CREDENTIALS_DIRECTORY/x", "$CREDENTIALS_DIRECTORYx/y"):
            assert FILE.parse(path) == path

    def test_without_a_service_manager(self) -> None:
        with patch.dict(os.environ):
            os.environ.pop("CREDENTIALS_DIRECTORY", None)
            error = raised(ValueError, FILE.parse, "$CREDENTIALS_DIRECTORY/key")
            assert "CREDENTIALS_DIRECTORY is not set" in str(error)
            assert not is_credential("/key")

    def test_every_file_that_is_read_may_be_a_credential(self) -> None:
        """A service with DynamicUser= can read no other files of secrets."""
        settings = [*BROKER_SETTINGS, *TLS_SETTINGS]
        settings += [
            one for protocol in installed_protocols().values() for one in protocol.settings
        ]
        ends = ("-file", "-cert", "-key", "-ca", "-creds")
        files = [one for one in settings if one.name.endswith(ends)]
        assert {"secret-file", "tls-key", "curve-secret-file", "peer-key", "backplane-creds"} <= {
            one.name for one in files
        }
        with patch.dict(os.environ):
            os.environ.pop("CREDENTIALS_DIRECTORY", None)
            for one in files:
                error = raised(ValueError, one.kind.parse, "$CREDENTIALS_DIRECTORY/x")
                assert "CREDENTIALS_DIRECTORY is not set" in str(error), one.name
