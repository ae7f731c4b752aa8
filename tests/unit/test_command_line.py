"""The command line: pairs, --listen, --config, mistakes, --help."""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import redirect_stdout

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.listeners.listener_settings import SETTINGS
from pubsub.plugin import IWireProtocol
from pubsub.server.broker_settings import BROKER_SETTINGS
from pubsub.server.command_line import make_options
from pubsub.server.configuration import Config
from pubsub.settings import BOOLEAN, COUNT, Setting
from tests.unit.fakes import Toy, scratch

PROTOCOLS: Mapping[str, IWireProtocol] = {
    "alpha": Toy(
        "alpha",
        7001,
        [
            Setting("speed", COUNT, 5, "how fast"),
            Setting("loud", BOOLEAN, False, "whether loud", flag="loud"),
            Setting("calm", BOOLEAN, True, "whether calm"),
        ],
    ),
    "beta": Toy("beta", 7002),
}


def parsed(*arguments: str) -> Config:
    """Return the configuration of these arguments."""
    options = make_options(PROTOCOLS)
    options.parseOptions(list(arguments))
    return options.config


def where(*arguments: str) -> list[tuple[str, str]]:
    """Return the listeners of these arguments: protocol and the port or path."""
    listeners = parsed(*arguments).listeners
    return [(item.protocol.name, item.endpoint.split(":")[1]) for item in listeners]


class ListenerTests(SynchronousTestCase):
    """--proto, --port, --listen"""

    def test_without_options_every_protocol_listens_on_its_port(self) -> None:
        assert where() == [("alpha", "7001"), ("beta", "7002")]

    def test_protocols_without_ports_have_their_own(self) -> None:
        assert where("--proto=beta") == [("beta", "7002")]
        assert where("--proto=beta", "--proto", "alpha") == [("beta", "7002"), ("alpha", "7001")]

    def test_pairs_may_come_in_any_order(self) -> None:
        expected = [("alpha", "1"), ("beta", "2")]
        for arguments in (
            ["--proto=alpha", "--port=1", "--proto=beta", "--port=2"],
            ["--port=1", "--proto=alpha", "--port=2", "--proto=beta"],
            ["--proto=alpha", "--proto=beta", "--port=1", "--port=2"],
            ["--port", "1", "--port", "2", "--proto", "alpha", "--proto", "beta"],
        ):
            assert where(*arguments) == expected

    def test_a_protocol_may_listen_twice(self) -> None:
        assert where("--proto=beta", "--port=1", "--proto=beta", "--port=2") == [
            ("beta", "1"),
            ("beta", "2"),
        ]

    def test_a_port_may_be_an_endpoint_string(self) -> None:
        config = parsed("--proto=alpha", "--port=tcp:9:interface=192.0.2.1")
        assert config.listeners[0].endpoint == "tcp:9:interface=192.0.2.1"

    def test_listen_has_protocol_and_endpoint(self) -> None:
        config = parsed("--listen=alpha=unix:/tmp/a=b", "--listen", "beta=8080")
        assert [item.endpoint for item in config.listeners] == [
            "unix:/tmp/a=b",
            "tcp:8080:interface=127.0.0.1",
        ]

    def test_listen_and_pairs_can_be_combined(self) -> None:
        assert where("--listen=beta=3", "--proto=alpha", "--port=1") == [
            ("alpha", "1"),
            ("beta", "3"),
        ]


class SettingTests(SynchronousTestCase):
    """Every setting is an option"""

    def test_broker_and_listener_settings(self) -> None:
        config = parsed("--max-topics=7", "--slow-consumer=drop", "--interface=0.0.0.0")
        assert config.broker["max-topics"] == 7
        assert {item.settings["slow-consumer"] for item in config.listeners} == {"drop"}
        assert config.listeners[1].endpoint == "tcp:7002:interface=0.0.0.0"

    def test_a_protocols_own_settings(self) -> None:
        alpha, beta = parsed("--alpha-speed=9", "--loud").listeners
        assert alpha.settings["speed"] == 9
        assert alpha.settings["loud"] is True
        assert "speed" not in beta.settings

    def test_defaults_can_be_turned_off(self) -> None:
        assert parsed().listeners[0].settings["calm"] is True
        assert parsed("--alpha-calm=off").listeners[0].settings["calm"] is False

    def test_zero_is_a_value(self) -> None:
        assert parsed("--resume-window=0").broker["resume-window"] == 0

    def test_an_empty_list_of_patterns_permits_nothing(self) -> None:
        (listener,) = parsed("--proto=beta", "--allow-publish=").listeners
        assert listener.settings["allow-publish"] == ()


class FileTests(SynchronousTestCase):
    """--config"""

    def write(self, text: str) -> str:
        path = scratch(self) / "pubsub.toml"
        path.write_text(text)
        return str(path)

    def test_the_command_line_overrides_the_file(self) -> None:
        path = self.write('max-topics = 5\nmax-sessions = 6\n[[listen]]\nprotocol = "beta"\n')
        config = parsed("--max-topics=9", f"--config={path}")
        assert config.broker["max-topics"] == 9
        assert config.broker["max-sessions"] == 6
        assert [item.protocol.name for item in config.listeners] == ["beta"]

    def test_listeners_of_the_command_line_replace_those_of_the_file(self) -> None:
        path = self.write('[alpha]\nspeed = 3\n[[listen]]\nprotocol = "beta"\n')
        config = parsed(f"--config={path}", "--proto=alpha")
        assert [item.protocol.name for item in config.listeners] == ["alpha"]
        assert config.listeners[0].settings["speed"] == 3


class SecretTests(SynchronousTestCase):
    """--secret-file, --allow-weak-secret, --secret"""

    def setUp(self) -> None:
        self.directory = scratch(self)
        self.path = self.directory / "secret"
        self.path.write_bytes(b"a secret of at least 32 bytes...")
        self.path.chmod(0o600)

    def test_a_file_with_a_secret(self) -> None:
        assert parsed().secrets == []
        (secret,) = parsed(f"--secret-file={self.path}").secrets
        assert secret.key == self.path.read_bytes()
        assert secret.algorithm == "HS256"

    def test_it_is_added_to_the_secrets_of_the_file(self) -> None:
        document = self.directory / "pubsub.toml"
        document.write_text(f'[keys.a]\nsecret-file = "{self.path}"\nalgorithm = "HS512"\n')
        config = parsed(f"--config={document}", f"--secret-file={self.path}")
        assert [secret.algorithm for secret in config.secrets] == ["HS512", "HS256"]

    def test_a_weak_secret_must_be_allowed(self) -> None:
        self.path.write_bytes(b"weak")
        with pytest.raises(SystemExit, match=r"fewer than 32; .*--allow-weak-secret"):
            parsed(f"--secret-file={self.path}")
        (secret,) = parsed("--allow-weak-secret", f"--secret-file={self.path}").secrets
        assert secret.key == b"weak"

    def test_a_secret_on_the_command_line_is_refused_and_not_shown(self) -> None:
        for arguments in (["--secret=hidden"], ["--secret", "hidden"]):
            with pytest.raises(SystemExit) as caught:
                parsed(*arguments)
            line = str(caught.value.code)
            assert line.startswith("pubsub: --secret: ")
            assert "--secret-file" in line
            assert "hidden" not in line
            assert "\n" not in line

    def test_the_files_are_read_again_on_demand(self) -> None:
        options = make_options(PROTOCOLS)
        options.parseOptions([f"--secret-file={self.path}", "--max-topics=7"])
        self.path.write_bytes(b"another secret of at least 32 bytes")
        assert options.config.secrets[0].key.startswith(b"a secret")
        again = options.read()
        assert again.secrets[0].key.startswith(b"another secret")
        assert again.broker["max-topics"] == 7


class MistakeTests(SynchronousTestCase):
    """One line and an exit code"""

    def refuses(self, expected: str, *arguments: str) -> None:
        with pytest.raises(SystemExit) as caught:
            parsed(*arguments)
        line = str(caught.value.code)
        assert line.startswith("pubsub: ")
        assert "\n" not in line
        assert expected in line

    def test_the_numbers_of_ports_and_protocols_must_agree(self) -> None:
        self.refuses("1 --proto but 2 --port", "--proto=alpha", "--port=1", "--port=2")
        self.refuses("2 --proto but 1 --port", "--proto=alpha", "--port=1", "--proto=beta")
        self.refuses("0 --proto but 1 --port", "--port=1")

    def test_unknown_protocols(self) -> None:
        self.refuses("'gamma'", "--proto=gamma")
        self.refuses("installed: alpha, beta", "--listen=gamma=1")

    def test_unknown_options(self) -> None:
        self.refuses("option --colour not recognized; twistd pubsub --help", "--colour=red")
        self.refuses("-x", "-x")

    def test_a_missing_or_superfluous_value(self) -> None:
        self.refuses("max-topics", "--max-topics")
        self.refuses("--loud must not have an argument: it stands for on", "--loud=yes")
        self.refuses("the file that --config names", "--allow-anonymous=off")

    def test_positional_arguments(self) -> None:
        self.refuses("unexpected argument 'now'", "now")
        self.refuses("unexpected argument '7070'", "--proto=alpha", "7070")

    def test_values_that_do_not_parse(self) -> None:
        self.refuses("max-topics: expected a whole number", "--max-topics=many")
        self.refuses("speed: expected", "--alpha-speed=-1")
        self.refuses("port: expected a number", "--proto=alpha", "--port=http")
        self.refuses("65535", "--proto=alpha", "--port=70000")

    def test_listen_without_an_endpoint(self) -> None:
        for listener in ("alpha", "alpha="):
            self.refuses("PROTOCOL=ENDPOINT", f"--listen={listener}")

    def test_an_unusable_file(self) -> None:
        missing = scratch(self) / "missing.toml"
        self.refuses(f"{missing}: No such file", f"--config={missing}")
        wrong = scratch(self) / "wrong.toml"
        wrong.write_text("max-topic = 1")
        self.refuses(f"{wrong}: max-topic: no such setting; did you", f"--config={wrong}")

    def test_an_error_names_the_file_that_has_it(self) -> None:
        file = scratch(self) / "pubsub.toml"
        file.write_text("max-topics = 'many'\n")
        self.refuses(f"pubsub: {file}: max-topics: expected", f"--config={file}")
        file.write_text("max-topics = 5\n")
        self.refuses("pubsub: max-topics: expected", f"--config={file}", "--max-topics=many")
        self.refuses("pubsub: max-topics: expected", "--max-topics=many")


class HelpTests(SynchronousTestCase):
    """--help and --version"""

    def output(self, *arguments: str) -> str:
        with redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit) as caught:
            make_options(PROTOCOLS).parseOptions(list(arguments))
        assert not caught.value.code
        return out.getvalue()

    def test_help_lists_every_setting(self) -> None:
        words = self.output("--help").replace("=", " ").split()
        expected = [f"--{setting.name}" for setting in (*BROKER_SETTINGS, *SETTINGS)]
        expected += ["--alpha-speed", "--loud", "--alpha-calm"]
        expected += ["--proto", "--port", "--listen", "--config"]
        assert [option for option in expected if option not in words] == []

    def test_help_lists_the_protocols_with_their_ports(self) -> None:
        text = self.output("--help")
        for protocol in PROTOCOLS.values():
            assert f"{protocol.summary}; default port {protocol.port}" in text

    def test_version_names_the_broker_and_twisted(self) -> None:
        text = self.output("--version")
        assert text.startswith("pubsub ")
        assert "Twisted" in text
