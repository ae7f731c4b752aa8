"""The kernel's scanning and writing of lines with payloads of text, in both of its forms."""

from __future__ import annotations

from typing import Any

import pytest

from pubsub.kernel import interpreted
from pubsub.kernel.layout import TextHead
from tests.unit.kernel_forms import both_forms, compiled, each_form, messages

END = b'"}\n'


def learn(data: bytes, at: int) -> tuple[TextHead, bytes] | None:
    """Lines are ``{"t":"text"}``, where t is the address."""
    if len(data) - at < 6 or data[at : at + 2] != b'{"' or data[at + 3 : at + 6] != b'":"':
        return None
    return TextHead(data[at : at + 6], END, 20), data[at + 2 : at + 3]


def line(address: bytes, text: bytes) -> bytes:
    return b'{"%b":"%b"}\n' % (address, text)


@each_form
class TestTextTable:
    """``TextTable.scan``"""

    def test_messages_in_order(self, kernel: Any) -> None:
        data = line(b"a", b"one") + line(b"b", b"") + line(b"a", b"") + line(b"a", b"x" * 20)
        columns = kernel.TextTable(learn).scan(b"{" + data, 1)
        assert messages(columns) == [(b"a", b"one"), (b"b", b""), (b"a", b""), (b"a", b"x" * 20)]
        assert columns.end == 1 + len(data)

    @pytest.mark.parametrize("cut", range(13))
    def test_an_incomplete_line(self, kernel: Any, cut: int) -> None:
        whole = line(b"a", b"text")
        table = kernel.TextTable(learn)
        assert table.scan(whole[:cut]).count == 0
        assert messages(table.scan(whole + whole[:cut])) == [(b"a", b"text")]

    @pytest.mark.parametrize(
        "text",
        [b"\\n", b"\\", b"\n", b"\x1f", b"\0", b"\xff", b"\xc3", b"\xed\xa0\x80", b"x" * 21, b'"'],
    )
    def test_a_line_that_does_not_fit(self, kernel: Any, text: bytes) -> None:
        for before in (b"", b"1234567", "äö".encode()):
            table = kernel.TextTable(learn)
            first = line(b"a", b"one")
            for data in (first, first * 2):
                columns = table.scan(data + line(b"a", before + text) + first)
                assert columns.end == len(data)
                assert columns.payloads() == [b"one"] * (len(data) // len(first))

    def test_another_text_after_the_payload(self, kernel: Any) -> None:
        columns = kernel.TextTable(learn).scan(line(b"a", b"one") + b'{"a":"two"}\r\n')
        assert columns.payloads() == [b"one"]

    def test_two_texts_after_the_same_beginning(self, kernel: Any) -> None:
        def either(data: bytes, at: int) -> tuple[TextHead, bytes]:
            after = data[data.index(b'"', at + 6) : data.index(b"\n", at) + 1]
            return TextHead(data[at : at + 6], after, 20), after

        table = kernel.TextTable(either)
        data = line(b"a", b"1") + b'{"a":"2"}\r\n' + line(b"a", b"3") + b'{"a":"4"}\r\n'
        assert table.scan(data).indexes() == [0, 1, 0, 1]
        assert len(table) == 2

    def test_text_after_a_payload_begins_with_a_quote(self, kernel: Any) -> None:
        table = kernel.TextTable(lambda data, at: (TextHead(b"a", b"\n", 20), 0))
        with pytest.raises(ValueError, match="begins with a quote"):
            table.scan(b"ab\n")

    def test_an_offset_outside_the_data(self, kernel: Any) -> None:
        for at in (-1, 2):
            with pytest.raises(ValueError, match="outside the data"):
                kernel.TextTable(learn).scan(b"x", at)

    def test_a_full_table_begins_again(self, kernel: Any) -> None:
        def numbered(data: bytes, at: int) -> tuple[TextHead, int]:
            return TextHead(data[at : at + 6] + b'"', b'"', 9), 0

        table = kernel.TextTable(numbered)
        for number in range(interpreted.MAX_HEADS + 1):
            assert table.scan(b'%06d"text"' % number).count == 1
        assert len(table) == 1


@both_forms
def test_a_text_head_is_not_encoded() -> None:
    assert compiled is not None
    with pytest.raises(TypeError, match="text head"):
        compiled.FrameEncoder([(TextHead(b"a", END, 1),)])
