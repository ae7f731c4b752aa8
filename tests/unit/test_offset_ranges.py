"""Offset ranges: a worker reads the messages that a row of the stream describes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import Row

from pubsub.errors import ConfigurationError
from pubsub.pipeline.jobs.offset_ranges import RangeSource, load_ranges
from tests.histories import history


def test_a_row_holds_the_range_of_a_task(tmp_path: Path) -> None:
    with history(tmp_path / "history") as file:
        file.put("a", [b"%d" % number for number in range(10)])
        file.put("b", [b"x"] * 10)
    given = {"path": str(tmp_path / "history"), "subscribe": "a", "rowspertask": "4"}
    source = RangeSource({**given, "startingoffsets": "earliest"})
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    tasks = reader.partitions(start, {"0": {**start["0"], "next": 20}})
    assert len(tasks) == 3
    read = []
    for task in tasks:
        (batch,) = list(reader.read(task))
        assert isinstance(batch, pa.RecordBatch)
        rows = [Row(**row) for row in batch.to_pylist()]
        read += [
            value for each in load_ranges(rows) for part in each.read() for value in part["value"]
        ]
    assert [value.as_py() for value in read] == [b"%d" % number for number in range(10)]


def test_a_token_must_be_in_a_file() -> None:
    source = RangeSource({"url": "http://127.0.0.1:1", "token": "x.y.z"})
    with pytest.raises(ConfigurationError, match="use option tokenFile"):
        source.streamReader(source.schema())
