"""HTTP: messages as JSON, and the frames and events that have them."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.routing.batch import Batch, message_id
from pubsub.http_api.publishing.message_body import message_of
from pubsub.http_api.reading.follow_formats import EventEncoding, LinesEncoding, chunk
from pubsub.http_api.reading.message_rows import names_of, rows_of
from pubsub.http_api.websocket import websocket_frames
from pubsub.http_api.websocket.websocket_frames import BatchEncoding, FrameEncoding
from pubsub.kernel import Columns
from pubsub.store.opening.epochs import continuation, continues

RUNS = st.integers(1, 2**60 - 1)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
HEADERS = st.dictionaries(NAMES, st.binary(max_size=20), max_size=3)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Draw a batch of up to three topics."""
    texts = st.text(st.characters(codec="utf-8")).map(str.encode)
    payloads = draw(st.lists(st.binary(max_size=40) | texts, min_size=1, max_size=6))
    count = len(payloads)
    topics = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    places = st.integers(0, len(topics) - 1)
    return Batch(
        tuple(topics),
        Columns.of(payloads, draw(st.lists(places, min_size=count, max_size=count))),
        draw(st.integers(0, 2**60)),
        draw(st.integers(0, 2**61)),
        draw(st.binary(max_size=255)),
        draw(NAMES),
        draw(st.none() | st.lists(HEADERS, min_size=count, max_size=count)),
        draw(st.integers(0, 2**53)),
        draw(st.just(0) | RUNS),
    )


def expected(batch: Batch, run: int, place: int, headers: bool) -> dict[str, Any]:
    """Return the members of a message."""
    row: dict[str, Any] = {
        "offset": batch.offset + place,
        "timestamp": batch.timestamp,
        "topic": batch.topics[batch.columns.indexes()[place]],
        "protocol": batch.protocol,
        "key": b64encode(batch.sender).decode(),
        **value(batch.payloads()[place]),
        "message_id": str(message_id(batch.run or run, batch.sequence + place)),
    }
    if headers:
        own = {} if batch.headers is None else batch.headers[place]
        row["headers"] = [{"key": key, **value(one)} for key, one in own.items()]
    return row


def wanted_of(batch: Batch, some: int) -> tuple[list[bytes | None], list[int]]:
    """Return the names of the topics with a bit in ``some``, and the places of their messages."""
    names = [name if some >> at & 1 else None for at, name in enumerate(names_of(batch))]
    indexes = batch.columns.indexes()
    return names, [place for place in range(batch.count) if names[indexes[place]] is not None]


def value(data: bytes) -> dict[str, str]:
    """Return a value as text, or in base64."""
    try:
        return {"value": data.decode()}
    except UnicodeDecodeError:
        return {"value_base64": b64encode(data).decode()}


SOME = st.integers(0, 7)


class RowTests(SynchronousTestCase):
    """Rows are those that json would write"""

    @given(batches(), RUNS, st.booleans(), SOME)
    def test_rows(self, batch: Batch, run: int, headers: bool, some: int) -> None:
        names, places = wanted_of(batch, some)
        data, count = rows_of(batch, names, run, headers, after=(b"\n",))
        assert count == len(places)
        assert b"\r" not in data
        assert data.decode().split("\n") == [
            *[
                json.dumps(expected(batch, run, place, headers), ensure_ascii=False)
                for place in places
            ],
            "",
        ]

    @given(batches(), RUNS)
    def test_rows_that_were_read_can_be_published(self, batch: Batch, run: int) -> None:
        data, _ = rows_of(batch, names_of(batch), run, True, after=(b"\n",))
        for place, (row, payload) in enumerate(
            zip(data.splitlines(), batch.payloads(), strict=True)
        ):
            members = json.loads(row)
            kept = {k: v for k, v in members.items() if k in ("value", "value_base64", "headers")}
            own = {} if batch.headers is None else dict(batch.headers[place])
            assert message_of(kept) == (payload, own)

    @given(batches(), RUNS, SOME)
    def test_lines_and_events_have_the_rows(self, batch: Batch, run: int, some: int) -> None:
        names, places = wanted_of(batch, some)
        rows, count = rows_of(batch, names, run, False, after=(b"\n",))
        assert LinesEncoding(False, run).messages(batch, names) == (rows, count)
        data, count = EventEncoding(False, run, "e").messages(batch, names)
        events = data.decode().split("\n\n")
        assert (events.pop(), len(events)) == ("", count)
        data_of = [event.split("\n")[1].removeprefix("data: ") + "\n" for event in events]
        assert "".join(data_of).encode() == rows
        positions = [int(event.split("\n")[0].removeprefix("id: e:")) for event in events]
        assert positions == [batch.offset + 1 + place for place in places]

    @given(batches(), RUNS, SOME)
    def test_chunks_have_the_rows(self, batch: Batch, run: int, some: int) -> None:
        names, places = wanted_of(batch, some)
        encoding = LinesEncoding(False, run)
        rows, count = encoding.messages(batch, names)
        assert encoding.rows(batch, names) == (chunk(rows) if places else b"", count)

    @given(batches(), RUNS, st.booleans(), SOME)
    def test_text_frames(self, batch: Batch, run: int, headers: bool, some: int) -> None:
        names, places = wanted_of(batch, some)
        data, count = FrameEncoding(headers, False, run).rows(batch, names)
        assert count == len(places)
        for place in places:
            first, payload, data = _unframe(data)
            assert first == 0x81
            assert json.loads(payload) == {"message": expected(batch, run, place, headers)}
        assert data == b""

    @given(batches(), RUNS, st.booleans(), SOME)
    def test_binary_frames(self, batch: Batch, run: int, headers: bool, some: int) -> None:
        names, places = wanted_of(batch, some)
        data, count = FrameEncoding(headers, True, run).rows(batch, names)
        assert count == len(places)
        for place in places:
            object, value, data = _binary(data)
            row = expected(batch, run, place, headers)
            assert object == {"message": without_value(row)}
            assert value == batch.payloads()[place]
        assert data == b""

    @given(batches(), RUNS, st.booleans(), SOME)
    def test_mixed_batches(self, batch: Batch, run: int, headers: bool, some: int) -> None:
        names, places = wanted_of(batch, some)
        data, count = BatchEncoding(headers, run, mixed=True).rows(batch, names)
        assert count == len(places)
        if not places:
            assert data == b""
            return
        object, value, rest = _binary(data)
        assert (rest, value) == (b"", b"".join(batch.payloads()[place] for place in places))
        row = object.get("batch") or object["message"]
        rows = [expected(batch, run, place, True) for place in places]
        assert row.pop("sizes", [len(value)]) == [len(batch.payloads()[at]) for at in places]
        topics, indexes = row.pop("topics", [row["topic"]]), row.pop("indexes", [0] * count)
        assert [topics[index] for index in indexes] == [one["topic"] for one in rows]
        assert len(set(topics)) == len(topics) == len(set(indexes))
        offsets = row.pop("offsets", list(range(row["offset"], row["offset"] + count)))
        assert offsets == [one["offset"] for one in rows]
        found = row.pop("headers", None)
        if headers and "message" in object:
            assert found == rows[0]["headers"]
        elif headers and batch.headers is not None:
            assert found == [one["headers"] for one in rows]
        else:
            assert found is None
        wanted = without_value(rows[0])
        del wanted["headers"]
        assert row == wanted

    def test_few_messages_of_one_of_several_topics_come_alone(self) -> None:
        indexes = [0] * 19 + [1] * 20 + [0]
        columns = Columns.of([b"x"] * len(indexes), indexes)
        batch = Batch(("a", "b"), columns, 0, 0, b"", "toy", offset=0)
        data, count = BatchEncoding(False, 1).rows(batch, names_of(batch))
        assert count == 40
        found = []
        while data:
            object, value, data = _binary(data)
            found.append((*object, len(value)))
        assert found == [("message", 1)] * 19 + [("batch", 20), ("message", 1)]

    def test_mixed_batches_are_bounded(self) -> None:
        sizes = [3] * 2500 + [30_000] * 4
        columns = Columns.of([bytes(size) for size in sizes], [at % 2 for at in range(len(sizes))])
        batch = Batch(("a", "b"), columns, 0, 0, b"", "toy", offset=0)
        counts, nbytes = [], []
        for part in (batch.slice(0, 2500), batch.slice(2500, 2504)):
            data, _ = BatchEncoding(False, 1, mixed=True).rows(part, names_of(part))
            while data:
                object, value, data = _binary(data)
                counts.append(len(object["batch"]["indexes"]))
                nbytes.append(len(value))
        assert counts == [1000, 1000, 500, 2, 2]
        assert nbytes[3:] == [60_000, 60_000]

    def test_batches_of_different_sizes_are_bounded(self) -> None:
        payloads = [b""] * 2100 + [bytes(30_000)] * 3 + [bytes(70_000), b"x"]
        for mixed in (False, True):
            indexes = [at % 2 * mixed for at in range(len(payloads))]
            columns = Columns.of(payloads, indexes)
            batch = Batch(("a", "b")[: 1 + mixed], columns, 0, 0, b"", "toy", offset=0)
            data, _ = BatchEncoding(False, 1, mixed=mixed).rows(batch, names_of(batch))
            counts = []
            while data:
                object, _, data = _binary(data)
                counts.append(len(object.get("batch", {}).get("sizes", [0])))
            assert counts == [1000, 1000, 102, 1, 1, 1]

    @given(batches(), RUNS, st.booleans(), SOME)
    def test_batches(self, batch: Batch, run: int, headers: bool, some: int) -> None:
        self.patch(websocket_frames, "_RUN_MESSAGES", 2)  # type: ignore[no-untyped-call]
        names, places = wanted_of(batch, some)
        data, count = BatchEncoding(headers, run).rows(batch, names)
        assert count == len(places)
        left = list(places)
        while left:
            object, value, data = _binary(data)
            row = object.get("batch") or object["message"]
            sizes = row.pop("sizes", [len(value)])
            own, left = left[: len(sizes)], left[len(sizes) :]
            # Messages of one topic that follow one another, and all of these.
            topics = [expected(batch, run, place, False)["topic"] for place in range(batch.count)]
            assert {topics[place] for place in own} == {row["topic"]}
            assert own == list(range(own[0], own[0] + len(own)))
            assert not left or left[0] > own[-1] + 1 or topics[left[0]] != row["topic"]
            expectation = without_value(expected(batch, run, own[0], headers))
            if headers and "message" not in object:
                expectation["headers"] = [
                    expected(batch, run, place, True)["headers"] for place in own
                ]
                if batch.headers is None:
                    del expectation["headers"]
            assert row == expectation
            assert b"".join(batch.payloads()[place] for place in own) == value
            assert sizes == [len(batch.payloads()[place]) for place in own]
        assert data == b""


def without_value(row: dict[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in row.items() if name not in ("value", "value_base64")}


def _binary(data: bytes) -> tuple[dict[str, Any], bytes, bytes]:
    """Return the object of the first frame, which is binary, its payload, and the rest."""
    first, payload, rest = _unframe(data)
    assert first == 0x82
    stop = 4 + int.from_bytes(payload[:4], "big")
    return json.loads(payload[4:stop]), payload[stop:], rest


def _unframe(data: bytes) -> tuple[int, bytes, bytes]:
    """Return the first byte and the payload of the first frame, and the rest."""
    size, start = data[1], 2
    if size >= 126:
        start = 4 if size == 126 else 10
        size = int.from_bytes(data[2:start], "big")
    return data[0], data[start : start + size], data[start + size :]


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
