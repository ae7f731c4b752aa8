"""A blocking client of the HTTP API, for programs and for tasks of Spark.

    history = HistoryClient("http://127.0.0.1:7080")
    for part in history.read(history.bounds().first, topics=["orders"]):
        ...

It needs the extra ``spark``. Requests whose connection is lost are made again; what was being read
goes on where it stopped.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import quote, urlencode

import pyarrow as pa
import pyarrow.ipc
import urllib3
from urllib3.exceptions import HTTPError

BatchOrGap: TypeAlias = pa.RecordBatch | tuple[int, int]
"""Messages, or a range of offsets (start, stop) that is damaged."""
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 5.0
_TOKEN_PATTERN = re.compile(r"[A-Za-z0-9._~+/=-]+")
# How a stream that is whole ends: Arrow takes any end for a good one.
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
# Answers that may be others in a moment.
_RETRIED_STATUSES = (408, 429, 503)


class HistoryError(Exception):
    """The broker's answer to a request that it does not carry out.

    ``code`` is for programs ("expired", "unknown-part" and so on), ``details`` is the whole
    answer; ``status`` is HTTP's.
    """

    def __init__(self, status: int, details: Mapping[str, Any]) -> None:
        super().__init__(f"{details.get('message', '')} (HTTP {status})")
        self.status = status
        self.code = str(details.get("error", ""))
        self.details = details


class HistoryUnreachable(Exception):
    """The broker could not be reached, again and again."""


@dataclass(frozen=True, slots=True)
class HistoryBounds:
    """The log: its first offset, the one after its last, and its epoch. ``offset`` is that of the
    time that was asked for."""

    first: int
    next: int
    epoch: str
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader's position. ``updated`` is in µs since the Unix epoch."""

    name: str
    offset: int
    epoch: str
    updated: int
    lag: int


@dataclass(frozen=True, slots=True)
class CommitReply:
    """A batch that is stored, from ``first`` to before ``next``.

    A duplicate was stored before; where is known of the query's last batch only.
    """

    duplicate: bool
    first: int | None = None
    next: int | None = None
    messages: int | None = None


class HistoryClient:
    """A client of the broker at ``url``.

    ``token`` is sent with each request. A request is tried ``attempts`` times, with pauses that
    grow; ``timeout`` is how long an answer may keep silent. ``pool`` brings TLS settings and the
    like.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        attempts: int = 6,
        timeout: float = 60.0,
        pool: urllib3.PoolManager | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._url = url.rstrip("/")
        if token is not None and not _TOKEN_PATTERN.fullmatch(token):
            # Whoever finds out later shows it.
            raise ValueError("the token contains a character that tokens cannot have")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._attempts = attempts
        self._timeout = urllib3.Timeout(connect=min(timeout, 10.0), read=timeout)
        self._pool = urllib3.PoolManager() if pool is None else pool
        self._sleep = sleep

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    # Reading

    def bounds(self, timestamp: int | None = None) -> HistoryBounds:
        """The log's bounds; ``timestamp`` (µs since the Unix epoch) asks for an offset as well."""
        query = {} if timestamp is None else {"timestamp": timestamp}
        return HistoryBounds(**self._json("GET", "/v1/bounds", query))

    def topics(
        self, start: int | None = None, stop: int | None = None
    ) -> dict[str, dict[str, int]]:
        """Number of messages and bytes of each topic that has any in a range."""
        given = {"start": start, "stop": stop}
        rows = self._json("GET", "/v1/topics", {k: v for k, v in given.items() if v is not None})
        return {
            row["name"]: {"messages": row["messages"], "bytes": row["bytes"]}
            for row in rows["topics"]
        }

    def read(
        self,
        start: int,
        stop: int | None = None,
        topics: Iterable[str] | None = None,
        *,
        headers: bool = False,
        skip_expired: bool = False,
        epoch: str | None = None,
        compression: str = "none",
    ) -> Iterator[BatchOrGap]:
        """The messages from ``start`` to before ``stop``, by default all that are there now.

        Raises HistoryError, for example with the word "expired", or HistoryUnreachable.
        """
        request: dict[str, Any] = {
            "start": start,
            "headers": headers,
            "skip_expired": skip_expired,
            "compression": compression,
        }
        if topics is not None:
            request["topics"] = sorted(topics)
        if stop is not None:
            request["stop"] = stop
        if epoch is not None:
            request["epoch"] = epoch
        failures = 0
        while stop is None or request["start"] < stop:
            try:
                body = json.dumps(request).encode()
                response = self._request_once("POST", "/v1/history", body, True)
                stop = request["stop"] = int(response.headers["Pubsub-Stop"])
                request["epoch"] = response.headers["Pubsub-Epoch"]
                try:
                    for item, next_offset in _items(response):
                        failures = 0
                        request["start"] = next_offset
                        yield item
                finally:
                    # Cut short it cannot be used again; at its end it has been given back.
                    response.close()
                return
            except (HTTPError, OSError, pa.ArrowException) as error:
                failures += 1
                self._delay(failures, error)

    # Positions of readers

    def readers(self) -> list[Reader]:
        """Every reader's position."""
        return [Reader(**row) for row in self._json("GET", "/v1/readers")["readers"]]

    def report_position(self, name: str, offset: int, epoch: str | None = None) -> None:
        """The reader ``name`` has read everything before ``offset``."""
        body: dict[str, Any] = {"offset": offset}
        if epoch is not None:
            body["epoch"] = epoch
        self._json("PUT", f"/v1/readers/{quote(name, safe='')}", body=body)

    def delete_reader(self, name: str) -> None:
        """The reader ``name`` is no more."""
        self._json("DELETE", f"/v1/readers/{quote(name, safe='')}")

    # Writing

    def stage(self, query: str, batch: int, data: pa.Table | pa.RecordBatch, run: str = "") -> str:
        """Leave messages with the broker until ``commit``; returns the part's id.

        Parts of other runs of the query are dropped: whoever made them is gone.
        Columns: topic and value, and perhaps key and headers. Raises HistoryError.
        """
        sink = pa.BufferOutputStream()
        with pyarrow.ipc.new_stream(sink, data.schema) as writer:
            writer.write(data)
        body = sink.getvalue().to_pybytes()
        request = {"query": query, "batch": batch, **({"run": run} if run else {})}
        path = f"/v1/stage?{urlencode(request)}"
        part: str = self._request_json(path, body)["part"]
        return part

    def commit(self, query: str, batch: int, parts: Iterable[str]) -> CommitReply:
        """Publish all of these parts, in their order; returns when they are on disk.

        Doing it again, for whatever reason, publishes nothing again. Raises HistoryError, with
        the word "unknown-part" if the batch has to be staged again.
        """
        body = {"query": query, "batch": batch, "parts": list(parts)}
        return CommitReply(**self._json("POST", "/v1/commit", body=body))

    def abort(self, query: str, batch: int) -> None:
        """Drop the parts of a batch."""
        self._json("POST", "/v1/abort", body={"query": query, "batch": batch})

    # Requests

    def _json(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: Mapping[str, object] | None = None,
    ) -> Any:
        if query:
            path = f"{path}?{urlencode(query)}"
        return self._request_json(path, None if body is None else json.dumps(body).encode(), method)

    def _request_json(self, path: str, body: bytes | None, method: str = "POST") -> Any:
        for failures in range(1, self._attempts + 1):
            try:
                response = self._request_once(method, path, body)
                return json.loads(response.data) if response.data else None
            except (HTTPError, OSError) as error:
                self._delay(failures, error)
        raise AssertionError("the last failure is raised")

    def _request_once(
        self, method: str, path: str, body: bytes | None, stream: bool = False
    ) -> urllib3.BaseHTTPResponse:
        """One answer that is not an error; raises HistoryError, or HTTPError for `try again`."""
        response = self._pool.request(
            method,
            self._url + path,
            body=body,
            headers=self._headers,
            timeout=self._timeout,
            retries=False,
            redirect=False,
            preload_content=not stream,
        )
        if response.status < 300:
            return response
        try:
            details = json.loads(response.data)
        except ValueError:
            details = {}
        error = HistoryError(response.status, details if isinstance(details, dict) else {})
        if response.status in _RETRIED_STATUSES:
            raise HTTPError(str(error))
        raise error

    def _delay(self, failures: int, error: Exception) -> None:
        if failures >= self._attempts:
            raise HistoryUnreachable(f"{self._url} cannot be reached: {error}") from error
        self._sleep(min(_FIRST_DELAY * 2 ** (failures - 1), _LONGEST_DELAY))


class _BodyFile:
    """What Arrow reads from; ``last`` is how it ended."""

    closed = False

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response
        self.last = b""

    def read(self, size: int | None = None) -> bytes:
        """See io.RawIOBase."""
        data = self._response.read(size)
        self.last = (self.last + data[-len(_END_OF_STREAM) :])[-len(_END_OF_STREAM) :]
        return data

    def close(self) -> None:
        """The response is closed by whoever opened it."""


def _items(response: urllib3.BaseHTTPResponse) -> Iterator[tuple[BatchOrGap, int]]:
    """What a stream holds, and up to which offset that goes."""
    body = _BodyFile(response)
    with pyarrow.ipc.open_stream(body) as reader:
        while True:
            try:
                batch, metadata = reader.read_next_batch_with_custom_metadata()
            except StopIteration:
                if body.last != _END_OF_STREAM:
                    raise HTTPError("the stream ended before its end marker") from None
                # The connection can be used again when HTTP's own end has been read.
                response.read()
                return
            if metadata is not None and b"damaged" in metadata:
                start, stop = json.loads(metadata[b"damaged"])
                yield (start, stop), stop
            elif batch.num_rows:
                yield batch, batch["offset"][-1].as_py() + 1
