"""cafe's heads: the kernel scans and encodes the frames that the codec decodes and encodes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsub.broker.routing.batch import Batch
from pubsub.kernel import Columns
from pubsub.protocols.cafe.channels import MessageEncoding
from pubsub.protocols.cafe.codec import (
    HEADER,
    MAX_MESSAGE,
    CafeError,
    Disconnect,
    HandshakePub,
    Message,
    Ping,
    Publish,
    Subscribe,
    decode,
    encode,
)
from pubsub.protocols.cafe.message_heads import (
    TIMESTAMP_AT,
    learn_publish,
    message_head,
    publish_head,
)
from tests.unit.fakes import batch_of, encoded
from tests.unit.kernel_forms import each_form, messages
from tests.unit.kernel_forms import encode as encode_columns

CHANNELS = st.sampled_from([0, 1, 2, 0x10, 0xFE, 0xFF])
# Payloads that look like headers, so that a misplaced scan finds false frames.
TRICKY = st.sampled_from(
    [
        b"",
        b"\xfe\xca\x10\x03\0\0\0\x01hi",
        b"\xfe\xca\x10\x01\0\0\0\x01",
        b"\xfe\xca",
        b"\x10\x01\0\0\0",
        encode(Ping()),
    ]
)
PAYLOADS = st.one_of(TRICKY, st.binary(max_size=12), st.just(b"same"), st.just(b"SAME"))
PUBLISHES = st.builds(Publish, CHANNELS, PAYLOADS)
# The interpreted kernel has a fast path for many equal heads in a row.
RUNS = st.builds(
    lambda frame, payloads: [Publish(frame.channel, p) for p in payloads],
    PUBLISHES,
    st.integers(0, 6).flatmap(
        lambda size: st.lists(st.binary(min_size=size, max_size=size), max_size=12)
    ),
)
# The channel changes with every message.
TURNS = st.builds(
    lambda channels, payloads: [
        Publish(channels[number % len(channels)], payload)
        for number, payload in enumerate(payloads)
    ],
    st.lists(CHANNELS, min_size=1, max_size=4),
    st.lists(PAYLOADS, max_size=30),
)
OTHERS: st.SearchStrategy[bytes] = st.one_of(
    st.sampled_from([encode(Ping()), encode(Disconnect()), encode(Subscribe(1))]),
    st.sampled_from([encode(HandshakePub(1, b"alice")), encode(Message(1, 2, b"hi"))]),
    st.sampled_from([b"\xca\xfe\x10\x02\0\0\0\x01x", b"\xfe\xca\x10\0\0\0\0", b"garbage!"]),
    st.just(HEADER.pack(0xCAFE, 0x10, MAX_MESSAGE + 2) + b"\x01"),
    st.just(HEADER.pack(0xCAFE, 0x10, 0xFFFFFFFF) + b"\x01"),
)
PIECES: st.SearchStrategy[bytes] = st.one_of(
    RUNS.map(lambda frames: b"".join(map(encode, frames))),
    TURNS.map(lambda frames: b"".join(map(encode, frames))),
    PUBLISHES.map(encode),
    OTHERS,
)
STREAMS = st.lists(PIECES, max_size=8).map(b"".join)


def naive(data: bytes, at: int) -> tuple[int, list[tuple[int, bytes]]]:
    """Return where the scan ends, and channels and payloads, decoded one frame at a time."""
    found: list[tuple[int, bytes]] = []
    while True:
        try:
            decoded = decode(data, at)
        except CafeError:
            break
        if decoded is None or not isinstance(decoded[0], Publish):
            break
        if len(decoded[0].payload) > MAX_MESSAGE:
            break
        found.append((decoded[0].channel, decoded[0].payload))
        at = decoded[1]
    return at, found


def scan(kernel: Any, data: bytes, at: int = 0) -> tuple[int, list[tuple[int, bytes]]]:
    """Return where the scan of a new table ends, and channels and payloads."""
    columns = kernel.HeadTable(learn_publish).scan(data, at)
    return columns.end, messages(columns)


def publishes(channel: int, *payloads: bytes) -> bytes:
    """PUBLISH frames."""
    return b"".join(encode(Publish(channel, payload)) for payload in payloads)


@each_form
class TestScan:
    """PUBLISH frames"""

    def test_empty_data_has_no_messages(self, kernel: Any) -> None:
        assert scan(kernel, b"") == (0, [])
        assert scan(kernel, b"\xfe\xca\x10\x01\0\0\0") == (0, [])

    def test_messages_of_several_channels_keep_their_order(self, kernel: Any) -> None:
        data = publishes(1, b"a", b"b") + publishes(2, b"c") + publishes(1, b"dd", b"")
        columns = kernel.HeadTable(learn_publish).scan(data)
        assert columns.payloads() == [b"a", b"b", b"c", b"dd", b""]
        assert columns.indexes() == [0, 0, 1, 0, 0]
        assert columns.addresses == [1, 2]
        assert columns.end == len(data)
        assert columns.totals() == [(0, 4, 4), (1, 1, 1)]

    def test_every_channel_in_turn(self, kernel: Any) -> None:
        wanted = [(n * 7 % 256, b"%d" % n) for n in range(1000)]
        data = b"".join(publishes(*one) for one in wanted)
        assert scan(kernel, data) == (len(data), wanted)

    def test_a_long_run_of_equal_lengths(self, kernel: Any) -> None:
        payloads = [b"%04d" % n for n in range(1000)]
        data = publishes(3, *payloads)
        assert scan(kernel, data) == (len(data), [(3, payload) for payload in payloads])

    def test_empty_payloads_are_messages(self, kernel: Any) -> None:
        data = publishes(3, *[b""] * 50)
        assert scan(kernel, data) == (len(data), [(3, b"")] * 50)

    @pytest.mark.parametrize(
        "other",
        [
            publishes(2, b"wxyz"),
            encode(HandshakePub(1, b"abc")),
            b"\xfe\xcb\x10\x05\0\0\0\x01wxyz",
            b"\xff\xca\x10\x05\0\0\0\x01wxyz",
            b"\xfe\xca\x11\x05\0\0\0\x01wxyz",
            b"\xfe\xca\x10\x05\0\0\x01\x01wxyz",
            b"\xfe\xca\x10\x05\x01\0\0\x01wxyz",
        ],
    )
    def test_a_different_head_among_equal_ones(self, kernel: Any, other: bytes) -> None:
        assert len(other) == len(encode(Publish(1, b"abcd")))
        data = publishes(1, *[b"abcd"] * 5) + other + publishes(1, *[b"efgh"] * 5)
        assert scan(kernel, data) == naive(data, 0)
        assert scan(kernel, data)[1][:5] == [(1, b"abcd")] * 5

    def test_a_different_length_among_equal_ones(self, kernel: Any) -> None:
        payloads = [b"abcd"] * 5 + [b"abcde"] + [b"efgh"] * 5
        data = publishes(1, *payloads)
        assert scan(kernel, data) == (len(data), [(1, payload) for payload in payloads])

    def test_payloads_that_contain_headers_are_payloads(self, kernel: Any) -> None:
        inner = encode(Publish(1, b"abcd"))
        data = publishes(1, *[inner] * 10)
        assert scan(kernel, data) == (len(data), [(1, inner)] * 10)

    @pytest.mark.parametrize("cut", range(1, 10))
    def test_it_stops_before_an_incomplete_frame(self, kernel: Any, cut: int) -> None:
        data = publishes(1, b"ab", b"cd", b"ef", b"gh")
        assert scan(kernel, data[:-cut]) == (30, [(1, b"ab"), (1, b"cd"), (1, b"ef")])
        mixed = publishes(1, b"ab") + publishes(2, b"cd") + publishes(3, b"ef")
        assert scan(kernel, mixed[:-cut]) == (20, [(1, b"ab"), (2, b"cd")])

    def test_it_stops_before_a_ping(self, kernel: Any) -> None:
        data = publishes(1, b"ab", b"cd") + encode(Ping())
        assert scan(kernel, data) == (20, [(1, b"ab"), (1, b"cd")])
        assert scan(kernel, encode(Ping())) == (0, [])

    def test_it_stops_before_a_message_too_long_to_deliver(self, kernel: Any) -> None:
        fits = encode(Publish(1, b"x" * MAX_MESSAGE))
        over = encode(Publish(1, b"x" * (MAX_MESSAGE + 1)))
        at, found = scan(kernel, fits + over)
        assert at == len(fits)
        assert [len(payload) for _, payload in found] == [MAX_MESSAGE]

    def test_it_begins_at_an_offset(self, kernel: Any) -> None:
        ping = encode(Ping())
        data = ping + publishes(1, b"a", b"b", b"c")
        assert scan(kernel, data, len(ping)) == (len(data), [(1, b"a"), (1, b"b"), (1, b"c")])

    def test_many_lengths_on_many_channels(self, kernel: Any) -> None:
        payloads = [b"x" * (n % 700) for n in range(2000)]
        table = kernel.HeadTable(learn_publish)
        for channel in range(8):
            data = publishes(channel, *payloads)
            columns = table.scan(data)
            assert columns.end == len(data)
            assert messages(columns) == [(channel, payload) for payload in payloads]
        assert len(table) == 8

    @given(data=STREAMS, before=st.integers(0, 2))
    def test_a_scan_finds_the_same_as_the_codec(
        self, kernel: Any, data: bytes, before: int
    ) -> None:
        stream = b"\xfe" * before + data
        assert scan(kernel, stream, before) == naive(stream, before)

    @given(
        pieces=st.lists(PUBLISHES | RUNS | TURNS, max_size=8),
        cuts=st.lists(st.integers(1, 60), max_size=12),
    )
    def test_any_split_gives_the_same_messages(
        self, kernel: Any, pieces: list[Publish | list[Publish]], cuts: list[int]
    ) -> None:
        frames = [f for p in pieces for f in (p if isinstance(p, list) else [p])]
        stream = b"".join(map(encode, frames))
        table = kernel.HeadTable(learn_publish)
        found: list[Publish] = []
        rest = b""
        for cut in [*cuts, len(stream)]:
            chunk, stream = stream[:cut], stream[cut:]
            rest += chunk
            columns = table.scan(rest)
            found += [Publish(*message) for message in messages(columns)]
            rest = rest[columns.end :]
        assert found == frames
        assert rest == b""


class TestHead:
    """The head of a single frame"""

    @pytest.mark.parametrize("size", [0, 1, 255, 256, MAX_MESSAGE])
    def test_the_length_of_a_frame(self, size: int) -> None:
        data = encode(Publish(7, bytes(size)))
        learnt = learn_publish(data[:8], 0)
        assert learnt is not None
        head, channel = learnt
        assert channel == 7
        assert head.frame_length(data[:8]) == len(data)
        assert head.encode(size) == data[:8]

    def test_incomplete_and_other_frames_have_no_head(self) -> None:
        data = encode(Publish(7, b"x"))
        for other in (data[:7], encode(Ping()), encode(Message(1, 2, b"hi")), b"\xff" + data[1:]):
            assert learn_publish(other, 0) is None
        long = HEADER.pack(0xCAFE, 0x10, MAX_MESSAGE + 2) + b"\x07"
        assert publish_head(7).frame_length(long) == 0


@each_form
class TestEncode:
    """MESSAGE frames"""

    def test_messages_of_one_size(self, kernel: Any) -> None:
        heads = [[message_head(1, MAX_MESSAGE)]]
        stamp = (1_700_000_000_000).to_bytes(8, "little")
        columns = kernel.Columns.of([b"hi", b"ho"])
        first = bytes.fromhex("fe ca 13 0b 00 00 00 01 00 68 e5 cf 8b 01 00 00 68 69")
        assert encode_columns(kernel, heads, columns, TIMESTAMP_AT, stamp) == (
            first + first[:-1] + b"o",
            2,
        )

    def test_no_messages_are_no_bytes(self, kernel: Any) -> None:
        heads = [[message_head(1, MAX_MESSAGE)]]
        assert encode_columns(kernel, heads, kernel.Columns.of([]), 8, bytes(8)) == (b"", 0)

    @given(
        timestamp=st.integers(0, 2**64 - 1),
        sent=st.lists(st.tuples(st.integers(0, 5), PAYLOADS), max_size=20),
        limit=st.integers(0, 12),
    )
    def test_frames_equal_those_of_the_codec(
        self, kernel: Any, timestamp: int, sent: list[tuple[int, bytes]], limit: int
    ) -> None:
        """The topics of channels 0 to 4, of which 3 is not subscribed to; 4 has a limit."""
        limits = [MAX_MESSAGE, MAX_MESSAGE, MAX_MESSAGE, -1, limit, -1]
        heads = [[] if most < 0 else [message_head(n, most)] for n, most in enumerate(limits)]
        columns = kernel.Columns.of([payload for _, payload in sent], [index for index, _ in sent])
        wanted = [(channel, p) for channel, p in sent if len(p) <= limits[channel]]
        stamp = timestamp.to_bytes(8, "little")
        assert encode_columns(kernel, heads, columns, TIMESTAMP_AT, stamp) == (
            b"".join(encode(Message(channel, timestamp, payload)) for channel, payload in wanted),
            len(wanted),
        )


class TestEncoding:
    """``MessageEncoding``"""

    def test_the_timestamp_is_in_milliseconds(self) -> None:
        batch = batch_of([b"hi", b"there"])
        stamp = batch.timestamp // 1000
        wanted = encode(Message(9, stamp, b"hi")) + encode(Message(9, stamp, b"there"))
        assert encoded(MessageEncoding(9), batch) == wanted

    def test_a_message_over_the_limit_is_left_out(self) -> None:
        batch = batch_of([b"12345", b"1234", b"12345"])
        stamp = batch.timestamp // 1000
        assert encoded(MessageEncoding(9, 4), batch) == encode(Message(9, stamp, b"1234"))

    def test_encodings_of_the_same_channel_are_equal(self) -> None:
        assert len({MessageEncoding(1), MessageEncoding(1)}) == 1
        assert MessageEncoding(1) != MessageEncoding(2)
        assert MessageEncoding(1) != MessageEncoding(1, 4)

    def test_every_batch_has_its_own_timestamp(self) -> None:
        encoding = MessageEncoding(1)
        for stamp in (0, 1_700_000_000_123_456):
            batch = Batch(("t",), Columns.one(b"x"), stamp, 0, b"", "toy")
            assert encoded(encoding, batch) == encode(Message(1, stamp // 1000, b"x"))
