"""cafe's fast path: it finds and makes what the codec would, one frame at a time."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.message_run import MIXED, MessageRun
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
from pubsub.protocols.cafe.scan import encode_messages, scan, split_frames

CHANNELS = st.sampled_from([0, 1, 2, 0x10, 0xFE, 0xFF])
# Payloads that look like headers, so that a scanner which loses its place finds false frames.
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
# Many equal headers in a row are what the scanner treats specially.
RUNS = st.builds(
    lambda frame, payloads: [Publish(frame.channel, p) for p in payloads],
    PUBLISHES,
    st.integers(0, 6).flatmap(
        lambda size: st.lists(st.binary(min_size=size, max_size=size), max_size=12)
    ),
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
    PUBLISHES.map(encode),
    OTHERS,
)
STREAMS = st.lists(PIECES, max_size=8).map(b"".join)


def naive(data: bytes, at: int) -> tuple[int, list[tuple[int, MessageRun]]]:
    """What ``scan`` promises, a frame at a time."""
    found: list[Publish] = []
    while True:
        try:
            decoded = decode(data, at)
        except CafeError:
            break
        if decoded is None or not isinstance(decoded[0], Publish):
            break
        if len(decoded[0].payload) > MAX_MESSAGE:
            break
        found.append(decoded[0])
        at = decoded[1]
    grouped: list[tuple[int, list[bytes]]] = []
    for frame in found:
        if not grouped or grouped[-1][0] != frame.channel:
            grouped.append((frame.channel, []))
        grouped[-1][1].append(frame.payload)
    return at, [(channel, MessageRun.of(payloads)) for channel, payloads in grouped]


def publishes(channel: int, *payloads: bytes) -> bytes:
    """PUBLISH frames."""
    return b"".join(encode(Publish(channel, payload)) for payload in payloads)


class ScanTests(SynchronousTestCase):
    """scan"""

    def test_nothing_is_found_in_nothing(self) -> None:
        assert scan(b"", 0) == (0, [])
        assert scan(b"\xfe\xca\x10\x01\0\0\0", 0) == (0, [])

    def test_consecutive_publishes_of_a_channel_are_one_run(self) -> None:
        data = publishes(1, b"a", b"b") + publishes(2, b"c") + publishes(1, b"dd", b"")
        assert scan(data, 0) == (
            len(data),
            [
                (1, MessageRun([b"a", b"b"], 1)),
                (2, MessageRun([b"c"], 1)),
                (1, MessageRun([b"dd", b""], MIXED)),
            ],
        )

    def test_a_long_run_of_equal_lengths_is_cut_right(self) -> None:
        payloads = [b"%04d" % n for n in range(1000)]
        data = publishes(3, *payloads)
        assert scan(data, 0) == (len(data), [(3, MessageRun(payloads, 4))])

    def test_empty_payloads_are_messages(self) -> None:
        data = publishes(3, *[b""] * 50)
        assert scan(data, 0) == (len(data), [(3, MessageRun([b""] * 50, 0))])

    def test_a_different_header_in_the_middle_of_equal_lengths_ends_the_run(self) -> None:
        before, after = publishes(1, *[b"abcd"] * 5), publishes(1, *[b"efgh"] * 5)
        for other in (
            publishes(2, b"wxyz"),
            encode(HandshakePub(1, b"abc")),
            b"\xfe\xcb\x10\x05\0\0\0\x01wxyz",
            b"\xff\xca\x10\x05\0\0\0\x01wxyz",
            b"\xfe\xca\x11\x05\0\0\0\x01wxyz",
            b"\xfe\xca\x10\x05\0\0\x01\x01wxyz",
            b"\xfe\xca\x10\x05\x01\0\0\x01wxyz",
        ):
            assert len(other) == len(encode(Publish(1, b"abcd")))
            data = before + other + after
            assert scan(data, 0) == naive(data, 0)
            assert scan(data, 0)[1][0] == (1, MessageRun([b"abcd"] * 5, 4))

    def test_a_length_that_differs_among_equal_ones_does_not_end_the_run(
        self,
    ) -> None:
        payloads = [b"abcd"] * 5 + [b"abcde"] + [b"efgh"] * 5
        data = publishes(1, *payloads)
        assert scan(data, 0) == (len(data), [(1, MessageRun(payloads, MIXED))])

    def test_payloads_that_contain_headers_are_payloads(self) -> None:
        inner = encode(Publish(1, b"abcd"))
        data = publishes(1, *[inner] * 10)
        assert scan(data, 0) == (len(data), [(1, MessageRun([inner] * 10, len(inner)))])

    def test_it_stops_before_a_frame_that_is_not_all_there(self) -> None:
        data = publishes(1, b"ab", b"cd", b"ef", b"gh")
        for cut in range(1, 10):
            assert scan(data[:-cut], 0) == (30, [(1, MessageRun([b"ab", b"cd", b"ef"], 2))])

    def test_it_stops_before_a_lone_ping(self) -> None:
        data = publishes(1, b"ab", b"cd") + encode(Ping())
        assert scan(data, 0) == (20, [(1, MessageRun([b"ab", b"cd"], 2))])
        assert scan(encode(Ping()), 0) == (0, [])

    def test_a_message_too_long_to_deliver_is_left_to_the_codec(self) -> None:
        fits = encode(Publish(1, b"x" * MAX_MESSAGE))
        over = encode(Publish(1, b"x" * (MAX_MESSAGE + 1)))
        at, runs = scan(fits + over, 0)
        assert at == len(fits)
        assert [len(payload) for payload in runs[0][1].payloads] == [MAX_MESSAGE]

    def test_it_begins_where_it_is_told(self) -> None:
        ping = encode(Ping())
        data = ping + publishes(1, b"a", b"b", b"c")
        assert scan(data, len(ping)) == (len(data), [(1, MessageRun([b"a", b"b", b"c"], 1))])

    def test_more_lengths_than_are_remembered_are_found_all_the_same(self) -> None:
        payloads = [b"x" * (n % 700) for n in range(2000)]
        for channel in range(8):
            data = publishes(channel, *payloads)
            assert scan(data, 0) == (len(data), [(channel, MessageRun(payloads, MIXED))])

    @given(STREAMS, st.integers(0, 2))
    def test_it_finds_what_a_decode_loop_finds(self, data: bytes, before: int) -> None:
        stream = b"\xfe" * before + data
        assert scan(stream, before) == naive(stream, before)

    @given(st.lists(PUBLISHES | RUNS, max_size=8), st.lists(st.integers(1, 60), max_size=12))
    def test_however_the_stream_is_split_the_same_messages_come(
        self, pieces: list[Publish | list[Publish]], cuts: list[int]
    ) -> None:
        frames = [f for p in pieces for f in (p if isinstance(p, list) else [p])]
        stream = b"".join(map(encode, frames))
        found: list[Publish] = []
        rest = b""
        for cut in [*cuts, len(stream)]:
            chunk, stream = stream[:cut], stream[cut:]
            rest += chunk
            at, runs = scan(rest, 0)
            found += [
                Publish(channel, payload) for channel, run in runs for payload in run.payloads
            ]
            rest = rest[at:]
        assert found == frames
        assert rest == b""


class EncodeTests(SynchronousTestCase):
    """encode_messages"""

    def test_messages_of_one_size(self) -> None:
        data = encode_messages(1, 1_700_000_000_000, [b"hi", b"ho"], 2)
        first = bytes.fromhex("fe ca 13 0b 00 00 00 01 00 68 e5 cf 8b 01 00 00 68 69")
        assert data == first + first[:-1] + b"o"

    def test_no_messages_are_no_bytes(self) -> None:
        assert encode_messages(1, 2, [], 5) == b""
        assert encode_messages(1, 2, [], MIXED) == b""

    @given(
        st.integers(0, 255),
        st.integers(0, 2**64 - 1),
        st.lists(PAYLOADS, max_size=20),
    )
    @example(0, 0, [])
    @example(255, 2**64 - 1, [b""])
    @example(1, 1, [b"", b"a"])
    def test_they_are_what_the_codec_would_make(
        self, channel: int, timestamp: int, payloads: list[bytes]
    ) -> None:
        expected = b"".join(encode(Message(channel, timestamp, p)) for p in payloads)
        assert encode_messages(channel, timestamp, payloads, MIXED) == expected
        if len(set(map(len, payloads))) == 1:
            assert encode_messages(channel, timestamp, payloads, len(payloads[0])) == expected


class SplitTests(SynchronousTestCase):
    """split_frames"""

    @given(st.lists(PUBLISHES, max_size=20), st.integers(1, 100))
    def test_pieces_are_whole_frames_within_the_limit(
        self, frames: list[Publish], limit: int
    ) -> None:
        data = b"".join(map(encode, frames))
        pieces = split_frames(data, limit)
        assert b"".join(pieces) == data
        found: list[list[Publish]] = []
        for piece in pieces:
            at, runs = scan(piece, 0)
            assert at == len(piece) > 0
            found.append(
                [Publish(channel, payload) for channel, run in runs for payload in run.payloads]
            )
            assert len(piece) <= limit or len(found[-1]) == 1
        assert [frame for piece in found for frame in piece] == frames
        for piece, following in zip(pieces, found[1:], strict=False):
            assert len(piece) + len(encode(following[0])) > limit

    def test_a_frame_that_fills_the_limit_exactly_is_not_parted(self) -> None:
        data = publishes(1, b"ab", b"cd", b"ef")
        assert split_frames(data, 20) == [data[:20], data[20:]]
        assert split_frames(data, 30) == [data]
        assert split_frames(data, 29) == [data[:20], data[20:]]
        assert split_frames(b"", 10) == []
