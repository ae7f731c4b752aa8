"""Messages as JSON whose batch has rows: as those of each row."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.routing.batch import Batch
from pubsub.broker.routing.batch_rows import BatchRows
from pubsub.broker.routing.encoders import RowEncoding
from pubsub.http_api.reading.follow_formats import EventEncoding, LinesEncoding
from pubsub.http_api.websocket.websocket_frames import BatchEncoding, FrameEncoding
from pubsub.kernel import Columns

NAMES: list[bytes | None] = [b'"a"', None, b'"c/\xc3\xa4"']
ROWS = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.integers(0, 2),
        st.integers(0, 9),
        st.integers(0, 3),
        st.sampled_from((1, 2, 10**15)),
        st.sampled_from((b"", b"ada", b"\xff" * 255)),
    ),
    min_size=2,
    max_size=12,
)
ENCODINGS: tuple[RowEncoding, ...] = (
    LinesEncoding(headers=True, run=7),
    EventEncoding(headers=False, run=7, epoch="e"),
    FrameEncoding(headers=True, binary=False, run=7),
    FrameEncoding(headers=False, binary=True, run=7),
    BatchEncoding(headers=False, run=7),
)


def batch_of(rows: list[tuple[int, int, int, int, int, bytes]]) -> Batch:
    """Return a batch whose rows have these gaps before their offsets and their numbers."""
    found: list[tuple[int, int, int, int, int, bytes]] = []
    offset, sequence = 2**40, 2**41
    for count, index, gap, missing, timestamp, sender in rows:
        offset, sequence = offset + gap, sequence + missing
        found.append((count, index, offset, sequence, timestamp, sender))
        offset, sequence = offset + count, sequence + count
    indexes = [index for count, index, *_ in found for _ in range(count)]
    payloads = [b"\x80" * (n % 3) + b"%d" % n for n in range(len(indexes))]
    batch = Batch(("a", "b", "c/\xe4"), Columns.of(payloads, indexes), 5, 6, b"", "cafe", run=9)
    batch.take(BatchRows(*zip(*found, strict=True)))
    return batch


def unchunked(data: bytes) -> bytes:
    """Return the contents of chunks."""
    found = b""
    while data:
        size, data = data.split(b"\r\n", 1)
        found, data = found + data[: int(size, 16)], data[int(size, 16) + 2 :]
    return found


class RowsTests(SynchronousTestCase):
    """Encodings of the HTTP API"""

    @given(ROWS, st.sampled_from(ENCODINGS), st.booleans())
    def test_they_are_as_those_of_each_row(
        self,
        rows: list[tuple[int, int, int, int, int, bytes]],
        encoding: RowEncoding,
        has_place: bool,
    ) -> None:
        batch = batch_of(rows)
        batch.has_place = has_place
        data, count = encoding.rows(batch, NAMES)
        each = [encoding.rows(part, NAMES) for part in batch.parts()]
        expected = b"".join([one for one, _ in each])
        if isinstance(encoding, LinesEncoding | EventEncoding):
            data, expected = unchunked(data), unchunked(expected)
        assert (data, count) == (expected, sum([number for _, number in each]))

    def test_each_message_has_its_own_place_and_sender(self) -> None:
        batch = batch_of([(2, 0, 0, 0, 1000, b"ada"), (1, 2, 5, 1, 2000, b"bob")])
        data, count = LinesEncoding(headers=False, run=7).rows(batch, NAMES)
        found = [json.loads(line) for line in unchunked(data).splitlines()]
        members = "offset", "timestamp", "topic", "key", "message_id"
        assert [tuple(one[member] for member in members) for one in found] == [
            (2**40, 1000, "a", "YWRh", "00000000-0000-8009-8000-020000000000"),
            (2**40 + 1, 1000, "a", "YWRh", "00000000-0000-8009-8000-020000000001"),
            (2**40 + 7, 2000, "c/ä", "Ym9i", "00000000-0000-8009-8000-020000000003"),
        ]
        assert count == 3
