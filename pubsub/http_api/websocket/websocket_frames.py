"""The subprotocol ``pubsub.v1.json``: requests, replies and messages in WebSocket frames. Sans-IO.

A text frame has a JSON object. A binary frame has one too, after its length (u32, big-endian), and
then the payload of a message: the object has no member ``value`` in that case. Several messages are
in one binary frame if the object has their ``sizes``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from math import isfinite
from operator import sub
from typing import TYPE_CHECKING, Any

from pubsub.broker.routing.batch_rows import BatchRows
from pubsub.broker.routing.encoders import RowEncoding
from pubsub.http_api.reading.message_rows import headers_row, rows_of
from pubsub.http_api.requests.json_input import parse_json
from pubsub.http_api.requests.parameters import invalid
from pubsub.kernel import Columns, RowField

if TYPE_CHECKING:
    from pubsub.broker.routing.batch import Batch
    from pubsub.http_api.requests.api_error import ApiError
    from pubsub.kernel.interpreted import RowTemplate

SUBPROTOCOL = "pubsub.v1.json"
_TEXT, _BINARY = 0x81, 0x82
_LENGTH = struct.Struct(">I")
# Consecutive messages of one of several topics that have a frame together: that of fewer takes
# longer to write than a frame for each.
_RUN_MESSAGES = 20
# Messages and bytes of payload in a frame, at most, unless one is larger.
_BATCH_MESSAGES, _BATCH_BYTES = 1_000, 64 * 1024
_MEDIUM, _LONG = struct.Struct(">BBH"), struct.Struct(">BBQ")


def frame(first: int, data: bytes) -> bytes:
    """Return an unmasked final frame with this first byte (RFC 6455, section 5.2)."""
    size = len(data)
    if 126 <= size < 65_536:
        return _MEDIUM.pack(first, 126, size) + data
    if size < 126:
        return bytes((first, size)) + data
    return _LONG.pack(first, 127, size) + data


def text(value: object) -> bytes:
    """Return the frame of an object."""
    # In ASCII: an id may have lone surrogates, which UTF-8 cannot express.
    return frame(_TEXT, json.dumps(value).encode())


PING = frame(0x89, b"")


def reply(id: object, members: dict[str, object]) -> bytes:
    """Return the frame that answers the request ``id``."""
    return text({"id": id, "ok": members})


def refusal(id: object, error: ApiError) -> bytes:
    """Return the frame that refuses the request ``id``, which is None if it is not known."""
    return text({"id": id, "error": error.members()})


def is_utf8(data: bytes) -> bool:
    """Return whether ``data`` can be a text message."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def request_of(data: bytes, binary: bool) -> tuple[dict[str, Any], bytes | None]:
    """Return the object of a message, and the payload of a binary one.

    Raises ApiError.
    """
    payload = None
    if binary:
        if len(data) < _LENGTH.size or len(data) - _LENGTH.size < _LENGTH.unpack_from(data)[0]:
            raise invalid("a binary frame is shorter than its length says")
        end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
        data, payload = data[_LENGTH.size : end], data[end:]
    try:
        found = parse_json(data)
    except (ValueError, RecursionError):
        raise invalid("expected a JSON object") from None
    if not isinstance(found, dict):
        raise invalid("expected a JSON object")
    return found, payload


def id_of(request: dict[str, Any]) -> str | float | None:
    """Remove and return the id of a request; raises ApiError."""
    id: str | float | bool | None = request.pop("id", None)
    # A boolean is an int in Python, but not in JSON.
    if not isinstance(id, bool) and (
        id is None or isinstance(id, str | int) or (isinstance(id, float) and isfinite(id))
    ):
        return id
    raise invalid("id: expected text or a number")


@dataclass(frozen=True, slots=True)
class FrameEncoding(RowEncoding):
    """See ``RowEncoding``: a frame for each message, the same for all that subscribe alike."""

    headers: bool
    binary: bool
    run: int

    def rows(self, batch: Batch, names: list[bytes | None]) -> tuple[bytes, int]:
        """See ``RowEncoding``."""
        before: RowTemplate = bytes((_TEXT,)), RowField.FRAME, b'{"message": '
        after: RowTemplate = (b"}",)
        if self.binary:
            before = bytes((_BINARY,)), RowField.FRAME, RowField.LENGTH, b'{"message": '
            after = b"}", RowField.PAYLOAD
        has_value = not self.binary
        return rows_of(batch, names, self.run, self.headers, before, after, has_value)


@dataclass(frozen=True, slots=True)
class BatchEncoding(RowEncoding):
    """See ``RowEncoding``: consecutive messages share a frame, of one topic unless ``mixed``."""

    headers: bool
    run: int
    mixed: bool = False

    def rows(self, batch: Batch, names: list[bytes | None]) -> tuple[bytes, int]:
        """See ``RowEncoding``."""
        if batch.rows is not None:
            return self._row_frames(batch, batch.rows, names)
        if batch.count == 1:
            return self._alone(batch, names)
        if len(names) == 1 and names[0] is not None:
            return self._frames(batch, names), batch.count
        if self.mixed:
            return self._mixed_frames(batch, names)
        parts: list[bytes] = []
        count = begin = at = 0
        for index, run in groupby(batch.columns.indexes()):
            stop = at + len(list(run))
            if stop - at >= _RUN_MESSAGES and names[index] is not None:
                data, number = self._alone(batch.slice(begin, at), names)
                parts += data, self._frames(batch.slice(at, stop), names)
                count += number + stop - at
                begin = stop
            at = stop
        data, number = self._alone(batch.slice(begin, at), names)
        return b"".join((*parts, data)), count + number

    def _row_frames(
        self, batch: Batch, rows: BatchRows, names: list[bytes | None]
    ) -> tuple[bytes, int]:
        found: list[tuple[bytes, int]] = []
        for alike, part in _parts(batch, rows, self.mixed):
            if not alike:
                found.append(self._alone(part, names))
            elif part.rows is None:
                found.append(self.rows(part, names))
            else:
                found.append(self._mixed_frames(part, names))
        return b"".join([data for data, _ in found]), sum([count for _, count in found])

    def _alone(self, batch: Batch, names: list[bytes | None]) -> tuple[bytes, int]:
        return FrameEncoding(self.headers, True, self.run).rows(batch, names)

    def _frames(self, batch: Batch, names: list[bytes | None]) -> bytes:
        """Return messages of one topic."""
        frames = [
            self._frame(batch.slice(start, stop), names) for start, stop in _pieces(batch.columns)
        ]
        return b"".join(frames)

    def _frame(self, batch: Batch, names: list[bytes | None]) -> bytes:
        if batch.count == 1:
            return self._alone(batch, names)[0]
        return self._joined(batch, batch.columns, range(batch.count), names)

    def _mixed_frames(self, batch: Batch, names: list[bytes | None]) -> tuple[bytes, int]:
        """Return messages of several topics, in frames with the topic of each message."""
        columns, places = batch.columns, range(batch.count)
        indexes: Sequence[int] = columns.indexes()
        if None in names:
            kept = [place for place in places if names[indexes[place]] is not None]
            columns = columns.remap([at if name else -1 for at, name in enumerate(names)])
        else:
            kept = list(places)
        offsets = batch.offsets()
        frames = [
            self._mixed_frame(batch, columns.slice(start, stop), kept[start:stop], names, offsets)
            for start, stop in _pieces(columns)
        ]
        return b"".join(frames), len(kept)

    def _mixed_frame(
        self,
        batch: Batch,
        columns: Columns,
        places: Sequence[int],
        names: list[bytes | None],
        offsets: Sequence[int],
    ) -> bytes:
        if len(places) == 1:
            return self._alone(batch.slice(places[0], places[0] + 1), names)[0]
        indexes = columns.indexes()
        order = {index: number for number, index in enumerate(dict.fromkeys(indexes))}
        more = b', "topics": [%b], "indexes": %b' % (
            b", ".join([names[index] or b"" for index in order]),
            _numbers([order[index] for index in indexes]),
        )
        own = [offsets[place] for place in places]
        if batch.has_place and own[-1] - own[0] >= len(own):
            more += b', "offsets": %b' % _numbers(own)
        return self._joined(batch, columns, places, names, more)

    def _joined(
        self,
        batch: Batch,
        columns: Columns,
        places: Sequence[int],
        names: list[bytes | None],
        more: bytes = b"",
    ) -> bytes:
        """Return the messages of ``batch`` at ``places``, which are ``columns``, in a frame."""
        first = batch.slice(places[0], places[0] + 1)
        row, _ = rows_of(first, names, self.run, with_headers=False, with_value=False)
        members = b'%b, "sizes": %b%b' % (row[:-1], _numbers(columns.sizes()), more)
        if self.headers and batch.headers is not None:
            each = [headers_row(batch.headers[place]) for place in places]
            members += b', "headers": [%b]' % b", ".join(each)
        return _binary_frame(b'{"batch": %b}}' % members, columns.pack()[0])


def _parts(batch: Batch, rows: BatchRows, mixed: bool) -> Iterator[tuple[bool, Batch]]:
    """Yield messages that a frame may have together, and those between them that have one each.

    The flag tells which. All messages of a frame have one sender and time and, unless ``mixed``,
    one row; their numbers increase as their offsets do.
    """
    places = range(len(rows.counts))
    each: Sequence[object] = places
    if mixed:
        ids = map(sub, rows.sequences, rows.offsets)
        each = list(zip(rows.timestamps, rows.senders, ids, strict=True))
    ends = [0, *accumulate(rows.counts)]
    groups = [tuple(group) for _, group in groupby(places, each.__getitem__)]
    for alike, same in groupby(groups, lambda group: ends[group[-1] + 1] - ends[group[0]] > 1):
        several = list(same)
        for some in several if alike else [(several[0][0], several[-1][-1])]:
            at, stop = some[0], some[-1] + 1
            part = replace(batch, columns=batch.columns.slice(ends[at], ends[stop]))
            part.take(BatchRows(*[values[at:stop] for values in rows]))  # type: ignore[arg-type]
            yield alike, part


def _pieces(columns: Columns) -> Iterator[tuple[int, int]]:
    """Yield where the messages of each frame begin and end."""
    count, start, nbytes = columns.count, 0, 0
    if columns.nbytes > _BATCH_BYTES:
        for at, size in enumerate(columns.sizes()):
            if start < at and (at - start == _BATCH_MESSAGES or nbytes + size > _BATCH_BYTES):
                yield start, at
                start, nbytes = at, 0
            nbytes += size
        yield start, count
        return
    for at in range(0, count, _BATCH_MESSAGES):
        yield at, min(at + _BATCH_MESSAGES, count)


def _numbers(values: Sequence[int]) -> bytes:
    return str(values).encode()


def _binary_frame(head: bytes, payload: bytes) -> bytes:
    return frame(_BINARY, _LENGTH.pack(len(head)) + head + payload)
