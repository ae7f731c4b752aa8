"""Delta tables that demand of their writers what the jobs do not do, or that readers lack."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from twisted.trial.unittest import TestCase

from pubsub.errors import ConfigurationError
from pubsub.pipeline.tables.delta import Delta, open_delta
from pubsub.pipeline.tables.delta_layout import readable_dataset
from pubsub.pipeline.tables.location import Location
from tests.tables.written_tables import BY, SCHEMA, all_files, batch, fill, offsets, put, scratch

_READER_FEATURES = {"columnMapping", "deletionVectors", "timestampNtz", "typeWidening",
                    "v2Checkpoint", "variantType"}  # fmt: skip


def change(
    path: str,
    *features: str,
    versions: tuple[int, int] = (1, 7),
    properties: Mapping[str, str] | None = None,
    fields: Mapping[str, Mapping[str, Any]] | None = None,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Change the protocol and the metadata of the table, as another engine does.

    ``fields`` are metadata of columns, and ``more`` is a further column.
    """
    log = Path(path, "_delta_log")
    first = map(json.loads, (log / f"{0:020}.json").read_text().splitlines())
    metadata = next(action["metaData"] for action in first if "metaData" in action)
    metadata["configuration"] = dict(properties or {})
    schema = json.loads(metadata["schemaString"])
    for field in schema["fields"]:
        field["metadata"] = dict((fields or {}).get(field["name"], {}))
    schema["fields"] += [dict(more)] if more else []
    metadata["schemaString"] = json.dumps(schema)
    protocol: dict[str, Any] = dict(
        zip(("minReaderVersion", "minWriterVersion"), versions, strict=True)
    )
    if versions[1] == 7:
        protocol["writerFeatures"] = features
        if read := sorted(_READER_FEATURES.intersection(features)):
            protocol |= {"minReaderVersion": 3, "readerFeatures": read}
    lines = [{"protocol": protocol}, {"metaData": metadata}]
    version = DeltaTable(path).version() + 1
    (log / f"{version:020}.json").write_text("\n".join(map(json.dumps, lines)) + "\n")


class DemandsTests(TestCase):
    """Writers with a table that has rows of five batches."""

    def setUp(self) -> None:
        self.path = scratch(self)
        self.table = Delta(self.path, SCHEMA, BY)
        fill(self.table, *range(5))

    def refuse(self, *texts: str) -> None:
        """Check that nothing is written to the table, not even a file."""
        before = all_files(self.path)
        for write in (lambda: fill(self.table, 5), self.table.compact):
            with pytest.raises(ConfigurationError) as caught:
                write()
            assert "choose another directory" in str(caught.value)
            for text in texts:
                assert text in str(caught.value)
        assert all_files(self.path) == before

    def test_features_that_demand_nothing(self) -> None:
        change(
            self.path, "appendOnly", "changeDataFeed", "checkConstraints", "columnMapping",
            "deletionVectors", "generatedColumns", "invariants", "timestampNtz", "v2Checkpoint",
            "variantType", properties={
                "delta.appendOnly": "true", "delta.enableChangeDataFeed": "true",
                "delta.columnMapping.mode": "none",
            },
        )  # fmt: skip
        fill(self.table, 5)
        assert self.table.compact() == 6

    def test_other_features_are_refused_by_name(self) -> None:
        for feature in ("identityColumns", "rowTracking", "typeWidening", "inTheFuture"):
            change(self.path, "appendOnly", "domainMetadata", feature)
            self.refuse("the writer feature domainMetadata, ", f"the writer feature {feature}, ")

    def test_versions_that_imply_features(self) -> None:
        for versions in ((1, 2), (1, 3), (1, 4), (2, 5)):
            change(self.path, versions=versions)
            fill(self.table, versions[1] + 3)
        change(self.path, versions=(2, 6))
        self.refuse("the writer version 6 (identity columns), ")

    def test_rows_that_a_constraint_forbids(self) -> None:
        DeltaTable(self.path).alter.add_constraint({"small": '"offset" < 1000'})
        self.refuse("the constraint small, ")

    def test_rows_that_an_invariant_forbids(self) -> None:
        rule = json.dumps({"expression": {"expression": "offset < 20"}})
        change(self.path, versions=(1, 2), fields={"offset": {"delta.invariants": rule}})
        self.refuse("an invariant of the column offset, ")

    def test_values_that_writers_compute(self) -> None:
        rule = {"delta.generationExpression": "CAST(timestamp AS DATE)"}
        change(self.path, versions=(1, 4), fields={"day": rule})
        self.refuse("the generated column day, ")

    def test_names_in_the_files_that_differ(self) -> None:
        names = {
            name: {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": name}
            for number, name in enumerate(SCHEMA.names, 1)
        }
        for mode in ("name", "id"):
            properties = {
                "delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": "9"
            }  # fmt: skip
            change(self.path, versions=(2, 5), properties=properties, fields=names)
            self.refuse(f"column mapping (delta.columnMapping.mode = {mode}), ")
            with pytest.raises(ConfigurationError, match="cannot read this table: it has column"):
                readable_dataset(Location.of(self.path), open_delta(self.path))

    def test_a_column_of_others_is_null(self) -> None:
        DeltaTable(self.path).alter.add_columns(Field("note", PrimitiveType("string")))
        fill(self.table, 5)
        assert self.table.compact() == 6
        found = DeltaTable(self.path).to_pyarrow_table()
        assert found["note"].null_count == found.num_rows == 96

    def test_a_column_of_others_that_must_not_be_null(self) -> None:
        change(
            self.path,
            versions=(1, 2),
            more={"name": "note", "type": "string", "nullable": False, "metadata": {}},
        )
        with pytest.raises(ConfigurationError, match="column note of the table must not be null"):
            put(self.table, "q", 5, batch(80, 16, ["orders"]))
        assert offsets(self.path) == list(range(80))

    def test_readers_name_the_feature(self) -> None:
        change(self.path, "v2Checkpoint")
        with pytest.raises(ConfigurationError, match=r"cannot read this table: .*v2Checkpoint"):
            readable_dataset(Location.of(self.path), open_delta(self.path))
