"""spot's heads: the kernel scans and encodes the messages that the codec decodes and encodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsub.broker.clients.frame_turns import FrameTurns
from pubsub.broker.memory_budget import MemoryBudget
from pubsub.broker.slices import Slices
from pubsub.protocols.spot.commands import Publish, encode_request
from pubsub.protocols.spot.message_heads import (
    KnownPublications,
    MessageEncoding,
    Publication,
    message_heads,
    prefix_at,
    publish_prefix,
    topic_prefix,
)
from pubsub.protocols.spot.zmtp import FrameLimits, Unit, decode, encode_message
from pubsub.wire import known_heads
from tests.unit.fakes import batch_of, encoded
from tests.unit.kernel_forms import each_form, messages, scan_in_pieces
from tests.unit.kernel_forms import encode as encode_columns

PREFIX = b"\x01\x00\x01\x01\x01\x01\x01t"
SIZES = st.sampled_from([0, 3, 254, 255, 256, 300])
PAYLOADS = st.one_of(st.binary(max_size=4), SIZES.map(lambda size: b"z" * size))
TOPICS = [b"t", b"u", b"tt", b"", b"n" * 255]


def publications(*topics: bytes) -> list[Publication]:
    """Return publications of these topics; ``topic`` is their name."""
    return [Publication(publish_prefix(name), name.decode(), None) for name in topics]


def turns() -> FrameTurns:
    """Return turns of a tick that has just begun and does not end."""
    return FrameTurns(Slices(lambda call: None), lambda call: None)


def known(
    kernel: Any, limit: int = 100, found: Iterable[Publication] | None = None
) -> KnownPublications:
    """Return known publications that are scanned with the form ``kernel``."""
    with patch("pubsub.protocols.spot.message_heads.HeadTable", kernel.HeadTable):
        made = KnownPublications(limit, MemoryBudget(0), turns(), lambda call: None)
    for publication in publications(b"t") if found is None else found:
        made.add(publication)
    return made


def scan(table: KnownPublications, data: bytes, at: int = 0) -> tuple[int, list[tuple[str, bytes]]]:
    """Return where the scan ends, and topics and payloads."""
    columns = table.scan(data, at)
    return columns.end, [(found.topic, payload) for found, payload in messages(columns)]


def message(payload: bytes, topic: bytes = b"t") -> bytes:
    """Return PUBLISH with a delimiter."""
    return encode_message([b"", b"\x01", topic, payload])


class TestPrefix:
    """The frames before the data"""

    def test_prefixes(self) -> None:
        assert publish_prefix(b"t") == PREFIX
        assert topic_prefix(b"t") == b"\x01\x01t"

    def test_the_prefix_of_a_message(self) -> None:
        assert prefix_at(b"??" + message(b"data"), 2) == PREFIX
        assert prefix_at(message(b"x" * 300), 0) == PREFIX
        assert prefix_at(encode_message([b"topic", b"data"]), 0) == topic_prefix(b"topic")
        assert prefix_at(b"\x00\x04data", 0) == prefix_at(b"", 0) == prefix_at(b"\x01", 0) == b""


@each_form
class TestScan:
    """Publications whose prefixes are known"""

    def test_equal_messages(self, kernel: Any) -> None:
        data = (PREFIX + b"\x00\x02ab") * 5
        assert scan(known(kernel), b"??" + data, 2) == (len(data) + 2, [("t", b"ab")] * 5)

    def test_lengths_may_differ(self, kernel: Any) -> None:
        data = PREFIX + b"\x00\x02ab" + PREFIX + b"\x00\x01c"
        assert scan(known(kernel), data) == (len(data), [("t", b"ab"), ("t", b"c")])

    def test_one_scan_follows_another(self, kernel: Any) -> None:
        table = known(kernel)
        assert scan(table, (PREFIX + b"\x00\x02ab") * 3)[1] == [("t", b"ab")] * 3
        assert scan(table, PREFIX + b"\x00\x01c")[1] == [("t", b"c")]

    def test_empty_payloads_are_messages(self, kernel: Any) -> None:
        data = (PREFIX + b"\x00\x00") * 4
        assert scan(known(kernel), data) == (len(data), [("t", b"")] * 4)

    def test_short_and_long_frames(self, kernel: Any) -> None:
        sizes = [0, 255, 256, 255, 1000, 3, 256, 0]
        data = b"".join(message(bytes(size)) for size in sizes)
        assert data.count(PREFIX + b"\x02") == 3
        wanted = [("t", bytes(size)) for size in sizes]
        assert scan(known(kernel, 1000), data) == (len(data), wanted)
        columns = known(kernel, 1000).scan(data, 0)
        assert len(columns.addresses) == 1

    def test_a_long_frame_of_few_bytes(self, kernel: Any) -> None:
        data = PREFIX + b"\x02" + bytes(7) + b"\x02ab" + PREFIX + b"\x00\x02cd"
        assert scan(known(kernel), data) == (len(data), [("t", b"ab"), ("t", b"cd")])

    def test_messages_keep_their_order_from_topic_to_topic(self, kernel: Any) -> None:
        table = known(kernel, 300, publications(*TOPICS))
        sent = [(TOPICS[n * n % 5], bytes(n % 300)) for n in range(600)]
        data = b"".join(message(payload, topic) for topic, payload in sent)
        for _ in range(2):
            assert scan(table, data) == (len(data), [(t.decode(), p) for t, p in sent])

    def test_frames_of_different_forms_in_turn(self, kernel: Any) -> None:
        """PUBLISH with and without a delimiter, and as between PUB and SUB sockets."""
        before = [PREFIX, PREFIX[2:], topic_prefix(b"t")]
        found = [Publication(prefix, f"{n}", None) for n, prefix in enumerate(before)]
        table = known(kernel, 100, found)
        sent = [(f"{n % 3}", b"%d" % n) for n in range(30)]
        data = b"".join(before[int(t)] + bytes([0, len(p)]) + p for t, p in sent)
        assert scan(table, data) == (len(data), sent)

    @pytest.mark.parametrize(
        "other",
        [
            PREFIX,
            PREFIX + b"\x00",
            PREFIX + b"\x00\x03ab",
            PREFIX + b"\x01\x02ab\x00\x00",
            PREFIX + b"\x04\x02\x01A\x00\x00",
            PREFIX + b"\x00\x65" + b"x" * 101,
            PREFIX + b"\x02\0\0\0\0\0\0\x01",
            PREFIX + b"\x02\0\0\0\0\0\0\0\x65" + b"x" * 101,
            PREFIX + b"\x02\xff\xff\xff\xff\xff\xff\xff\xff",
            PREFIX[:-1] + b"u\x00\x02ab",
            b"\x00\x00",
        ],
    )
    @pytest.mark.parametrize("count", [0, 1, 2, 3, 10])
    def test_it_stops_before_any_other_frame(self, kernel: Any, other: bytes, count: int) -> None:
        first = PREFIX + b"\x00\x02ab"
        found = scan(known(kernel), first * count + other)
        assert found == (len(first) * count, [("t", b"ab")] * count)

    def test_any_byte_of_a_head_may_be_wrong(self, kernel: Any) -> None:
        data = PREFIX + b"\x00\x04abcd"
        for index in range(len(data) - 4):
            broken = bytearray(data * 10)
            broken[7 * len(data) + index] ^= 0x40
            assert len(scan(known(kernel), bytes(broken))[1]) == 7

    def test_an_unknown_topic_is_scanned_once_it_is_known(self, kernel: Any) -> None:
        table = known(kernel)
        data = message(b"a") + message(b"b", b"u") + message(b"c")
        assert scan(table, data) == (len(message(b"a")), [("t", b"a")])
        table.add(*publications(b"u"))
        assert scan(table, data) == (len(data), [("t", b"a"), ("u", b"b"), ("t", b"c")])

    def test_known_publications_are_bounded(self, kernel: Any) -> None:
        with patch("pubsub.protocols.spot.message_heads.cache_bytes", lambda _memory: 1200 * 100):
            table = known(kernel, 100, publications(*[b"%d" % n for n in range(100)]))
            assert scan(table, message(b"a", b"0"))[1] == [("0", b"a")]
            table.add(*publications(b"one more"))
            for name in (b"0", b"one more"):
                assert scan(table, message(b"a", name))[1] == []
            table.add(*publications(b"again"))
            assert scan(table, message(b"a", b"again"))[1] == [("again", b"a")]

    def test_known_heads_are_charged_until_memory_is_short(self, kernel: Any) -> None:
        memory, forgotten = MemoryBudget(100_000), []
        at_tick_end: list[Callable[[], None]] = []
        with patch("pubsub.protocols.spot.message_heads.HeadTable", kernel.HeadTable):
            table = KnownPublications(
                100, memory, turns(), at_tick_end.append, lambda: forgotten.append(True)
            )
            for found in publications(b"t", b"u"):
                table.add(found)
            table.add(*publications(b"t"))
            publications_bytes = memory.used
            assert publications_bytes > 2 * 600
            scan(table, message(b"a") * 2 + message(b"a", b"u") + message(b"a", b"t"))
            # Charged when the table is not in use.
            assert memory.used == publications_bytes
            (charge,) = at_tick_end
            charge()
            assert memory.used == publications_bytes + 2 * known_heads.HEAD_BYTES
            memory.add(99_000)
            assert memory.used == 99_000
            assert forgotten
            assert scan(table, message(b"a"))[1] == []
            memory.free(50_000)
            table.add(*publications(b"t"))
            assert scan(table, message(b"a"))[1] == [("t", b"a")]

    def test_a_prefix_that_cannot_be_found_is_not_remembered(self, kernel: Any) -> None:
        memory = MemoryBudget(0)
        table = KnownPublications(100, memory, turns(), lambda call: None)
        table.add(Publication(b"\x01\xff" + b"r" * 255, "t", None))
        used = memory.used
        assert used
        table.add(Publication((b"\x01\xff" + b"r" * 255) * 3, "t", None))
        # A short topic in a long frame.
        table.add(Publication(b"\x01\x01\x01\x03" + bytes(7) + b"\x01t", "t", None))
        assert memory.used == used

    @given(
        sent=st.lists(st.tuples(st.sampled_from(TOPICS), PAYLOADS), max_size=12),
        cut=st.integers(0, 20),
        limit=st.sampled_from([2**20, 299, 255, 3]),
    )
    def test_a_scan_finds_the_same_as_decoding(
        self, kernel: Any, sent: list[tuple[bytes, bytes]], cut: int, limit: int
    ) -> None:
        data = b"".join(message(payload, topic) for topic, payload in sent)
        data = data[: max(len(data) - cut, 0)]
        found: list[tuple[str, bytes]] = []
        at = 0
        while at < len(data) and isinstance(unit := decode(data, at, FrameLimits()), Unit):
            if len(unit.frames[-1]) > limit:
                break
            found.append((unit.frames[2].decode(), unit.frames[-1]))
            at = unit.end
        table = known(kernel, limit, publications(*TOPICS))
        for _ in range(2):
            assert scan(table, data) == (at, found)

    @given(
        sent=st.lists(st.tuples(st.sampled_from(TOPICS), PAYLOADS), max_size=12),
        size=st.integers(1, 400),
    )
    def test_any_split(self, kernel: Any, sent: list[tuple[bytes, bytes]], size: int) -> None:
        data = b"".join(message(payload, topic) for topic, payload in sent)
        table = known(kernel, 300, publications(*TOPICS))
        found, rest = scan_in_pieces(partial(scan, table), data, size)
        assert (found, rest) == ([(topic.decode(), payload) for topic, payload in sent], b"")


@each_form
class TestEncode:
    """Deliveries"""

    @given(sent=st.lists(st.tuples(st.integers(0, 3), PAYLOADS), max_size=20))
    def test_frames_equal_those_of_the_codec(
        self, kernel: Any, sent: list[tuple[int, bytes]]
    ) -> None:
        """Index 0 and 1 are subscribed to."""
        names = {0: b"t", 1: b"news"}
        columns = kernel.Columns.of([payload for _, payload in sent], [index for index, _ in sent])
        own = [message_heads(publish_prefix(name)) for name in names.values()]
        wanted = [encode_request(Publish(names[i], p)) for i, p in sent if i in names]
        assert encode_columns(kernel, own, columns) == (b"".join(wanted), len(wanted))


class TestEncoding:
    """``MessageEncoding``"""

    @given(listed=st.lists(PAYLOADS, min_size=1))
    def test_a_batch_is_encoded_as_its_messages(self, listed: list[bytes]) -> None:
        wanted = b"".join(encode_request(Publish(b"t", each)) for each in listed)
        assert encoded(MessageEncoding(PREFIX), batch_of(listed)) == wanted

    def test_encodings_of_the_same_topic_are_equal(self) -> None:
        assert len({MessageEncoding(publish_prefix(b"t")), MessageEncoding(PREFIX)}) == 1
        assert MessageEncoding(PREFIX) != MessageEncoding(topic_prefix(b"t"))
