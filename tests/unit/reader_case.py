"""Readers of the Spark source on a log, called as Spark calls them."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from twisted.trial.unittest import SynchronousTestCase

from pubsub.pipeline.readers.batch_reader import BatchReader
from pubsub.pipeline.readers.stream_reader import StreamReader
from pubsub.pipeline.source import PubSubSource
from tests.histories import history
from tests.unit.fakes import scratch

ALL = ReadAllAvailable()


class ReaderCase(SynchronousTestCase):
    """A log with messages of two topics, in records of their own."""

    def setUp(self) -> None:
        self.path = scratch(self) / "history"
        with history(self.path) as file:
            for number in range(5):
                file.put("orders", [b"order %d.%d" % (number, index) for index in range(10)])
                file.put("cafe/7", [b"cafe %d.%d" % (number, index) for index in range(10)])

    def source(self, **given: str) -> PubSubSource:
        """Return a data source on the file."""
        lower = {key.lower(): value for key, value in given.items()}
        return PubSubSource({"path": str(self.path), **lower})

    def batch(self, **given: str) -> BatchReader:
        source = self.source(**given)
        reader = source.reader(source.schema())
        assert isinstance(reader, BatchReader)
        return reader

    def stream(self, **given: str) -> StreamReader:
        source = self.source(**given)
        reader = source.streamReader(source.schema())
        assert isinstance(reader, StreamReader)
        return reader

    def rows(self, reader: BatchReader | StreamReader, tasks: Any) -> list[dict[str, Any]]:
        """Read the tasks with a copy of the reader, as a worker does, and return the rows."""
        copy = pickle.loads(pickle.dumps(reader))
        batches = [b for task in pickle.loads(pickle.dumps(tasks)) for b in copy.read(task)]
        assert all(isinstance(batch, pa.RecordBatch) for batch in batches)
        return [row for batch in batches for row in batch.to_pylist()]

    def all(self, **given: str) -> list[dict[str, Any]]:
        """Return the rows of a batch query."""
        reader = self.batch(**given)
        return self.rows(reader, reader.partitions())

    def offsets(self, rows: list[dict[str, Any]]) -> list[int]:
        return [row["offset"] for row in rows]

    def run_batches(
        self, reader: StreamReader, start: dict[str, Any], limit: ReadLimit = ALL
    ) -> tuple[list[list[dict[str, Any]]], dict[str, Any]]:
        """Run batches until nothing is left; return them with the last offsets."""
        batches: list[list[dict[str, Any]]] = []
        while (end := reader.latestOffset(start, limit)) != start:
            batches.append(self.rows(reader, reader.partitions(start, end)))
            reader.commit(end)
            start = json.loads(json.dumps(end))
        return batches, start
