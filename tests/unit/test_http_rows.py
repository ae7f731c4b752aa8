"""HTTP: messages as JSON, and the frames and events that have them."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.batch import Batch, message_id
from pubsub.http_api.follow_formats import EventEncoding, LinesEncoding
from pubsub.http_api.message_body import message_of
from pubsub.http_api.message_rows import rows_of
from pubsub.http_api.websocket_frames import FrameEncoding
from pubsub.kernel import Columns
from pubsub.store.epochs import continuation, continues

RUNS = st.integers(1, 2**60 - 1)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
HEADERS = st.dictionaries(NAMES, st.binary(max_size=20), max_size=3)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Draw a batch of one topic."""
    texts = st.text(st.characters(codec="utf-8")).map(str.encode)
    payloads = draw(st.lists(st.binary(max_size=40) | texts, min_size=1, max_size=5))
    headers = draw(st.none() | st.lists(HEADERS, min_size=len(payloads), max_size=len(payloads)))
    return Batch(
        (draw(NAMES),),
        Columns.of(payloads),
        draw(st.integers(0, 2**60)),
        draw(st.integers(0, 2**61)),
        draw(st.binary(max_size=255)),
        draw(NAMES),
        headers,
        draw(st.integers(0, 2**53)),
        draw(st.just(0) | RUNS),
    )


def expected(batch: Batch, run: int, index: int, payload: bytes, headers: bool) -> dict[str, Any]:
    """Return the members of a message."""
    row: dict[str, Any] = {
        "offset": batch.offset + index,
        "timestamp": batch.timestamp,
        "topic": batch.topic,
        "protocol": batch.protocol,
        "key": b64encode(batch.sender).decode(),
        **value(payload),
        "message_id": str(message_id(batch.run or run, batch.sequence + index)),
    }
    if headers:
        own = {} if batch.headers is None else batch.headers[index]
        row["headers"] = [{"key": key, **value(one)} for key, one in own.items()]
    return row


def value(data: bytes) -> dict[str, str]:
    """Return a value as text, or in base64."""
    try:
        return {"value": data.decode()}
    except UnicodeDecodeError:
        return {"value_base64": b64encode(data).decode()}


class RowTests(SynchronousTestCase):
    """Rows are those that json would write"""

    @given(batches(), RUNS, st.booleans())
    def test_rows(self, batch: Batch, run: int, headers: bool) -> None:
        for index, (row, payload) in enumerate(
            zip(rows_of(batch, run, headers), batch.payloads(), strict=True)
        ):
            wanted = expected(batch, run, index, payload, headers)
            assert row == json.dumps(wanted, ensure_ascii=False)
            assert "\n" not in row
            assert "\r" not in row

    @given(batches(), RUNS)
    def test_rows_that_were_read_can_be_published(self, batch: Batch, run: int) -> None:
        for row, payload, index in zip(
            rows_of(batch, run, True), batch.payloads(), range(batch.count), strict=True
        ):
            members = json.loads(row)
            kept = {k: v for k, v in members.items() if k in ("value", "value_base64", "headers")}
            own = {} if batch.headers is None else dict(batch.headers[index])
            assert message_of(kept) == (payload, own)

    @given(batches(), RUNS)
    def test_lines_and_events_have_the_rows(self, batch: Batch, run: int) -> None:
        rows = list(rows_of(batch, run, False))
        assert LinesEncoding(False, run).messages(batch).decode().split("\n") == [*rows, ""]
        events = EventEncoding(False, run, "e").messages(batch).decode().split("\n\n")
        assert events.pop() == ""
        assert [event.split("\n")[1].removeprefix("data: ") for event in events] == rows
        positions = [int(event.split("\n")[0].removeprefix("id: e:")) for event in events]
        assert positions == [batch.offset + 1 + at for at in range(batch.count)]

    @given(batches(), RUNS)
    def test_frames_have_the_rows(self, batch: Batch, run: int) -> None:
        data = FrameEncoding(False, False, run).encode(batch)
        for row in rows_of(batch, run, False):
            payload, data = _unframe(data)
            assert payload == f'{{"message": {row}}}'.encode()
        assert data == b""
        data = FrameEncoding(False, True, run).encode(batch)
        for row, value in zip(
            rows_of(batch, run, False, with_value=False), batch.payloads(), strict=True
        ):
            payload, data = _unframe(data)
            size = int.from_bytes(payload[:4], "big")
            assert payload[4 : 4 + size] == f'{{"message": {row}}}'.encode()
            assert payload[4 + size :] == value
        assert data == b""


def _unframe(data: bytes) -> tuple[bytes, bytes]:
    """Return the payload of the first frame, and the rest."""
    size, start = data[1], 2
    if size >= 126:
        start = 4 if size == 126 else 10
        size = int.from_bytes(data[2:start], "big")
    return data[start : start + size], data[start + size :]


class EpochTests(SynchronousTestCase):
    """The position at which a reader continues"""

    def test_in_a_later_epoch(self) -> None:
        known = [("a", 0), ("b", 10), ("c", 20)]
        for epoch, offset, found in (
            ("a", 5, 5), ("a", 10, 10), ("a", 11, 10), ("b", 15, 15), ("b", 25, 20), ("c", 99, 99),
            ("d", 1, None),
        ):  # fmt: skip
            assert continuation(known, epoch, offset) == found
            assert continues(known, epoch, offset) == (found == offset)
