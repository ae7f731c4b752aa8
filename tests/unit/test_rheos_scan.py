"""rheos's scanner: equivalence with the codec, one packet at a time."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.batch import message_id
from pubsub.broker.message_run import MIXED, MessageRun
from pubsub.protocols.rheos.codec import Ack, Codec, Opcode, Request, RheosError
from pubsub.protocols.rheos.scan import ClientRun, Scanner, encode_acks
from tests.unit.rheos_wire import ALICE, BOB, NIL, body, create, publish, raw, sealed

CODECS = [Codec(layout, seal) for layout in ("spec", "original") for seal in (False, True)]
ANY_CODEC = st.sampled_from(CODECS)
CLIENTS = st.sampled_from([ALICE, BOB, b"\xff" * 16])
TOPICS = st.sampled_from([b"news", b"sport", b"", b"\xff", b"n" * 255])
# Payloads that look like requests, so that a scanner at a wrong position finds false ones.
PAYLOADS = st.one_of(
    st.sampled_from([b"", publish(ALICE, b"hi"), publish(ALICE, b"hi")[:30], b"\xfa", b"same"]),
    st.binary(max_size=12),
)
PUBLISHES = st.builds(
    lambda client, topic, payload: Request(Opcode.PUBLISH, client, topic, payload),
    CLIENTS,
    TOPICS,
    PAYLOADS,
)
# Many equal heads in a row are what the scanner treats specially.
ROWS = st.builds(
    lambda request, payloads: [
        Request(Opcode.PUBLISH, request.client_id, request.topic, p) for p in payloads
    ],
    PUBLISHES,
    st.integers(0, 6).flatmap(
        lambda size: st.lists(st.binary(min_size=size, max_size=size), max_size=30)
    ),
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
    [b"\0", b"\xfa", raw(2, ALICE, b""), raw(2, ALICE, body(b"n", b"x") + b"!")]
)


@st.composite
def streams(draw: st.DrawFn, coder: Codec) -> bytes:
    """Return runs, single requests and invalid input, perhaps with a bit changed."""
    pieces = draw(st.lists(st.one_of(ROWS, st.lists(st.one_of(PUBLISHES, OTHERS), max_size=2))))
    data = bytearray(b"".join(coder.encode(request) for row in pieces for request in row))
    if data and draw(st.booleans()):
        data[draw(st.integers(0, len(data) - 1))] ^= 1
    return bytes(data) + draw(st.one_of(st.just(b""), GARBAGE))


def naive(coder: Codec, data: bytes, at: int) -> tuple[int, list[ClientRun]]:
    """Return what ``Scanner.scan`` should find, parsed a request at a time."""
    found: list[Request] = []
    while True:
        try:
            decoded = coder.decode(data, at)
        except RheosError:
            break
        if decoded is None or decoded[0].opcode != Opcode.PUBLISH or len(decoded[0].topic) > 255:
            break
        found.append(decoded[0])
        at = decoded[1]
    grouped: list[tuple[bytes, bytes, list[bytes]]] = []
    for request in found:
        if not grouped or grouped[-1][:2] != (request.client_id, request.topic):
            grouped.append((request.client_id, request.topic, []))
        grouped[-1][2].append(request.data)
    runs = [ClientRun(client, topic, MessageRun.of(found)) for client, topic, found in grouped]
    return at, runs


class ScanTests(SynchronousTestCase):
    """Scanner.scan"""

    def test_nothing_is_found_in_nothing(self) -> None:
        scanner = Scanner(Codec())
        assert scanner.scan(b"", 0) == (0, [])
        assert scanner.scan(publish(ALICE, b"hi")[:-1], 0) == (0, [])

    def test_messages_in_a_row_from_one_client_to_one_topic_are_one_run(self) -> None:
        data = (
            publish(ALICE, b"a", b"b")
            + publish(BOB, b"c")
            + publish(BOB, b"d", name=b"sport")
            + publish(BOB, b"ee", b"", name=b"sport")
        )
        assert Scanner(Codec()).scan(data, 0) == (
            len(data),
            [
                ClientRun(ALICE, b"news", MessageRun([b"a", b"b"], 1)),
                ClientRun(BOB, b"news", MessageRun([b"c"], 1)),
                ClientRun(BOB, b"sport", MessageRun([b"d", b"ee", b""], MIXED)),
            ],
        )

    def test_a_long_row_is_one_run_in_every_format(self) -> None:
        payloads = [b"%04d" % number for number in range(1000)]
        for coder in CODECS:
            data = b"".join(coder.encode(Request(2, ALICE, b"news", p)) for p in payloads)
            row = ClientRun(ALICE, b"news", MessageRun(payloads, 4))
            assert Scanner(coder).scan(b"?" + data + b"\xfa", 1) == (1 + len(data), [row])

    def test_it_stops_at_what_is_no_publish(self) -> None:
        first = publish(ALICE, b"a", b"b", b"c")
        for other in (create(ALICE), raw(2, NIL, body(b"news", b"a")), raw(3, ALICE, b""), b"\0"):
            data = first + other + first
            at, rows = Scanner(Codec()).scan(data, 0)
            assert (at, len(rows)) == (len(first), 1)

    def test_it_stops_at_a_wrong_checksum_in_the_middle_of_a_row(self) -> None:
        for bad in range(30):
            frames = [sealed(publish(ALICE, b"%02d" % number)) for number in range(30)]
            frames[bad] = frames[bad][:-1] + bytes([frames[bad][-1] ^ 1])
            at, rows = Scanner(Codec(checksum=True)).scan(b"".join(frames), 0)
            assert at == bad * len(frames[0])
            assert [p for row in rows for p in row.run.payloads] == [
                b"%02d" % n for n in range(bad)
            ]

    def test_what_it_remembers_is_bounded(self) -> None:
        scanner = Scanner(Codec())
        for number in range(20_000):
            data = publish(ALICE, b"hi", name=b"%d" % number)
            assert scanner.scan(data, 0)[0] == len(data)
        assert len(scanner._heads) <= 16_384

    @given(st.data())
    def test_it_finds_what_the_codec_would(self, data: st.DataObject) -> None:
        coder = data.draw(ANY_CODEC)
        stream = data.draw(streams(coder))
        at = data.draw(st.integers(0, min(3, len(stream))))
        assert Scanner(coder).scan(stream, at) == naive(coder, stream, at)

    @given(ANY_CODEC, st.binary(max_size=80), st.integers(0, 3))
    @example(Codec("spec", False), b"", 0)
    @example(Codec("spec", False), b"", 3)
    @example(Codec("original", True), b"\xfa" + b"\xff" * 30, 0)
    def test_any_bytes_are_scanned(self, coder: Codec, data: bytes, at: int) -> None:
        assert Scanner(coder).scan(data, at) == naive(coder, data, at)


class AckTests(SynchronousTestCase):
    """encode_acks"""

    def test_ids_count_up(self) -> None:
        assert encode_acks(bytes(15) + b"\xfe", 3, False) == (
            b"\xac" + bytes(15) + b"\xfe\0\xac" + bytes(15) + b"\xff\0\xac" + bytes(14) + b"\1\0\0"
        )

    def test_none(self) -> None:
        assert encode_acks(bytes(16), 0, False) == b""

    @given(
        st.integers(0, 2**60 - 1),
        st.one_of(st.integers(0, 2**62 - 2000), st.sampled_from([255, 256, 65_535, 2**32 - 1])),
        st.integers(0, 1500),
        st.booleans(),
    )
    @example(0, 255, 2, False)
    @example(2**60 - 1, 65_535, 2, True)
    @example(0, 2**32 - 1, 3, False)
    @example(0, 0, 0, True)
    def test_they_are_what_the_codec_makes(
        self, run: int, sequence: int, count: int, checksum: bool
    ) -> None:
        coder = Codec(checksum=checksum)
        ids = [message_id(run, sequence + index).bytes for index in range(count)]
        wanted = b"".join(coder.encode(Ack(one, 0)) for one in ids)
        assert encode_acks(message_id(run, sequence).bytes, count, checksum) == wanted
