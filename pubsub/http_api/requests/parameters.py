"""Parameters of a request: from the URL, or from a JSON object in the body."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from pubsub.http_api.requests.api_error import BAD_REQUEST, NOT_FOUND, ApiError
from pubsub.http_api.requests.json_input import parse_json

if TYPE_CHECKING:
    from pubsub.http_api.requests.api_request import ApiRequest

MAX_NUMBER = 2**63 - 1
MAX_SHOWN = 64
"""Characters of a name that an error repeats; a body may have a name of 1 MiB."""
_MAX_NAME = 255
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_NUMBER = re.compile(r"-?[0-9]{1,40}")
TOPICS, MESSAGES = b"/v1/topics/", b"/messages"
"""The prefix of the path of a topic, and the suffix of that of its messages."""


class _UrlValues(list[str]):
    """The values of a parameter of a URL, which has a list of them also if there is one."""


class Parameters:
    """The parameters by name, checked when they are read; a parameter may be a list.

    All methods raise ApiError for a value that does not fit.
    """

    def __init__(self, given: Mapping[str, object], known: Collection[str]) -> None:
        for name in given:
            if name not in known:
                expected = ", ".join(sorted(known)) or "none"
                shown = name[:MAX_SHOWN]
                raise invalid(f"unknown parameter {shown!r}; expected {expected}")
        self._given = given

    @classmethod
    def of_url(cls, request: ApiRequest, *known: str) -> Parameters:
        """Return the parameters of the URL."""
        if _BAD_ESCAPE.search(request.uri.partition(b"?")[2]):
            raise invalid(
                "the URL's parameters: expected two hexadecimal digits after %; write %25 for a "
                "percent sign"
            )
        try:
            given = {
                name.decode(): _UrlValues(value.decode() for value in values)
                for name, values in (request.args or {}).items()
            }
        except UnicodeDecodeError:
            raise invalid("the URL's parameters are not UTF-8") from None
        return cls(given, known)

    @classmethod
    def of_body(cls, request: ApiRequest, *known: str) -> Parameters:
        """Return the members of the JSON object in the body; the URL has no parameters then."""
        if request.args:
            shown = next(iter(request.args)).decode(errors="replace")
            raise invalid(f"parameter {shown!r} in the URL; give it in the JSON of the body")
        try:
            given = parse_json(request.body.read())
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict):
            raise invalid("the body is not a JSON object")
        return cls(given, known)

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def _single(self, name: str) -> object:
        value = self._given.get(name)
        if isinstance(value, _UrlValues):
            if len(value) != 1:
                raise invalid(f"{name}: expected one value")
            return value[0]
        return value

    def time(self, name: str) -> int:
        """Return a time in µs since the Unix epoch."""
        return self.number(name, low=-(2**63), kind="µs since the Unix epoch, a whole number")

    def number(
        self,
        name: str,
        default: int | None = None,
        low: int = 0,
        word: str = "",
        kind: str = "a whole number",
    ) -> int:
        """Return a whole number, at least ``low``; errors name ``word``, which may stand for it."""
        value = self._single(name)
        if value is None and default is not None:
            return default
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            value = int(value)
        if isinstance(value, int) and value > MAX_NUMBER:
            raise invalid(f"{name}: expected {kind}, at most {MAX_NUMBER}")
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            expected = f"{word and f'{word} or '}{kind}, at least {low}"
            if name not in self:
                raise invalid(f"the parameter {name} is missing; give {expected}")
            raise invalid(f"{name}: expected {expected}")
        return value

    def is_word(self, name: str, word: str) -> bool:
        """Return whether the value is ``word``."""
        return self._single(name) == word

    def flag(self, name: str) -> bool:
        """Return a boolean; False by default."""
        value = self._single(name)
        if value in (None, False, "0", "false", ""):
            return False
        if value in (True, "1", "true"):
            return True
        is_of_url = isinstance(self._given[name], _UrlValues)
        raise invalid(f"{name}: expected {'1 or 0' if is_of_url else 'true or false'}")

    def text(self, name: str, default: str | None = None, most: int = _MAX_NAME) -> str:
        """Return text of 1 to ``most`` bytes."""
        value = self._single(name)
        if value is None and default is not None:
            return default
        if name not in self:
            raise invalid(f"the parameter {name} is missing; give text of 1 to {most} bytes")
        return check_name(name, value, most)

    def word(self, name: str, *words: str) -> str:
        """Return one of ``words``, the first by default, which may be empty."""
        value = self._single(name)
        if value is None:
            return words[0]
        if value not in words:
            raise invalid(f"{name}: expected {' or '.join(filter(None, words))}")
        return str(value)

    def texts(self, name: str) -> list[str]:
        """Return a list of texts of 1 to 255 bytes; empty by default."""
        value = self._given.get(name, [])
        if not isinstance(value, list):
            raise invalid(f"{name}: expected a list")
        return [check_name(name, one) for one in value]


def check_name(parameter: str, value: object, most: int = _MAX_NAME) -> str:
    """Return ``value`` if it is text of 1 to ``most`` bytes of UTF-8; raises ApiError."""
    if isinstance(value, str):
        try:
            if 1 <= len(value.encode()) <= most:
                return value
        except UnicodeEncodeError:
            # A lone surrogate, which JSON can express and UTF-8 cannot.
            pass
    raise invalid(f"{parameter}: expected text of 1 to {most} bytes")


def name_in_path(request: ApiRequest, prefix: bytes, suffix: bytes = b"") -> str:
    """Return the name between these: one percent-encoded segment of the path."""
    segment = request.path[len(prefix) :].removesuffix(suffix)
    if b"/" in segment:
        message = "name: expected one segment of the path; write %2F for a slash"
        raise ApiError(NOT_FOUND, "not-found", message)
    if _BAD_ESCAPE.search(segment):
        raise invalid("name: expected two hexadecimal digits after %; write %25 for a percent sign")
    try:
        return check_name("name", unquote_to_bytes(segment).decode())
    except UnicodeDecodeError:
        raise invalid("name: expected UTF-8") from None


def invalid(message: str) -> ApiError:
    """Return the error for an invalid request."""
    return ApiError(BAD_REQUEST, "invalid-request", message)
