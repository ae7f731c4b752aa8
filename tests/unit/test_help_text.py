"""``twistd pubsub --help`` and ``pubsub --help``: groups, width, examples."""

from __future__ import annotations

import re
import shlex
from importlib import import_module

from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.listeners.listener_settings import SETTINGS as LISTENER_SETTINGS
from pubsub.commands.command import pubsub
from pubsub.plugin import ADMIN, installed_protocols
from pubsub.server.broker_settings import BROKER_SETTINGS
from pubsub.server.command_line import make_options
from pubsub.server.configuration import flag
from pubsub.server.help_text import EXAMPLES, help_text


def sections(text: str) -> dict[str, str]:
    """Return the text of each group by its title."""
    parts = re.split(r"(?m)^(\S.*):\n(?= )", text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


class BrokerHelpTests(SynchronousTestCase):
    """twistd pubsub --help"""

    def setUp(self) -> None:
        self.protocols = installed_protocols()
        self.text = help_text(self.protocols)
        self.sections = sections(self.text)

    def test_every_option_is_in_one_group(self) -> None:
        expected = [setting.name for setting in (*BROKER_SETTINGS, *LISTENER_SETTINGS)]
        for protocol in (*self.protocols.values(), ADMIN):
            expected += [flag(protocol, setting) for setting in protocol.settings]
        expected += ["config", "version", "help", "proto", "port", "listen"]
        shown = re.findall(r"(?m)^  --([a-z0-9-]+)", self.text)
        assert sorted(shown) == sorted(expected)

    def test_groups(self) -> None:
        titles = [title.partition(" (")[0] for title in self.sections]
        assert titles == [
            "Broker", "Listeners", "History", "Security", "Limits", "Log",
            *self.protocols, "HTTP API", "Examples",
        ]  # fmt: skip
        assert "--tls-cert " in self.sections["Security"]
        assert "--slow-consumer " in self.sections["Limits"]
        assert "--retention " in self.sections["History"]
        (cafe,) = (text for title, text in self.sections.items() if title.startswith("cafe"))
        assert "--udp " in cafe

    def test_it_is_readable_in_80_columns(self) -> None:
        assert max(map(len, self.text.splitlines())) <= 80

    def test_an_option_without_a_value_has_none(self) -> None:
        for name in ("allow-anonymous", "events"):
            assert re.search(rf"(?m)^  --{name}(   |$)", self.text), name
        assert "--tuning on|off " in self.text

    def test_a_repeated_option_says_so_once(self) -> None:
        assert "may be repeated; may be repeated" not in " ".join(self.text.split())

    def test_the_examples_are_valid(self) -> None:
        for command, _ in EXAMPLES:
            words = shlex.split(command)
            assert words[:3] == ["twistd", "-n", "pubsub"]
            if "--config" not in words:
                make_options().parseOptions(words[3:])
        shown = re.sub(r"\\\n +", "", self.sections["Examples"])
        assert all(command in shown for command, _ in EXAMPLES)


class CommandHelpTests(SynchronousTestCase):
    """pubsub --help"""

    def test_every_command_is_in_one_group(self) -> None:
        text = CliRunner().invoke(pubsub, ["--help"]).output
        found = sections(text.partition("  Examples:")[0])
        shown = [
            line.split()[0]
            for title in ("Messages", "Brokers", "Security", "Tools")
            for line in found[title].splitlines()
            if re.match(r"  \S", line)
        ]
        commands = import_module("pubsub.commands.command")._SUBCOMMANDS
        assert sorted(shown) == sorted(commands)
        assert max(map(len, text.splitlines())) <= 80

    def test_the_examples_are_commands(self) -> None:
        text = CliRunner().invoke(pubsub, ["--help"]).output.partition("Examples:\n")[2]
        lines = [shlex.split(line) for line in text.splitlines() if line.strip()]
        assert len(lines) > 3
        for words in lines[:-1]:
            help_of = CliRunner().invoke(pubsub, [words[1], "--help"]).output
            options = [word for word in words if word.startswith("--")]
            assert all(option in help_of for option in options), words
