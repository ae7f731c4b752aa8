"""Delta tables of which another engine has deleted rows by deletion vectors.

Their files still have the rows, which must not come back.
"""

from __future__ import annotations

import json
from base64 import b85encode
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from twisted.trial.unittest import TestCase

from pubsub.errors import ConfigurationError
from pubsub.pipeline.tables.delta import Delta
from pubsub.pipeline.tables.migrate import migrate
from tests.tables.written_tables import BY, SCHEMA, fill, scratch

FEATURES = ["deletionVectors"]
# Rows 0 and 1, as a RoaringBitmapArray; Delta's protocol has the format.
BITMAP = bytes.fromhex(
    "d1d33964 0100000000000000 00000000 3a300000 01000000 00000100 10000000 00000100"
)
PYTHON = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def delete_two_rows(path: str) -> str:
    """Delete the first rows of the newest file as Spark does, and return the path of the file."""
    table = DeltaTable(path)
    log = Path(path, "_delta_log")
    actions = (log / f"{table.version():020}.json").read_text().splitlines()
    (add,) = [action["add"] for action in map(json.loads, actions) if "add" in action]
    vector = {
        "storageType": "i",
        "pathOrInlineDv": b85encode(BITMAP).translate(bytes.maketrans(PYTHON, Z85)).decode(),
        "sizeInBytes": len(BITMAP),
        "cardinality": 2,
    }
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": FEATURES,
        "writerFeatures": [*FEATURES, "appendOnly", "invariants"],
    }
    removed = {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}
    lines = [
        {"protocol": protocol},
        {"remove": removed},
        {"add": {**add, "deletionVector": vector}},
    ]
    new = log / f"{table.version() + 1:020}.json"
    new.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return str(add["path"])


def offsets(path: str) -> list[int]:
    """Return the offsets that are not deleted."""
    query = 'SELECT "offset" FROM messages'
    rows: Any = QueryBuilder().register("messages", DeltaTable(path)).execute(query).read_all()
    return sorted(pa.table(rows)["offset"].to_pylist())


class DeletedRowsTests(TestCase):
    def setUp(self) -> None:
        self.path = scratch(self)
        self.table = Delta(self.path, SCHEMA, BY)
        fill(self.table, *range(5))

    def test_deleted_rows_do_not_come_back(self) -> None:
        file = delete_two_rows(self.path)
        left = [n for n in range(80) if n not in (64, 65)]
        assert offsets(self.path) == left
        assert self.table.compact() == 0
        fill(self.table, 5)
        assert self.table.compact() == 0
        assert offsets(self.path) == [*left, *range(80, 96)]
        assert Path(self.path, file.replace("%25", "%")).exists()

    def test_rows_that_are_deleted_during_a_merge(self) -> None:
        listed = self.table._merge

        def merge(*arguments: Any) -> Any:
            merged = listed(*arguments)
            delete_two_rows(self.path)
            return merged

        with patch.object(self.table, "_merge", merge):
            assert self.table.compact() == 0
        assert len(offsets(self.path)) == 78

    def test_a_table_with_the_feature_but_no_deleted_rows_is_merged(self) -> None:
        DeltaTable(self.path).alter.set_table_properties({"delta.enableDeletionVectors": "true"})
        assert self.table.compact() == 5
        assert offsets(self.path) == list(range(80))

    def test_a_migration_is_refused(self) -> None:
        delete_two_rows(self.path)
        with pytest.raises(ConfigurationError, match="has deletion vectors"):
            migrate(self.path)
