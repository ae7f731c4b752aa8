"""The directories of tables on a disk: those that are empty, and names with percent signs."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import pyarrow.dataset as ds
import pytest
from twisted.trial.unittest import TestCase

from pubsub.errors import ConfigurationError
from pubsub.pipeline.tables.delta import Delta, open_delta
from pubsub.pipeline.tables.parquet import ParquetFiles
from pubsub.pipeline.tables.storage import disk_storage
from tests.tables.written_tables import BY, SCHEMA, batch, fill, offsets, scratch, write


def directories(path: Path) -> set[str]:
    """Return all directories below ``path``."""
    return {str(one.relative_to(path)) for one in path.rglob("*") if one.is_dir()}


def parquet_offsets(path: Path) -> list[int]:
    """Return the offsets in plain Parquet files, in order."""
    return sorted(ds.dataset(path, format="parquet").to_table()["offset"].to_pylist())


class StagingTests(TestCase):
    """The staging directory of plain Parquet files"""

    def setUp(self) -> None:
        self.path = Path(scratch(self))
        self.table = ParquetFiles(str(self.path), SCHEMA, BY)
        self.staging = self.path / "_staging"

    def make_old(self) -> None:
        for one in directories(self.staging):
            os.utime(self.staging / one, (0, 0))

    def test_old_empty_directories_are_removed(self) -> None:
        fill(self.table, 0, 1)
        before = directories(self.staging)
        assert before
        self.table.compact()
        assert directories(self.staging) == before
        for _ in range(2):
            # Those above others are changed when these are removed.
            self.make_old()
            self.table.compact()
        assert directories(self.staging) == set()
        (waiting,) = write(self.table, "q", 2, batch(32, 16, ["orders"]))
        self.make_old()
        self.table.compact()
        assert self.table.commit([waiting], "q", 2)
        assert parquet_offsets(self.path) == list(range(48))

    def test_a_directory_that_is_removed_before_its_file_is_created(self) -> None:
        removed: list[str] = []
        make = os.makedirs

        def vanish(path: str, exist_ok: bool) -> None:
            make(path, exist_ok=exist_ok)
            if not removed:
                removed.append(path)
                os.rmdir(path)

        self.path.mkdir(exist_ok=True)
        storage = disk_storage(str(self.path))
        with patch("os.makedirs", vanish), storage.create("a/b") as file:
            file.write(b"x")
        assert (self.path / "a/b").read_bytes() == b"x"
        with patch("os.makedirs"), pytest.raises(FileNotFoundError), storage.create("c/d"):
            pass


class NameTests(TestCase):
    """Directories whose names look like parts of a URL"""

    def test_delta(self) -> None:
        """deltalake writes to one directory, and reads from another."""
        path = Path(scratch(self))
        fill(Delta(str(path / "a b"), SCHEMA, BY), 0)
        escaped = str(path / "a%20b")
        expected = f"^{escaped}: the package deltalake takes %20 in the path of a directory for an"
        for refused in (
            lambda: Delta.check_directory(escaped),
            lambda: Delta(escaped, SCHEMA, BY).create_if_missing(),
            lambda: Delta(escaped, SCHEMA, BY).compact(),
            lambda: open_delta(escaped),
            lambda: open_delta(Path(escaped).as_uri()),
        ):
            with pytest.raises(ConfigurationError, match=expected):
                refused()
        assert os.listdir(path) == ["a b"]
        fill(Delta(str(path / "100%"), SCHEMA, BY), 0)
        assert offsets(str(path / "100%")) == list(range(16))

    def test_plain_parquet(self) -> None:
        path = Path(scratch(self)) / "a%20b"
        fill(ParquetFiles(str(path), SCHEMA, BY), 0)
        assert parquet_offsets(path) == list(range(16))
