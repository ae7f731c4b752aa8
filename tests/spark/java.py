"""Options of Java for the tests: short-lived processes that mostly load and compile classes.

``pubsub pipeline prepare`` halves the time of a start. The tests have a file of their own, as its
options differ.
"""

from __future__ import annotations

import os
import subprocess
import sys
from fcntl import LOCK_EX, flock
from pathlib import Path
from unittest.mock import patch

from pubsub.pipeline.job_runs.class_data import java_option
from tests.integration.broker import environment

# Fast compilation rather than fast code.
_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_ROOT = Path(__file__).parents[2]


def java_options(cache: Path) -> str:
    """Return the options for ``JDK_JAVA_OPTIONS``; class data are in the directory ``cache``."""
    # Of several processes of pytest, the first one makes the file.
    with (cache / "lock").open("w") as lock, patch.dict(os.environ, {"XDG_CACHE_HOME": str(cache)}):
        flock(lock, LOCK_EX)
        if not java_option():
            subprocess.run(
                [Path(sys.executable).with_name("pubsub"), "pipeline", "prepare"],
                cwd=_ROOT,
                env=environment({"JDK_JAVA_OPTIONS": _OPTIONS, "XDG_CACHE_HOME": str(cache)}),
                check=True,
            )
        return f"{_OPTIONS} {java_option()}"
