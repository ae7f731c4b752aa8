"""Configuration: precedence, unknown keys, wrong types, endpoints, files."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.errors import ConfigurationError
from pubsub.server.configuration import (
    CommandLine,
    Config,
    ListenerConfig,
    endpoint_string,
    flag,
    merge,
)
from pubsub.server.file_tables import read_file as read
from pubsub.store.history_location import default_path
from tests.unit.configured_protocols import ALPHA, LOUD, MIB, PROTOCOLS, SPEED
from tests.unit.fakes import scratch


def configured(line: CommandLine | None = None, **document: Any) -> Config:
    """Return the merged configuration; ``_`` stands for ``-`` in the document's keys."""
    given = {key.replace("_", "-"): value for key, value in document.items()}
    return merge(PROTOCOLS, line or CommandLine(), given)


def only(config: Config) -> ListenerConfig:
    """Return the only listener."""
    (listener,) = config.listeners
    return listener


class DefaultTests(SynchronousTestCase):
    """Defaults"""

    def test_the_history_is_a_directory(self) -> None:
        assert configured().broker["store"].directory == default_path(os.environ)


class PrecedenceTests(SynchronousTestCase):
    """Precedence: line, [[listen]], [protocol], top level, default"""

    def test_a_listeners_common_setting(self) -> None:
        places: list[dict[str, Any]] = [
            {"slow_bytes": "1M"},
            {"alpha": {"slow-bytes": "2M"}},
            {"listen": [{**ALPHA, "slow-bytes": "3M"}]},
        ]
        document: dict[str, Any] = {"listen": [ALPHA]}
        seen = [only(configured(**document)).settings["slow-bytes"]]
        for place in places:
            document |= place
            seen.append(only(configured(**document)).settings["slow-bytes"])
        line = CommandLine({"slow-bytes": "4M"})
        seen.append(only(configured(line, **document)).settings["slow-bytes"])
        assert seen == [64 * MIB, MIB, 2 * MIB, 3 * MIB, 4 * MIB]

    def test_a_protocols_own_setting(self) -> None:
        document: dict[str, Any] = {"listen": [ALPHA]}
        seen = [only(configured(**document)).settings["speed"]]
        document["alpha"] = {"speed": 6}
        seen.append(only(configured(**document)).settings["speed"])
        document["listen"] = [{**ALPHA, "speed": 7}]
        seen.append(only(configured(**document)).settings["speed"])
        line = CommandLine({"alpha-speed": "8"})
        seen.append(only(configured(line, **document)).settings["speed"])
        assert seen == [5, 6, 7, 8]

    def test_a_broker_setting(self) -> None:
        assert configured().broker["max-topics"] == 100_000
        assert configured(max_topics=7).broker["max-topics"] == 7
        assert configured(CommandLine({"max-topics": "8"}), max_topics=7).broker["max-topics"] == 8

    def test_zero_and_false_also_take_precedence(self) -> None:
        config = configured(
            idle_timeout=9,
            alpha={"idle-timeout": 0, "loud": True},
            listen=[{**ALPHA, "loud": False}],
        )
        assert only(config).settings["idle-timeout"] == 0
        assert only(config).settings["loud"] is False

    def test_a_protocols_table_applies_to_its_listeners_only(self) -> None:
        config = configured(alpha={"slow-seconds": 3}, slow_seconds=4)
        assert [item.settings["slow-seconds"] for item in config.listeners] == [3, 4]
        assert "speed" not in config.listeners[1].settings

    def test_the_flag_of_a_setting_is_its_own_or_made_from_the_protocol(self) -> None:
        assert flag(PROTOCOLS["alpha"], SPEED) == "alpha-speed"
        assert flag(PROTOCOLS["alpha"], LOUD) == "loud"
        line = CommandLine({"loud": 1}, [("alpha", None)])
        assert only(configured(line)).settings["loud"] is True


class ListenerTests(SynchronousTestCase):
    """The listeners and their endpoints"""

    def where(self, config: Config) -> list[tuple[str, str]]:
        return [(item.protocol.name, item.endpoint) for item in config.listeners]

    def test_by_default_every_protocol_has_a_listener_on_its_port(self) -> None:
        assert self.where(configured()) == [
            ("alpha", "tcp:7001:interface=127.0.0.1"),
            ("beta", "tcp:7002:interface=127.0.0.1"),
        ]

    def test_the_file_lists_them(self) -> None:
        listed = [
            {"protocol": "beta", "port": 80},
            {"protocol": "beta", "endpoint": "unix:/tmp/b"},
            {"protocol": "alpha", "port": "tcp:9:interface=::1"},
            {"protocol": "alpha"},
        ]
        assert self.where(configured(listen=listed, interface="0.0.0.0")) == [
            ("beta", "tcp:80:interface=0.0.0.0"),
            ("beta", "unix:/tmp/b"),
            ("alpha", "tcp:9:interface=::1"),
            ("alpha", "tcp:7001:interface=0.0.0.0"),
        ]

    def test_listeners_of_the_command_line_replace_those_of_the_file(self) -> None:
        line = CommandLine({}, [("alpha", "1234"), ("alpha", None), ("beta", "unix:/tmp/b")])
        listed = [{"protocol": "beta", "port": 80}]
        assert self.where(configured(line, listen=listed)) == [
            ("alpha", "tcp:1234:interface=127.0.0.1"),
            ("alpha", "tcp:7001:interface=127.0.0.1"),
            ("beta", "unix:/tmp/b"),
        ]

    def test_port_and_endpoint_together_are_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="give one of them"):
            configured(listen=[{**ALPHA, "port": 1, "endpoint": "tcp:1"}])

    def test_no_protocols_are_no_listeners(self) -> None:
        assert merge({}, CommandLine(), {}).listeners == []


class EndpointTests(SynchronousTestCase):
    """endpoint_string"""

    def test_a_port_number_listens_at_the_interface(self) -> None:
        assert endpoint_string(7070, "127.0.0.1") == "tcp:7070:interface=127.0.0.1"
        assert endpoint_string("0", "example.org") == "tcp:0:interface=example.org"

    def test_an_ipv6_interface_is_quoted(self) -> None:
        assert endpoint_string(7070, "::1") == r"tcp6:7070:interface=\:\:1"

    def test_an_endpoint_string_is_unchanged(self) -> None:
        for where in ("tcp:80", "unix:/run/x.sock", "systemd:name=cafe.socket"):
            assert endpoint_string(where, "ignored") == where

    def test_anything_else_is_refused(self) -> None:
        for where in ("", "tcp", "-1", -1, 65536, "99999", 1.5, True, None, ["tcp:1"], "0x50"):
            with pytest.raises(ConfigurationError, match="port: expected"):
                endpoint_string(where, "127.0.0.1")


class HistoryTests(SynchronousTestCase):
    """The syntax of ``history``"""

    def test_without_bytes_the_default_applies(self) -> None:
        for value in (5000, "5000", [5000], ["5000"]):
            assert configured(history=value).broker["history"] == (5000, 256 * MIB)

    def test_messages_and_bytes(self) -> None:
        for value in ("5000,1M", [5000, "1M"], [5000, MIB], ["5000", "1024K"], "5000, 1M"):
            assert configured(history=value).broker["history"] == (5000, MIB)

    def test_zero_means_no_history(self) -> None:
        assert configured(history=0).broker["history"][0] == 0
        assert configured(history="0,0").broker["history"] == (0, 0)

    def test_anything_else_is_refused(self) -> None:
        for value in ("", ",", "1,", ",1M", "1,2,3", [], [1, 2, 3], "x", -1, True, 1.5, {"a": 1}):
            with pytest.raises(ConfigurationError, match=r"^history: "):
                configured(history=value)


class MistakeTests(SynchronousTestCase):
    """Invalid files"""

    def refuses(self, pattern: str, **document: Any) -> None:
        with pytest.raises(ConfigurationError, match=pattern) as caught:
            configured(**document)
        assert "\n" not in str(caught.value)

    def test_unknown_keys_get_a_hint(self) -> None:
        self.refuses(r"^max-topic: no such setting; did you mean max-topics\?$", max_topic=1)
        self.refuses(r"^\[alpha\] sped: .*did you mean speed\?", alpha={"sped": 1})
        self.refuses(r"^\[\[listen\]\] prot: .*did you mean port\?", listen=[{**ALPHA, "prot": 1}])

    def test_unknown_keys_without_similar_names_get_no_hint(self) -> None:
        self.refuses(r"^xyzzy: no such setting$", xyzzy=1)

    def test_a_setting_in_the_wrong_place_is_unknown(self) -> None:
        self.refuses(r"^speed: no such setting", speed=1)
        self.refuses(r"^\[alpha\] max-topics: no such setting", alpha={"max-topics": 1})
        self.refuses(r"^\[\[listen\]\] history: ", listen=[{**ALPHA, "history": 1}])
        self.refuses(r"^\[beta\] speed: ", beta={"speed": 1})
        self.refuses(r"^\[\[listen\]\] speed: no such", listen=[{"protocol": "beta", "speed": 1}])
        self.refuses(r"^port: ", port=1)

    def test_the_place_of_a_setting_in_the_wrong_place_is_named(self) -> None:
        self.refuses(r"^port: no such setting; it belongs to \[\[listen\]\]$", port=1)
        self.refuses(r"^\[alpha\] port: .*; it belongs to \[\[listen\]\]$", alpha={"port": 1})
        self.refuses(r"^speed: no such setting; it belongs to \[alpha\]$", speed=1)
        self.refuses(r"^\[alpha\] store: .*belongs to the top level$", alpha={"store": "memory"})
        self.refuses(r"^\[beta\] max-batch: .*belongs to \[admin\]$", beta={"max-batch": 1})

    def test_a_table_is_no_hint_for_a_value(self) -> None:
        self.refuses(r"^alpho: no such setting$", alpho=1)
        self.refuses(r"^alpho: no such setting; did you mean alpha\?$", alpho={"speed": 1})

    def test_the_table_of_the_http_api_is_named(self) -> None:
        self.refuses(r"^http: no such setting; did you mean admin\?$", http={"port": 1})

    def test_an_unknown_protocol_is_reported_with_the_known_ones(self) -> None:
        self.refuses("protocol 'gamma' is not installed; installed: alpha, beta", listen=[
            {"protocol": "gamma"}
        ])  # fmt: skip
        self.refuses("^gamma: no such setting", gamma={"speed": 1})
        with pytest.raises(ConfigurationError, match="'gamma'"):
            configured(CommandLine({}, [("gamma", None)]))

    def test_a_listener_without_a_protocol_is_refused(self) -> None:
        self.refuses("listen: protocol is missing", listen=[{"port": 1}])

    def test_a_protocol_that_is_not_a_string_is_refused(self) -> None:
        for protocol in (1, ["alpha"], {"name": "alpha"}, True):
            self.refuses("is not installed", listen=[{"protocol": protocol}])

    def test_values_of_the_wrong_type_name_their_setting(self) -> None:
        self.refuses("^max-topics: expected a whole number", max_topics="many")
        self.refuses("^slow-consumer: expected one of", slow_consumer="wait", listen=[ALPHA])
        self.refuses("^speed: ", listen=[{**ALPHA, "speed": True}])
        self.refuses("^interface: expected text", interface=1)
        self.refuses("^allow-publish: ", alpha={"allow-publish": 5})

    def test_values_in_place_of_tables_are_refused(self) -> None:
        self.refuses("^alpha: expected a table", alpha=1)
        self.refuses("^alpha: expected a table", alpha=[{"speed": 1}])
        for listen in ("alpha", ALPHA, ["alpha"], 1, [[ALPHA]]):
            self.refuses("^listen: expected tables", listen=listen)

    @given(
        st.dictionaries(
            st.sampled_from(["listen", "alpha", "history", "port", "slow-bytes", "x"]),
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
                lambda inner: (
                    st.lists(inner, max_size=3)
                    | st.dictionaries(
                        st.sampled_from(["protocol", "port", "speed", "loud", "slow-seconds"]),
                        inner | st.just("alpha"),
                        max_size=4,
                    )
                ),
                max_leaves=8,
            ),
        )
    )
    def test_any_document_is_a_configuration_or_refused(self, document: dict[str, Any]) -> None:
        message = ""
        try:
            config = merge(PROTOCOLS, CommandLine(), document)
        except ConfigurationError as error:
            message = str(error)
        else:
            assert all(":" in listener.endpoint for listener in config.listeners)
        assert "\n" not in message


class FileTests(SynchronousTestCase):
    """read_file"""

    def setUp(self) -> None:
        self.path = scratch(self) / "pubsub.toml"

    def test_a_file_is_read_as_toml(self) -> None:
        self.path.write_text(
            'history = "10,1M"\n[alpha]\nspeed = 9\n[[listen]]\nprotocol = "alpha"\nport = 5\n'
        )
        config = merge(PROTOCOLS, CommandLine(), read(str(self.path)))
        assert config.broker["history"] == (10, MIB)
        assert only(config).settings["speed"] == 9
        assert only(config).endpoint == "tcp:5:interface=127.0.0.1"

    def refuses(self, pattern: str) -> None:
        with pytest.raises(ConfigurationError, match=pattern) as caught:
            read(str(self.path))
        assert str(caught.value).startswith(f"{self.path}: ")
        assert "\n" not in str(caught.value)

    def test_a_missing_file_is_refused(self) -> None:
        self.refuses("No such file")

    def test_a_directory_is_refused(self) -> None:
        self.path.mkdir()
        self.refuses("directory")

    def test_a_file_that_is_not_toml_is_refused_with_the_line(self) -> None:
        self.path.write_text("history = 1\nnot toml\n")
        self.refuses("line 2")

    def test_a_file_that_is_not_utf8_is_refused(self) -> None:
        self.path.write_bytes(b'interface = "\xff"\n')
        self.refuses("utf-8")
