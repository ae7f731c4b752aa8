"""Columns that are parts of other bytes: ``unpack`` and ``equal`` in place, and ``joined``."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsub.kernel import Head, LengthField
from pubsub.kernel.interpreted import MAX_HEADS
from tests.unit.kernel_forms import FORMS, both_forms, described, each_form

PAYLOADS = st.lists(st.binary(max_size=70) | st.binary(min_size=255, max_size=300), max_size=6)
# Bytes, payloads that were cut out of bytes, or payloads that are not joined yet.
PARTS = st.lists(st.tuples(st.sampled_from(["bytes", "of", "gather"]), PAYLOADS), max_size=5)
PLACES = st.integers(-2, 40)


def columns_of(kernel: Any, data: bytes, way: str, arguments: tuple[Any, ...]) -> Any:
    """Return what is in the columns that ``way`` makes of ``data``, or the error."""
    try:
        columns = getattr(kernel.Columns, way)(data, *arguments)
    except ValueError:
        return ValueError
    joined = kernel.Columns.joined([columns, b"/", columns])
    return described(columns), columns.slice(1, 3).payloads(), columns.pack(), joined


@each_form
class TestParts:
    """Functions of both forms"""

    def test_payloads_within_other_bytes(self, kernel: Any) -> None:
        data = b"head" + b"aabbcc" + b"tail"
        alike = kernel.Columns.equal(data, 2, 3, 4, 10)
        assert alike.payloads() == [b"aa", b"bb", b"cc"]
        sizes = array("I", [1, 0, 5]).tobytes()
        some = kernel.Columns.unpack(data, sizes, b"", 4, 10)
        assert some.payloads() == [b"a", b"", b"abbcc"]
        assert kernel.Columns.equal(data, 5, 2, 4).payloads() == [b"aabbc", b"ctail"]

    def test_places_outside_of_the_data(self, kernel: Any) -> None:
        for at, stop in ((-1, 1), (0, 9), (3, 2), (9, 9), (-4, None), (9, None)):
            with pytest.raises(ValueError, match="outside"):
                kernel.Columns.equal(b"12345678", 1, 2, at, stop)
            with pytest.raises(ValueError, match="outside"):
                kernel.Columns.unpack(b"12345678", bytes(8), b"", at, stop)

    def test_more_messages_or_bytes_than_any_batch_has(self, kernel: Any) -> None:
        for much in (2**31, 2**40, 2**62):
            with pytest.raises(ValueError, match="differ"):
                kernel.Columns.equal(b"", 0, much)
            with pytest.raises(ValueError, match="differ"):
                kernel.Columns.equal(b"", much, 0)

    def test_joined(self, kernel: Any) -> None:
        scattered = kernel.Columns.gather([b"x", b"", b"yz"])
        parts = [b"1", kernel.Columns.equal(b"aabb", 2, 2), b"", scattered, b"2"]
        assert kernel.Columns.joined(parts) == b"1aabbxyz2"
        assert kernel.Columns.joined([]) == kernel.Columns.joined([b""]) == b""
        # They are not changed by that.
        assert scattered.payloads() == [b"x", b"", b"yz"]
        assert scattered.words() == array("I", [1, 0, 2]).tobytes()
        for wrong in ("text", None, 1, [b"a"]):
            with pytest.raises(TypeError):
                kernel.Columns.joined([b"a", wrong])

    def test_a_queue_joins_what_it_takes(self, kernel: Any) -> None:
        scattered = kernel.Columns.gather([b"x", b"", b"yz"])
        last = kernel.Columns.of([b"1", b"22"], [3, 4]).slice(1, 2)
        queue, tally = kernel.ColumnQueue(300, 1000), kernel.LinkedTally(kernel.Tally())
        topics = tally.total, kernel.Tally()
        queue.open("cafe")
        for place, columns in enumerate((kernel.Columns.equal(b"aabb", 2, 2), scattered, last)):
            tally.link(topics[place % 2])
            assert queue.put(columns, b"me", "cafe", tally)
        taken, senders, taken_topics = queue.take()
        assert described(taken) == described(
            kernel.Columns.of([b"aa", b"bb", b"x", b"", b"yz", b"22"], [0, 0, 1, 1, 1, 0])
        )
        assert taken_topics == topics
        assert senders == (array("I", [2, 3, 1]).tobytes(), (b"me",) * 3)
        assert scattered.payloads() == [b"x", b"", b"yz"]

    def test_a_queue_takes_small_columns_of_one_protocol(self, kernel: Any) -> None:
        queue, one, large = kernel.ColumnQueue(67, 140), *map(kernel.Columns.one, (b"abc", b"abcd"))
        tally, total, topic = kernel.LinkedTally(total := kernel.Tally()), total, kernel.Tally()
        tally.link(topic)
        assert not queue.put(one, b"me", "cafe", tally)
        queue.open("cafe")
        assert not queue.put(large, b"me", "cafe", tally)
        assert not queue.put(one, b"me", "fast", tally)
        assert not queue.put(kernel.Columns.of([]), b"me", "cafe", tally)
        assert tally.messages == 0
        assert queue.put(one, b"me", "cafe", tally)
        assert queue.put(one, b"you", "cafe", tally)
        assert not queue.put(one, b"me", "cafe", tally)
        assert len(queue) == 2
        for each in (tally, total, topic):
            assert (each.messages, each.nbytes) == (2, 6)
        taken = kernel.Columns.of([b"abc", b"abc"])
        assert queue.take() == (taken, (array("I", [1, 1]).tobytes(), (b"me", b"you")), (topic,))
        assert len(queue) == 0
        assert queue.take() == (kernel.Columns.of([]), (b"", ()), ())
        assert not queue.put(one, b"me", "cafe", tally)

    def test_a_queue_takes_columns_of_several_topics(self, kernel: Any) -> None:
        queue, total = kernel.ColumnQueue(4 * 66, 500), kernel.Tally()
        tally, other = kernel.LinkedTally(total), kernel.LinkedTally(total)
        topics = t, _, v = tuple(kernel.Tally() for _ in range(3))
        other.link(v)
        queue.open("cafe")
        mixed = kernel.Columns.of([b"1", b"22", b"", b"333"], [1, 0, 2, 2]).slice(1, 4)
        assert queue.put(kernel.Columns.one(b"x"), b"you", "cafe", other)
        assert queue.put_mixed(mixed, topics, b"me", "cafe", tally)
        assert queue.put(kernel.Columns.one(b"y"), b"you", "cafe", other)
        assert [(one.messages, one.nbytes) for one in topics] == [(1, 2), (0, 0), (4, 5)]
        assert (tally.messages, tally.nbytes) == (3, 5)
        assert (total.messages, total.nbytes) == (5, 7)
        assert len(queue) == 3
        taken, senders, taken_topics = queue.take()
        payloads = [b"x", b"22", b"", b"333", b"y"]
        assert described(taken) == described(kernel.Columns.of(payloads, [0, 1, 0, 0, 0]))
        assert taken_topics == (v, t)
        assert senders == (array("I", [1, 1, 2, 1]).tobytes(), (b"you", b"me", b"me", b"you"))

    def test_a_queue_refuses_columns_of_several_topics(self, kernel: Any) -> None:
        queue, tally = kernel.ColumnQueue(140, 200), kernel.LinkedTally(kernel.Tally())
        topics = kernel.Tally(), kernel.Tally()
        mixed = kernel.Columns.of([b"a", b"b"], [1, 0])
        assert not queue.put_mixed(mixed, topics, b"me", "cafe", tally), "it is closed"
        queue.open("cafe")
        large = kernel.Columns.of([b"a", bytes(12)], [1, 0])
        assert not queue.put_mixed(large, topics, b"me", "cafe", tally)
        assert not queue.put_mixed(mixed, topics, b"me", "fast", tally)
        with pytest.raises(IndexError):
            queue.put_mixed(mixed, topics[:1], b"me", "cafe", tally)
        with pytest.raises(IndexError):
            queue.put_mixed(mixed, (), b"me", "cafe", tally)
        assert queue.put_mixed(mixed, topics, b"me", "cafe", tally)
        assert not queue.put_mixed(mixed, topics, b"me", "cafe", tally), "it is full"
        assert (tally.messages, topics[0].messages, topics[1].messages) == (2, 1, 1)
        assert len(queue) == 1
        assert queue.take()[0].payloads() == [b"a", b"b"]

    def test_a_queue_takes_columns_of_addresses_with_topics(self, kernel: Any) -> None:
        queue, tally = kernel.ColumnQueue(140, 300), kernel.LinkedTally(kernel.Tally())
        first, second = kernel.Tally(), kernel.Tally()
        mixed = kernel.Columns.of([b"a", b"b"], [1, 0], ["x", "y"])
        topics = {"x": first, "y": second, "z": first}
        assert not queue.put_known(mixed, topics, b"me", "cafe", tally), "it is closed"
        queue.open("cafe")
        for less in ({}, {"x": first}, {"x": first, "Y": second}):
            assert not queue.put_known(mixed, less, b"me", "cafe", tally)
        assert not queue.put_known(mixed, topics, b"me", "fast", tally)
        assert not queue.put_known(kernel.Columns.of([], [], []), topics, b"me", "cafe", tally)
        assert (len(queue), tally.messages) == (0, 0)
        assert queue.put_known(mixed, topics, b"me", "cafe", tally)
        one = kernel.Columns.one(b"c", "z")
        assert queue.put_known(one, topics, b"you", "cafe", tally)
        assert (tally.messages, first.messages, second.nbytes) == (3, 2, 1)
        taken, senders, found = queue.take()
        assert described(taken) == described(kernel.Columns.of([b"a", b"b", b"c"], [0, 1, 1]))
        assert senders == (array("I", [1, 1, 1]).tobytes(), (b"me", b"me", b"you"))
        assert found == (second, first)

    def test_a_table_puts_a_message_of_the_same_address(self, kernel: Any) -> None:
        table, queue, tally, topic = alike(kernel)
        assert table.put_alike(frame(1, b"ab"), queue, tally)
        # Another head of the same address.
        assert table.put_alike(frame(3, b""), queue, tally)
        assert (tally.messages, tally.nbytes) == (3, 3)
        taken, senders, topics = queue.take()
        assert described(taken) == described(kernel.Columns.of([b"x", b"ab", b""]))
        assert senders == (array("I", [1, 1, 1]).tobytes(), (b"me",) * 3)
        assert topics == (topic,)

    def test_a_table_puts_messages_of_several_topics(self, kernel: Any) -> None:
        table, queue, tally, topic = alike(kernel)
        another, other = kernel.LinkedTally(tally), kernel.Tally()
        another.link(other)
        assert queue.put(table.scan(frame(2, b"1")), b"you", "cafe", another)
        assert table.put_alike(frame(1, b"22"), queue, tally)
        assert table.put_alike(frame(2, b"333"), queue, another)
        assert (topic.messages, other.messages, other.nbytes) == (2, 2, 4)
        taken, senders, topics = queue.take()
        payloads = [b"x", b"1", b"22", b"333"]
        assert described(taken) == described(kernel.Columns.of(payloads, [0, 1, 0, 1]))
        assert senders[1] == (b"me", b"you", b"me", b"you")
        assert topics == (topic, other)
        queue.open("cafe")
        assert table.put_alike(frame(2, b""), queue, another)
        assert queue.take()[2] == (other,), "topics of the messages before are not there any more"

    def test_a_table_puts_nothing_else(self, kernel: Any) -> None:
        table, queue, tally, topic = alike(kernel)
        whole = frame(1, b"ab")
        for data in (
            b"",
            whole[:1],
            whole[:-1],
            whole + b"x",
            whole * 2,
            frame(2, b"another address"),
            frame(4, b"an unknown head"),
            frame(1, bytes(67)),
        ):
            assert not table.put_alike(data, queue, tally), data
        assert not table.put_alike(whole, queue, kernel.LinkedTally(tally))
        other, _, of_other, _ = alike(kernel)
        of_other.link(topic)
        assert queue.put(other.scan(whole), b"me", "cafe", of_other)
        assert not table.put_alike(whole, queue, of_other)
        assert other.put_alike(whole, queue, of_other)
        assert table.put_alike(whole, queue, tally)
        assert not table.put_alike(whole, queue, tally), "the queue is full"
        assert len(queue.take()[1][1]) == 4
        assert not table.put_alike(whole, queue, tally), "the queue is closed"
        queue.open("fast")
        assert not table.put_alike(whole, queue, tally), "another protocol"
        assert tally.messages == 2
        queue.open("cafe")
        assert table.put_alike(whole, queue, tally)

    def test_what_was_put_before_another_tally_was_linked(self, kernel: Any) -> None:
        table, queue, tally, topic = alike(kernel)
        queue.open("cafe")
        tally.link(topic)
        assert not table.put_alike(frame(1, b"ab"), queue, tally)
        assert queue.put(table.scan(frame(2, b"")), b"me", "cafe", tally)
        assert table.put_alike(frame(2, b"ab"), queue, tally)

    def test_columns_without_one_address(self, kernel: Any) -> None:
        table, queue, tally, _ = alike(kernel)
        assert queue.put(table.scan(frame(1, b"") + frame(2, b"")), b"me", "cafe", tally)
        assert not table.put_alike(frame(1, b""), queue, tally)
        table, queue, tally, _ = alike(kernel)
        assert queue.put(kernel.Columns.one(b"x", "a"), b"me", "cafe", tally)
        assert not table.put_alike(frame(1, b""), queue, tally)

    def test_a_table_that_has_begun_again(self, kernel: Any) -> None:
        table, queue, tally, _ = alike(kernel)
        for number in range(MAX_HEADS):
            table.scan(b"long" + number.to_bytes(3, "big") + b"\0")
        assert len(table) < MAX_HEADS
        assert table.scan(frame(1, b"")).addresses == ["a"]
        assert not table.put_alike(frame(1, b"ab"), queue, tally)


def frame(number: int, payload: bytes) -> bytes:
    """Return a frame of a head of the table of ``alike``."""
    return bytes((number, len(payload))) + payload


def alike(kernel: Any) -> tuple[Any, Any, Any, Any]:
    """Return a table, and a queue that has taken a message of its address a with the tally.

    The last one is the topic.
    """
    addresses = {1: "a", 2: "b", 3: "a"}

    def learn(data: bytes, at: int) -> tuple[Head, Any] | None:
        if data[at:].startswith(b"long"):
            return Head(data[at : at + 7] + b"\0", (LengthField(7, 1),), 9), data[at : at + 7]
        if data[at] not in addresses:
            return None
        return Head(data[at : at + 1] + b"\0", (LengthField(1, 1),), 99), addresses[data[at]]

    table = kernel.HeadTable(learn)
    queue, tally = kernel.ColumnQueue(130, 4 * 66), kernel.LinkedTally(kernel.Tally())
    topic = kernel.Tally()
    tally.link(topic)
    queue.open("cafe")
    # All heads are known then.
    assert table.scan(frame(3, b"") + frame(2, b"")).count == 2
    assert queue.put(table.scan(frame(1, b"x")), b"me", "cafe", tally)
    return table, queue, tally, topic


@both_forms
@pytest.mark.parametrize("wrong", [None, b"bytes", 1])
def test_wrong_columns_are_refused(wrong: Any) -> None:
    kernel: Any = FORMS[-1]
    one = kernel.Columns.one(b"a")
    queue = kernel.ColumnQueue(67, 140)
    tally = kernel.LinkedTally(kernel.Tally())
    queue.open("cafe")
    for put in (
        (wrong, b"me", "cafe", tally),
        (one, None, "cafe", tally),
        (one, b"me", "cafe", wrong),
    ):
        with pytest.raises(TypeError):
            queue.put(*put)
    for topics in ((wrong,), [tally], None):
        with pytest.raises(TypeError):
            queue.put_mixed(one, topics, b"me", "cafe", tally)
    with pytest.raises(ValueError, match="too large"):
        kernel.ColumnQueue(1, 2**31)
    names = (b"me",)
    counts = array("I", [1]).tobytes()
    for sender in (
        "me",
        None,
        (counts,),
        (counts, names, names),
        (counts, [b"me"]),
        (names, names),
    ):
        with pytest.raises((TypeError, ValueError)):
            kernel.run_record(one, 0, 0, 0, ("a",), 0, sender, "cafe", None, 0)


@given(st.binary(max_size=30), PLACES, st.integers(-2, 9), st.none() | PLACES, PLACES)
def test_both_forms_find_the_same_equal_messages(
    data: bytes, count: int, size: int, stop: int | None, at: int
) -> None:
    found = [columns_of(form, data, "equal", (size, count, at, stop)) for form in FORMS]
    assert found == found[:1] * len(FORMS)


@given(st.binary(max_size=30), st.lists(st.integers(0, 9), max_size=5), st.none() | PLACES, PLACES)
def test_both_forms_unpack_the_same(
    data: bytes, sizes: list[int], stop: int | None, at: int
) -> None:
    indexes = array("I", range(len(sizes))).tobytes()
    arguments = (array("I", sizes).tobytes(), indexes, at, stop)
    found = [columns_of(form, data, "unpack", arguments) for form in FORMS]
    assert found == found[:1] * len(FORMS)


@given(PAYLOADS, st.binary(max_size=9), st.binary(max_size=9))
def test_what_is_packed_is_unpacked_in_place(
    payloads: list[bytes], before: bytes, after: bytes
) -> None:
    for form in FORMS:
        packed, sizes, indexes = form.Columns.of(payloads).pack()
        data, end = before + packed + after, len(before) + len(packed)
        assert form.Columns.unpack(data, sizes, indexes, len(before), end).payloads() == payloads


@given(PARTS)
def test_both_forms_join_the_same(parts: list[tuple[str, list[bytes]]]) -> None:
    expected = b"".join([b"".join(payloads) for _, payloads in parts])
    for form in FORMS:
        made = [
            b"".join(payloads) if way == "bytes" else getattr(form.Columns, way)(payloads)
            for way, payloads in parts
        ]
        assert form.Columns.joined(made) == expected
