"""The job archive when small files cannot be merged: one line, and no message is lost."""

from __future__ import annotations

import io
from collections import Counter
from contextlib import redirect_stderr
from pathlib import Path
from unittest.mock import Mock, patch

import pytest
from deltalake import DeltaTable
from twisted.trial.unittest import TestCase

from pubsub.pipeline.jobs import archive
from pubsub.pipeline.tables.delta import Delta
from pubsub.pipeline.tables.delta_files import listed_paths
from pubsub.pipeline.tables.location import StorageError
from pubsub.pipeline.tables.spark import TableTarget
from tests.tables.written_tables import BY, SCHEMA, all_files, batch, fill, put, scratch


class FailureTests(TestCase):
    def setUp(self) -> None:
        self.path = scratch(self)
        fill(Delta(self.path, SCHEMA, BY), *range(5))
        self.job = archive.Archive(TableTarget(self.path, BY), headers=False, compact_every=1)

    def damage(self) -> str:
        """Damage a file of the table and return its path."""
        file = sorted(Path(self.path).glob("topic=*/*/*.parquet"))[0]
        file.write_bytes(b"damaged")
        return str(file)

    def test_a_damaged_file_is_named(self) -> None:
        file = self.damage()
        with pytest.raises(StorageError) as caught:
            self.job.finish()
        message = f"small files were not merged, but all messages are in the table: {file}: cannot"
        assert str(caught.value).startswith(message)
        assert "\n" not in str(caught.value)

    def test_a_missing_file_is_named(self) -> None:
        file = self.damage()
        Path(file).unlink()
        with pytest.raises(StorageError, match="No such file or directory") as caught:
            self.job.finish()
        assert file in str(caught.value)

    def test_a_running_job_continues(self) -> None:
        self.damage()
        errors = io.StringIO()
        with redirect_stderr(errors), patch.object(archive, "save", return_value=16):
            self.job.write_batch(Mock(), 5, "q")
            with pytest.raises(StorageError):
                self.job.finish()
        lines = errors.getvalue().splitlines()
        assert [line.partition(",")[0] for line in lines] == ["pubsub: small files were not merged"]
        assert len(DeltaTable(self.path).file_uris()) == 5

    def test_the_other_partitions_are_merged(self) -> None:
        for end in (Path.unlink, lambda file: file.write_bytes(b"damaged")):
            path = f"{self.path}-{end.__name__}"
            table = Delta(path, SCHEMA, BY)
            for number in range(5):
                put(table, "q", number, batch(48 * number, 48, ["a", "b", "c"]))
            before = all_files(path)
            end(sorted(Path(path).glob("topic=b/*/*.parquet"))[2])
            with pytest.raises((StorageError, FileNotFoundError)):
                table.compact()
            files = listed_paths(table.open())
            assert Counter(name.partition("/")[0] for name in files) == {
                "topic=a": 1, "topic=b": 5, "topic=c": 1,
            }  # fmt: skip
            # Another attempt leaves no more files.
            with pytest.raises((StorageError, FileNotFoundError)):
                table.compact()
            written = {name for name in all_files(path) - before if name.endswith(".parquet")}
            assert written == files - before
            assert listed_paths(table.open()) == files
