"""rheos's heads: the kernel scans and encodes the packets that the codec decodes and encodes."""

from __future__ import annotations

from functools import partial
from itertools import cycle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsub.kernel.interpreted import MAX_HEADS
from pubsub.protocols.rheos.codec import (
    MAX_PAYLOAD,
    Codec,
    Opcode,
    Request,
    Response,
    RheosError,
)
from pubsub.protocols.rheos.message_heads import (
    SENDER_AT,
    Source,
    learn_publish,
    response_heads,
    unseal,
)
from tests.profiles import examples
from tests.unit import rheos_wire as wire
from tests.unit.kernel_forms import each_form, messages
from tests.unit.kernel_forms import encode as encode_columns
from tests.unit.rheos_wire import ALICE, BOB, NIL

CODECS = [Codec(layout, seal) for layout in ("spec", "original") for seal in (False, True)]
ANY_CODEC = st.sampled_from(CODECS)
CLIENTS = st.sampled_from([ALICE, BOB, b"\xff" * 16])
TOPICS = st.sampled_from([b"news", b"sport", b"", b"\xff", b"n" * 255])
# Payloads that look like requests, so that a misplaced scan finds false requests.
PAYLOADS = st.one_of(
    st.sampled_from(
        [b"", wire.publish(ALICE, b"hi"), wire.publish(ALICE, b"hi")[:30], b"\xfa", b"same"]
    ),
    st.binary(max_size=12),
)
PUBLISHES = st.builds(
    lambda client, topic, payload: Request(Opcode.PUBLISH, client, topic, payload),
    CLIENTS,
    TOPICS,
    PAYLOADS,
)
# The interpreted kernel has a fast path for many equal heads in a row.
RUNS = st.builds(
    lambda request, payloads: [
        Request(Opcode.PUBLISH, request.client_id, request.topic, p) for p in payloads
    ],
    PUBLISHES,
    st.integers(0, 6).flatmap(
        lambda size: st.lists(st.binary(min_size=size, max_size=size), max_size=30)
    ),
)
# The topic changes with every message.
TURNS = st.builds(
    lambda requests, payloads: [
        Request(Opcode.PUBLISH, request.client_id, request.topic, payload)
        for request, payload in zip(cycle(requests), payloads, strict=False)
    ],
    st.lists(PUBLISHES, min_size=1, max_size=4),
    st.lists(PAYLOADS, max_size=20),
)
OTHERS: st.SearchStrategy[Request] = st.sampled_from(
    [
        Request(Opcode.CREATE, ALICE, b"news"),
        Request(Opcode.SUBSCRIBE, BOB, b"news", b"hi"),
        Request(3, ALICE, b"news", b"hi"),
        Request(Opcode.PUBLISH, NIL, b"news", b"hi"),
        Request(Opcode.PUBLISH, ALICE, b"n" * 256, b"hi"),
    ]
)
GARBAGE = st.sampled_from(
    [b"\0", b"\xfa", wire.raw(2, ALICE, b""), wire.raw(2, ALICE, wire.body(b"n", b"x") + b"!")]
)
ALICES = Source(ALICE, b"news")
Found = list[tuple[Source, bytes]]


@st.composite
def streams(draw: st.DrawFn, codec: Codec) -> bytes:
    """Runs, single requests and garbage, perhaps with a bit changed."""
    pieces = draw(
        st.lists(st.one_of(RUNS, TURNS, st.lists(st.one_of(PUBLISHES, OTHERS), max_size=2)))
    )
    data = bytearray(b"".join(codec.encode(request) for run in pieces for request in run))
    if data and draw(st.booleans()):
        data[draw(st.integers(0, len(data) - 1))] ^= 1
    return bytes(data) + draw(st.one_of(st.just(b""), GARBAGE))


def naive(codec: Codec, data: bytes, at: int) -> tuple[int, Found]:
    """Return where the scan ends, and sources and payloads, decoded one request at a time."""
    found: Found = []
    while True:
        try:
            decoded = codec.decode(data, at)
        except RheosError:
            break
        if decoded is None or decoded[0].opcode != Opcode.PUBLISH or len(decoded[0].topic) > 255:
            break
        request, at = decoded
        found.append((Source(request.client_id, request.topic), request.data))
    return at, found


def table_of(kernel: Any, codec: Codec | None = None) -> Any:
    """Return a new table of the form ``kernel``."""
    return kernel.HeadTable(partial(learn_publish, codec=codec or Codec()))


def scan(table: Any, data: bytes, at: int = 0, codec: Codec | None = None) -> tuple[int, Found]:
    """Return where the scan ends, and sources and payloads, as the server scans."""
    columns = table.scan(data, at)
    end = columns.end
    if codec is not None and codec.checksum:
        columns, end = unseal(columns, data, at, codec)
    return end, messages(columns)


@each_form
class TestScan:
    """PUBLISH requests"""

    def test_empty_data_has_no_messages(self, kernel: Any) -> None:
        table = table_of(kernel)
        assert scan(table, b"") == (0, [])
        assert scan(table, wire.publish(ALICE, b"hi")[:-1]) == (0, [])

    def test_messages_of_several_sources_keep_their_order(self, kernel: Any) -> None:
        data = (
            wire.publish(ALICE, b"a", b"b")
            + wire.publish(BOB, b"c")
            + wire.publish(BOB, b"d", name=b"sport")
            + wire.publish(BOB, b"ee", b"", name=b"sport")
            + wire.publish(ALICE, b"f")
        )
        columns = table_of(kernel).scan(data)
        assert columns.payloads() == [b"a", b"b", b"c", b"d", b"ee", b"", b"f"]
        assert columns.indexes() == [0, 0, 1, 2, 2, 2, 0]
        assert columns.addresses == [ALICES, Source(BOB, b"news"), Source(BOB, b"sport")]
        assert columns.end == len(data)

    def test_many_topics_and_clients_in_turn(self, kernel: Any) -> None:
        wanted = [(Source((ALICE, BOB)[n % 2], b"t" * (n % 20)), bytes(n % 7)) for n in range(1000)]
        for codec in CODECS:
            table = table_of(kernel, codec)
            data = b"".join(codec.encode(Request(Opcode.PUBLISH, *s, p)) for s, p in wanted)
            for _ in range(2):
                assert scan(table, data, 0, codec) == (len(data), wanted)

    def test_a_long_run_in_every_format(self, kernel: Any) -> None:
        payloads = [b"%04d" % number for number in range(1000)]
        for codec in CODECS:
            data = b"".join(codec.encode(Request(2, ALICE, b"news", p)) for p in payloads)
            at, found = scan(table_of(kernel, codec), b"?" + data + b"\xfa", 1, codec)
            assert (at, found) == (1 + len(data), [(ALICES, payload) for payload in payloads])

    @pytest.mark.parametrize(
        "other",
        [
            wire.create(ALICE),
            wire.raw(2, NIL, wire.body(b"news", b"a")),
            wire.raw(3, ALICE, b""),
            b"\0",
        ],
    )
    def test_it_stops_at_any_other_request(self, kernel: Any, other: bytes) -> None:
        first = wire.publish(ALICE, b"a", b"b", b"c")
        at, found = scan(table_of(kernel), first + other + first)
        assert (at, len(found)) == (len(first), 3)

    def test_every_split_in_every_format(self, kernel: Any) -> None:
        for codec in CODECS:
            requests = [
                Request(2, (ALICE, BOB)[n % 2], b"t" * (n % 3), bytes(n % 4)) for n in range(6)
            ]
            frames = [codec.encode(request) for request in requests]
            ends = [sum(map(len, frames[:n])) for n in range(7)]
            data = b"".join(frames)
            for cut in range(len(data) + 1):
                at, found = scan(table_of(kernel, codec), data[:cut], 0, codec)
                assert at == max(end for end in ends if end <= cut)
                assert len(found) == ends.index(at)

    @pytest.mark.parametrize("bad", range(30))
    def test_it_stops_at_a_wrong_checksum(self, kernel: Any, bad: int) -> None:
        codec = Codec(checksum=True)
        names = (b"news", b"sport", b"news")
        frames = [
            wire.sealed(wire.publish(ALICE, b"%02d" % n, name=names[n % 3])) for n in range(30)
        ]
        frames[bad] = frames[bad][:-1] + bytes([frames[bad][-1] ^ 1])
        at, found = scan(table_of(kernel, codec), b"".join(frames), 0, codec)
        assert at == sum(map(len, frames[:bad]))
        assert [payload for _, payload in found] == [b"%02d" % n for n in range(bad)]

    def test_heads_are_bounded(self, kernel: Any) -> None:
        table = table_of(kernel)
        for number in range(MAX_HEADS + 10):
            data = wire.publish(ALICE, b"hi", name=b"%d" % number)
            assert table.scan(data).end == len(data)
        assert len(table) == 10

    @given(data=st.data())
    def test_a_scan_finds_the_same_as_the_codec(self, kernel: Any, data: st.DataObject) -> None:
        codec = data.draw(ANY_CODEC)
        stream = data.draw(streams(codec))
        at = data.draw(st.integers(0, min(3, len(stream))))
        table = table_of(kernel, codec)
        for _ in range(2):
            assert scan(table, stream, at, codec) == naive(codec, stream, at)

    @given(codec=ANY_CODEC, data=st.binary(max_size=80), at=st.integers(0, 3))
    def test_any_bytes(self, kernel: Any, codec: Codec, data: bytes, at: int) -> None:
        at = min(at, len(data))
        assert scan(table_of(kernel, codec), data, at, codec) == naive(codec, data, at)


class TestHead:
    """The head of a single request"""

    @pytest.mark.parametrize("codec", CODECS)
    def test_the_length_of_a_request(self, codec: Codec) -> None:
        for size in (0, 1, 300):
            data = codec.encode(Request(Opcode.PUBLISH, ALICE, b"news", bytes(size)))
            learnt = learn_publish(data, 0, codec)
            assert learnt is not None
            head, source = learnt
            assert source == ALICES
            assert head.frame_length(data) == len(data)
            seal = 4 * codec.checksum
            assert head.encode(size + seal) + bytes(size) == data[: len(data) - seal]

    @pytest.mark.parametrize("codec", CODECS)
    def test_a_payload_over_the_limit(self, codec: Codec) -> None:
        data = codec.encode(Request(Opcode.PUBLISH, ALICE, b"news"))
        learnt = learn_publish(data, 0, codec)
        assert learnt is not None
        head, _ = learnt
        body_length = 2 + len(b"news") + codec.layout.data_length
        limit = min(MAX_PAYLOAD - body_length, 256**codec.layout.data_length - 1)
        seal = 4 * codec.checksum
        assert head.limit == limit + seal
        assert head.frame_length(head.encode(limit + seal)) == len(head.data) + limit + seal


@each_form
class TestEncode:
    """Responses"""

    @given(
        client=CLIENTS,
        codec=st.sampled_from(CODECS),
        sent=st.lists(st.tuples(st.integers(0, 2), PAYLOADS), max_size=20),
        limit=st.integers(0, 12),
    )
    @examples(2)
    def test_frames_equal_those_of_the_codec(
        self,
        kernel: Any,
        client: bytes,
        codec: Codec,
        sent: list[tuple[int, bytes]],
        limit: int,
    ) -> None:
        """Index 0 is delivered alone, index 1 in an envelope with a limit, index 2 not at all."""
        length = codec.layout.data_length
        envelope = codec.topic(b"news", b"")[:-length]
        heads = [
            response_heads(b"", 0, MAX_PAYLOAD),
            response_heads(envelope, length, limit),
            (),
        ]
        columns = kernel.Columns.of([payload for _, payload in sent], [index for index, _ in sent])
        wanted = [(i, p) for i, p in sent if i == 0 or (i == 1 and len(p) <= limit)]
        bodies = [codec.topic(b"news", p) if index else p for index, p in wanted]
        assert encode_columns(kernel, heads, columns, SENDER_AT, client) == (
            b"".join(codec.encode(Response(client, each)) for each in bodies),
            len(wanted),
        )
