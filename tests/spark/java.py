"""Options of Java for the tests: short-lived processes that mostly load and compile classes.

An archive of class data holds the loaded classes, and later processes map it. One archive is made
for each version of Java and Spark. It halves the time of a start.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from tests.histories import fill
from tests.integration.broker import environment

# Fast compilation rather than fast code, and no log on standard output, which tests read.
_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto -Xlog:disable"
_ROOT = Path(__file__).parents[2]


def java_options(cache: Path) -> str:
    """Return the options for ``JDK_JAVA_OPTIONS``; the archive is in the directory ``cache``."""
    archive = cache / f"{_version()}.jsa"
    if not archive.exists():
        _make(archive)
    return f"{_OPTIONS} -XX:SharedArchiveFile={archive}"


def _version() -> str:
    java = subprocess.run(["java", "-version"], capture_output=True, check=True).stderr
    known = b"%s %s %s" % (java, pyspark.__version__.encode(), pyspark.__file__.encode())
    return hashlib.sha256(known).hexdigest()[:16]


def _make(archive: Path) -> None:
    """Run a small archive job that dumps its classes, and rename the complete file."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as directory:
        new, history = Path(directory, "new.jsa"), Path(directory, "history")
        fill(history, 1000)
        subprocess.run(
            [Path(sys.executable).with_name("pubsub"), "pipeline", "archive", "--once",
             "--path", history, "--to", Path(directory, "to"), "--master", "local[2]"],
            cwd=_ROOT,
            env=environment({"JDK_JAVA_OPTIONS": f"{_OPTIONS} -XX:ArchiveClassesAtExit={new}"}),
            stdin=subprocess.DEVNULL,
            # Java ends after Python; waiting for the end of this pipe waits for Java.
            stdout=subprocess.PIPE,
            check=True,
        )  # fmt: skip
        os.replace(new, archive)
