"""How Java is started for the tests: many short lives, which mostly load classes and compile.

What the classes look like when they are loaded is kept in a file that the next lives map (an
archive of class data). It is made once for a Java and a Spark, and halves the time of a start.
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

# Compiled quickly rather than well; and not a word on standard output, which others read.
_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto -Xlog:disable"
_ROOT = Path(__file__).parents[2]


def java_options(cache: Path) -> str:
    """The options for ``JDK_JAVA_OPTIONS``; the archive is in the directory ``cache``."""
    archive = cache / f"{_version()}.jsa"
    if not archive.exists():
        _make(archive)
    return f"{_OPTIONS} -XX:SharedArchiveFile={archive}"


def _version() -> str:
    java = subprocess.run(["java", "-version"], capture_output=True, check=True).stderr
    known = b"%s %s %s" % (java, pyspark.__version__.encode(), pyspark.__file__.encode())
    return hashlib.sha256(known).hexdigest()[:16]


def _make(archive: Path) -> None:
    """Have a small archive job leave what it has loaded; put it in place when it is whole."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as directory:
        new, history = Path(directory, "new.jsa"), Path(directory, "history.db")
        fill(history, 1000)
        subprocess.run(
            [Path(sys.executable).with_name("pubsub"), "pipeline", "archive", "--once",
             "--path", history, "--to", Path(directory, "to"), "--master", "local[2]"],
            cwd=_ROOT,
            env=environment({"JDK_JAVA_OPTIONS": f"{_OPTIONS} -XX:ArchiveClassesAtExit={new}"}),
            stdin=subprocess.DEVNULL,
            # Java ends after Python, and then its end of this does.
            stdout=subprocess.PIPE,
            check=True,
        )  # fmt: skip
        os.replace(new, archive)
