"""The kernel: heads, columns and frames, in both of its forms where both are present."""

from __future__ import annotations

from array import array
from contextlib import suppress
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsub.kernel import interpreted
from pubsub.kernel.layout import Head, LengthField
from tests.fuzz.kernel import Round
from tests.unit.kernel_forms import both_forms, compiled, described, each_form, messages


def channel_head(channel: int, limit: int = 100, least: int = 0) -> Head:
    """A head of 8 bytes: 2 of magic, 4 of length plus 1, a zero and the channel."""
    return Head(b"PU\0\0\0\0\0" + bytes([channel]), (LengthField(2, 4, False, 1),), limit, least)


def learn_channel(data: bytes, at: int) -> tuple[Head, int] | None:
    """Channels up to 99 are addresses."""
    if len(data) - at < 8 or data[at : at + 2] != b"PU" or data[at + 7] > 99:
        return None
    return channel_head(data[at + 7]), data[at + 7]


def frame(channel: int, payload: bytes) -> bytes:
    return channel_head(channel).encode(len(payload)) + payload


def twice_head(name: bytes) -> Head:
    """A head with a name and two big-endian length fields, as wide as they may be."""
    data = b"T" + bytes(8) + bytes([len(name)]) + name + bytes(2)
    return Head(data, (LengthField(1, 8, True, 3), LengthField(len(data) - 2, 2, True)), 60_000, 2)


def learn_twice(data: bytes, at: int) -> tuple[Head, int] | None:
    if len(data) - at < 10 or data[at] != ord("T") or len(data) - at < 12 + data[at + 9]:
        return None
    name = data[at + 10 : at + 10 + data[at + 9]]
    return twice_head(name), sum(name) % 7


@each_form
class TestScan:
    """``HeadTable.scan`` and the columns that it returns."""

    def test_messages_in_order(self, kernel: Any) -> None:
        table = kernel.HeadTable(learn_channel)
        columns = table.scan(frame(7, b"one") + frame(3, b"") + frame(7, b"three"))
        assert columns.payloads() == [b"one", b"", b"three"]
        assert columns.indexes() == [0, 1, 0]
        assert columns.addresses == [7, 3]
        assert columns.sizes() == [3, 0, 5]
        assert (columns.count, columns.nbytes, columns.largest) == (3, 8, 5)
        assert columns.end == 8 * 3 + 8
        assert columns.totals() == [(0, 2, 8), (1, 1, 0)]

    def test_starts_at_an_offset(self, kernel: Any) -> None:
        columns = kernel.HeadTable(learn_channel).scan(b"xx" + frame(1, b"a"), 2)
        assert (columns.payloads(), columns.end) == ([b"a"], 11)

    @pytest.mark.parametrize("cut", range(12))
    def test_stops_at_an_incomplete_frame(self, kernel: Any, cut: int) -> None:
        whole = frame(1, b"aaaa")
        table = kernel.HeadTable(learn_channel)
        assert table.scan(whole + whole[:cut]).end == len(whole)
        assert table.scan(whole[:cut]).count == 0

    def test_stops_at_another_frame(self, kernel: Any) -> None:
        table = kernel.HeadTable(learn_channel)
        for other in (b"XX\0\0\0\0\0\1", frame(100, b""), frame(1, b"x" * 101)):
            columns = table.scan(frame(1, b"a") + other + frame(1, b"b"))
            assert (columns.payloads(), columns.end) == ([b"a"], 9)

    def test_a_length_below_its_least_is_no_message(self, kernel: Any) -> None:
        table = kernel.HeadTable(learn_channel)
        assert table.scan(b"PU\0\0\0\0\0\1").count == 0
        assert table.scan(frame(1, b"") + b"PU\0\0\0\0\0\1").end == 8

    def test_two_length_fields_must_agree(self, kernel: Any) -> None:
        table = kernel.HeadTable(learn_twice)
        good = twice_head(b"name").encode(4) + b"data"
        bad = bytearray(good)
        bad[8] += 1
        assert table.scan(good + good).count == 2
        assert table.scan(good + bytes(bad)).end == len(good)
        assert table.scan(bytes(bad)).count == 0

    def test_a_shorter_head_at_the_end_of_the_data(self, kernel: Any) -> None:
        def learn(data: bytes, at: int) -> tuple[Head, int] | None:
            width = data[at]
            if len(data) - at < width + 1:
                return None
            return Head(data[at : at + width] + b"\0", (LengthField(width, 1),), 255), width

        table = kernel.HeadTable(learn)
        assert table.scan(b"\3ab\0" + b"\2a\0").count == 2
        assert table.scan(b"\2a\0").count == 1

    def test_two_heads_of_one_address(self, kernel: Any) -> None:
        short = Head(b"S\0", (LengthField(1, 1),), 255)
        long = Head(b"L\0\0\0\0", (LengthField(1, 4, True),), 1000)

        def learn(data: bytes, at: int) -> tuple[Head, int] | None:
            return {b"S": (short, 4), b"L": (long, 4)}.get(data[at : at + 1])

        columns = kernel.HeadTable(learn).scan(
            short.encode(1) + b"a" + long.encode(2) + b"bb" + short.encode(0)
        )
        assert (columns.addresses, columns.indexes()) == ([4], [0, 0, 0])

    def test_a_full_table_begins_again(self, kernel: Any) -> None:
        def learn(data: bytes, at: int) -> tuple[Head, int] | None:
            return Head(data[at : at + 4] + b"\0", (LengthField(4, 1),), 255), 0

        table = kernel.HeadTable(learn)
        frames = [number.to_bytes(4, "big") + b"\1x" for number in range(interpreted.MAX_HEADS + 1)]
        first = table.scan(b"".join(frames))
        assert first.count == interpreted.MAX_HEADS
        assert table.scan(frames[-1]).count == 1
        assert len(table) == 1

    def test_arguments_are_checked(self, kernel: Any) -> None:
        table = kernel.HeadTable(learn_channel)
        for at in (-1, 2):
            with pytest.raises(ValueError, match="at is outside the data"):
                table.scan(b"x", at)

    @pytest.mark.parametrize(
        "fields",
        [
            (),
            (LengthField(0, 1),) * 3,
            (LengthField(2, 1), LengthField(0, 1)),
            (LengthField(0, 9),),
            (LengthField(3, 2),),
        ],
    )
    def test_heads_are_checked(self, kernel: Any, fields: tuple[LengthField, ...]) -> None:
        head = Head(b"abcd", fields, 10)
        with pytest.raises(ValueError, match="length field"):
            kernel.HeadTable(lambda data, at: (head, 0)).scan(b"abcdefghi")
        with pytest.raises(ValueError, match="length field"):
            kernel.FrameEncoder([(head,)])

    def test_a_payload_has_no_negative_length(self, kernel: Any) -> None:
        head = Head(b"\0", (LengthField(0, 1),), 10, -1)
        with pytest.raises(ValueError, match="least"):
            kernel.HeadTable(lambda data, at: (head, 0)).scan(b"\1a")
        with pytest.raises(ValueError, match="least"):
            kernel.FrameEncoder([(head,)])

    def test_a_frame_that_its_head_does_not_fit_is_not_remembered(self, kernel: Any) -> None:
        table = kernel.HeadTable(learn_channel)
        for _ in range(3):
            assert table.scan(frame(1, b"x" * 101)).count == 0
        assert len(table) == 0

    def test_bounds_that_nothing_fits(self, kernel: Any) -> None:
        for limit, least in ((-1, 0), (3, 4), (0, 1)):
            head = Head(b"\0", (LengthField(0, 1),), limit, least)
            for size in (b"\0", b"\1", b"\3", b"\4", b"\xff"):
                table = kernel.HeadTable(lambda data, at, head=head: (head, 0))
                assert table.scan(size + bytes(255)).count == 0
            columns = kernel.Columns.of([b"", b"a", b"abc", b"abcd"])
            assert kernel.FrameEncoder([(head,)]).encode(columns) == (b"", 0)

    def test_an_error_of_learn_is_raised(self, kernel: Any) -> None:
        def learn(data: bytes, at: int) -> None:
            raise LookupError("why")

        with pytest.raises(LookupError, match="why"):
            kernel.HeadTable(learn).scan(b"x")

    def test_many_lengths_of_heads(self, kernel: Any) -> None:
        def learn(data: bytes, at: int) -> tuple[Head, int]:
            width = data[at]
            head = data[at : at + width] + b"\0"
            return Head(head, (LengthField(width, 1),), 255), width

        table = kernel.HeadTable(learn)
        widths = [n * n * 7 % 113 + n % 2 + 1 for n in range(1000)]
        data = b"".join(bytes([width]) * width + b"\1x" for width in widths)
        for _ in range(2):
            columns = table.scan(data)
            assert messages(columns) == [(width, b"x") for width in widths]
        assert len(table) == len(set(widths))

    def test_a_byte_that_tells_shapes_from_each_other_and_no_longer_does(self, kernel: Any) -> None:
        def learn(data: bytes, at: int) -> tuple[Head, bytes]:
            width = data[at + 2] + 3
            head = data[at : at + width] + b"\0"
            return Head(head, (LengthField(width, 1, add=data[at + 1]),), 255), head

        table = kernel.HeadTable(learn)
        heads = [bytes([n % 3, n % 2, 1 + n % 5]) + b"%05d" % n for n in range(200)]
        heads = [head[: 3 + head[2]] for head in heads]
        data = b"".join(head + bytes([1 + head[1]]) + b"x" for head in heads)
        for _ in range(2):
            found = messages(table.scan(data))
            assert found == [(head + b"\0", b"x") for head in heads]
        assert len(table) == len(set(heads))

    @pytest.mark.parametrize("tail", [b"", b"PU\0\0\0", b"tail1234567", frame(2, b"abc")])
    def test_rows_of_every_length(self, kernel: Any, tail: bytes) -> None:
        table = kernel.HeadTable(learn_channel)
        for count in range(200):
            payloads = [b"%03d" % number for number in range(count)]
            row = b"".join(frame(1, payload) for payload in payloads)
            columns = table.scan(b"xx" + row + tail, 2)
            found = columns.payloads()
            assert (found[:count], columns.end) == (
                payloads,
                2 + len(row) + 11 * found[count:].count(b"abc"),
            )

    def test_a_row_ends_at_a_different_head_wherever_it_is(self, kernel: Any) -> None:
        for at in range(130):
            frames = [frame(1, b"%03d" % number) for number in range(130)]
            frames[at] = b"PX" + frames[at][2:]
            columns = kernel.HeadTable(learn_channel).scan(b"".join(frames))
            assert columns.payloads() == [b"%03d" % number for number in range(at)]

    def test_a_row_goes_on_behind_another_head(self, kernel: Any) -> None:
        for at in range(130):
            wanted = [(2 if number == at else 1, b"%03d" % number) for number in range(130)]
            data = b"".join(frame(*message) for message in wanted)
            assert messages(kernel.HeadTable(learn_channel).scan(data)) == wanted

    def test_heads_inside_of_payloads(self, kernel: Any) -> None:
        inner = frame(1, b"abc") + frame(2, b"")
        wanted = [(1, inner[: number % len(inner)]) for number in range(200)]
        data = b"".join(frame(*message) for message in wanted)
        assert messages(kernel.HeadTable(learn_channel).scan(data)) == wanted


@each_form
class TestColumns:
    """The methods of columns."""

    def test_remap_leaves_out(self, kernel: Any) -> None:
        columns = kernel.Columns.of([b"a", b"bb", b"ccc", b"d"], [0, 1, 2, 1])
        made = columns.remap([5, -1, 0])
        assert (made.payloads(), made.indexes()) == ([b"a", b"ccc"], [5, 0])
        assert (made.count, made.nbytes, made.largest, made.smallest) == (2, 4, 3, 1)
        assert columns.remap([0, 1, 2]).indexes() == [0, 1, 2, 1]
        with pytest.raises(IndexError):
            columns.remap([0, 1])

    def test_runs(self, kernel: Any) -> None:
        columns = kernel.HeadTable(learn_channel).scan(
            frame(7, b"a") + frame(7, b"bb") + frame(3, b"c") + frame(7, b"")
        )
        runs = columns.runs()
        assert [index for index, _ in runs] == [0, 1, 0]
        assert [run.payloads() for _, run in runs] == [[b"a", b"bb"], [b"c"], [b""]]
        assert [run.addresses for _, run in runs] == [[7], [3], [7]]
        assert all(set(run.indexes()) == {0} for _, run in runs)
        assert kernel.Columns.of([]).runs() == []

    def test_slice(self, kernel: Any) -> None:
        columns = kernel.Columns.of([b"a", b"bb", b"ccc"], [0, 1, 2])
        assert columns.slice(1, 3).payloads() == [b"bb", b"ccc"]
        assert columns.slice(-5, 1).indexes() == [0]
        assert columns.slice(2, 99).nbytes == 3
        assert columns.slice(2, 1).count == columns.slice(0, -1).count == 0

    def test_count_each(self, kernel: Any) -> None:
        columns = kernel.Columns.of([b"a", b"", b"ccc", b"dd"], [2, 0, 2, 1])
        _, sizes, indexes = columns.pack()
        assert kernel.Columns.count_each(sizes, indexes) == columns.totals()
        assert kernel.Columns.count_each(sizes, indexes) == [(0, 1, 0), (1, 1, 2), (2, 2, 4)]
        assert kernel.Columns.count_each(b"", b"") == []
        with pytest.raises(ValueError, match="differ in number"):
            kernel.Columns.count_each(sizes, indexes[:-4])
        with pytest.raises(ValueError, match="too large"):
            kernel.Columns.count_each(bytes(4), b"\xff\xff\xff\x7f")

    def test_add_totals(self, kernel: Any) -> None:
        columns = kernel.Columns.of([b"a", b"", b"ccc", b"dd"], [2, 0, 2, 1])
        tallies = bytearray(array("q", [1, 10, 0, 0, 3, 30]).tobytes())
        columns.add_totals(tallies)
        assert array("q", tallies).tolist() == [2, 10, 1, 2, 5, 34]
        columns.add_totals(tallies)
        assert array("q", tallies).tolist() == [3, 10, 2, 4, 7, 38]
        kernel.Columns.of([]).add_totals(bytearray())
        for short in (32, 47):
            few = bytearray(short)
            with pytest.raises(ValueError, match="no tally"):
                columns.add_totals(few)
            assert few == bytes(short)

    def test_a_tally(self, kernel: Any) -> None:
        class Outbox(kernel.Tally):  # type: ignore[misc]
            __slots__ = ("other",)

            def __init__(self) -> None:
                super().__init__()
                self.other = 1

        one, two, total, other = Outbox(), Outbox(), kernel.Tally(), kernel.Tally()
        for tally in (one, other):
            tally.messages, tally.nbytes = 3, 5
        assert (one.messages, one.nbytes, one.other) == (3, 5, 1)
        assert (other.messages, other.nbytes) == (3, 5)
        kernel.add_to_each((one, two), 2, 2**40, (total,))
        assert [(each.messages, each.nbytes) for each in (one, two, total)] == [
            (5, 2**40 + 5),
            (2, 2**40),
            (4, 2**41),
        ]
        kernel.add_to_each((two,), -2, -(2**40), (total, other))
        kernel.add_to_each((), 7, 7, (total,))
        kernel.add_to_each((two,), 1, 1, ())
        assert (two.messages, two.nbytes) == (1, 1)
        assert (total.messages, total.nbytes) == (2, 2**40)
        assert (other.messages, other.nbytes) == (1, 5 - 2**40)
        one.messages += 1
        assert one.messages == 6
        with pytest.raises((AttributeError, TypeError)):
            kernel.add_to_each((one, object()), 1, 1, (total,))

    def test_linked_tallies(self, kernel: Any) -> None:
        class Publisher(kernel.LinkedTally):  # type: ignore[misc]
            __slots__ = ("topic",)

            def __init__(self, accepted: Any) -> None:
                super().__init__(accepted)
                self.topic = None

        accepted, topic, later = kernel.Tally(), kernel.Tally(), kernel.Tally()
        one, other = Publisher(accepted), Publisher(accepted)
        one.count_linked(kernel.Columns.of([b"abcd"]))
        one.link(topic)
        one.count_linked(kernel.Columns.of([b"abc", b"", b"de"]))
        one.count_linked(kernel.Columns.of([]))
        one.link(later)
        one.count_linked(kernel.Columns.of([b"a"]))
        other.count(kernel.Columns.of([b"a"]))
        found = [(each.messages, each.nbytes) for each in (one, other, topic, later, accepted)]
        assert found == [(5, 10), (1, 1), (3, 5), (1, 1), (6, 11)]
        assert one.total is accepted
        with pytest.raises((AttributeError, TypeError)):
            one.count(object())

    def test_a_linked_tally_of_a_subclass_that_is_not_initialized(self, kernel: Any) -> None:
        class Bad(kernel.LinkedTally):  # type: ignore[misc]
            def __init__(self) -> None:
                pass

        with suppress(AttributeError):
            Bad().count(kernel.Columns.of([b"a"]))
        with suppress(AttributeError):
            Bad().count_linked(kernel.Columns.of([b"a"]))

    def test_pack_and_unpack(self, kernel: Any) -> None:
        columns = kernel.Columns.of([b"a", b"", b"ccc"], [2, 0, 2])
        data, sizes, indexes = columns.pack()
        assert data == b"accc"
        again = kernel.Columns.unpack(data, sizes, indexes)
        assert (again.payloads(), again.indexes()) == ([b"a", b"", b"ccc"], [2, 0, 2])
        assert kernel.Columns.unpack(data, sizes, b"").indexes() == [0, 0, 0]
        for wrong in ((b"acc", sizes, indexes), (b"acccc", sizes, b""), (data, sizes, b"\0" * 4)):
            with pytest.raises(ValueError, match=r"differ|exceed"):
                kernel.Columns.unpack(*wrong)

    def test_indexes_may_be_large(self, kernel: Any) -> None:
        columns = kernel.Columns.of([b"a", b"bb", b"ccc"], [2**32 - 1, 7, 2**32 - 1])
        assert columns.totals() == [(7, 1, 2), (2**32 - 1, 2, 4)]
        assert columns.indexes() == [2**32 - 1, 7, 2**32 - 1]

    def test_a_size_has_four_bytes(self, kernel: Any) -> None:
        for sizes, indexes in ((b"\0", b""), (b"\0" * 5, b""), (b"\0" * 4, b"\0" * 6)):
            with pytest.raises(ValueError, match=r"four bytes|length|number"):
                kernel.Columns.unpack(b"", sizes, indexes)

    def test_empty(self, kernel: Any) -> None:
        columns = kernel.Columns.of([])
        assert (columns.count, columns.largest, columns.totals()) == (0, 0, [])
        assert columns.pack() == (b"", b"", b"")
        assert kernel.FrameEncoder([(channel_head(1),)]).encode(columns) == (b"", 0)
        assert kernel.Columns.of([], [], []).addresses == []

    def test_equal(self, kernel: Any) -> None:
        assert kernel.Columns.equal(b"aabbcc", 2, 3).payloads() == [b"aa", b"bb", b"cc"]
        assert kernel.Columns.equal(bytes(5 * 300), 5, 300).payloads() == [bytes(5)] * 300
        assert kernel.Columns.equal(b"", 0, 3).payloads() == [b""] * 3
        assert kernel.Columns.equal(b"", 7, 0).count == 0
        for wrong in ((b"abc", 2, 2), (b"", -1, 0), (b"ab", -1, -2), (b"a", 2**62, 4)):
            with pytest.raises(ValueError, match="differ"):
                kernel.Columns.equal(*wrong)

    def test_a_single_message(self, kernel: Any) -> None:
        columns = kernel.Columns.one(b"abc", 9, 12)
        assert (columns.payloads(), columns.indexes(), columns.addresses) == ([b"abc"], [0], [9])
        assert (columns.count, columns.nbytes, columns.largest, columns.end) == (1, 3, 3, 12)


@each_form
class TestEncode:
    """``FrameEncoder.encode``."""

    def test_frames_of_wanted_indexes_in_order(self, kernel: Any) -> None:
        columns = kernel.Columns.of([b"a", b"bb", b"c", b"dd"], [0, 1, 2, 0])
        encoder = kernel.FrameEncoder([(channel_head(8),), (), (channel_head(9),)])
        assert encoder.encode(columns) == (frame(8, b"a") + frame(9, b"c") + frame(8, b"dd"), 3)

    def test_an_index_without_heads_is_left_out(self, kernel: Any) -> None:
        encoder = kernel.FrameEncoder([(channel_head(8),)])
        assert encoder.encode(kernel.Columns.of([b"a"], [3])) == (b"", 0)
        assert kernel.FrameEncoder([]).encode(kernel.Columns.of([b"a", b"b"])) == (b"", 0)

    def test_a_payload_outside_the_bounds_is_left_out(self, kernel: Any) -> None:
        encoder = kernel.FrameEncoder([(channel_head(8, limit=2, least=1),)])
        columns = kernel.Columns.of([b"a", b"", b"ccc", b"dd"])
        assert encoder.encode(columns) == (frame(8, b"a") + frame(8, b"dd"), 2)

    def test_an_encoder_for_each_index(self, kernel: Any) -> None:
        stamped = Head(b"..\x00", (LengthField(2, 1),), 9)
        each = {
            2: kernel.FrameEncoder([(stamped,)], 1, 1),
            0: kernel.FrameEncoder([(channel_head(8, limit=2),), (channel_head(9),)], 0, 1),
        }
        encode_groups = kernel.encode_groups
        columns = kernel.Columns.of([b"a", b"bb", b"ccc", b"ddd"], [0, 1, 2, 0])
        expected = b"!" + frame(8, b"a")[1:] + b".!\x03ccc"
        assert encode_groups([(each, b"!")], columns) == [(expected, 2)]
        gathered = kernel.Columns.gather([b"a", b"b"])
        assert encode_groups([(each, b"!")], gathered)[0][1] == 2
        assert encode_groups([({}, b"")], columns) == [(b"", 0)]
        assert encode_groups([(each, b"!")], kernel.Columns.of([])) == [(b"", 0)]
        with pytest.raises(ValueError, match="another length"):
            encode_groups([(each, b"")], columns)
        # An encoder that is not used is not looked at.
        assert encode_groups([(each, b"")], columns.slice(1, 2)) == [(b"", 0)]

    def test_groups_that_get_some_of_the_messages(self, kernel: Any) -> None:
        one, two = (kernel.FrameEncoder([(channel_head(number),)]) for number in (8, 9))
        columns = kernel.Columns.of([b"a", b"bb", b"", b"d"], [0, 1, 2, 0])
        groups = [({0: one}, b""), ({2: two, 0: two, 77: one}, b""), ({}, b""), ({1: one}, b"")]
        assert kernel.encode_groups(groups, columns) == [
            (frame(8, b"a") + frame(8, b"d"), 2),
            (frame(9, b"a") + frame(9, b"") + frame(9, b"d"), 3),
            (b"", 0),
            (frame(8, b"bb"), 1),
        ]
        assert kernel.encode_groups([], columns) == []

    def test_frames_of_some_indexes(self, kernel: Any) -> None:
        heads = [(channel_head(8, limit=2),), (), (channel_head(9, limit=300),)]
        encoder = kernel.FrameEncoder(heads, 0, 1)
        columns = kernel.Columns.of(
            [b"a", b"bb", b"c" * 300, b"ddd", b"", b"e"], [0, 1, 2, 0, 2, 3]
        )
        one, long, empty = (
            b"!" + frame(number, payload)[1:]
            for number, payload in ((8, b"a"), (9, b"c" * 300), (9, b""))
        )
        each = [b"\x01\x01\x01", b"\xff\x00\x00", b"\x00\x00\x01", bytes(3)]
        expected = [(one + long + empty, 3), (one, 1), (long + empty, 2), (b"", 0)]
        assert encoder.encode_each(columns, b"!", each) == expected
        assert encoder.encode_each(columns, b"!", []) == []
        assert encoder.encode_each(kernel.Columns.of([]), b"!", each) == [(b"", 0)] * 4
        gathered = kernel.Columns.gather([b"a", b"aaa"])
        assert encoder.encode_each(gathered, b"!", each[:1]) == [(one, 1)]
        with pytest.raises(ValueError, match="another length"):
            encoder.encode_each(columns, b"", each)
        for wrong in (b"", bytes(2), bytes(4)):
            with pytest.raises(ValueError, match="differ in number"):
                encoder.encode_each(columns, b"!", [bytes(3), wrong])
        assert kernel.FrameEncoder([]).encode_each(columns, b"", [b""]) == [(b"", 0)]

    def test_rows_of_every_size(self, kernel: Any) -> None:
        for size in (*range(100), 255, 256, 257, 1000):
            for width in (2, 7, 8, 11, 16, 17, 40):
                head = Head(bytes(2) + bytes(range(2, width)), (LengthField(0, 2),), 5000)
                payloads = [bytes([number]) * size for number in range(4)]
                frames = b"".join(head.encode(size) + payload for payload in payloads)
                encoder = kernel.FrameEncoder([(head,)])
                assert encoder.encode(kernel.Columns.of(payloads)) == (frames, 4)
                assert encoder.encode(kernel.Columns.gather(payloads)) == (frames, 4)

    def test_gathered_payloads(self, kernel: Any) -> None:
        encoder = kernel.FrameEncoder([(channel_head(8, limit=3),)])
        payloads = [b"a", b"b", b"", b"long", b"abc", bytes([5, 6])]
        columns = kernel.Columns.gather(payloads)
        wanted, same = payloads.copy(), kernel.Columns.of(payloads)
        del payloads[1:]
        frames = b"".join(frame(8, payload) for payload in wanted if payload != b"long")
        for _ in range(2):
            assert encoder.encode(columns) == (frames, 5)
            assert described(columns) == described(same)
            # They are joined for this.
            assert columns == same
        assert columns.slice(1, 3).payloads() == [b"b", b""]
        assert encoder.encode(kernel.Columns.gather([])) == (b"", 0)

    def test_payloads_of_one_size(self, kernel: Any) -> None:
        for size in (*range(70), 255, 257, 5000):
            for width in (8, 11, 16):
                head = Head(bytes(2) + bytes(range(2, width)), (LengthField(0, 2),), 5000)
                payloads = [bytes([number]) * size for number in range(4)]
                encoder = kernel.FrameEncoder([(head,)])
                frames = encoder.encode_alike(payloads)
                assert frames == encoder.encode(kernel.Columns.of(payloads))[0]
                assert frames == b"".join(head.encode(size) + payload for payload in payloads)

    def test_payloads_that_differ_or_do_not_fit(self, kernel: Any) -> None:
        head = Head(bytes(8), (LengthField(0, 2),), 4, 2)
        encoder = kernel.FrameEncoder([(head,)])
        assert encoder.encode_alike([b"ab"] * 2)
        for payloads in (
            [], [b"ab", b"abc"], [b"abc", b"ab"], [b"a"] * 2, [b"abcde"] * 2,
            [bytearray(b"ab")] * 2, [b"ab", bytearray(b"ab")], ["ab"], [None], [b"ab", 1],
        ):  # fmt: skip
            assert encoder.encode_alike(payloads) == b""
        for other in (
            kernel.FrameEncoder([]),
            kernel.FrameEncoder([(head,)], 2, 1),
            kernel.FrameEncoder([(Head(bytes(7), (LengthField(0, 2),), 4),)]),
            kernel.FrameEncoder([(Head(bytes(17), (LengthField(0, 2),), 4),)]),
        ):
            assert other.encode_alike([b"ab"]) == b""

    def test_payloads_of_a_subclass_of_bytes(self, kernel: Any) -> None:
        class Other(bytes):
            pass

        encoder = kernel.FrameEncoder([(channel_head(8),)])
        payloads = [b"one", Other(b"two"), b"three"]
        frames = b"".join(frame(8, payload) for payload in payloads)
        assert encoder.encode(kernel.Columns.gather(payloads)) == (frames, 3)
        assert encoder.encode_alike([Other(b"two")]) == b""

    def test_the_first_head_that_fits(self, kernel: Any) -> None:
        short, long = Head(b"\0", (LengthField(0, 1),), 2), Head(b"L\0", (LengthField(1, 1),), 9)
        encoder = kernel.FrameEncoder([(short, long)])
        assert encoder.encode(kernel.Columns.of([b"a", b"bbb"])) == (b"\1aL\3bbb", 2)

    def test_variable_bytes(self, kernel: Any) -> None:
        head = Head(b"H\0....t", (LengthField(1, 1),), 9)
        encoder = kernel.FrameEncoder([(head,)], 2, 4)
        columns = kernel.Columns.of([b"a", b"bb"])
        assert encoder.encode(columns, b"1234") == (b"H\x011234taH\x021234tbb", 2)
        assert encoder.encode(kernel.Columns.one(b""), b"5678") == (b"H\x005678t", 1)
        with pytest.raises(ValueError, match="another length"):
            encoder.encode(columns, b"123")
        with pytest.raises(ValueError, match="outside a head"):
            kernel.FrameEncoder([(head,)], 4, 4)


payloads = st.lists(st.tuples(st.integers(0, 101), st.binary(max_size=110)), max_size=40)
repeated = st.tuples(st.integers(0, 99), st.integers(0, 100), st.integers(1, 300)).map(
    lambda found: [(found[0], bytes(found[1]))] * found[2]
)
reads = st.tuples(
    st.lists(payloads | repeated, max_size=4).map(lambda lists: list(chain(*lists))),
    st.binary(max_size=20),
    st.integers(0, 10),
)


@both_forms
class TestBothForms:
    """The compiled kernel does the same as the interpreted one."""

    @given(st.lists(reads, min_size=1, max_size=3))
    def test_scan_and_encode(self, found: list[tuple[list[tuple[int, bytes]], bytes, int]]) -> None:
        assert compiled is not None
        tables = [form.HeadTable(learn_channel) for form in (interpreted, compiled)]
        heads = [(channel_head(n, 60),) if n % 3 else () for n in range(100)]
        for sent, rest, at in found:
            data = b"".join(frame(*message) for message in sent) + rest
            at = min(at, len(data))
            one, other = (table.scan(data, at) for table in tables)
            assert described(one) == described(other)
            assert one.pack() == other.pack()
            assert one.slice(at, 30).payloads() == other.slice(at, 30).payloads()
            encoders = [form.FrameEncoder(heads) for form in (interpreted, compiled)]
            assert encoders[0].encode(one) == encoders[1].encode(other)

    @given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12)), max_size=40), st.booleans())
    def test_encode_few_topics_in_turn(self, sent: list[tuple[int, int]], overlap: bool) -> None:
        assert compiled is not None
        short, long = channel_head(1, limit=4), channel_head(2, limit=10, least=2)
        heads = [(short,), (), (short, long), (long,)]
        payloads = [bytes([65 + place]) * size for place, (_, size) in enumerate(sent)]
        frames = [
            form.FrameEncoder(heads, 3 if overlap else 6, 2).encode(
                form.Columns.of(payloads, [index for index, _ in sent]), b"xy"
            )
            for form in (interpreted, compiled)
        ]
        assert frames[0] == frames[1]

    @given(st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=300)), max_size=30))
    def test_two_length_fields(self, messages: list[tuple[bytes, bytes]]) -> None:
        assert compiled is not None
        data = b"".join(twice_head(name).encode(len(body)) + body for name, body in messages)
        one, other = (form.HeadTable(learn_twice).scan(data) for form in (interpreted, compiled))
        assert described(one) == described(other)

    @given(st.integers(0, 2**48))
    def test_a_round_of_fuzzing(self, number: int) -> None:
        Round(number, compiled).run()
