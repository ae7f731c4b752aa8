"""docs/wireshark.md against the dissector: its fields and its preferences."""

from __future__ import annotations

import re
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from pubsub.dissector.generator import display_filters
from pubsub.plugin import installed_protocols

PAGE = Path(__file__).parents[2] / "docs" / "wireshark.md"
_ROW = re.compile(r"^\| `(pubsub\.[\w.]+)` \| (\w+) \|$", re.MULTILINE)


class WiresharkPageTests(SynchronousTestCase):
    """docs/wireshark.md"""

    def test_the_tables_have_every_field(self) -> None:
        declared = [
            (f"pubsub.{name}.{field.name}", field.type)
            for name, protocol in installed_protocols().items()
            for field in display_filters(protocol)
        ]
        assert _ROW.findall(PAGE.read_text()) == declared

    def test_examples_have_fields_that_exist(self) -> None:
        text = PAGE.read_text()
        named = set(re.findall(r"`(?:_ws|pubsub)\.[^`]*`", text))
        used = {name for each in named for name in re.findall(r"pubsub\.\w+\.[\w.]+", each)}
        declared = {
            f"pubsub.{name}.{field.name}"
            for name, protocol in installed_protocols().items()
            for field in display_filters(protocol)
        }
        assert used <= declared | {"pubsub.cafe.tcp_ports"}

    def test_the_preferences_of_each_listener_are_named(self) -> None:
        text = PAGE.read_text()
        for protocol in installed_protocols().values():
            declaration = protocol.dissector
            assert declaration is not None
            for setting in (*declaration.framing.variants, *declaration.settings):
                assert f"`{setting.replace('-', '_')}`" in text
