"""``pubsub pipeline``: the jobs of the Spark pipeline, and commands without Spark: the report, and
the migration of older tables.

The options of a job are defined once, with argparse, because ``spark-submit`` has them too; click
passes the arguments on.
"""

from __future__ import annotations

import argparse
import importlib
from typing import Any, NoReturn

import click

from pubsub.errors import StartError
from pubsub.pipeline.command_line import arguments

_EXTRA = ("pyspark", "py4j", "pyarrow", "deltalake", "urllib3", "arro3")
_ICEBERG = ("pyiceberg", "sqlalchemy")


class _Parser(argparse.ArgumentParser):
    """A parser that reports errors as click does."""

    def error(self, message: str) -> NoReturn:
        raise click.UsageError(message, click.get_current_context())


class JobCommand(click.Command):
    """A job; ``name`` is its name. ``module`` has its function ``run`` if it needs no Spark."""

    def __init__(self, name: str, job: arguments.Job, module: str | None = None) -> None:
        super().__init__(name, short_help=job.description, add_help_option=False)
        self._job = job
        self._module = module

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:  # fmt: skip
        """See click.Command. The arguments are not parsed."""
        context = click.Context(self, info_name=info_name, parent=parent)
        context.args = args
        return context

    def parser(self, prog: str) -> argparse.ArgumentParser:
        """Return the parser of the job."""
        description = self._job.description
        parser = _Parser(prog=prog, description=description)
        if self._module is not None:
            self._job.add_options(parser)
        else:
            arguments.define(str(self.name), parser)
        return parser

    def invoke(self, ctx: click.Context) -> int | None:
        """See click.Command."""
        with ctx.scope(cleanup=False):
            options = self.parser(ctx.command_path).parse_args(ctx.args)
        if self._module is not None:
            return _run(self._module, "run", options)
        return _run("pubsub.pipeline.job_runs.job_runner", "launch", self.name, options)

    def get_usage(self, ctx: click.Context) -> str:
        """See click.Command."""
        return f"Usage: {ctx.command_path} [OPTIONS]"

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """See click.Command."""
        from click.shell_completion import CompletionItem

        actions = self.parser(ctx.command_path)._actions
        options = {name: action for action in actions for name in action.option_strings}
        before = options.get(ctx.args[-1]) if ctx.args else None
        if before is not None and before.nargs is None:
            if before.choices is None:
                return [CompletionItem(incomplete, type="file")]
            names = map(str, before.choices)
            return [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return [
            CompletionItem(name, help=action.help)
            for name, action in options.items()
            if name.startswith(incomplete)
        ]


@click.group("pipeline", no_args_is_help=False)
def pipeline() -> None:
    """Run a job of the Spark pipeline, prepare its start, make a report, or migrate a table."""


for _name, _job in arguments.JOBS.items():
    pipeline.add_command(JobCommand(_name, _job))
pipeline.add_command(JobCommand("report", arguments.REPORT, "pubsub.pipeline.report"))
pipeline.add_command(JobCommand("migrate", arguments.MIGRATE, "pubsub.pipeline.tables.migrate"))
pipeline.add_command(
    JobCommand("prepare", arguments.PREPARE, "pubsub.pipeline.job_runs.class_data")
)


def _run(module: str, function: str, *given: object) -> int | None:
    """Call a function that needs the extra ``spark``. Raises StartError without the extra."""
    try:
        found = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in (*_EXTRA, *_ICEBERG):
            raise
        extra = "spark,iceberg" if missing in _ICEBERG else "spark"
        raise StartError(
            f"{missing} is not installed; run: pip install 'pubsub-broker[{extra}]'"
        ) from None
    code: int | None = found(*given)
    return code


COMMAND = pipeline
