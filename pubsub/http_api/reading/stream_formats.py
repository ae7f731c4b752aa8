"""Formats of a history stream: an Arrow IPC stream, or a line of JSON for each message.

All methods run in threads, one after another for each stream.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from twisted.logger import Logger

from pubsub.broker.routing.batch import Batch
from pubsub.http_api.reading.message_rows import names_of, rows_of
from pubsub.http_api.requests.api_error import NOT_IMPLEMENTED, UNAVAILABLE, ApiError
from pubsub.store.reading.joined_runs import decode_joined

if TYPE_CHECKING:
    from pubsub.http_api.reading.follow_formats import FollowEncoding
    from pubsub.http_api.reading.follow_start import HistoryGap
    from pubsub.store.records.parcel import Parcel

log = Logger()
ARROW, JSONL = "application/vnd.apache.arrow.stream", "application/x-ndjson"
DAMAGED = "damaged"
"""Key of a record batch's metadata with the damaged range of offsets, [start, stop]."""


class Format(Protocol):
    """Encodes one stream."""

    content_type: str

    def encode(self, parcel: Parcel) -> bytes:
        """Return the messages of a parcel, then its damaged range."""

    def end(self) -> bytes:
        """Return the bytes that mark the complete end of the stream."""


class JsonLines:
    """Each message as an object; values that are not UTF-8 as base64."""

    content_type = JSONL

    def __init__(self, headers: bool) -> None:
        self._headers = headers

    def encode(self, parcel: Parcel) -> bytes:
        """See Format."""
        lines = [
            rows_of(batch, names_of(batch), batch.run, self._headers, after=(b"\n",))[0]
            for batch in batches_of(parcel)
        ]
        if parcel.damaged is not None:
            lines.append(json.dumps({DAMAGED: parcel.damaged}).encode() + b"\n")
        return b"".join(lines)

    def end(self) -> bytes:
        """See Format: the end of the HTTP response is sufficient."""
        return b""


class StoredMessages:
    """Messages as followers get them, in a response that ends.

    ``gap`` is reported first, and damage at its place in the stream.
    """

    def __init__(self, encoding: FollowEncoding, start: int, gap: HistoryGap | None) -> None:
        self.content_type = encoding.content_type
        self._encoding = encoding
        self._pieces = [] if gap is None else [encoding.notice("gap", **gap._asdict())]
        self._at = start

    def encode(self, parcel: Parcel) -> bytes:
        """See Format."""
        if parcel.first > self._at:
            self._report(self._at, parcel.first, "expired")
        for batch in batches_of(parcel):
            self._pieces.append(self._encoding.messages(batch, names_of(batch))[0])
        if parcel.damaged is not None:
            self._report(*parcel.damaged, "damaged")
        self._at = parcel.stop
        return self.end()

    def _report(self, start: int, stop: int, reason: str) -> None:
        self._pieces.append(self._encoding.notice("gap", start=start, stop=stop, reason=reason))

    def end(self) -> bytes:
        """See Format: the end of the HTTP response is sufficient."""
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


def batches_of(parcel: Parcel) -> Iterator[Batch]:
    """Yield the messages of a parcel in batches, with their run."""
    start, stop = parcel.start, parcel.stop
    for block, topics in parcel.blocks:
        for found in decode_joined(block, topics, _first_shown, start, stop):
            if isinstance(found, Batch):
                yield found
            elif found.last >= start and found.offset < stop:
                low, high = start - found.offset, stop - found.offset
                batch = found.batch().slice(max(low, 0), min(high, found.count))
                batch.run = block.run
                yield batch


def _first_shown(_topic: str) -> int:
    """Return 0: a parcel has no topics that have expired."""
    return 0


class _Sink:
    """A file that collects the bytes that are written to it."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[Any] = []

    def write(self, data: Any) -> int:
        self._parts.append(data)
        return len(data)

    def flush(self) -> None: ...

    def take(self) -> bytes:
        """Return and remove the written bytes."""
        parts, self._parts = self._parts, []
        return b"".join(parts)


class ArrowStream:
    """Record batches; raises ApiError like ``need_arrow``, which is called in a thread before."""

    content_type = ARROW

    def __init__(self, headers: bool, compression: str) -> None:
        self._pyarrow = pyarrow = need_arrow()
        from pubsub.store.reading import arrow

        self._arrow = arrow
        self._headers = headers
        self._sink = _Sink()
        options = pyarrow.ipc.IpcWriteOptions(
            compression=None if compression == "none" else compression
        )
        self._schema = arrow.schema(headers)
        self._writer = pyarrow.ipc.new_stream(
            pyarrow.PythonFile(self._sink, "w"), self._schema, options=options
        )

    def encode(self, parcel: Parcel) -> bytes:
        """See Format."""
        for batch in self._arrow.batches(parcel, self._headers):
            self._writer.write_batch(batch)
        if parcel.damaged is not None:
            empty = self._pyarrow.RecordBatch.from_pylist([], schema=self._schema)
            self._writer.write_batch(empty, {DAMAGED: json.dumps(parcel.damaged)})
        return self._sink.take()

    def end(self) -> bytes:
        """See Format."""
        self._writer.close()
        return self._sink.take()


def has_arrow() -> bool:
    """Return whether ``need_arrow`` need not import anything, nor wait for a thread that does."""
    return hasattr(sys.modules.get("pubsub.store.reading.arrow"), "batches")


def need_arrow() -> Any:
    """Return pyarrow with its module ``ipc``, and import what else needs it; raises ApiError.

    The first call takes long, and needs some 100 MB of address space.
    """
    try:
        import pyarrow
        import pyarrow.ipc

        import pubsub.store.reading.arrow  # noqa: F401
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "pyarrow":
            raise ApiError(
                NOT_IMPLEMENTED,
                "no-arrow",
                "pyarrow is not installed here; install pubsub-broker[arrow] or request "
                "format=jsonl",
            ) from None
        log.warn("http: pyarrow cannot be loaded: {reason}", reason=repr(error))
        raise ApiError(
            UNAVAILABLE,
            "arrow-failed",
            "pyarrow cannot be loaded, for lack of memory or because its installation is damaged; "
            "request format=jsonl",
        ) from None
    return pyarrow
