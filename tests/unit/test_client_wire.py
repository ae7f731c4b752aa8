"""``WireConnection``: how what is received becomes frames."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.kernel import Columns
from pubsub.wire.client_events import Closing, Malformed, Messages, WireEvent
from pubsub.wire.client_wire import WireConnection, WireError

_HEAD = 4


class Frames(WireConnection):
    """Frames with their length before them; a zero ends the connection, a one is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs: list[bytes] = []

    def open(self, topic: str | None = None) -> list[WireEvent]:
        return []

    def ping(self) -> None:
        pass

    def close(self) -> None:
        pass

    def consume(self, data: bytes, at: int, events: list[WireEvent]) -> tuple[int, int]:
        self.inputs.append(data)
        while len(data) - at >= _HEAD:
            end = at + _HEAD + int.from_bytes(data[at : at + _HEAD], "big")
            if end > len(data):
                return at, end - at
            payload = data[at + _HEAD : end]
            at = end
            if payload == b"\0":
                events.append(Closing("the end"))
                return len(data), 1
            if payload == b"\1":
                raise WireError("a one")
            events.append(Messages("topic", Columns.one(payload)))
        return at, _HEAD


def frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(_HEAD, "big") + payload


def results(events: list[WireEvent]) -> list[object]:
    return [one.columns.payloads()[0] if isinstance(one, Messages) else type(one) for one in events]


class ReceiveTests(SynchronousTestCase):
    @given(
        st.lists(
            st.tuples(
                st.sampled_from([0, 1, 2, 5, 100, 20_000, 40_000]),
                st.sampled_from([b"a", b"\0", b"\1"]),
            ),
            max_size=8,
        ),
        st.lists(st.sampled_from([1, 2, 3, 5, 100, 20_003, 50_000, 131_072]), min_size=1),
    )
    def test_reads_end_anywhere(self, shapes: list[tuple[int, bytes]], sizes: list[int]) -> None:
        data = b"".join(frame(fill * size) for size, fill in shapes)
        whole = Frames()
        expected = results(whole.receive(data)) if data else []
        cut = Frames()
        found: list[object] = []
        at = turn = 0
        while at < len(data):
            size = sizes[turn % len(sizes)]
            if turn > 50:
                size = 50_000
            found += results(cut.receive(data[at : at + size]))
            at += size
            turn += 1
        assert found == expected
        assert cut.ended == whole.ended

    def test_a_large_read_is_not_copied_for_the_frame_before_it(self) -> None:
        connection = Frames()
        data = frame(bytes(10)) * 15_000
        for cut in (3, 7):
            connection.receive(data[:cut])
            read = data[cut:] + data[:cut]
            connection.receive(read)
            assert connection.inputs[-1] is read
            connection.receive(data[cut:])

    def test_a_smaller_read_is_handled_in_one_piece(self) -> None:
        connection = Frames()
        data = frame(bytes(10)) * 3000
        connection.receive(data[:3])
        connection.receive(data[3:])
        assert connection.inputs[-1] == data

    def test_the_end_in_the_frame_before_a_large_read(self) -> None:
        for payload, kind in ((b"\0", Closing), (b"\1", Malformed)):
            data = frame(payload) + frame(bytes(10)) * 15_000
            connection = Frames()
            assert connection.receive(data[:2]) == []
            assert results(connection.receive(data[2:])) == [kind]
            assert connection.ended
            assert connection.receive(data) == []
