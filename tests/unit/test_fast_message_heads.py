"""fast's heads: the kernel scans and encodes the packets that the codec decodes and encodes."""

from __future__ import annotations

from functools import partial
from itertools import cycle, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsub.kernel.interpreted import MAX_HEADS
from pubsub.protocols.fast.codec import (
    Create,
    Error,
    FastError,
    Message,
    Publish,
    Subscribe,
    decode,
    encode,
    needed,
)
from pubsub.protocols.fast.message_heads import Source, learn_publish, message_head
from pubsub.protocols.fast.subscriptions import MessageEncoding
from tests.unit.fakes import batch_of, encoded
from tests.unit.kernel_forms import each_form, messages, scan_in_pieces
from tests.unit.kernel_forms import encode as encode_columns

LIMIT = 40
TOKENS = st.sampled_from([b"", b"t", b"token", b"TOKEN", b"\x03" * 10, b"x" * 255])
TOPICS = st.sampled_from([0, 1, 0x03000000, 0xFFFFFFFF])
# Payloads that look like packets, so that a misplaced scan finds false packets.
TRICKY = st.sampled_from(
    [b"", bytes(10), b"\x03\0" + bytes(8), encode(Publish(b"t", 1, b"hi")), b"\x03\x01t"]
)
PAYLOADS = st.one_of(TRICKY, st.binary(max_size=12), st.just(b"same"), st.just(b"SAME"))
PUBLISHES = st.builds(Publish, TOKENS, TOPICS, PAYLOADS)
# The interpreted kernel has a fast path for many equal heads in a row.
RUNS = st.builds(
    lambda packet, payloads: [Publish(packet.token, packet.topic_id, p) for p in payloads],
    PUBLISHES,
    st.integers(0, 6).flatmap(
        lambda size: st.lists(st.binary(min_size=size, max_size=size), max_size=20)
    ),
)
# The topic changes with every message.
TURNS = st.builds(
    lambda packets, payloads: [
        Publish(packet.token, packet.topic_id, payload)
        for packet, payload in zip(cycle(packets), payloads, strict=False)
    ],
    st.lists(PUBLISHES, min_size=1, max_size=4),
    st.lists(PAYLOADS, max_size=30),
)
OTHERS: st.SearchStrategy[bytes] = st.sampled_from(
    [
        encode(Subscribe(b"t", 1)),
        encode(Create(b"token", b"news", 0)),
        encode(Message(1, b"hi")),
        encode(Error(3, 1, 0)),
        encode(Publish(b"t", 1, bytes(LIMIT + 1))),
        b"\x03\x01t\0\0\0\x01\xff\xff\xff\xff",
        b"\x00garbage",
    ]
)
PIECES: st.SearchStrategy[bytes] = st.one_of(
    RUNS.map(lambda packets: b"".join(map(encode, packets))),
    TURNS.map(lambda packets: b"".join(map(encode, packets))),
    PUBLISHES.map(encode),
    OTHERS,
)
STREAMS = st.lists(PIECES, max_size=8).map(b"".join)

Found = list[tuple[Source, bytes]]


def naive(data: bytes, at: int) -> tuple[int, Found]:
    """Return where the scan ends, and sources and payloads, decoded one packet at a time."""
    found: Found = []
    while True:
        try:
            needed(data, at, LIMIT)
            decoded = decode(data, at)
        except FastError:
            break
        if decoded is None or not isinstance(decoded[0], Publish):
            break
        packet, at = decoded
        assert isinstance(packet, Publish)
        found.append((Source.of(packet.token, packet.topic_id), packet.payload))
    return at, found


def table_of(kernel: Any, limit: int = LIMIT) -> Any:
    """Return a new table of the form ``kernel``."""
    return kernel.HeadTable(partial(learn_publish, max_payload=limit))


def scan(table: Any, data: bytes, at: int = 0) -> tuple[int, Found]:
    """Return where the scan ends, and sources and payloads."""
    columns = table.scan(data, at)
    return columns.end, messages(columns)


def publishes(token: bytes, topic: int, *payloads: bytes) -> bytes:
    """PUBLISH packets."""
    return b"".join(encode(Publish(token, topic, payload)) for payload in payloads)


@each_form
class TestScan:
    """PUBLISH packets"""

    def test_empty_data_has_no_messages(self, kernel: Any) -> None:
        assert scan(table_of(kernel), b"") == (0, [])
        assert scan(table_of(kernel), b"\x03\x01t\0\0\0\x01\0\0\0") == (0, [])

    def test_messages_of_several_sources_keep_their_order(self, kernel: Any) -> None:
        data = (
            publishes(b"t", 1, b"a", b"b")
            + publishes(b"t", 2, b"c")
            + publishes(b"u", 2, b"d", b"e")
            + publishes(b"t", 1, b"f")
        )
        columns = table_of(kernel).scan(data)
        assert columns.payloads() == [b"a", b"b", b"c", b"d", b"e", b"f"]
        assert columns.indexes() == [0, 0, 1, 2, 2, 0]
        assert columns.addresses == [Source.of(b"t", 1), Source.of(b"t", 2), Source.of(b"u", 2)]
        assert columns.end == len(data)

    def test_many_topics_and_tokens_in_turn(self, kernel: Any) -> None:
        wanted = [(Source.of(b"x" * (n % 13), n % 50), bytes(n % 7)) for n in range(2000)]
        data = b"".join(
            publishes(source.token, source.topic_id, payload) for source, payload in wanted
        )
        table = table_of(kernel)
        for _ in range(2):
            assert scan(table, data) == (len(data), wanted)

    def test_messages_of_different_lengths(self, kernel: Any) -> None:
        payloads = [b"a", b"bb", b"bb", b"", b"ccc"]
        data = publishes(b"token", 1, *payloads)
        table = table_of(kernel)
        for _ in range(2):
            assert scan(table, data) == (len(data), [(Source.of(b"token", 1), p) for p in payloads])

    def test_a_source_is_the_same_object_each_time(self, kernel: Any) -> None:
        data = publishes(b"token", 1, b"a", b"b")
        table = table_of(kernel)
        first, second = table.scan(data), table.scan(b"" + data)
        assert first.addresses[0] is second.addresses[0]

    def test_a_long_run_of_equal_lengths(self, kernel: Any) -> None:
        payloads = [b"%04d" % n for n in range(1000)]
        data = publishes(b"token", 3, *payloads)
        wanted = [(Source.of(b"token", 3), payload) for payload in payloads]
        assert scan(table_of(kernel), data) == (len(data), wanted)

    def test_it_begins_at_an_offset(self, kernel: Any) -> None:
        data = publishes(b"t", 1, b"a")
        wanted = [(Source.of(b"t", 1), b"a")]
        assert scan(table_of(kernel), b"\xff" * 7 + data, 7) == (7 + len(data), wanted)

    @pytest.mark.parametrize(
        "tail",
        [
            encode(Subscribe(b"t", 1)),
            publishes(b"t", 1, b"cut")[:-1],
            publishes(b"u", 2, b"cut")[:-1],
            publishes(b"t", 1, bytes(LIMIT + 1)),
            b"\x03\xff",
            b"\x80",
        ],
    )
    def test_it_stops_before_any_other_packet(self, kernel: Any, tail: bytes) -> None:
        data = publishes(b"t", 1, b"a", b"b")
        wanted = [(Source.of(b"t", 1), b"a"), (Source.of(b"t", 1), b"b")]
        assert scan(table_of(kernel), data + tail) == (len(data), wanted)

    def test_every_split(self, kernel: Any) -> None:
        parts = [publishes(b"t" * n, n % 3, bytes(n % 5)) for n in range(8)]
        ends = [sum(map(len, parts[:n])) for n in range(9)]
        data = b"".join(parts)
        for cut in range(len(data) + 1):
            at, found = scan(table_of(kernel), data[:cut])
            assert at == max(end for end in ends if end <= cut)
            assert len(found) == ends.index(at)

    def test_the_largest_payload(self, kernel: Any) -> None:
        data = publishes(b"t", 1, bytes(LIMIT))
        assert table_of(kernel).scan(data).end == len(data)

    def test_heads_are_bounded(self, kernel: Any) -> None:
        table = table_of(kernel)
        for number in range(MAX_HEADS + 10):
            assert table.scan(publishes(b"%d" % number, 1, b"a")).count == 1
        assert len(table) == 10

    def test_heads_over_the_limit_are_not_remembered(self, kernel: Any) -> None:
        table = table_of(kernel)
        for number in range(100):
            table.scan(publishes(b"%d" % number, 1, bytes(LIMIT + 1)))
        assert len(table) == 0


@each_form
class TestProperties:
    """The scan finds the same as decoding one packet at a time"""

    @given(data=STREAMS)
    def test_a_whole_stream(self, kernel: Any, data: bytes) -> None:
        table = table_of(kernel)
        for _ in range(2):
            assert scan(table, data) == naive(data, 0)

    @given(streams=st.lists(STREAMS, max_size=3), size=st.integers(1, 40))
    def test_any_split(self, kernel: Any, streams: list[bytes], size: int) -> None:
        """A partial packet precedes the next piece; the table remembers earlier streams."""
        table = table_of(kernel)
        for data in streams:
            found, rest = scan_in_pieces(partial(scan, table), data, size)
            end, wanted = naive(data, 0)
            assert found == wanted
            assert rest == data[end:]

    @given(before=STREAMS, data=STREAMS)
    def test_at_any_place(self, kernel: Any, before: bytes, data: bytes) -> None:
        end, wanted = naive(data, 0)
        found = scan(table_of(kernel), before + data, len(before))
        assert found == (len(before) + end, wanted)

    @given(data=st.binary(max_size=200))
    def test_any_bytes(self, kernel: Any, data: bytes) -> None:
        assert scan(table_of(kernel), data) == naive(data, 0)

    @given(packets=st.lists(PUBLISHES, max_size=30))
    def test_runs_end_only_where_the_source_changes(
        self, kernel: Any, packets: list[Publish]
    ) -> None:
        runs = table_of(kernel).scan(b"".join(map(encode, packets))).runs()
        sources = [run.addresses[0] for _, run in runs]
        assert all(one != other for one, other in pairwise(sources))
        assert [payload for _, run in runs for payload in run.payloads()] == [
            packet.payload for packet in packets
        ]


class TestHead:
    """The head of a single packet"""

    def test_the_length_of_a_packet(self) -> None:
        for size in (0, 1, LIMIT):
            data = encode(Publish(b"token", 9, bytes(size)))
            learnt = learn_publish(data[:15], 0, LIMIT)
            assert learnt is not None
            head, source = learnt
            assert source == Source.of(b"token", 9)
            assert head.frame_length(data[:15]) == len(data)
            assert head.encode(size) == data[:15]

    def test_incomplete_and_other_packets_have_no_head(self) -> None:
        data = encode(Publish(b"token", 9, b"x"))
        for other in (data[:14], data[:3], b"", encode(Subscribe(b"token", 1)), b"\x04" + data[1:]):
            assert learn_publish(other, 0, LIMIT) is None


@each_form
class TestEncode:
    """MESSAGE packets"""

    @given(
        sent=st.lists(st.tuples(st.integers(0, 3), PAYLOADS), max_size=20), limit=st.integers(0, 12)
    )
    def test_frames_equal_those_of_the_codec(
        self, kernel: Any, sent: list[tuple[int, bytes]], limit: int
    ) -> None:
        """Index 0 and 1 are subscribed to, 1 with a limit."""
        ids = {0: 0, 1: 0xFFFFFFFF}
        heads = [[message_head(0, 2**32 - 1)], [message_head(0xFFFFFFFF, limit)], []]
        columns = kernel.Columns.of([payload for _, payload in sent], [index for index, _ in sent])
        wanted = [(i, p) for i, p in sent if i == 0 or (i == 1 and len(p) <= limit)]
        assert encode_columns(kernel, heads, columns) == (
            b"".join(encode(Message(ids[index], payload)) for index, payload in wanted),
            len(wanted),
        )

    def test_literally(self, kernel: Any) -> None:
        columns = kernel.Columns.of([b"hi", b""])
        made = encode_columns(kernel, [[message_head(0x01020304, 100)]], columns)
        assert made == (b"\x04\x01\x02\x03\x04\0\0\0\x02hi\x04\x01\x02\x03\x04\0\0\0\0", 2)


class TestEncoding:
    """``MessageEncoding``"""

    def test_a_batch(self) -> None:
        made = encoded(MessageEncoding(7), batch_of([b"a", b"bb"]))
        assert made == encode(Message(7, b"a")) + encode(Message(7, b"bb"))

    def test_encodings_of_the_same_topic_are_equal(self) -> None:
        assert len({MessageEncoding(1), MessageEncoding(1)}) == 1
        assert MessageEncoding(1) != MessageEncoding(2)
