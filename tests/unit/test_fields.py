"""Frame fields: integers, counted bytes, remaining bytes; payloads that do not fit."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.wire.fields import (
    U8,
    CountedBytes,
    FieldError,
    Remainder,
    Unsigned,
    counted,
    decode_fields,
    encode_fields,
    layout,
    remainder,
    u8,
    u64,
)


@dataclass(frozen=True, slots=True)
class Example:
    """One field of every kind."""

    small: int = u8()
    large: int = u64()
    name: bytes = counted(U8)
    body: bytes = remainder()


@dataclass(frozen=True, slots=True)
class Closed:
    """A frame whose length follows from its fields."""

    name: bytes = counted(Unsigned(2))
    small: int = u8()


@dataclass(frozen=True, slots=True)
class Empty:
    """A frame without fields."""


class UnsignedTests(SynchronousTestCase):
    """Unsigned"""

    def test_little_endian_unless_big(self) -> None:
        assert Unsigned(4).encode(0x01020304) == b"\4\3\2\1"
        assert Unsigned(4, big=True).encode(0x01020304) == b"\1\2\3\4"
        assert Unsigned(2).decode(b"\0\1\2\0", 1) == (0x0201, 3)
        assert Unsigned(2, big=True).decode(b"\0\1\2\0", 1) == (0x0102, 3)

    def test_values_that_do_not_fit_overflow(self) -> None:
        for value in (-1, 256):
            with pytest.raises(OverflowError):
                U8.encode(value)

    def test_missing_bytes_are_a_field_error(self) -> None:
        with pytest.raises(FieldError, match="u32"):
            Unsigned(4).decode(b"1234", 1)
        with pytest.raises(FieldError):
            U8.decode(b"", 0)

    @given(st.sampled_from([1, 2, 4, 8]), st.booleans(), st.data())
    def test_encoded_fields_are_decoded(self, size: int, big: bool, data: st.DataObject) -> None:
        kind = Unsigned(size, big)
        value = data.draw(st.integers(0, 256**size - 1))
        assert kind.decode(b"x" + kind.encode(value) + b"y", 1) == (value, 1 + size)

    def test_the_form_names_width_and_order(self) -> None:
        assert Unsigned(4).description == "u32"
        assert Unsigned(2, big=True).description == "u16 big-endian"
        assert Unsigned(1, big=True).description == "u8"


class BytesTests(SynchronousTestCase):
    """Counted and Remainder"""

    def test_counted_bytes_follow_their_number(self) -> None:
        assert CountedBytes(Unsigned(2)).encode(b"abc") == b"\3\0abc"
        assert CountedBytes(Unsigned(2)).decode(b"\3\0abcd", 0) == (b"abc", 5)
        assert CountedBytes(U8).decode(b"\0", 0) == (b"", 1)

    def test_more_bytes_than_their_number_can_express_overflow(self) -> None:
        assert CountedBytes(U8).encode(b"x" * 255)[0] == 255
        with pytest.raises(OverflowError):
            CountedBytes(U8).encode(b"x" * 256)

    def test_fewer_bytes_than_counted_are_a_field_error(self) -> None:
        for data in (b"", b"\1", b"\3ab"):
            with pytest.raises(FieldError):
                CountedBytes(U8).decode(data, 0)

    def test_the_rest_may_be_empty(self) -> None:
        assert Remainder().decode(b"abc", 1) == (b"bc", 3)
        assert Remainder().decode(b"abc", 3) == (b"", 3)
        assert Remainder().encode(b"abc") == b"abc"


class FrameTests(SynchronousTestCase):
    """encode_fields, decode_fields, layout"""

    def test_fields_follow_each_other_in_order(self) -> None:
        payload = encode_fields(Example(1, 2, b"me", b"body"))
        assert payload == b"\1" + b"\2\0\0\0\0\0\0\0" + b"\2me" + b"body"
        assert decode_fields(Example, payload) == Example(1, 2, b"me", b"body")

    def test_bytes_left_over_are_a_field_error(self) -> None:
        assert decode_fields(Closed, b"\0\0\7") == Closed(b"", 7)
        with pytest.raises(FieldError, match="1 bytes too many"):
            decode_fields(Closed, b"\0\0\7x")
        with pytest.raises(FieldError):
            decode_fields(Empty, b"x")

    def test_a_frame_without_fields_is_empty(self) -> None:
        assert encode_fields(Empty()) == b""
        assert decode_fields(Empty, b"") == Empty()

    def test_the_layout_names_fields_and_kinds(self) -> None:
        assert layout(Closed) == (("name", CountedBytes(Unsigned(2))), ("small", U8))

    @given(
        st.builds(
            Example,
            st.integers(0, 255),
            st.integers(0, 2**64 - 1),
            st.binary(max_size=255),
            st.binary(),
        )
    )
    def test_encoded_fields_are_decoded(self, frame: Example) -> None:
        assert decode_fields(Example, encode_fields(frame)) == frame

    @given(st.binary(max_size=30))
    @example(b"")
    @example(b"\0")
    @example(b"\0\0\7")
    @example(b"\xff" * 30)
    def test_any_payload_is_the_frame_it_encodes_to_or_an_error(self, payload: bytes) -> None:
        for kind in (Example, Closed, Empty):
            try:
                frame: object = decode_fields(kind, payload)
            except FieldError:
                continue
            assert encode_fields(frame) == payload

    @given(st.binary(max_size=20), st.integers(0, 255))
    def test_no_prefix_of_a_closed_frame_is_a_frame(self, name: bytes, small: int) -> None:
        payload = encode_fields(Closed(name, small))
        for end in range(len(payload)):
            with pytest.raises(FieldError):
                decode_fields(Closed, payload[:end])
