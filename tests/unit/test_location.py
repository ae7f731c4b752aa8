"""Locations of tables: paths, URLs and options of object stores."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.errors import ConfigurationError
from pubsub.pipeline.tables.location import (
    Location,
    StorageError,
    first_and_last,
    parse_storage_options,
    storage_errors,
)
from pubsub.pipeline.tables.storage import disk_storage
from tests.object_store import SECRET
from tests.unit.fakes import scratch


class LocationTests(SynchronousTestCase):
    """Paths, URLs and options."""

    def test_files(self) -> None:
        for text in ("/srv/a%20b", "file:///srv/a%2520b", "file://localhost/srv/a%2520b"):
            location = Location.parse(text)
            assert (location.url, location.is_local) == ("/srv/a%20b", True)
            assert location.storage_options is None

    def test_stores(self) -> None:
        for text in ("s3://b/x", "gs://b/x/", "abfs://c@a.dfs.core.windows.net/x", "az://c/x"):
            location = Location.parse(text)
            assert (location.url, location.is_local) == (text.rstrip("/"), False)

    def test_others_are_refused(self) -> None:
        for text in ("http://host/x", "s3:///x", "S3://b/x", "file://host/x"):
            with pytest.raises(ConfigurationError, match=text):
                Location.parse(text)

    def test_options_of_a_file(self) -> None:
        with TemporaryDirectory() as directory:
            path = Path(directory, "options")
            path.write_text("# a comment\n\nAWS_REGION = eu\nAWS_SECRET_ACCESS_KEY=a=b\n")
            found = parse_storage_options([("AWS_REGION", "us")], str(path))
            location = Location.parse("s3://b/x", found)
            assert location.storage_options is not None
            assert location.storage_options["AWS_REGION"] == "us"
            assert location.storage_options["AWS_SECRET_ACCESS_KEY"] == "a=b"
            path.write_text(f"AWS_REGION=eu\n{SECRET}\n")
            with pytest.raises(ConfigurationError, match=r"line 2: expected NAME=VALUE") as caught:
                parse_storage_options([], str(path))
            assert SECRET not in str(caught.value)

    def test_signatures_in_urls_are_not_shown(self) -> None:
        error = OSError("Generic Azure error\n \x1b[31m\u21b3\x1b[0m GET http://a/b?sig=x failed")
        assert first_and_last(error) == "Generic Azure error: GET http://a/b failed"

    def test_a_full_disk_is_the_cause(self) -> None:
        error = OSError(
            "Generic LocalFileSystem error\n \x1b[31m\u21b3\x1b[0m Unable to copy data to file\n"
            " \x1b[31m\u21b3\x1b[0m No space left on device (os error 28)\n"
        )
        location = Location.parse("/srv/t")
        with pytest.raises(StorageError) as found, storage_errors(location):
            raise error
        assert str(found.value) == "/srv/t: No space left on device"
        own = OSError(28, "No space left on device", "/srv/t/x")
        with pytest.raises(OSError, match="No space") as caught, storage_errors(location):
            raise own
        assert caught.value is own

    def test_a_file_that_cannot_be_completed_is_removed(self) -> None:
        path = scratch(self)
        storage = disk_storage(str(path))

        def write_half() -> None:
            with storage.create("a/x") as file:
                file.write(b"half")
                raise OSError(28, "No space left on device")

        with pytest.raises(OSError, match="No space") as caught:
            write_half()
        assert caught.value.filename == str(path / "a/x")
        assert not storage.entries("a")
        with storage.create("a/x") as file:
            file.write(b"whole")
        with pytest.raises(FileExistsError), storage.create("a/x"):
            self.fail("the file was replaced")
        assert (path / "a/x").read_bytes() == b"whole"

    def test_what_another_process_has_removed(self) -> None:
        path = scratch(self)
        storage = disk_storage(str(path))
        storage.remove("none")
        assert storage.entries("none") == []
        assert not storage.exists("none")
        (path / "link").symlink_to("nowhere")
        assert storage.exists("link")
        (link,) = storage.entries("")
        assert (link.is_file, link.is_directory) == (False, False)

    def test_an_error_that_is_none_of_the_system_keeps_its_text(self) -> None:
        """Those of Arrow are such."""
        storage = disk_storage(str(scratch(self)))

        def write() -> None:
            with storage.create("x"):
                raise OSError("the encoder does not support text")

        with pytest.raises(OSError, match=r"^the encoder does not support text$"):
            write()
        assert not storage.entries("")

    def test_a_copy_where_there_are_no_links_is_durable_or_not_there(self) -> None:
        path = scratch(self)
        storage = disk_storage(str(path))
        (path / "old").write_bytes(b"rows" * 5_000_000)
        synced: list[int] = []
        none = OSError(errno.EPERM, "Operation not permitted")
        with patch("os.link", side_effect=none), patch("os.fsync", synced.append):
            storage.duplicate("old", "a/new")
            full = OSError(errno.ENOSPC, "No space left on device")
            with (
                patch("os.fsync", side_effect=full),
                pytest.raises(OSError, match="No space") as caught,
            ):
                storage.duplicate("old", "a/other")
        assert caught.value.filename == str(path / "a/other")
        assert len(synced) == 1
        assert [entry.name for entry in storage.entries("a")] == ["new"]
        assert (path / "a/new").read_bytes() == (path / "old").read_bytes()
        storage.duplicate("old", "b/new")
        assert os.path.samefile(path / "old", path / "b/new")
