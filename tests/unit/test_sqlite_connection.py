"""Metadata with damaged texts."""

from __future__ import annotations

import sqlite3

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.errors import StartError
from pubsub.store.metadata.metadata import Metadata
from pubsub.store.opening.recovery import recover
from pubsub.store.segments.log_directory import METADATA, LogDirectory
from tests.unit.fakes import scratch


class DamagedTextTests(SynchronousTestCase):
    """A table whose definition is no UTF-8"""

    def setUp(self) -> None:
        self.path = scratch(self) / "history"
        self.directory = LogDirectory(self.path, create=True)
        self.addCleanup(self.directory.close)
        self.file = self.path / METADATA
        Metadata.create(self.file, bytes(8)).close()
        data = self.file.read_bytes()
        assert b"CREATE TABLE state" in data
        # SQLite quotes the text in its message.
        self.file.write_bytes(data.replace(b"CREATE TABLE state", b"CREATE TABLE 't\xcc e"))

    def test_it_is_an_error_of_sqlite(self) -> None:
        with pytest.raises(sqlite3.DatabaseError, match="damaged"):
            Metadata(self.file)

    def test_the_start_says_so(self) -> None:
        with pytest.raises(StartError, match="the file is damaged; restore it from a backup"):
            recover(self.directory)
