"""A blocking client of the HTTP API, for programs and for Spark tasks.

    history = HistoryClient("http://127.0.0.1:7080")
    for item in history.read(history.bounds().first, topics=["orders"]):
        ...

The module needs the extra ``arrow``. The client repeats requests whose connection is lost and
continues an interrupted read at the offset that it has reached.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import pyarrow as pa
import pyarrow.ipc
import urllib3
from urllib3.exceptions import HTTPError

from pubsub.client.history_replies import (
    CommitLimits,
    CommitReply,
    HistoryBounds,
    HistoryError,
    HistoryUnreachable,
    Reader,
    body_of,
    end_of,
    reader_of,
    reply_of,
)
from pubsub.client.history_stream import BatchOrGap, items_of
from pubsub.client.request_checks import names_of
from pubsub.wire.url_list import split_urls

__all__ = [
    "CommitLimits", "CommitReply", "HistoryBounds", "HistoryClient", "HistoryError",
    "HistoryUnreachable", "Reader",
]  # fmt: skip

_FIRST_DELAY, _LONGEST_DELAY = 0.1, 5.0
_TOKEN_PATTERN = re.compile(r"[A-Za-z0-9._~+/=-]+")
# Readers in a response, the maximum.
_ROWS = 1000
# HTTP statuses that can change when the request is repeated; a proxy in front of a broker that
# restarts sends 502 and 504.
_RETRIED_STATUSES = (408, 429, 502, 503, 504)


class HistoryClient:
    """A client of the broker at ``url``: of several with commas, the first that answers.

    ``token`` is sent with each request. A request is tried ``attempts`` times, with growing pauses.
    ``timeout`` is the longest wait for data of a reply, in seconds. ``pool`` can carry settings
    such as those of TLS.
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
        # The next one to ask comes first. The one that has answered is the only one.
        self._urls = [each.rstrip("/") for each in split_urls(url)]
        if not all(each.startswith(("http://", "https://")) for each in self._urls):
            raise ValueError("the URL of the HTTP API begins with http:// or https://")
        if token is not None and not _TOKEN_PATTERN.fullmatch(token):
            # Checked here because the error of http.client would show the token.
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

    def bounds(
        self,
        timestamp: int | None = None,
        *,
        at: int | None = None,
        begin: str | None = None,
        skip_expired: bool = False,
    ) -> HistoryBounds:
        """Return the bounds of the history.

        With ``timestamp`` (µs since the Unix epoch), they include the offset of that time. Those of
        a shared history have a shared position: that of the offset ``at``, or of the end of the
        shared messages. All messages before the position ``begin`` are before it; a broker that may
        lack messages behind ``begin`` refuses, unless they are to be skipped.
        """
        skip = 1 if skip_expired else None
        given = {"timestamp": timestamp, "at": at, "from": begin, "skip_expired": skip}
        query = {name: value for name, value in given.items() if value is not None}
        return reply_of(HistoryBounds, self._json("GET", "/v1/bounds", query))

    def topics(
        self, start: int | None = None, stop: int | None = None
    ) -> dict[str, dict[str, int]]:
        """Return the messages and bytes of each topic that has messages in a range of offsets."""
        given = {"start": start or 0, "stop": stop}
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
        """Read the messages from ``start`` to before ``stop``, by default all that exist now.

        Raises HistoryError, for example with the code "expired", or HistoryUnreachable.
        """
        request: dict[str, Any] = {
            "start": start,
            "headers": headers,
            "skip_expired": skip_expired,
            "compression": compression,
        }
        if topics is not None:
            request["topics"] = sorted(names_of(topics))
        if stop is not None:
            request["stop"] = stop
        if epoch is not None:
            request["epoch"] = epoch
        failures = 0
        while stop is None or request["start"] < stop:
            try:
                body = json.dumps(request).encode()
                response = self._request_once("POST", "/v1/history", body, True)
                stop, request["epoch"] = end_of(response)
                request["stop"] = stop
                try:
                    for item, next_offset in items_of(response):
                        failures = 0
                        request["start"] = next_offset
                        yield item
                finally:
                    # Closes a connection whose reply was not read to its end. After the end of the
                    # reply the connection is in the pool again, and this does nothing.
                    response.close()
                return
            except (HTTPError, OSError, pa.ArrowException) as error:
                failures = self._delay(failures + 1, error)

    def read_between(
        self,
        begin: str,
        end: str,
        topics: Iterable[str] | None = None,
        *,
        headers: bool = False,
        skip_expired: bool = False,
        start: tuple[int, str] | None = None,
    ) -> Iterator[BatchOrGap]:
        """Read the messages of a shared history from one shared position to before another one.

        ``start`` is an offset of this broker, and its epoch, before which there are none of them. A
        stream that breaks off is not continued, as another broker has another order: raises
        HistoryUnreachable, or HistoryError.
        """
        request: dict[str, Any] = {
            "from": begin,
            "to": end,
            "headers": headers,
            "skip_expired": skip_expired,
        }
        if topics is not None:
            request["topics"] = sorted(names_of(topics))
        if start is not None:
            request["start"], request["epoch"] = start
        body = json.dumps(request).encode()
        try:
            response = self._request_once("POST", "/v1/history", body, True)
            try:
                for item, _ in items_of(response):
                    yield item
            finally:
                response.close()
        except (HTTPError, OSError, pa.ArrowException) as error:
            raise HistoryUnreachable(f"{self._urls[0]} cannot be reached: {error}") from error

    # Positions of readers

    def readers(self) -> list[Reader]:
        """Return the position of every reader."""
        rows: list[Reader] = []
        query: dict[str, object] = {"limit": _ROWS}
        while True:
            page = self._json("GET", f"/v1/readers?{urlencode(query)}")
            rows += [reader_of(row) for row in page["items"]]
            if page["next"] is None:
                return rows
            query["after"] = page["next"]

    def report_position(
        self,
        name: str,
        offset: int,
        epoch: str | None = None,
        *,
        quiet: tuple[int, str] | None = None,
    ) -> None:
        """Store the position of the reader ``name``, which has read every message before
        ``offset``.

        ``quiet`` is a note for later: an offset from which on the reader had nothing to read, and
        a short text that stands for its topics.
        """
        body: dict[str, Any] = {"offset": offset}
        if quiet is not None:
            body["quiet_from"], body["quiet_topics"] = quiet
        if epoch is not None:
            body["epoch"] = epoch
        self._json("PUT", f"/v1/readers/{quote(name, safe='')}", body=body)

    def delete_reader(self, name: str) -> None:
        """Delete the position of the reader ``name``."""
        self._json("DELETE", f"/v1/readers/{quote(name, safe='')}")

    def hold_reader(self, name: str, holder: str) -> float:
        """Hold the reader ``name`` for ``holder``, and return for how many seconds.

        Raises HistoryError with the code "reader-in-use" while another holds it.
        """
        reply = self._json("PUT", f"/v1/leases/{quote(name, safe='')}", body={"holder": holder})
        return float(reply["seconds"])

    def release_reader(self, name: str, holder: str) -> None:
        """End the lease of ``hold_reader``, if ``holder`` still holds the reader."""
        self._json("DELETE", f"/v1/leases/{quote(name, safe='')}", {"holder": holder})

    # Writing

    def limits(self) -> CommitLimits:
        """Return the limits of commits."""
        return reply_of(CommitLimits, self._json("GET", "/v1/limits"))

    def stage(self, query: str, batch: int, data: pa.Table | pa.RecordBatch, run: str = "") -> str:
        """Stage messages until ``commit`` and return the id of the part.

        The broker drops the parts of other runs of the query, whose processes no longer exist. The
        columns are topic and value, and optionally key and headers. Raises HistoryError.
        """
        sink = pa.BufferOutputStream()
        with pyarrow.ipc.new_stream(sink, data.schema) as writer:
            writer.write(data)
        request = {"query": query, "batch": batch, **({"run": run} if run else {})}
        path = f"/v1/stage?{urlencode(request)}"
        part: str = self._request_json(path, sink.getvalue().to_pybytes())["part"]
        return part

    def commit(
        self, query: str, batch: int, parts: Iterable[str], *, shared: bool = False
    ) -> CommitReply:
        """Publish the parts in this order and return when they are on disk.

        A repeated commit publishes nothing again. Raises HistoryError, with the code "unknown-part"
        if the batch must be staged again. With ``shared`` the batch is published by one of the
        brokers that share a history; "batch-elsewhere" means that another one may have done so.
        """
        body: dict[str, object] = {"query": query, "batch": batch, "parts": list(parts)}
        if shared:
            body["shared"] = True
        return reply_of(CommitReply, self._json("POST", "/v1/commit", body=body))

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
        failures = 0
        while True:
            try:
                return body_of(self._request_once(method, path, body))
            except (HTTPError, OSError) as error:
                failures = self._delay(failures + 1, error)

    def _request_once(
        self, method: str, path: str, body: bytes | None, stream: bool = False
    ) -> urllib3.BaseHTTPResponse:
        """Return a reply that is not an error. Raises HistoryError, or HTTPError for a retry."""
        response = self._pool.request(
            method,
            self._urls[0] + path,
            body=body,
            headers=self._headers,
            timeout=self._timeout,
            retries=False,
            redirect=False,
            preload_content=not stream,
        )
        if response.status not in _RETRIED_STATUSES:
            del self._urls[1:]
        if response.status < 300:
            return response
        try:
            details = json.loads(response.data)
        except (ValueError, RecursionError):
            details = {}
        error = HistoryError(response.status, details if isinstance(details, dict) else {})
        raise HTTPError(str(error)) if response.status in _RETRIED_STATUSES else error

    def _delay(self, failures: int, error: Exception) -> int:
        rounds, in_round = divmod(failures, len(self._urls))
        if rounds >= self._attempts:
            names = " and ".join(self._urls)
            raise HistoryUnreachable(f"{names} cannot be reached: {error}") from error
        self._urls.append(self._urls.pop(0))
        if not in_round:
            self._sleep(min(_FIRST_DELAY * 2 ** (rounds - 1), _LONGEST_DELAY))
        return failures
