"""``pubsub pipeline``: the jobs of the Spark pipeline, and the report."""

from __future__ import annotations

import argparse
import importlib
from functools import partial
from typing import TYPE_CHECKING

from pubsub.errors import StartError
from pubsub.pipeline import arguments

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_EXTRA = ("pyspark", "py4j", "pyarrow", "deltalake", "plotly", "urllib3", "arro3")


def add(commands: Commands) -> None:
    """Add the subcommand and its own subcommands."""
    pipeline = commands.add_parser(
        "pipeline", help="run a job of the Spark pipeline, or make a report"
    )
    jobs = pipeline.add_subparsers(metavar="JOB", required=True)
    for name, job in arguments.JOBS.items():
        parser = jobs.add_parser(name, help=job.description, description=job.description)
        arguments.define(name, parser)
        parser.set_defaults(run=partial(_run, "pubsub.pipeline.job_runner", "launch", name))
    report = arguments.REPORT
    parser = jobs.add_parser("report", help=report.description, description=report.description)
    report.add_options(parser)
    parser.set_defaults(run=partial(_run, "pubsub.pipeline.report", "run"))


def _run(module: str, function: str, *given: object) -> int | None:
    """Call a function that needs the extra ``spark``. Raises StartError without the extra."""
    try:
        found = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRA:
            raise
        raise StartError(
            f"{missing} is not installed; run: pip install 'pubsub-broker[spark]'"
        ) from None
    code: int | None = found(*given)
    return code
