"""A catalogue of Iceberg with the tables of a test."""

from __future__ import annotations

from pathlib import Path

from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from tests.spark.archive_runs import run as run_archive


class Lake:
    """A catalog in a SQLite file, with the archive of a history."""

    def __init__(self, directory: Path) -> None:
        self.history = directory / "messages"
        self._checkpoint = directory / "checkpoint"
        self.options = {
            "type": "sql",
            "uri": f"sqlite:///{directory}/catalog.db",
            "warehouse": f"file://{directory}/warehouse",
        }

    def arguments(self, to: str | None = None) -> list[str]:
        """Return the options of the job for the table; ``to`` names it."""
        given = ["--to", to] if to else []
        given += ["--format", "iceberg", "--catalog", "lake", "--checkpoint", str(self._checkpoint)]
        for name, value in self.options.items():
            given += ["--catalog-option", f"{name}={value}"]
        return given

    def archive(self, spark: SparkSession, *more: str) -> int:
        """Run the job once."""
        return run_archive(spark, self.history, Path("lake.messages"), *self.arguments(), *more)

    def offsets(self) -> list[int]:
        """Return the offsets in the table, in order."""
        table = load_catalog("lake", **self.options).load_table("lake.messages")
        found: list[int] = sorted(table.scan().to_arrow()["offset"].to_pylist())
        return found
