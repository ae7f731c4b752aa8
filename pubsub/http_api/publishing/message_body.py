"""The body of a request that publishes: one message as it is, or lines of JSON for many."""

from __future__ import annotations

from array import array
from base64 import b64decode
from collections.abc import Sequence
from typing import Any, NamedTuple

from twisted.web.http_headers import Headers as RequestHeaders

from pubsub.broker.routing.batch import MAX_HEADERS, Headers, messages_nbytes
from pubsub.http_api.requests.api_error import BAD_REQUEST, TOO_LARGE, ApiError
from pubsub.http_api.requests.header_names import HEADER_PREFIX
from pubsub.http_api.requests.json_input import parse_json
from pubsub.http_api.requests.parameters import MAX_SHOWN, invalid
from pubsub.kernel import Columns

MAX_MESSAGES = 5_000
"""Messages of one request, whose subscribers receive them at once."""
MAX_JOINED = 1_000
"""Messages of one request of a WebSocket: a connection may have many of these requests waiting."""
# Estimated bytes of memory that a header takes beside its name and its value.
_HEADER_BYTES = 200
_MEMBERS = frozenset(("value", "value_base64", "headers"))


class SubmittedMessages(NamedTuple):
    """Payloads in columns, and the headers of each message if one of them has any."""

    columns: Columns
    headers: Sequence[Headers] | None

    @property
    def memory(self) -> int:
        """Estimated bytes of memory."""
        nbytes = messages_nbytes(self.columns, b"", self.headers)
        return nbytes + _HEADER_BYTES * sum(map(len, self.headers or ()))

    def first(self, count: int) -> SubmittedMessages:
        """Return the first ``count`` messages."""
        if count == self.columns.count:
            return self
        headers = None if self.headers is None else self.headers[:count]
        return SubmittedMessages(self.columns.slice(0, count), headers)


def one_message(payload: bytes, request: RequestHeaders) -> SubmittedMessages:
    """Return the message with this payload, and the headers that the request has for it.

    Names are in lower case, as those of HTTP have none. Raises ApiError.
    """
    headers: dict[str, bytes] = {}
    for raw, values in request.getAllRawHeaders():
        name = raw.decode("latin-1").lower()
        if name.startswith(HEADER_PREFIX):
            if name == HEADER_PREFIX:
                raise invalid(f"{name}: expected the name of the header after it")
            if len(values) > 1:
                raise invalid(f"{name}: expected one value")
            headers[name.removeprefix(HEADER_PREFIX)] = values[0]
    return SubmittedMessages(Columns.one(payload), [headers] if headers else None)


def many_messages(body: bytes) -> SubmittedMessages:
    """Return the messages of lines of JSON; blank lines are skipped. Raises ApiError."""
    payloads: list[bytes] = []
    headers: list[Headers] = []
    for number, line in enumerate(body.split(b"\n"), 1):
        if line.strip():
            if len(payloads) == MAX_MESSAGES:
                message = f"the request has more than {MAX_MESSAGES} messages; send several"
                raise ApiError(TOO_LARGE, "too-large", message)
            try:
                row = parse_json(line)
            except (ValueError, RecursionError):
                raise invalid(f"line {number}: not valid JSON") from None
            try:
                payload, own = message_of(row)
            except ValueError as problem:
                raise invalid(f"line {number}: {problem}") from None
            payloads.append(payload)
            headers.append(own)
    if not payloads:
        raise ApiError(BAD_REQUEST, "invalid-request", "the body has no messages")
    return SubmittedMessages(Columns.of(payloads), headers if any(headers) else None)


def joined_messages(data: bytes, sizes: object, indexes: bytes = b"") -> Columns:
    """Return the payloads of ``sizes`` bytes that ``data`` consists of; raises ValueError.

    ``indexes`` are as in ``Columns.unpack``.
    """
    if not isinstance(sizes, list) or any(type(size) is not int for size in sizes):
        raise ValueError("sizes: expected a list of numbers")
    if not 0 < len(sizes) <= MAX_JOINED:
        raise ValueError(f"sizes: expected 1 to {MAX_JOINED} numbers")
    if min(sizes) < 0 or sum(sizes) != len(data):
        raise ValueError(f"sizes: expected numbers whose sum is {len(data)}, the payload's bytes")
    return Columns.unpack(data, array("I", sizes).tobytes(), indexes)


def message_of(row: Any) -> tuple[bytes, Headers]:
    """Return the payload and the headers of a message as JSON; raises ValueError."""
    if not isinstance(row, dict):
        raise ValueError("expected a JSON object")
    unknown = sorted(row.keys() - _MEMBERS)
    if unknown:
        shown = unknown[0][:MAX_SHOWN]
        raise ValueError(f"unknown member {shown!r}; expected {', '.join(sorted(_MEMBERS))}")
    return bytes_of(row), headers_of(row.get("headers", []))


def headers_of(listed: Any) -> Headers:
    """Return the headers of a message as JSON; raises ValueError."""
    if not isinstance(listed, list) or len(listed) > MAX_HEADERS:
        raise ValueError(f"headers: expected a list of at most {MAX_HEADERS}")
    headers: dict[str, bytes] = {}
    for one in listed:
        if not isinstance(one, dict) or not isinstance(one.get("key"), str):
            raise ValueError("headers: expected objects with key and value")
        if not one.keys() <= {"key", "value", "value_base64"}:
            raise ValueError("headers: expected objects with key and value")
        _text("key", one["key"])
        headers[one["key"]] = bytes_of(one)
    return headers


def bytes_of(row: dict[str, Any]) -> bytes:
    """Return ``value``, which is text, or ``value_base64``; raises ValueError."""
    if ("value" in row) == ("value_base64" in row):
        raise ValueError("expected either value or value_base64")
    if "value" in row:
        return _text("value", row["value"])
    value = row["value_base64"]
    try:
        return b64decode(value, validate=True)
    except (TypeError, ValueError):
        raise ValueError("value_base64: expected base64") from None


def _text(name: str, value: object) -> bytes:
    if not isinstance(value, str):
        raise ValueError(f"{name}: expected text")
    try:
        return value.encode()
    except UnicodeEncodeError:
        # A lone surrogate, which JSON can express and UTF-8 cannot.
        raise ValueError(f"{name}: expected valid Unicode") from None
