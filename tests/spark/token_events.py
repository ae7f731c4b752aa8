"""Events of a broker about tokens."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlparse

from pyspark.sql import SparkSession

from tests.spark.conftest import EVENTS


def everything(directory: Path) -> bytes:
    """Return the contents of all files in a directory."""
    return b"".join(path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file())


def events(spark: SparkSession) -> bytes:
    """Return the event log that Spark has written for its web pages."""
    return everything(Path(urlparse(spark.conf.get(EVENTS) or "").path))
