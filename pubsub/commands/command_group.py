"""A click group whose commands are imported when they are used.

``pubsub pub`` imports nothing that only ``pubsub bench`` needs, and the list of ``pubsub --help``
imports no command.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import click


class Subcommand(NamedTuple):
    """A command: its module, which has the command as ``COMMAND``, and its line in the help."""

    module: str
    help: str


class LazyGroup(click.Group):
    """A group of ``Subcommand``s.

    ``--help`` lists them in ``groups``, those that are in none in the one that is empty, and in
    the order of the table.
    """

    def __init__(
        self,
        *args: Any,
        subcommands: Mapping[str, Subcommand],
        groups: Mapping[str, Sequence[str]],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._subcommands = subcommands
        self._groups = groups

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See click.Group."""
        return list(self._subcommands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See click.Group."""
        found = self._subcommands.get(cmd_name)
        if found is None:
            return None
        command: click.Command = import_module(found.module).COMMAND
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            # See ``pubsub_broker.main``: until now, Ctrl-C has ended the process.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See click.Group. As in other tools, ``help NAME`` is ``NAME --help``."""
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See click.Group. The error for an unknown name suggests names that are like it."""
        name = args[0]
        if name.startswith("-") or name in self._subcommands or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        raise click.exceptions.NoSuchCommand(name, possibilities=self._subcommands, ctx=ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click.Group."""
        # All descriptions begin in one column.
        widest = max(map(len, self._subcommands))
        named = {name for names in self._groups.values() for name in names}
        others = [name for name in self._subcommands if name not in named]
        for group, names in self._groups.items():
            with formatter.section(group):
                rows = [
                    (name.ljust(widest), self._subcommands[name].help) for name in names or others
                ]
                formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """See click.Command."""
        from click.shell_completion import CompletionItem

        names = [
            CompletionItem(name, help=one.help)
            for name, one in self._subcommands.items()
            if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)
