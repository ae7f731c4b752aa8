"""The location of a table: a directory of this machine, or the URL of one in an object store."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit
from urllib.request import url2pathname

from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from pubsub.errors import ConfigurationError, PubSubError
from pubsub.wire.text_file import read_text

StorageOptions = tuple[tuple[str, str], ...]
"""Names and values of options of an object store, such as credentials."""

_SCHEMES = ("s3", "s3a", "gs", "abfs", "abfss", "az")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
# The library would try for three minutes.
_RETRIES = (("max_retries", "5"), ("retry_timeout", "30s"))
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Signatures of requests are in the query of a URL.
_QUERY = re.compile(r"\?\S*")
# The numbers of errors of the system, as the library shows them.
_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)|\bOs \{ code: (\d+),")
# The texts of S3 for a request that it refuses.
_REPLY = re.compile(r"<Code>([^<\n]*)</Code>\s*(?:<Message>([^<\n]*)</Message>)?")


class StorageError(PubSubError):
    """A failure of the object store, or of the disk, in one line."""

    reason = "storage"


@dataclass(frozen=True, slots=True)
class Location:
    """The directory of a table: an absolute path, or a URL with the options of its store."""

    url: str
    options: StorageOptions = field(default=(), repr=False)

    @classmethod
    def parse(cls, text: str, options: StorageOptions = ()) -> Location:
        """Return the location that a path or URL names. Raises ConfigurationError."""
        match = _URL.match(text)
        if match is None:
            return cls(os.path.abspath(text), options)
        parts = urlsplit(text)
        if match[1] == "file":
            if parts.netloc not in ("", "localhost"):
                raise ConfigurationError(f"{text}: the directory is on another machine")
            return cls(os.path.abspath(url2pathname(parts.path)), options)
        if match[1] not in _SCHEMES or not parts.netloc:
            raise ConfigurationError(
                f"{text}: expected a directory, or a URL such as s3://BUCKET/PATH, "
                "gs://BUCKET/PATH or abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH"
            )
        return cls(text.rstrip("/"), options)

    def __str__(self) -> str:
        return self.url

    @classmethod
    def of(cls, where: str | Location) -> Location:
        """Return ``where``, or the location that a path or URL names."""
        return where if isinstance(where, Location) else cls.parse(where)

    @property
    def is_local(self) -> bool:
        """Whether the directory is in the file system."""
        return _URL.match(self.url) is None

    @property
    def storage_options(self) -> dict[str, str] | None:
        """The options as deltalake takes them."""
        return None if self.is_local else dict([*_RETRIES, *self.options])


def parse_storage_options(pairs: list[tuple[str, str]], file: str | None) -> StorageOptions:
    """Return the options of the command line, which come after those of ``file``.

    The file has a line NAME=VALUE for each option; lines that begin with # are comments. Raises
    ConfigurationError, without the text of the line, as it may be a secret.
    """
    found: list[tuple[str, str]] = []
    lines = read_text(file).splitlines() if file else []
    for number, line in enumerate(lines, 1):
        name, equals, value = line.strip().partition("=")
        if not name or name.startswith("#"):
            continue
        if not equals:
            raise ConfigurationError(f"{file}: line {number}: expected NAME=VALUE")
        found.append((name.strip(), value.strip()))
    return (*found, *pairs)


def table_location(options: argparse.Namespace) -> Location:
    """Return the table that the command line of a command reads."""
    found = parse_storage_options(options.storage_option, options.storage_options_file)
    return Location.parse(options.table, found)


def target_location(options: argparse.Namespace, where: str | None = None) -> Location:
    """Return the table that the command line of a job writes, or ``where``.

    Raises ConfigurationError without a checkpoint for a table in an object store.
    """
    found = parse_storage_options(options.storage_option, options.storage_options_file)
    location = Location.parse(where or options.to, found)
    if not location.is_local and options.checkpoint is None:
        raise ConfigurationError(
            f"{location}: option --checkpoint is required, as Spark keeps it in a file system"
        )
    return location


@contextmanager
def storage_errors(location: Location) -> Iterator[None]:
    """Raise StorageError, in one line, for the errors of an object store, and of the system.

    Other errors of a file system, commits that lost against other writers, and the absence of a
    table are raised unchanged.
    """
    try:
        yield
    except (CommitFailedError, TableNotFoundError):
        raise
    except (OSError, DeltaError) as error:
        if location.is_local:
            cause = system_cause(error)
            if cause is None:
                raise
            raise StorageError(f"{location}: {cause}") from None
        raise StorageError(
            f"{location}: the object store fails: {first_and_last(error)}; check the URL, the "
            "network, the credentials and --storage-option"
        ) from None


def system_cause(error: BaseException) -> str | None:
    """Return the error of the system, such as a full disk, within one of deltalake, if any."""
    match = _SYSTEM_ERROR.search(str(error))
    return None if match is None else os.strerror(int(match[1] or match[2]))


def first_and_last(error: BaseException) -> str:
    """Return the first and the last part of an error of deltalake, which has a part in a line.

    The parts between have URLs and the number of retries.
    """
    plain = _COLOUR.sub("", str(error))
    reply = _REPLY.search(plain)
    if reply is not None:
        # The rest of the reply can have the key and the signed text.
        return f"{reply[1]}: {reply[2] or ''}".rstrip(".: ")
    lines = [_QUERY.sub("", line.strip(" \u21b3.")) for line in plain.splitlines()]
    parts = list(filter(None, lines)) or [type(error).__name__]
    return ": ".join(dict.fromkeys([parts[0], parts[-1]]))
