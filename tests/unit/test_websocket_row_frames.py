"""Frames of the WebSocket with messages of several rows, as the client reads them."""

from __future__ import annotations

import base64
import json
from array import array
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase
from websockets.frames import Frame, Opcode
from websockets.streams import StreamReader

from pubsub.broker.routing.batch import Batch, message_id
from pubsub.client.http_batches import messages_of_batch
from pubsub.http_api.websocket.websocket_frames import BatchEncoding
from pubsub.store.reading.joined_runs import JoinedRow, JoinedRuns
from pubsub.wire.client_events import MixedMessages
from tests.profiles import examples

RUN = 5
Message = tuple[str, int | None, int, bytes, bytes]
"""Topic, offset, timestamp, sender and payload."""


@st.composite
def joined(draw: st.DrawFn) -> Batch:
    """Return messages of a few reads, of which some are left out."""
    rows: list[JoinedRow] = []
    offset = 0
    for _ in range(draw(st.integers(1, 4))):
        timestamp = draw(st.integers(1, 2))
        sender = draw(st.sampled_from((b"ada", b"bob")))
        more = draw(st.sampled_from((0, 0, 1000)))
        for _ in range(draw(st.integers(1, 5))):
            payloads = draw(st.lists(st.binary(max_size=3), min_size=1, max_size=3))
            sizes = array("I", map(len, payloads))
            topic = draw(st.sampled_from("abc"))
            sequence = offset + more
            rows.append(
                (len(sizes), topic, offset, sequence, timestamp, sender, sizes, b"".join(payloads))
            )
            offset += len(sizes) + draw(st.integers(0, 2))
    found: list[Batch] = []
    runs = JoinedRuns(found)
    for row in rows:
        runs.add(row, "toy", RUN)
    runs.finish()
    return found[0]


def objects(data: bytes) -> Iterable[tuple[dict[str, Any], bytes]]:
    """Yield the object and the payload of each frame."""
    reader = StreamReader()
    reader.feed_data(data)
    while reader.buffer:
        parsing = Frame.parse(reader.read_exact, mask=False)
        try:
            next(parsing)
        except StopIteration as done:
            frame = done.value
        assert frame.opcode == Opcode.BINARY
        content = bytes(frame.data)
        end = 4 + int.from_bytes(content[:4], "big")
        yield json.loads(content[4:end]), content[end:]


def read(head: dict[str, Any], payload: bytes) -> list[Message]:
    """Return the messages of a frame as the client does."""
    if "message" in head:
        one = head["message"]
        sender = base64.b64decode(one["key"])
        return [(one["topic"], one["offset"], one["timestamp"], sender, payload)]
    event = messages_of_batch(head["batch"], payload)
    runs = event.runs() if isinstance(event, MixedMessages) else [event]
    no_offsets: list[int | None] = [None] * event.columns.count
    return [
        (run.topic, offset, timestamp, sender, value)
        for run in runs
        for offset, timestamp, sender, value in zip(
            run.offsets or no_offsets[: run.columns.count],
            run.timestamps or (),
            run.senders or (),
            run.columns.payloads(),
            strict=True,
        )
    ]


def flat(batch: Batch) -> list[tuple[Message, int]]:
    """Return the messages of a batch, with their numbers."""
    return [
        (
            (
                run.topic,
                run.offset + at if batch.has_place else None,
                run.timestamp,
                run.sender,
                payload,
            ),
            run.sequence + at,
        )
        for _, run in batch.runs()
        for at, payload in enumerate(run.payloads())
    ]


class RowFramesTests(SynchronousTestCase):
    """``BatchEncoding`` of messages with rows"""

    @examples(2)
    @given(joined(), st.booleans(), st.booleans(), st.booleans(), st.sets(st.sampled_from("abc")))
    def test_the_client_gets_each_message(
        self, batch: Batch, has_place: bool, headers: bool, mixed: bool, hidden: set[str]
    ) -> None:
        batch.has_place = has_place
        names = [None if topic in hidden else json.dumps(topic).encode() for topic in batch.topics]
        data, count = BatchEncoding(headers, RUN, mixed).rows(batch, names)
        wanted = [one for one in flat(batch) if one[0][0] not in hidden]
        assert count == len(wanted)
        found: list[Message] = []
        for head, payload in objects(data):
            id = UUID((head.get("batch") or head["message"])["message_id"])
            assert id == message_id(RUN, wanted[len(found)][1])
            found += read(head, payload)
        assert found == [message for message, _ in wanted]

    def test_messages_of_a_read_share_a_frame(self) -> None:
        """Those of other topics between them are left out."""
        found: list[Batch] = []
        runs = JoinedRuns(found)
        for number in range(100):
            runs.add((1, "ab"[number % 2], 7 * number, 7 * number + 3, 9, b"me", 1, b"x"), "toy", 5)
        runs.add((1, "a", 900, 0, 10, b"me", 1, b"y"), "toy", 5)
        runs.finish()
        data, _ = BatchEncoding(False, RUN, True).rows(found[0], [b'"a"', b'"b"'])
        (head, payload), (alone, last) = objects(data)
        assert head["batch"]["offsets"] == [7 * number for number in range(100)]
        assert (payload, last) == (b"x" * 100, b"y")
        assert alone["message"]["offset"] == 900
