"""Columns that are parts of other bytes: ``unpack`` and ``equal`` in place, and ``joined``."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.kernel_forms import FORMS, described, each_form

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
        assert scattered.pack_sizes() == array("I", [1, 0, 2]).tobytes()
        for wrong in ("text", None, 1, [b"a"]):
            with pytest.raises(TypeError):
                kernel.Columns.joined([b"a", wrong])


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
