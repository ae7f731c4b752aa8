"""The command lines of ``pubsub`` in the documents, also of blocks that are not run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
from twisted.trial.unittest import SynchronousTestCase

from pubsub.commands.command import pubsub
from tests.integration.document_blocks import PAGES, Block, blocks

# A command and its arguments, up to the end of a line, a comment, or what a shell does with it.
_COMMAND = re.compile(
    r"""(?:^|(?<=[\s(]))(?:\S*bin/|\$B/)?pubsub +((?:"[^"]*"|'[^']*'|\\\n|[^\n|&;<>()#"'])+)""",
    re.MULTILINE,
)


def shell_blocks() -> Iterator[Block]:
    for page in PAGES:
        yield from (block for block in blocks(page) if block.language == "sh")


def command_lines(block: Block) -> Iterator[list[str]]:
    """Return the arguments of each ``pubsub`` that is not the plugin of twistd."""
    for found in _COMMAND.finditer(block.text):
        line = block.text[: found.start()].rpartition("\n")[2]
        # A plain word stands before it in lists of packages and in the arguments of others.
        if "twistd" not in line and not re.search(r"\b(systemctl|restart|start|install)\b", line):
            yield shlex.split(found[1])


def unknown(arguments: list[str]) -> str | None:
    """Return the first argument that is no command, or no option of the command before it."""
    command: click.Command = pubsub
    context = click.Context(pubsub, info_name="pubsub")
    for argument in arguments:
        if isinstance(command, click.Group) and not argument.startswith("-"):
            found = command.get_command(context, argument)
            if found is None:
                return argument
            command, context = found, click.Context(found, context, argument)
        elif argument.startswith("--"):
            names = {name for one in command.get_params(context) for name in one.opts}
            if argument.partition("=")[0] not in names:
                return argument
    return None


class CommandLineTests(SynchronousTestCase):
    """What a reader types"""

    def test_commands_and_options_exist(self) -> None:
        lines = [(block, line) for block in shell_blocks() for line in command_lines(block)]
        assert len(lines) > 50
        wrong = [
            f"{block}: {argument}: pubsub {shlex.join(line)}"
            for block, line in lines
            if line[0] != "pipeline" and (argument := unknown(line))
        ]
        assert not wrong
