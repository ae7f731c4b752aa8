"""Each class, alias and file has its own name; no docstring begins with a question word."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

PACKAGE = Path(__file__).parents[2] / "pubsub"
SAME_CLASSES = {
    # The client library has the same names in each of its shells.
    "Client": {"client"},
    "Subscription": {"client"},
    # A message, and a message as a frame of a protocol.
    "Message": {"client", "protocols"},
    # ZMTP has commands, and a link gives some to its driver.
    "Command": {"client", "protocols"},
    # A frame as the codec has it, and as the dissector is given its layout.
    "Frame": {"dissector", "protocols"},
    "Packet": {"dissector", "protocols"},
    # A batch of the history, or the messages that it lacks.
    "BatchOrGap": {"client", "pipeline", "store"},
    # The same things, in components that do not import each other.
    "Figures": {"http_api", "backplane", "broker"},
    "Headers": {"broker", "wire"},
    "Learn": {"kernel", "wire"},
    # A plugin of twistd has its options under this name.
    "Options": {"server"},
}
"""Classes and aliases that may have the same name, and the components that have one."""
SAME_FILES = {
    # Each protocol has one, and so has HTTP, or the base class of all of them.
    "connection.py": {"wire", "protocols"},
    "server.py": {"http_api", "protocols"},
    # The refusals of a protocol are replies; these are rows for operators.
    "refusals.py": {"management", "protocols"},
    "subscriptions.py": {"management", "protocols"},
    # The sessions of the broker, and their rows.
    "sessions.py": {"broker", "management"},
    # A record between brokers, and a record of the log.
    "record.py": {"backplane", "store"},
}
"""Files that may have the same name beside commands and jobs, and the components that have one."""
# Files there are named after the subcommand or the job.
NAMED_AFTER_COMMANDS = ("commands", "pipeline/jobs")
_QUESTION = re.compile(r'^ *"""((?:What|Which|How|Who|Whose|Why|Where)\b.*)', re.MULTILINE)
# A class, or an alias of a type: a name in mixed case that is assigned at the module's level.
_TYPE = re.compile(
    r"^(?:class _?([A-Z]\w*)|_?([A-Z]\w*[a-z]\w*)(?:: TypeAlias)? = (?!\w+\())", re.MULTILINE
)


def modules() -> Iterator[tuple[Path, str]]:
    """Yield each module's path below the package, and its source."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE), path.read_text()


def taken(names: Iterable[tuple[str, str]], permitted: dict[str, set[str]]) -> list[str]:
    """Return the names that occur twice; ``names`` are pairs of a component and a name.

    Protocols are parallel: each may have, for example, a Subscribe, as the folder says which.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for component, name in names:
        found[name].append(component)
    return [
        f"{name}: {', '.join(components)}"
        for name, components in found.items()
        if len(components) > 1 and set(components) not in ({"protocols"}, permitted.get(name))
    ]


class NameTests(SynchronousTestCase):
    """One name for one thing"""

    def test_classes(self) -> None:
        names = [
            (path.parts[0], found[1] or found[2])
            for path, text in modules()
            for found in _TYPE.finditer(text)
        ]
        assert not (found := taken(names, SAME_CLASSES)), "\n".join(found)

    def test_files(self) -> None:
        names = [
            (path.parts[0], path.name)
            for path, _ in modules()
            if path.name != "__init__.py" and path.parent.as_posix() not in NAMED_AFTER_COMMANDS
        ]
        assert not (found := taken(names, SAME_FILES)), "\n".join(found)


class DocstringTests(SynchronousTestCase):
    """The first words of docstrings"""

    def test_they_are_no_question_words(self) -> None:
        found = [f"{path}: {line}" for path, text in modules() for line in _QUESTION.findall(text)]
        assert not found, "\n".join(found)
