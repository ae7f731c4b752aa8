"""nsd's codec: any line is a request or an InvalidLine; messages are returned unchanged."""

from __future__ import annotations

import base64
import gc
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.routing.batch import Batch
from pubsub.protocols.nsd.codec import (
    SHOWN,
    SUCCESS,
    Get,
    InvalidLine,
    LineStream,
    Open,
    Publish,
    Subscribe,
    Unsubscribe,
    error,
    messages,
    parse,
    unwrap,
    wrap,
)
from tests.unit.fakes import batch_of

OPEN = b'{"_class":"OpenRequest","identity":"ada"}'
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
EXTRAS = st.dictionaries(
    TEXTS.filter(lambda name: name not in ("_class", "from", "when", "body")), JSON, max_size=5
)


def read(line: bytes) -> object:
    """Return the request of a line, as the server parses it."""
    text, _in_base64 = unwrap(line)
    return parse(text, line)


def tried(line: bytes) -> object:
    """Return the request of a line, or its InvalidLine."""
    try:
        return read(line)
    except InvalidLine as invalid:
        return invalid


def refused(line: bytes) -> str:
    """Return the quotation in the error for a line, which must be invalid."""
    with pytest.raises(InvalidLine) as caught:
        read(line)
    shown: str = caught.value.shown
    return shown


def with_field(text: bytes) -> bytes:
    """Return an OpenRequest with ``text`` as the value of an additional field."""
    return OPEN[:-1] + b',"x":' + text + b"}"


def published(message: Publish, offset: int = 0) -> Batch:
    """Return the batch that the server makes of a Publish."""
    sent = message.message
    batch = batch_of([sent.body.encode()], headers=[sent.extra], offset=offset)
    batch.sender, batch.protocol = sent.sender.encode(), "nsd"
    return batch


class RequestTests(SynchronousTestCase):
    """Lines to requests (nsd §3)"""

    def setUp(self) -> None:
        # A collection in the depth of a recursion has no stack left for gc's callbacks, such as
        # Hypothesis's, and Python would report that.
        gc.disable()
        self.addCleanup(gc.enable)

    def test_every_request(self) -> None:
        assert read(OPEN) == Open("ada")
        assert read(b'{"channel":"ben","_class":"SubscribeRequest","identity":"ada"}') == Subscribe(
            "ada", "ben"
        )
        line = b'{"_class":"UnsubscribeRequest","identity":"ada","channel":"ben"}'
        assert read(line) == Unsubscribe("ada", "ben")
        assert read(b'{"_class":"GetRequest","identity":"ada","after":-7}') == Get("ada", -7)
        line = (
            b'{"_class":"PublishRequest","identity":"ada","message":{"_class":"Message",'
            b'"from":"Ada","when":0,"body":"hi","mood":[1, "\xc3\xbc"]}}'
        )
        request = read(line)
        assert isinstance(request, Publish)
        assert (request.message.sender, request.message.body) == ("Ada", "hi")
        assert request.message.extra == {"mood": b'[1,"\xc3\xbc"]'}

    def test_a_position_that_cannot_be_one_is_that_of_a_new_client(self) -> None:
        def asked(**fields: Any) -> Any:
            request = {"_class": "SubscribeRequest", "identity": "ada", "channel": "ben", **fields}
            return read(json.dumps(request).encode())

        for after in (0, 1, 2**63 - 1):
            found = asked(position=True, epoch="e", after=after)
            assert found == Subscribe("ada", "ben", True, "e", after)
        for epoch, at in (
            ("e", -1), ("e", 2**63), ("e", 5.0), ("e", "5"), ("e", None), (5, 5), (None, 5),
        ):  # fmt: skip
            found = asked(position=True, epoch=epoch, after=at)
            assert found == Subscribe("ada", "ben", True, "", 0), (epoch, at)
        assert asked(position=1, epoch="e", after=5) == Subscribe("ada", "ben")

    def test_the_fields_of_a_message_are_limited(self) -> None:
        message = {"_class": "Message", "from": "", "when": 0, "body": ""}
        message |= {str(number): 0 for number in range(2**16)}
        line = json.dumps({"_class": "PublishRequest", "identity": "ada", "message": message})
        assert isinstance(tried(line.encode()), InvalidLine)

    @given(st.binary(max_size=200))
    @example(b"")
    @example(b"=")
    @example(b"====")
    @example(b"{")
    @example(b"\xff\xfe{\x00}\x00")
    def test_any_bytes_are_a_request_or_invalid(self, line: bytes) -> None:
        result = tried(line)
        if isinstance(result, InvalidLine):
            assert len(result.shown) <= SHOWN
            error(f"INVALID REQUEST: [{result.shown}]")
        else:
            assert isinstance(result, Open | Publish | Subscribe | Unsubscribe | Get)

    @given(JSON | st.fixed_dictionaries({"_class": TEXTS, "identity": JSON}))
    @example(1640)
    def test_any_json_is_a_request_or_invalid(self, value: Any) -> None:
        line = json.dumps(value).encode()
        for form in (line, base64.b64encode(line)):
            result = tried(form)
            if isinstance(result, InvalidLine):
                # Some JSON, such as 1640, is also base64 of other text.
                decoded = unwrap(form)[0].decode(errors="replace")
                assert result.shown in (line.decode()[:SHOWN], decoded[:SHOWN])

    @given(
        st.sampled_from(["Open", "Publish", "Subscribe", "Unsubscribe", "Get"]),
        st.dictionaries(st.sampled_from(["identity", "channel", "after", "message"]), JSON),
    )
    @example("Open", {"identity": "\ud800"})
    @example("Open", {"identity": "é" * 128})
    @example("Get", {"identity": "a", "after": True})
    @example("Get", {"identity": "a", "after": -1})
    @example("Get", {"identity": "a", "after": 10**400})
    @example("Get", {"identity": "a", "after": float("nan")})
    @example("Publish", {"identity": "a", "message": []})
    def test_any_fields_are_a_request_or_invalid(self, kind: str, fields: dict[str, Any]) -> None:
        line = json.dumps({"_class": f"{kind}Request", **fields}).encode()
        try:
            request: Any = read(line)
        except InvalidLine:
            return
        assert request.identity == fields["identity"]
        assert 1 <= len(request.identity.encode()) <= 255

    def test_deep_nesting_is_invalid(self) -> None:
        for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
            # Python 3.11 takes 1,000 levels, 3.13 10,000, and 3.14 what its stack has room for.
            depth = 500_000
            assert refused(with_field(opening * depth + b"1" + closing * depth))
            assert refused(with_field(opening * depth))
        assert read(with_field(b"[" * 100 + b"]" * 100)) == Open("ada")

    def test_deep_nesting_with_an_escape_is_invalid_or_accepted(self) -> None:
        for depth in range(300, 1100, 50):
            line = with_field(b"[" * depth + b'"\\u0041"' + b"]" * depth)
            try:
                assert read(line) == Open("ada")
            except InvalidLine:
                continue

    def test_numbers(self) -> None:
        for number in (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"1" * 5000, b"01",
                       b"+1", b".5", b"1.", b"0x1"):  # fmt: skip
            refused(with_field(number))
        for number in (b"1" * 4000, b"1e308", b"-0", b"1E5", b"0.1", b"1e-999"):
            assert read(with_field(number)) == Open("ada")

    def test_numbers_must_be_integers(self) -> None:
        get = b'{"_class":"GetRequest","identity":"ada","after":%b}'
        for number in (b"1.0", b"1e2", b"true", b'"1"', b"null", b"[1]"):
            refused(get % number)
        assert read(get % b"-0") == Get("ada", 0)
        assert read(get % (b"9" * 4000)) == Get("ada", int("9" * 4000))

    def test_lone_surrogates_are_invalid_everywhere(self) -> None:
        for text in (b'"\\ud800"', b'"\\udc00\\ud800"', b'{"\\ud800":1}', b'[["a\\uDFFF"]]'):
            refused(with_field(text))
        refused(b'{"_class":"OpenRequest","identity":"\\ud83d"}')
        refused(with_field(b'"\xed\xa0\x80"'))
        assert read(with_field(b'"\\ud83d\\udc2c"')) == Open("ada")

    def test_the_last_of_repeated_names_counts(self) -> None:
        assert read(b'{"identity":"x","_class":1,"_class":"OpenRequest","identity":"ada"}') == Open(
            "ada"
        )
        refused(b'{"_class":"OpenRequest","identity":"ada","identity":1}')

    def test_a_line_that_is_not_an_object_is_invalid(self) -> None:
        for line in (b"[]", b"[" + OPEN + b"]", b'"OpenRequest"', b"1", b"null", b"true"):
            assert refused(line) == line.decode()
            assert refused(base64.b64encode(line)) == line.decode()

    def test_a_byte_order_mark_and_nul_bytes_are_invalid(self) -> None:
        assert refused(b"\xef\xbb\xbf" + OPEN) == "\ufeff" + OPEN.decode()
        refused(OPEN + b"\0")
        refused(b"\0" + OPEN)
        refused(b'{"_class":"OpenRequest","identity":"a\0a"}')
        refused(OPEN.decode().encode("utf-16"))
        assert read(b'{"_class":"OpenRequest","identity":"a\\u0000a"}') == Open("a\0a")

    def test_names_have_1_to_255_bytes(self) -> None:
        line = '{{"_class":"OpenRequest","identity":"{}"}}'
        for name in ("a" * 255, "é" * 127, "🐬" * 63):
            assert read(line.format(name).encode()) == Open(name)
        for name in ("", "a" * 256, "é" * 128, "🐬" * 64):
            refused(line.format(name).encode())

    def test_quotations_are_cut_at_200_characters(self) -> None:
        assert refused(b"{" + "🐬".encode() * 300) == "{" + "🐬" * 199
        assert refused(b"{\xff" + b"x" * 300) == "{\ufffd" + "x" * 198
        assert refused(b"") == ""


class DialectTests(SynchronousTestCase):
    """nsd §2.2"""

    def test_valid_base64_selects_the_base64_dialect(self) -> None:
        assert unwrap(base64.b64encode(OPEN)) == (OPEN, True)
        assert unwrap(OPEN) == (OPEN, False)
        assert unwrap(b"") == (b"", False)
        for line in (
            b"QQ",
            b"QQ=",
            b"Q Q=",
            b"QQ==\r",
            b"Q-_=",
            b"====",
            b"=",
            b"QQ==QQ==",
            b"{QQ=",
        ):
            assert unwrap(line) == (line, False)

    def test_errors_quote_the_decoded_text_or_the_line(self) -> None:
        assert refused(base64.b64encode("grüß".encode())) == "grüß"
        line = base64.b64encode(b"\xff" * 9)
        assert refused(line) == line.decode()

    def test_replies_have_the_dialect_of_the_request(self) -> None:
        assert wrap(SUCCESS, False) == b'{"_class":"SuccessResponse"}\n'
        assert wrap(SUCCESS, True) == b"eyJfY2xhc3MiOiJTdWNjZXNzUmVzcG9uc2UifQ==\n"

    @given(st.lists(st.binary(max_size=30), max_size=8), st.binary(max_size=30))
    @example([], b"")
    @example([b"", b"a"], b"")
    @example([b"ab", b"c"], b"d")
    def test_a_stream_in_any_pieces_equals_one_encoding(
        self, pieces: list[bytes], last: bytes
    ) -> None:
        whole = b"".join(pieces) + last
        for in_base64 in (False, True):
            line = LineStream(in_base64)
            sent = b"".join(map(line.feed, pieces)) + line.finish(last)
            assert sent == wrap(whole, in_base64)


class MessageTests(SynchronousTestCase):
    """Publish, and back in the list of a Get (nsd §4)"""

    @given(TEXTS, TEXTS, EXTRAS, st.integers(0, 2**40))
    @example("", "", {}, 0)
    @example('"', "\\", {'"': "\\"}, 0)
    @example("\0", "\u2028\x7f", {"": 2**70}, 2**40)
    @example("😀", "\n", {"when ": None, "Body": -0.0}, 1)
    def test_text_and_extra_fields_are_returned_unchanged(
        self, sender: str, body: str, extra: dict[str, Any], offset: int
    ) -> None:
        message = {"_class": "Message", "from": sender, "when": 7, "body": body, **extra}
        request = {"_class": "PublishRequest", "identity": "ada", "message": message}
        for ascii_only in (True, False):
            parsed = read(json.dumps(request, ensure_ascii=ascii_only).encode())
            assert isinstance(parsed, Publish)
            (text,) = messages(published(parsed, offset))
            assert b"\n" not in text
            back = json.loads(text)
            assert back == {**message, "when": offset + 1}
            assert list(back) == ["_class", "from", "when", "body", *extra]

    @given(st.binary(max_size=50), st.binary(max_size=50))
    @example(b"", b"")
    @example(b"\xff", b"\xff")
    @example(b'"\\\n\0', b'"')
    @example(b"\xed\xa0\x80", b"\xed\xa0\x80")
    def test_any_payload_and_sender_of_another_protocol(
        self, payload: bytes, sender: bytes
    ) -> None:
        batch = batch_of([payload], offset=0)
        batch.sender = sender
        (text,) = messages(batch)
        back = json.loads(text)
        assert back["from"] == sender.decode(errors="replace")
        try:
            assert back["body"] == payload.decode()
            assert "data" not in back
        except UnicodeDecodeError:
            assert back["body"] == ""
            assert base64.b64decode(back["data"]) == payload

    def test_headers_of_another_protocol_are_omitted(self) -> None:
        batch = batch_of([b"hi"], headers=[{"x": b"\xff no json"}], offset=4)
        assert list(messages(batch)) == [
            b'{"_class":"Message","from":"alice","when":5,"body":"hi"}'
        ]

    def test_when_increases_within_a_batch(self) -> None:
        texts = list(messages(batch_of([b"a", b"b", b"\xff"], offset=9)))
        assert [json.loads(text)["when"] for text in texts] == [10, 11, 12]

    def test_an_error_is_one_line_with_any_quotation(self) -> None:
        assert error('a"\n\u2028ü') == (
            b'{"_class":"ErrorResponse","error":"a\\"\\n\xe2\x80\xa8\xc3\xbc"}'
        )
