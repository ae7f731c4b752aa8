"""The kernel's rows of text, in both of its forms."""

from __future__ import annotations

import json
from array import array
from base64 import b64encode
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pubsub.kernel.layout import RowField as Field
from tests.unit.kernel_forms import each_form

TEXTS = st.text(max_size=9).map(str.encode)
EVERYTHING = bytes(range(256))


def rows(kernel: Any, payloads: list[bytes], *template: bytes | Field, **more: Any) -> Any:
    """Return rows without names whose first number is 5."""
    return kernel.encode_rows(kernel.Columns.of(payloads), template, None, 5, **more)


@each_form
class TestFields:
    """What stands for each field"""

    @pytest.mark.parametrize("number", [0, 8, 99, 10**18 - 1, 2**63 - 3])
    def test_numbers_go_on(self, kernel: Any, number: int) -> None:
        columns = kernel.Columns.of([b"a", "ö".encode(), b""])
        template = b"<", Field.NUMBER, b"=", Field.TEXT, b",", Field.NEXT, b">%d"
        expected = "".join(
            f"<{own}={text},{own + 1}>%d" for own, text in enumerate(("a", "ö", ""), number)
        )
        made = kernel.encode_rows(columns, template, None, number)
        assert made == (expected.encode(), 3)

    def test_names_belong_to_indexes(self, kernel: Any) -> None:
        columns = kernel.Columns.of([b"1", b"2", b"3", b"4"], [2, 0, 1, 2])
        template = Field.NAME, Field.PAYLOAD, b":", Field.NUMBER, b" ", Field.END, b"\n"
        ends = [b"w", b"x", b"y", b"z"]
        made = kernel.encode_rows(columns, template, [b"a", None, b"ccc"], 7, 0, ends)
        assert made == (b"ccc1:7 w\na2:8 x\nccc4:10 z\n", 3)

    def test_without_names_and_ends(self, kernel: Any) -> None:
        assert rows(kernel, [b"a"], b"<", Field.NAME, Field.END, b">") == (b"<>", 1)

    @pytest.mark.parametrize("id", [0, 0x8000 << 48, 2**63 + 2**48 - 1, 2**64 - 2])
    def test_ids_are_those_of_uuids(self, kernel: Any, id: int) -> None:
        made, _ = rows(kernel, [b"", b""], b"00000000-0000-0000-", Field.ID, b" ", id=id)
        assert made.decode().split() == [str(UUID(int=id)), str(UUID(int=id + 1))]

    @given(st.lists(st.binary(max_size=12) | TEXTS, max_size=4))
    @example([EVERYTHING[:128], b"\x7f\x80"])
    @example([b"", b"\xff", b"\xff\xfe", b"\xff\xfe\xfd", b"\xff\xfe\xfd\xfc", EVERYTHING])
    @example([b"\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf\xc2\x80\xe0\xa0\x80\xf0\x90\x80\x80"])
    @example([b"\xf4\x90\x80\x80", b"\xed\xa0\x80", b"\xc1\xbf", b"1234567\x80"])
    def test_values_are_members_of_json(self, kernel: Any, payloads: list[bytes]) -> None:
        members = []
        for payload in payloads:
            try:
                member = {"value": payload.decode()}
            except UnicodeDecodeError:
                member = {"value_base64": b64encode(payload).decode()}
            members.append(json.dumps(member, ensure_ascii=False).encode())
        made = rows(kernel, payloads, b"{", Field.VALUE, b"}")
        assert made == (b"".join(members), len(payloads))

    @given(st.lists(st.binary(max_size=12) | TEXTS, max_size=4))
    @example([EVERYTHING[:128]])
    def test_texts_have_to_be_utf8(self, kernel: Any, payloads: list[bytes]) -> None:
        try:
            texts = [json.dumps(one.decode(), ensure_ascii=False).encode() for one in payloads]
        except UnicodeDecodeError:
            assert rows(kernel, payloads, Field.TEXT, b"\n") is None
        else:
            wanted = b"".join(text[1:-1] + b"\n" for text in texts)
            assert rows(kernel, payloads, Field.TEXT, b"\n") == (wanted, len(payloads))

    @pytest.mark.parametrize(
        ("size", "length"),
        [
            (0, b"\x01"), (124, b"\x7d"), (125, b"\x7e\x00\x7e"), (65_534, b"\x7e\xff\xff"),
            (65_535, b"\x7f" + (65_536).to_bytes(8, "big")),
        ],
    )  # fmt: skip
    def test_frames_have_their_length(self, kernel: Any, size: int, length: bytes) -> None:
        made = rows(kernel, [b"x" * size, b""], b"\x81", Field.FRAME, b"(", Field.PAYLOAD)
        assert made == (b"\x81" + length + b"(" + b"x" * size + b"\x81\x01(", 2)

    def test_a_length_is_that_before_the_payload(self, kernel: Any) -> None:
        made = rows(kernel, [b"xyz"], Field.FRAME, Field.LENGTH, b"{", Field.NUMBER, Field.PAYLOAD)
        assert made == (b"\x09\0\0\0\x02{5xyz", 1)
        assert rows(kernel, [b"xyz"], Field.LENGTH, b"[", Field.TEXT) == (b"\0\0\0\x04[xyz", 1)
        twice = Field.LENGTH, Field.PAYLOAD, b"[", Field.PAYLOAD
        assert rows(kernel, [b"xyz"], *twice) == (b"\0\0\0\x01xyz[xyz", 1)


@each_form
class TestErrors:
    """What cannot be written"""

    def test_no_messages(self, kernel: Any) -> None:
        assert rows(kernel, [], b"<", Field.TEXT) == (b"", 0)
        assert rows(kernel, [b"a", b"b"]) == (b"", 2)

    @pytest.mark.parametrize(
        ("number", "id"), [(-1, 0), (2**63 - 1, 0), (2**70, 0), (0, -1), (0, 2**64 - 1)]
    )
    def test_numbers_that_do_not_exist(self, kernel: Any, number: int, id: int) -> None:
        with pytest.raises(ValueError, match="negative or too large"):
            kernel.encode_rows(kernel.Columns.of([b"a", b"b"]), (), None, number, id)

    def test_numbers_of_each_message(self, kernel: Any) -> None:
        columns = kernel.Columns.of([b"a", b"b", b"c"], [0, 1, 0])
        template = Field.NUMBER, b" ", Field.NEXT, b" ", Field.ID, b";"
        ids = array("Q", (2**64 - 1, 5, 0)).tobytes()
        numbers = array("Q", (7, 2**64 - 1, 2**63 - 1))
        with pytest.raises(ValueError, match="negative or too large"):
            kernel.encode_rows(columns, template, [b"", None], numbers.tobytes(), ids)
        numbers[1] = 0
        made = kernel.encode_rows(columns, template, [b"", None], numbers.tobytes(), ids)
        last = b"9223372036854775807 9223372036854775808 0000-000000000000;"
        assert made == (b"7 8 ffff-ffffffffffff;" + last, 2)
        with pytest.raises(ValueError, match="not as many"):
            kernel.encode_rows(columns, template, None, numbers[1:].tobytes(), ids)
        with pytest.raises(ValueError, match="not as many"):
            kernel.encode_rows(columns, template, None, 0, ids[1:])
        assert kernel.encode_rows(kernel.Columns.of([]), template, None, b"", b"") == (b"", 0)

    def test_a_field_that_does_not_exist(self, kernel: Any) -> None:
        with pytest.raises(ValueError, match="10"):
            rows(kernel, [b"a"], 10)  # type: ignore[arg-type]

    def test_too_many_pieces(self, kernel: Any) -> None:
        assert rows(kernel, [b"a"], *[b"x"] * 24) == (b"x" * 24, 1)
        with pytest.raises(ValueError, match="too many"):
            rows(kernel, [b"a"], *[b"x"] * 25)

    @pytest.mark.parametrize("field", [Field.FRAME, Field.LENGTH])
    def test_two_lengths(self, kernel: Any, field: Field) -> None:
        with pytest.raises(ValueError, match="two lengths"):
            rows(kernel, [b"a"], field, b"x", field)

    def test_names_that_are_missing(self, kernel: Any) -> None:
        columns = kernel.Columns.of([b"a", b"b"], [0, 1])
        with pytest.raises(IndexError):
            kernel.encode_rows(columns, (Field.NAME,), [b"a"], 0)
        with pytest.raises(TypeError):
            kernel.encode_rows(columns, (Field.NAME,), [b"a", "b"], 0)

    def test_ends_that_are_missing(self, kernel: Any) -> None:
        with pytest.raises(ValueError, match="ends"):
            rows(kernel, [b"a", b"b"], Field.END, ends=[b"x"])
