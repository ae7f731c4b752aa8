"""Records and envelopes: the data that crosses the engine, and garbage."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.engine.nats_work import Outbound, together
from pubsub.backplane.messages.envelopes import ENVELOPE, Incoming, Outgoing, messages_of
from pubsub.backplane.messages.record import MalformedRecord, decode, encode_batch, joined
from pubsub.broker.routing.batch import Batch, Headers
from pubsub.kernel import Columns

MESSAGES = st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=5)), min_size=1, max_size=9)
KEY = b"k" * 32


def make_batch(
    messages: Sequence[tuple[int, bytes]], headers: Sequence[Headers] | None = None
) -> Batch:
    columns = Columns.of([payload for _, payload in messages], [index for index, _ in messages])
    return Batch(("a", "b", "c"), columns, 1, 2, b"sender", "cafe", headers)


def decodable(data: bytes) -> bool:
    try:
        decode(data)
    except MalformedRecord:
        return False
    return True


class RecordTests(SynchronousTestCase):
    """Records"""

    @given(MESSAGES)
    def test_the_messages_of_each_topic_come_back(self, messages: list[tuple[int, bytes]]) -> None:
        headers: list[Headers] = [{"place": str(place).encode()} for place in range(len(messages))]
        rows = []
        for index, head, columns in encode_batch(make_batch(messages, headers), 7, (b"", KEY, b"")):
            data = Columns.joined([head, columns])
            record = decode(b"before" + data + b"after", 6, 6 + len(data))
            assert record.headers is not None
            assert record.positions is not None
            assert (record.read, record.sender, record.protocol) == (7, b"sender", "cafe")
            assert record.proof == (KEY if index == 1 else b"")
            assert record.columns.count == sum(one == index for one, _ in messages)
            for position, payload, own in zip(
                record.positions, record.columns.payloads(), record.headers, strict=True
            ):
                rows.append((position, index, payload))
                assert own == {"place": str(position).encode()}
        assert [(index, payload) for _, index, payload in sorted(rows)] == messages

    @given(
        st.lists(st.lists(st.binary(max_size=2), min_size=1, max_size=4), min_size=1, max_size=3)
    )
    def test_columns_in_one(self, given: list[list[bytes]]) -> None:
        found = joined([Columns.of(payloads) for payloads in given])
        assert found.payloads() == list(chain.from_iterable(given))

    def test_bytes_of_a_record(self) -> None:
        batch = Batch(("a",), Columns.of([b"xy", b"zw"]), 1, 2, b"me", "nsd")
        (found,) = encode_batch(batch, 3, (b"",))
        head = struct.pack("<QIIBBBx", 3, 2, 2, 2, 3, 0)
        assert found[:2] == (0, head + b"nsd" + b"me")
        assert found[2].payloads() == [b"xy", b"zw"]

    def test_topics_that_are_not_shared_are_left_out(self) -> None:
        found = encode_batch(make_batch([(0, b"x"), (1, b"y")]), 1, (None, b"", b""))
        assert [index for index, _, _ in found] == [1]
        alone = Batch(("a",), Columns.of([b"x"]), 1, 2, b"", "nsd")
        assert encode_batch(alone, 1, (None,)) == []

    def test_every_part_of_a_record_is_refused(self) -> None:
        batch = make_batch([(0, b"one"), (1, b"x"), (0, b"")], [{"k": b"v"}, {}, {"l": b"w"}])
        ((_, head, columns), _) = encode_batch(batch, 1, (KEY, b"", b""))
        data = Columns.joined([head, columns])
        assert decodable(data)
        assert not any(decodable(data[:end]) for end in range(len(data)))
        assert not decodable(data + b"x")

    def test_invalid_heads(self) -> None:
        for head in (
            struct.pack("<QIIBBBx", 1, 0, 1, 0, 0, 0),
            struct.pack("<QIIBBBx", 1, 2**32 - 1, 0, 0, 0, 0),
            struct.pack("<QIIBBBx", 1, 2**32 - 1, 2**32 - 1, 0, 0, 0),
            struct.pack("<QIIBBBx", 1, 2**32 - 1, 2**32 - 2, 0, 0, 2),
            struct.pack("<QIIBBBx", 1, 1, 1, 0, 0, 8) + b"x",
            struct.pack("<QIIBBBx", 1, 1, 1, 0, 1, 0) + b"\xffx",
            struct.pack("<QIIBBBxI", 1, 1, 1, 0, 0, 4, 3) + b"\0\0xx",
        ):
            assert not decodable(head), head

    @given(st.binary(max_size=80))
    def test_garbage(self, data: bytes) -> None:
        decodable(data)


class EnvelopeTests(SynchronousTestCase):
    """Order, duplicates and pieces"""

    def take(self, incoming: Incoming, *envelopes: bytes) -> list[bytes]:
        return [
            one.data[one.at : one.stop]
            for one in incoming.take([("t", data) for data in envelopes])
        ]

    def test_bytes_of_an_envelope(self) -> None:
        (data,) = Outgoing(5, 1000).envelopes(b"record")
        assert data == struct.pack("<2sBxIQQHH", b"PB", 1, 6, 5, 1, 0, 1) + b"record"

    def test_the_order_of_sending_and_no_duplicates(self) -> None:
        link, incoming = Outgoing(5, 1000), Incoming()
        first, second, third = (link.envelopes(one)[0] for one in (b"1", b"2", b"3"))
        assert self.take(incoming, second, first, second) == [b"1", b"2"]
        assert self.take(incoming, second, third, first) == [b"3"]

    def test_several_in_one_message_of_the_engine(self) -> None:
        link, incoming = Outgoing(5, 1000), Incoming()
        first, second, third = (link.envelopes(one)[0] for one in (b"1", b"2", b"3"))
        assert self.take(incoming, first + second, second + third) == [b"1", b"2", b"3"]
        assert incoming.malformed == 0
        # Envelopes before the first invalid one count.
        (fourth,), (fifth,) = link.envelopes(b"4"), link.envelopes(b"5")
        assert self.take(incoming, fourth + fifth[:-1]) == [b"4"]
        assert self.take(incoming, fifth + b"x") == [b"5"]
        assert incoming.malformed == 2

    def test_links_are_independent(self) -> None:
        incoming = Incoming()
        (one,), (two,) = Outgoing(1, 1000).envelopes(b"1"), Outgoing(2, 1000).envelopes(b"2")
        assert self.take(incoming, one, two) == [b"1", b"2"]
        assert self.take(incoming, one, two) == []

    def test_a_large_record_is_in_pieces(self) -> None:
        link, incoming = Outgoing(5, ENVELOPE.size + 4), Incoming()
        pieces = link.envelopes(b"0123456789")
        assert max(map(len, pieces)) == ENVELOPE.size + 4
        assert self.take(incoming, *pieces[:2]) == []
        assert incoming.held == 8
        assert self.take(incoming, *pieces) == [b"0123456789"]
        together = b"".join(link.envelopes(b"abcdefgh") + link.envelopes(b"more"))
        assert self.take(incoming, together) == [b"abcdefgh", b"more"]
        assert (incoming.held, incoming.malformed) == (0, 0)

    def test_pieces_without_a_neighbour_are_refused(self) -> None:
        link, incoming = Outgoing(5, ENVELOPE.size + 4), Incoming()
        pieces = link.envelopes(b"0123456789")
        assert self.take(incoming, pieces[0], pieces[2]) == []
        assert (incoming.held, incoming.malformed) == (0, 1)
        assert self.take(incoming, *link.envelopes(b"next")) == [b"next"]

    def test_incomplete_records_are_bounded(self) -> None:
        incoming = Incoming()
        for number in range(20):
            pieces = Outgoing(number, 5 * 1024**2).envelopes(bytes(8 * 1024**2))
            self.take(incoming, pieces[0])
        assert incoming.held <= 64 * 1024**2
        assert incoming.malformed > 0

    def test_a_record_that_is_too_large(self) -> None:
        assert Outgoing(1, ENVELOPE.size + 1).envelopes(bytes(2**16)) == []

    def test_links_are_forgotten(self) -> None:
        incoming = Incoming()
        for number in range(2000):
            self.take(incoming, *Outgoing(number, 30).envelopes(b"123456789")[:1])
        assert incoming.held <= 1024 * 6

    @given(st.binary(max_size=60))
    def test_garbage(self, data: bytes) -> None:
        assert self.take(Incoming(), data) == []
        messages_of(data)

    def test_messages_are_counted_unread(self) -> None:
        batch = make_batch([(0, b"x"), (0, b"y")])
        ((_, head, columns),) = encode_batch(batch, 1, (b"",) * 3)
        first, *rest = Outgoing(1, ENVELOPE.size + 16).envelopes(head, columns)
        assert messages_of(first) == 2
        assert [messages_of(one) for one in rest] == [0] * len(rest)
        whole = b"".join(Outgoing(1, 1000).envelopes(head, columns))
        assert messages_of(whole + whole) == 4
        assert messages_of(b"") == messages_of(b"x") == 1

    def test_what_the_engine_gets_together(self) -> None:
        waiting = [
            Outbound(topic, topic, data, 1)
            for topic, data in (("a", b"12"), ("a", b"3"), ("b", b"4"), ("a", b"56"), ("a", b"789"))
        ]
        assert together(waiting, 4) == [
            ("a", [b"12", b"3"], 3),
            ("b", [b"4"], 1),
            ("a", [b"56"], 2),
            ("a", [b"789"], 3),
        ]
        assert together([], 4) == []
        assert together(waiting[:1], 1) == [("a", [b"12"], 2)]
