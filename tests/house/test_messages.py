"""``docs/messages.md`` has every message of the source, with its cause."""

from __future__ import annotations

import re

from twisted.trial.unittest import SynchronousTestCase

from tests.house.message_extraction import ROOT, Message, find_messages

CATALOGUE = ROOT / "docs" / "messages.md"
_MODULE = re.compile(r"## `(pubsub/\S+\.py)`")
_ROW = re.compile(r"\| `(.+?)` \| (.+) \|")


def read_catalogue() -> dict[Message, str]:
    """Return the documented messages and their causes."""
    found: dict[Message, str] = {}
    module = ""
    for line in CATALOGUE.read_text().splitlines():
        heading, row = _MODULE.fullmatch(line), _ROW.fullmatch(line)
        if heading is not None:
            module = heading[1]
        elif row is not None:
            text = row[1].replace("\\|", "|").replace("'''", "`")
            found[Message(module, text)] = row[2]
    return found


class MessageTests(SynchronousTestCase):
    """The catalogue and the source"""

    def test_every_message_has_a_cause(self) -> None:
        missing = find_messages() - read_catalogue().keys()
        assert not missing, "\n".join(f"{one.module}: {one.text}" for one in sorted(missing))

    def test_every_cause_has_a_message(self) -> None:
        stale = read_catalogue().keys() - find_messages()
        assert not stale, "\n".join(f"{one.module}: {one.text}" for one in sorted(stale))

    def test_no_cause_is_empty(self) -> None:
        assert all(cause.strip(" .") for cause in read_catalogue().values())

    def test_messages_have_one_style(self) -> None:
        """A message begins in lower case, unless with a name, and ends without a full stop."""
        for message in find_messages():
            assert not message.text.rstrip().endswith("."), message
