"""fast's scanner: equivalence with the codec, one packet at a time."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.message_run import MIXED, MessageRun
from pubsub.protocols.fast import scan as scan_module
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
from pubsub.protocols.fast.scan import Scanner, TokenRun, encode_messages

LIMIT = 40
TOKENS = st.sampled_from([b"", b"t", b"token", b"TOKEN", b"\x03" * 10, b"x" * 255])
TOPICS = st.sampled_from([0, 1, 0x03000000, 0xFFFFFFFF])
# Payloads that look like packets, so that a scanner at a wrong position finds false ones.
TRICKY = st.sampled_from(
    [b"", bytes(10), b"\x03\0" + bytes(8), encode(Publish(b"t", 1, b"hi")), b"\x03\x01t"]
)
PAYLOADS = st.one_of(TRICKY, st.binary(max_size=12), st.just(b"same"), st.just(b"SAME"))
PUBLISHES = st.builds(Publish, TOKENS, TOPICS, PAYLOADS)
# Many equal heads in a row are what the scanner treats specially.
RUNS = st.builds(
    lambda packet, payloads: [Publish(packet.token, packet.topic_id, p) for p in payloads],
    PUBLISHES,
    st.integers(0, 6).flatmap(
        lambda size: st.lists(st.binary(min_size=size, max_size=size), max_size=20)
    ),
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
    RUNS.map(lambda packets: b"".join(map(encode, packets))), PUBLISHES.map(encode), OTHERS
)
STREAMS = st.lists(PIECES, max_size=8).map(b"".join)

Found = tuple[bytes, int, bytes]
"""Token, topic id and payload of a message."""


def naive(data: bytes, at: int) -> tuple[int, list[Found]]:
    """Return what ``scan`` should find, parsed a packet at a time."""
    found: list[Found] = []
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
        found.append((packet.token, packet.topic_id, packet.payload))
    return at, found


def flat(rows: list[TokenRun]) -> list[Found]:
    """The messages of ``rows``, each of which has to be consistent."""
    for row in rows:
        assert row.run.payloads
        assert row.run == MessageRun.of(row.run.payloads)
        assert row.run.nbytes == sum(map(len, row.run.payloads))
    return [(row.token, row.topic_id, payload) for row in rows for payload in row.run.payloads]


def publishes(token: bytes, topic: int, *payloads: bytes) -> bytes:
    """Return PUBLISH packets."""
    return b"".join(encode(Publish(token, topic, payload)) for payload in payloads)


class ScanTests(SynchronousTestCase):
    """Scanner.scan"""

    def setUp(self) -> None:
        self.scan = Scanner(LIMIT).scan

    def test_nothing_is_found_in_nothing(self) -> None:
        assert self.scan(b"", 0) == (0, [])
        assert self.scan(b"\x03\x01t\0\0\0\x01\0\0\0", 0) == (0, [])

    def test_consecutive_publishes_with_a_token_to_a_topic_are_one_run(self) -> None:
        parts = [
            publishes(b"t", 1, b"a", b"b"),
            publishes(b"t", 2, b"c"),
            publishes(b"u", 2, b"d", b"e"),
        ]
        ends = [sum(map(len, parts[: n + 1])) for n in range(3)]
        assert self.scan(b"".join(parts), 0) == (
            ends[-1],
            [
                TokenRun(b"t", 1, MessageRun([b"a", b"b"], 1), ends[0]),
                TokenRun(b"t", 2, MessageRun([b"c"], 1), ends[1]),
                TokenRun(b"u", 2, MessageRun([b"d", b"e"], 1), ends[2]),
            ],
        )

    def test_messages_of_different_lengths_are_one_run_too(self) -> None:
        data = publishes(b"token", 1, b"a", b"bb", b"bb", b"", b"ccc")
        row = TokenRun(b"token", 1, MessageRun([b"a", b"bb", b"bb", b"", b"ccc"], MIXED), len(data))
        assert self.scan(data, 0) == (len(data), [row])
        assert self.scan(data, 0) == (len(data), [row])

    def test_a_token_is_the_same_object_again_and_again(self) -> None:
        data = publishes(b"token", 1, b"a", b"b")
        first, second = self.scan(data, 0)[1][0], self.scan(bytes(data), 0)[1][0]
        assert first.token is second.token

    def test_a_long_run_of_equal_lengths_is_cut_right(self) -> None:
        payloads = [b"%04d" % n for n in range(1000)]
        data = publishes(b"token", 3, *payloads)
        (row,) = self.scan(data, 0)[1]
        assert row == TokenRun(b"token", 3, MessageRun(payloads, 4), len(data))

    def test_it_starts_anywhere(self) -> None:
        data = publishes(b"t", 1, b"a")
        at, rows = self.scan(b"\xff" * 7 + data, 7)
        assert (at, rows[0].end) == (7 + len(data), 7 + len(data))

    def test_it_stops_before_what_is_not_for_it(self) -> None:
        data = publishes(b"t", 1, b"a", b"b")
        for tail in (
            encode(Subscribe(b"t", 1)),
            publishes(b"t", 1, b"cut")[:-1],
            publishes(b"t", 1, bytes(LIMIT + 1)),
            b"\x03\xff",
            b"\x80",
        ):
            at, rows = self.scan(data + tail, 0)
            assert at == len(data)
            assert flat(rows) == [(b"t", 1, b"a"), (b"t", 1, b"b")]

    def test_the_largest_payload_is_taken(self) -> None:
        data = publishes(b"t", 1, bytes(LIMIT))
        assert self.scan(data, 0)[0] == len(data)

    def test_heads_that_are_remembered_are_bounded(self) -> None:
        scanner = Scanner(LIMIT)
        for number in range(2 * scan_module._CACHED_HEADS + 10):
            assert scanner.scan(publishes(b"%d" % number, 1, b"a"), 0)[1]
        assert len(scanner._heads) <= scan_module._CACHED_HEADS

    def test_heads_over_the_limit_are_not_remembered(self) -> None:
        scanner = Scanner(LIMIT)
        for number in range(100):
            scanner.scan(publishes(b"%d" % number, 1, bytes(LIMIT + 1)), 0)
        assert not scanner._heads


class PropertyTests(SynchronousTestCase):
    """The scan is equal to the naive decoding"""

    @given(STREAMS)
    def test_a_whole_stream(self, data: bytes) -> None:
        scanner = Scanner(LIMIT)
        for _ in range(2):
            at, rows = scanner.scan(data, 0)
            assert (at, flat(rows)) == naive(data, 0)
            assert [row.end for row in rows] == sorted({row.end for row in rows})
            assert at == (rows[-1].end if rows else 0)

    @given(st.lists(STREAMS, max_size=3), st.integers(1, 40))
    def test_any_split(self, streams: list[bytes], size: int) -> None:
        """The remainder is put before the next piece; the scanner keeps its cache."""
        scanner = Scanner(LIMIT)
        for data in streams:
            found, rest = [], b""
            for start in range(0, len(data), size):
                rest += data[start : start + size]
                at, rows = scanner.scan(rest, 0)
                found += flat(rows)
                rest = rest[at:]
            end, wanted = naive(data, 0)
            assert found == wanted
            assert rest == data[end:]

    @given(STREAMS, STREAMS)
    def test_at_any_place(self, before: bytes, data: bytes) -> None:
        at, rows = Scanner(LIMIT).scan(before + data, len(before))
        end, wanted = naive(data, 0)
        assert (at, flat(rows)) == (len(before) + end, wanted)

    @given(st.binary(max_size=200))
    @example(b"")
    @example(b"\x03")
    @example(b"\x03\0" + bytes(8))
    @example(b"\x03\x01t" + bytes(4) + b"\xff" * 4)
    def test_any_bytes(self, data: bytes) -> None:
        at, rows = Scanner(LIMIT).scan(data, 0)
        assert (at, flat(rows)) == naive(data, 0)

    @given(st.lists(PUBLISHES, max_size=30))
    def test_a_run_ends_only_where_token_or_topic_change(self, packets: list[Publish]) -> None:
        rows = Scanner(LIMIT).scan(b"".join(map(encode, packets)), 0)[1]
        keys = [(row.token, row.topic_id) for row in rows]
        assert all(one != two for one, two in pairwise(keys))


class EncodeTests(SynchronousTestCase):
    """encode_messages"""

    @given(TOPICS, st.lists(PAYLOADS, min_size=1, max_size=20))
    def test_it_is_what_the_codec_makes(self, topic: int, payloads: list[bytes]) -> None:
        sizes = set(map(len, payloads))
        size = sizes.pop() if len(sizes) == 1 else MIXED
        wanted = b"".join(encode(Message(topic, payload)) for payload in payloads)
        assert encode_messages(topic, payloads, size) == wanted
        assert encode_messages(topic, payloads, MIXED) == wanted

    def test_literally(self) -> None:
        made = encode_messages(0x01020304, [b"hi", b""], MIXED)
        assert made == b"\x04\x01\x02\x03\x04\0\0\0\x02hi\x04\x01\x02\x03\x04\0\0\0\0"
