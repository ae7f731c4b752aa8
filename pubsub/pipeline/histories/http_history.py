"""A history read over HTTP, and the HTTP client of the pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import BadStatusLine, RemoteDisconnected
from typing import Any

import pyarrow as pa
import urllib3

from pubsub.client.history_client import (
    HistoryBounds,
    HistoryClient,
    HistoryError,
    HistoryUnreachable,
)
from pubsub.pipeline.histories.history import (
    BatchOrGap,
    DamagedRange,
    ExpiredBefore,
    HistoryRefused,
    PartitionBounds,
    ReaderInUse,
    TopicSize,
    Unreachable,
    WrongHistory,
)
from pubsub.pipeline.options.connector_options import Credentials
from pubsub.wire.connect_errors import why_not
from pubsub.wire.foreign_protocols import status_problem

SOURCE, SINK = "source", "sink"
_EXPIRED, _READER_IN_USE, _NOT_FOUND = "expired", "reader-in-use", "not-found"
_UNAUTHORIZED = 401
_OTHER_HISTORY_CODES = frozenset({"epoch", "beyond-end"})
_ELSEWHERE_CODES = frozenset({_EXPIRED, "position-unknown"})
# Longest wait for data of a reply, in seconds.
_TIMEOUT = 120.0


class ErrorReply(HistoryRefused):
    """An error reply of the broker, with its code and details."""

    def __init__(self, message: str, code: str, details: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.code = code
        self.details = details
        self.elsewhere = code in _ELSEWHERE_CODES


class HttpApi:
    """The HTTP API of one broker. Tokens are sent and appear in no message.

    ``side`` is SOURCE or SINK, which errors name: a query may have a token for each. ``running``:
    the broker has accepted the token of this query before.
    """

    def __init__(
        self, url: str, credentials: Credentials, side: str, running: bool = False
    ) -> None:
        self.url = url
        self._running = running
        self._side = side
        self._credentials = credentials
        self._pool = urllib3.PoolManager()

    @contextmanager
    def client(self) -> Iterator[HistoryClient]:
        """Yield a client that tries each request once.

        Its errors become Unreachable, WrongHistory, Rejected or ErrorReply.
        """
        token = self._token()
        try:
            # The callers retry, as they know how long to try.
            client = HistoryClient(self.url, token, attempts=1, timeout=_TIMEOUT, pool=self._pool)
        except ValueError as error:
            # The text does not show the token.
            raise self._refused_token(f"{self._side}: {error}") from None
        try:
            yield client
            self._running = True
        except HistoryUnreachable as error:
            raise Unreachable(
                f"{self._side}: the broker at {self.url} cannot be reached: "
                f"{_root_cause(error, self.url.startswith('https:'))}"
            ) from None
        except HistoryError as error:
            text = f"{self._side}: the broker at {self.url}: {error.code}: {error}"
            if error.status == _UNAUTHORIZED and token is not None:
                raise self._refused_token(text) from None
            if error.code in _OTHER_HISTORY_CODES:
                raise WrongHistory(
                    f"{text}; it is not the history that was read before: use a new checkpoint"
                ) from None
            raise ErrorReply(text, error.code, error.details) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            # The text of the error could contain the token.
            kind = type(error).__name__
            raise HistoryRefused(
                f"{self._side}: the request to {self.url} failed: {kind}"
            ) from None

    def _token(self) -> str | None:
        try:
            token = self._credentials.read()
        except OSError as error:
            cause = f"{error.filename}: {error.strerror}"
        else:
            if token or self._credentials.file is None:
                return token
            cause = f"{self._credentials.file}: the file is empty"
        raise self._refused_token(f"{self._side}: the token cannot be read: {cause}")

    def _refused_token(self, text: str) -> Unreachable | HistoryRefused:
        """Return the error for a token that is not valid, which says how to renew it.

        While a query runs, its file can be renewed late, and an issuer can change its keys before
        the broker has fetched them. Therefore the error is one to try again then.
        """
        file = self._credentials.file
        if file is None:
            return HistoryRefused(f"{text}; give another token, or use tokenFile to renew it")
        found = f"{text}; write a valid token to {file}"
        return Unreachable(found) if self._running else HistoryRefused(found)


def _root_cause(error: BaseException, is_tls: bool) -> str:
    """Return the first failure, such as "connection refused", or the text of a status."""
    inner = error.__cause__ or next((one for one in error.args if isinstance(one, Exception)), None)
    if inner is not None:
        return _root_cause(inner, is_tls)
    if isinstance(error, BadStatusLine) and not isinstance(error, RemoteDisconnected):
        # The reply of another protocol is not shown.
        return status_problem(str(error.args[0]), is_tls)
    return why_not(error).strip() if isinstance(error, Exception) else str(error)


class HttpHistory:
    """Implements ``History``."""

    def __init__(
        self, url: str, credentials: Credentials, side: str = SOURCE, running: bool = False
    ) -> None:
        self._api = HttpApi(url, credentials, side, running)

    def bounds(self, timestamp: int | None = None) -> PartitionBounds:
        """See ``History``."""
        with self._api.client() as client:
            found = client.bounds(timestamp)
            offset = found.next if found.offset is None else found.offset
            return PartitionBounds(found.first, found.next, found.epoch, offset)

    @property
    def url(self) -> str:
        """The URL of the broker."""
        return self._api.url

    def shared_bounds(
        self,
        shared: str,
        timestamp: int | None = None,
        at: int | None = None,
        begin: str | None = None,
        skip_expired: bool = False,
    ) -> HistoryBounds:
        """Return the bounds with a shared position; see ``HistoryClient.bounds``.

        Raises WrongHistory if the broker does not share the history that ``shared`` identifies.
        """
        with self._api.client() as client:
            found = client.bounds(timestamp, at=at, begin=begin, skip_expired=skip_expired)
        self._check_shared(found, shared)
        return found

    def _check_shared(self, found: HistoryBounds, shared: str) -> None:
        if found.shared == shared and found.position is not None:
            return
        if found.position is not None and not found.shared:
            raise Unreachable(f"the broker at {self.url} has not found the others yet")
        raise WrongHistory(
            f"source: the broker at {self.url} does not share the history of the others"
        )

    def identity(self) -> str:
        """Return the identity of the history that the broker shares; empty if it shares none."""
        with self._api.client() as client:
            found = client.bounds()
        if found.position is not None and not found.shared:
            raise Unreachable(f"the broker at {self.url} has not found the others yet")
        return found.shared

    def read_between(
        self,
        shared: str,
        since: str,
        until: str,
        topics: frozenset[str] | None,
        headers: bool,
        skip_expired: bool = False,
        start: tuple[int, str] | None = None,
    ) -> Iterator[BatchOrGap]:
        """Read the messages between two shared positions; see ``HistoryClient.read_between``.

        Raises WrongHistory if the broker does not share the history that ``shared`` identifies.
        """
        self.shared_bounds(shared)
        with self._api.client() as client:
            for item in client.read_between(
                since, until, topics, headers=headers, skip_expired=skip_expired, start=start
            ):
                yield item if isinstance(item, pa.RecordBatch) else DamagedRange(*item)

    def topics(self, start: int, stop: int) -> list[TopicSize]:
        """See ``History``."""
        with self._api.client() as client:
            found = client.topics(start, stop)
            return [
                TopicSize(name, sizes["messages"], sizes["bytes"]) for name, sizes in found.items()
            ]

    def read(
        self, start: int, stop: int, topics: frozenset[str] | None, headers: bool, epoch: str
    ) -> Iterator[BatchOrGap]:
        """See ``History``."""
        try:
            with self._api.client() as client:
                for item in client.read(start, stop, topics, headers=headers, epoch=epoch):
                    yield item if isinstance(item, pa.RecordBatch) else DamagedRange(*item)
        except ErrorReply as reply:
            if reply.code != _EXPIRED:
                raise
            first = int(reply.details["first"])
            yield ExpiredBefore(first)
            if first < stop:
                yield from self.read(first, stop, topics, headers, epoch)

    def cuts(self, start: int, stop: int) -> list[int]:
        """See ``History``."""
        return []

    def check(self, position: int, epoch: str) -> None:
        """See ``History``."""
        try:
            with self._api.client() as client:
                next(client.read(position, epoch=epoch), None)
        except ErrorReply as reply:
            # An expired position belongs to this history.
            if reply.code != _EXPIRED:
                raise

    def hold_reader(self, reader: str, holder: str) -> float:
        """See ``LeasedHistory``."""
        try:
            with self._api.client() as client:
                return client.hold_reader(reader, holder)
        except ErrorReply as reply:
            if reply.code == _READER_IN_USE:
                raise ReaderInUse(str(reply), float(reply.details["seconds"])) from None
            if reply.code == _NOT_FOUND:
                # A broker of an earlier version.
                return 0
            raise

    def release_reader(self, reader: str, holder: str) -> None:
        """See ``LeasedHistory``."""
        with self._api.client() as client:
            client.release_reader(reader, holder)

    def report_position(
        self, reader: str, position: int, epoch: str, quiet: tuple[int, str] | None = None
    ) -> bool:
        """See ``History``."""
        with self._api.client() as client:
            client.report_position(reader, position, epoch, quiet=quiet)
        return True

    def quiet_until(self, reader: str, start: int, topics: str) -> int | None:
        """See ``History``."""
        with self._api.client() as client:
            found = [
                one.offset
                for one in client.readers()
                if one.name == reader and one.quiet == (start, topics)
            ]
        return max(found, default=None)
