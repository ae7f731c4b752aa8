"""A broker's log read over its HTTP API, as a stream of Arrow record batches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import quote

import pyarrow as pa
import urllib3

from pubsub.pipeline.api import Answer, Api
from pubsub.pipeline.logs import Damage, Expired, Part, TopicSize
from pubsub.pipeline.offsets import Bounds
from pubsub.pipeline.options import Credentials

_GONE = 410
# How an Arrow stream that is whole ends.
_END = b"\xff\xff\xff\xff\0\0\0\0"


class _Body:
    """What Arrow reads from; remembers how it ended, as Arrow takes any end for a good one."""

    closed = False

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response
        self.last = b""

    def read(self, size: int = -1) -> bytes:
        """See io.RawIOBase."""
        data = self._response.read(None if size < 0 else size)
        self.last = (self.last + data[-len(_END) :])[-len(_END) :]
        return data

    def close(self) -> None:
        """Nothing of its own."""


class HttpLog:
    """See ``Log``."""

    def __init__(self, url: str, credentials: Credentials) -> None:
        self._api = Api(url, credentials)

    @property
    def place(self) -> str:
        """See ``Log``."""
        return self._api.url

    def bounds(self, timestamp: int | None = None) -> Bounds:
        """See ``Log``."""
        query = None if timestamp is None else {"timestamp": timestamp}
        said = self._api.ask("GET", "/v1/bounds", query)
        return Bounds(said["first"], said["next"], said["epoch"], said.get("offset", said["next"]))

    def topics(self, start: int, stop: int) -> list[TopicSize]:
        """See ``Log``."""
        said = self._api.ask("GET", "/v1/topics", {"start": start, "stop": stop})
        return [TopicSize(one["name"], one["messages"], one["bytes"]) for one in said["topics"]]

    def read(
        self, start: int, stop: int, topics: frozenset[str] | None, headers: bool, epoch: str
    ) -> Iterator[Part]:
        """See ``Log``."""
        try:
            response = self._open(start, stop, topics, headers, epoch)
        except Answer as answer:
            if answer.status != _GONE or "first" not in answer.said:
                raise
            first = answer.said["first"]
            yield Expired(first)
            if first < stop:
                yield from self.read(first, stop, topics, headers, epoch)
            return
        with response:
            yield from self._parts(response)

    def _open(
        self, start: int, stop: int, topics: frozenset[str] | None, headers: bool, epoch: str
    ) -> urllib3.BaseHTTPResponse:
        # As a body, since names of topics may be too many for the length of a line.
        asked: dict[str, object] = {"start": start, "stop": stop, "format": "arrow"}
        if topics is not None:
            asked["topics"] = sorted(topics)
        if headers:
            asked["headers"] = True
        if epoch:
            asked["epoch"] = epoch
        return self._api.open("POST", "/v1/history", body=json.dumps(asked).encode())

    def _parts(self, response: urllib3.BaseHTTPResponse) -> Iterator[Part]:
        try:
            body = _Body(response)
            with pa.ipc.open_stream(body) as stream:
                while True:
                    try:
                        batch, metadata = stream.read_next_batch_with_custom_metadata()
                    except StopIteration:
                        break
                    if metadata and b"damaged" in metadata:
                        yield Damage(*json.loads(metadata[b"damaged"]))
                    else:
                        yield batch
                # The end of the body too, or the connection cannot be used again.
                response.drain_conn()
                if body.last != _END:
                    raise self._api.broken("the stream broke off")
        except (urllib3.exceptions.HTTPError, pa.ArrowInvalid, OSError):
            raise self._api.broken("the stream broke off") from None

    def check(self, position: int, epoch: str) -> None:
        """See ``Log``."""
        try:
            self._open(position, position, None, False, epoch).drain_conn()
        except Answer as answer:
            # What has expired has been of this log.
            if answer.status != _GONE:
                raise

    def report(self, reader: str, position: int, epoch: str) -> None:
        """See ``Log``."""
        body = json.dumps({"offset": position, "epoch": epoch}).encode()
        self._api.ask("PUT", f"/v1/readers/{quote(reader, safe='')}", body=body)
