"""JSON of clients with many values."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.http_api.requests.api_error import ApiError
from pubsub.http_api.requests.json_input import parse_json
from tests.unit.house_case import HouseCase

MANY = 400_000
BOMBS = {
    "lists": b"[" + b"[]," * MANY + b"[]]",
    "objects": b"[" + b"{}," * MANY + b"{}]",
    "members": json.dumps({str(one): 0 for one in range(MANY)}).encode(),
    "items": b"[" + b"1," * MANY + b"1]",
    "texts": b"[" + b'"",' * MANY + b'""]',
    "behind text": b'["' + rb"\\\"," * MANY + b'",' + b"[]," * MANY + b"[]]",
    "behind an escape": b'["' + b"\\\\" + b'",' + b"[]," * MANY + b'"\\""]',
}
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**38), 10**38) | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('\\"[]{},:')),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('a\\"[,:'), inner),
)  # fmt: skip


class ParseTests(SynchronousTestCase):
    """parse_json"""

    @given(values, st.booleans(), st.booleans())
    def test_a_long_document_is_parsed_as_a_short_one_is(
        self, value: object, ascii: bool, has_mark: bool
    ) -> None:
        text = json.dumps(value, ensure_ascii=ascii)
        data = text.encode("utf-8-sig" if has_mark else "utf-8")
        assert parse_json(data) == value
        assert parse_json(data + b" " * 40_000) == value

    def test_documents_with_too_many_values_are_refused(self) -> None:
        for data in BOMBS.values():
            with pytest.raises(ApiError) as raised:
                parse_json(data)
            assert (raised.value.status, raised.value.code) == (413, "too-large")

    def test_what_is_in_a_text_does_not_count(self) -> None:
        for inside in (b"[,:{" * 100_000, rb"\"a\":[1," * 50_000, rb"\\" * 50_000 + b"," * 70_000):
            data = b'{"value": "' + inside + b'"}'
            assert parse_json(data) == json.loads(data)

    def test_numbers_of_many_digits_are_refused_in_a_long_document(self) -> None:
        for number in (b"9" * 4000, b"1." + b"1" * 4000):
            with pytest.raises(ValueError, match="too many digits"):
                parse_json(b"[" + b" " * 40_000 + number + b"]")

    def test_as_many_topics_as_there_may_be_in_a_body(self) -> None:
        names = [f"sensors/{number}" for number in range(30_000)]
        data = json.dumps({"start": 0, "topics": names}).encode()
        assert parse_json(data)["topics"] == names


class RequestTests(HouseCase):
    """Requests with such JSON, and with long names"""

    def test_an_error_repeats_the_beginning_of_a_name(self) -> None:
        body = b'{"%b": 1}' % (b"n" * 1_000_000)
        for path, kind in (("/v1/history", ""), ("/v1/topics/a/messages", "application/x-ndjson")):
            answer = self.house.post(path, body, Content_Type=kind)
            assert answer.error == (400, "invalid-request")
            assert f"'{'n' * 64}'" in answer.json["detail"]
            assert len(answer.body) < 1000

    def test_a_body_is_refused(self) -> None:
        answer = self.house.post("/v1/history", BOMBS["lists"][: 1024**2])
        assert answer.error == (413, "too-large")

    def test_a_line_is_refused(self) -> None:
        lists = b'{"value": "a", "headers": [' + b"{}," * 20_000 + b"{}]}"
        kind = "application/x-ndjson"
        answer = self.house.post("/v1/topics/a/messages", lists, Content_Type=kind)
        assert answer.error == (413, "too-large")
        assert "16384 lists" in answer.json["detail"]
