"""The sample of the configuration file has every setting with its default."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.listeners.listener_settings import SETTINGS as LISTENER_SETTINGS
from pubsub.plugin import ADMIN, installed_protocols
from pubsub.server.broker_settings import BROKER_SETTINGS
from pubsub.server.configuration import CommandLine, merge
from pubsub.server.configuration_changes import compare, describe
from pubsub.server.sample_configuration import sample
from tests.unit.command_case import CommandCase

ROOT = Path(__file__).parents[2]
PROTOCOLS = installed_protocols()


class SampleTests(SynchronousTestCase):
    """sample"""

    def test_the_unchanged_sample_configures_nothing(self) -> None:
        assert tomllib.loads(sample(PROTOCOLS)) == {}

    def test_its_settings_are_the_defaults(self) -> None:
        document = tomllib.loads(re.sub(r"(?m)^#(?=\S)", "", sample(PROTOCOLS)))
        found, empty = (merge(PROTOCOLS, CommandLine(), one) for one in (document, {}))
        assert compare(describe(empty), describe(found)).lines() == []
        whole = {setting.name for setting in (*BROKER_SETTINGS, *LISTENER_SETTINGS)}
        assert {key for key, value in document.items() if not isinstance(value, dict)} == whole
        for protocol in (*PROTOCOLS.values(), ADMIN):
            assert set(document[protocol.name]) == {one.name for one in protocol.settings}

    def test_lines_fit_on_a_screen(self) -> None:
        assert max(map(len, sample(PROTOCOLS).splitlines())) <= 200

    def test_the_copy_in_the_documentation_is_current(self) -> None:
        text = (ROOT / "docs/deploy/pubsub.toml").read_text()
        assert text == sample(PROTOCOLS), "run scripts/tables.py"


class CommandTests(CommandCase):
    """pubsub config sample"""

    def test_it_prints_the_sample(self) -> None:
        assert self.run_it("config", "sample") == (0, sample(PROTOCOLS), "")

    def test_it_is_valid(self) -> None:
        path = self.file("pubsub.toml", sample(PROTOCOLS).encode())
        assert self.run_it("check-config", path)[0] == 0
