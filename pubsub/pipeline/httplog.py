"""A broker's log read over its HTTP API, and the client of that as the pipeline uses it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import urllib3

from pubsub.client.history_client import HistoryClient, HistoryError, HistoryUnreachable
from pubsub.pipeline.connector_options import Credentials
from pubsub.pipeline.logs import Damage, Expired, Part, Rejected, TopicSize, Unreachable, WrongLog
from pubsub.pipeline.offsets import Bounds

_EXPIRED = "expired"
# What stands between here and a broker that is started again may say so.
_PASSING = frozenset({502, 504})
_OTHER_LOG = frozenset({"epoch", "beyond-end"})
# How long an answer may be silent.
_SECONDS = 120.0


class Answer(Rejected):
    """An answer that says no, for whoever can make something of its word and details."""

    def __init__(self, message: str, word: str, details: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.word = word
        self.details = details


class Api:
    """One broker's HTTP API. Tokens are sent, and shown nowhere."""

    def __init__(self, url: str, credentials: Credentials) -> None:
        self.url = url
        self._credentials = credentials
        self._pool = urllib3.PoolManager()

    @contextmanager
    def client(self) -> Iterator[HistoryClient]:
        """A client that tries once; its errors become Unreachable, WrongLog, Rejected or Answer."""
        try:
            token = self._credentials.read()
            # Trying again is for the callers, who know for how long.
            yield HistoryClient(self.url, token, attempts=1, seconds=_SECONDS, pool=self._pool)
        except HistoryUnreachable:
            raise Unreachable(f"the broker at {self.url} cannot be reached") from None
        except HistoryError as error:
            text = f"the broker at {self.url}: {error.word}: {error}"
            if error.status in _PASSING:
                raise Unreachable(text) from None
            if error.word in _OTHER_LOG:
                raise WrongLog(f"{text}. It is not the log that was read before") from None
            raise Answer(text, error.word, error.details) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            # Not the error's own words, which could be the token's.
            kind = type(error).__name__
            raise Rejected(f"the broker at {self.url}, or the token for it: {kind}") from None


class HttpLog:
    """See ``Log``."""

    def __init__(self, url: str, credentials: Credentials) -> None:
        self._api = Api(url, credentials)

    def bounds(self, timestamp: int | None = None) -> Bounds:
        """See ``Log``."""
        with self._api.client() as client:
            found = client.bounds(timestamp)
            at = found.next if found.offset is None else found.offset
            return Bounds(found.first, found.next, found.epoch, at)

    def topics(self, start: int, stop: int) -> list[TopicSize]:
        """See ``Log``."""
        with self._api.client() as client:
            found = client.topics(start, stop)
            return [TopicSize(name, one["messages"], one["bytes"]) for name, one in found.items()]

    def read(
        self, start: int, stop: int, topics: frozenset[str] | None, headers: bool, epoch: str
    ) -> Iterator[Part]:
        """See ``Log``."""
        try:
            with self._api.client() as client:
                for part in client.read(start, stop, topics, headers=headers, epoch=epoch):
                    yield part if isinstance(part, pa.RecordBatch) else Damage(*part)
        except Answer as answer:
            if answer.word != _EXPIRED:
                raise
            first = int(answer.details["first"])
            yield Expired(first)
            if first < stop:
                yield from self.read(first, stop, topics, headers, epoch)

    def check(self, position: int, epoch: str) -> None:
        """See ``Log``."""
        try:
            with self._api.client() as client:
                next(client.read(position, epoch=epoch), None)
        except Answer as answer:
            # What has expired has been of this log.
            if answer.word != _EXPIRED:
                raise

    def report(self, reader: str, position: int, epoch: str) -> None:
        """See ``Log``."""
        with self._api.client() as client:
            client.report(reader, position, epoch)
