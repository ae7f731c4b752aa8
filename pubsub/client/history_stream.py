"""A reply of the HTTP API with messages: an Arrow IPC stream, read as it arrives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TypeAlias

import pyarrow as pa
import pyarrow.ipc
import urllib3
from urllib3.exceptions import HTTPError

BatchOrGap: TypeAlias = pa.RecordBatch | tuple[int, int]
"""Messages, or a damaged range of offsets (start, stop)."""
# The end-of-stream marker of an Arrow IPC stream. Arrow accepts a stream without one.
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


class _BodyFile:
    """A response as a file for Arrow; ``last`` holds its last bytes."""

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
        """Do nothing: the caller closes the response."""


def items_of(response: urllib3.BaseHTTPResponse) -> Iterator[tuple[BatchOrGap, int]]:
    """Yield the items of a stream, each with the offset after it."""
    body = _BodyFile(response)
    with pyarrow.ipc.open_stream(body) as reader:
        while True:
            try:
                batch, metadata = reader.read_next_batch_with_custom_metadata()
            except StopIteration:
                if body.last != _END_OF_STREAM:
                    raise HTTPError("the stream ended before its end marker") from None
                # The connection is reusable only after the end of the HTTP body was read.
                response.read()
                return
            if metadata is not None and b"damaged" in metadata:
                start, stop = json.loads(metadata[b"damaged"])
                yield (start, stop), stop
            elif batch.num_rows:
                yield batch, batch["offset"][-1].as_py() + 1
