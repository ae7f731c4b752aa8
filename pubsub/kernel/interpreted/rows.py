"""Messages as rows of text, such as lines of JSON, or frames that have them."""

from __future__ import annotations

from array import array
from base64 import b64encode
from collections.abc import Iterable, Sequence
from json.encoder import encode_basestring
from typing import TypeAlias

from pubsub.kernel.interpreted.columns import Columns
from pubsub.kernel.interpreted.texts import is_plain
from pubsub.kernel.layout import RowField

RowTemplate: TypeAlias = tuple[bytes | RowField, ...]
"""The pieces of rows, in order: fields, and bytes that all rows have."""
_MAX_PIECES = 24
_ID = 2**48
_LENGTHS = (RowField.FRAME, RowField.LENGTH)
_FORMATS = {RowField.NUMBER: b"%d", RowField.NEXT: b"%d", RowField.ID: b"%04x-%012x"}


def encode_rows(
    columns: Columns,
    template: RowTemplate,
    names: list[bytes | None] | None,
    number: int | bytes,
    id: int | bytes = 0,
    ends: list[bytes] | None = None,
) -> tuple[bytes, int] | None:
    """Return messages as rows that follow one another, and the number of rows.

    ``names`` has the name of each index; a message whose name is None has no row. ``number`` is the
    number of the first message, and ``id`` the last 64 bits of its UUID; those of the next messages
    are larger by one each. Either may instead have those of each message (u64, native byte order).
    Numbers are below 2**63. ``ends`` has an end for each message. Returns None if the template has
    TEXT and a payload is not UTF-8.
    """
    count = columns.count
    if len(template) > _MAX_PIECES:
        raise ValueError("a row has too many pieces")
    fields = [piece if isinstance(piece, bytes) else RowField(piece) for piece in template]
    if any(fields.count(length) > 1 for length in _LENGTHS):
        raise ValueError("a row has two lengths of one kind")
    numbers, ids = _each_of(number, count, 2**63 - 1), _each_of(id, count, 2**64 - 1)
    if ends is not None and len(ends) != count:
        raise ValueError("the ends are not as many as the messages")
    payloads, places = columns.payloads(), range(count)
    given: list[bytes] | None = None
    if names is not None:
        found = [names[index] for index in columns.indexes()]
        kept = [place for place in places if found[place] is not None]
        given = [b"%b" % found[place] for place in kept]  # type: ignore[str-format]
        payloads = [payloads[place] for place in kept]
    else:
        kept = list(places)
    rows = _Rows(payloads, kept, given, numbers, ids, ends)
    try:
        return b"".join(rows.of(fields)), len(payloads)
    except UnicodeDecodeError:
        return None


def _each_of(given: int | bytes, count: int, most: int) -> Sequence[int]:
    """Return the number of each message, at most ``most``."""
    if isinstance(given, int):
        if not 0 <= given <= most + 1 - max(count, 1):
            raise ValueError("the numbers are negative or too large")
        return range(given, given + count)
    if len(given) != 8 * count:
        raise ValueError("the numbers are not as many as the messages")
    numbers = array("Q", given)
    if max(numbers, default=0) > most:
        raise ValueError("the numbers are negative or too large")
    return numbers


class _Rows:
    """The fields of messages at these ``places``."""

    def __init__(
        self,
        payloads: list[bytes],
        places: list[int],
        names: list[bytes] | None,
        numbers: Sequence[int],
        ids: Sequence[int],
        ends: list[bytes] | None,
    ) -> None:
        self._payloads = payloads
        self._places = places
        self._names = names
        self._numbers = numbers
        self._ids = ids
        self._ends = ends

    def of(self, fields: list[bytes | RowField]) -> list[bytes]:
        """Return the rows. A length is written when what follows it is."""
        for place, field in enumerate(fields):
            if field in _LENGTHS:
                rest = self.of(fields[place + 1 :])
                if field is RowField.FRAME:
                    rest = [_frame_length(len(row)) + row for row in rest]
                else:
                    times = fields[place:].count(RowField.PAYLOAD)
                    rest = [
                        (len(row) - times * len(payload)).to_bytes(4, "big") + row
                        for row, payload in zip(rest, self._payloads, strict=True)
                    ]
                return list(map(bytes.__add__, self.of(fields[:place]), rest))
        return self._without_lengths(fields)

    def _without_lengths(self, fields: list[bytes | RowField]) -> list[bytes]:
        pieces: list[bytes] = []
        values: list[Iterable[int | bytes]] = []
        for field in fields:
            if isinstance(field, bytes):
                pieces.append(field.replace(b"%", b"%%"))
            else:
                pieces.append(_FORMATS.get(field, b"%b"))
                values += self._values(field)
        row = b"".join(pieces)
        if not values:
            return [row % ()] * len(self._places)
        return [row % one for one in zip(*values, strict=True)]

    def _values(self, field: RowField) -> list[Iterable[int | bytes]]:
        if field is RowField.NUMBER:
            return [[self._numbers[place] for place in self._places]]
        if field is RowField.NEXT:
            return [[self._numbers[place] + 1 for place in self._places]]
        if field is RowField.ID:
            ids = [self._ids[place] for place in self._places]
            return [[one // _ID for one in ids], [one % _ID for one in ids]]
        if field is RowField.NAME:
            return [[b""] * len(self._places) if self._names is None else self._names]
        if field is RowField.END:
            ends = self._ends
            return [[b"" if ends is None else ends[place] for place in self._places]]
        if field is RowField.VALUE:
            return [_members(self._payloads)]
        return [self._payloads if field is RowField.PAYLOAD else _texts(self._payloads)]


def _texts(payloads: Sequence[bytes]) -> Sequence[bytes]:
    """Return the payloads as strings of JSON have them; raises UnicodeDecodeError."""
    return payloads if is_plain(payloads) else [_string(one)[1:-1] for one in payloads]


def _members(payloads: Sequence[bytes]) -> list[bytes]:
    if is_plain(payloads):
        return [b'"value": "%b"' % payload for payload in payloads]
    return list(map(_member, payloads))


def _member(payload: bytes) -> bytes:
    try:
        return b'"value": ' + _string(payload)
    except UnicodeDecodeError:
        return b'"value_base64": "%b"' % b64encode(payload)


def _string(data: bytes) -> bytes:
    return encode_basestring(data.decode()).encode()


def _frame_length(size: int) -> bytes:
    if size < 126:
        return bytes((size,))
    if size < 65_536:
        return b"\x7e" + size.to_bytes(2, "big")
    return b"\x7f" + size.to_bytes(8, "big")
