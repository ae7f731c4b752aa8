"""What a request asks for: parameters of the URL, or the members of a JSON object."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from pubsub.admin.api_error import BAD_REQUEST, ApiError

if TYPE_CHECKING:
    from pubsub.admin.http_channel import ApiRequest

MOST = 2**63 - 1
_MAX_NAME = 255


class Query:
    """The parameters by name. A list is one that may be repeated."""

    def __init__(self, given: Mapping[str, object], known: Collection[str]) -> None:
        for name in given:
            if name not in known:
                raise bad(f"there is no parameter {name!r}; there are {', '.join(sorted(known))}")
        self._given = given

    @classmethod
    def of_url(cls, request: ApiRequest, *known: str) -> Query:
        """Those of the URL."""
        try:
            given = {
                name.decode(): [value.decode() for value in values]
                for name, values in (request.args or {}).items()
            }
        except UnicodeDecodeError:
            raise bad("a parameter is not UTF-8") from None
        return cls(given, known)

    @classmethod
    def of_body(cls, request: ApiRequest, *known: str) -> Query:
        """Those of the body."""
        try:
            given = json.loads(request.body.read())
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict):
            raise bad("expected a JSON object as the body")
        return cls(given, known)

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def _one(self, name: str) -> object:
        value = self._given.get(name)
        if isinstance(value, list):
            if len(value) != 1:
                raise bad(f"{name}: expected one value")
            return value[0]
        return value

    def number(self, name: str, default: int | None = None, low: int = 0) -> int:
        """A whole number from ``low`` on."""
        value = self._one(name)
        if value is None and default is not None:
            return default
        if isinstance(value, str) and value.removeprefix("-").isdecimal() and len(value) < 20:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= MOST:
            raise bad(f"{name}: expected a whole number from {low} on")
        return value

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self._one(name)
        if value in (None, False, "0", "false", ""):
            return False
        if value in (True, "1", "true"):
            return True
        raise bad(f"{name}: expected 1 or 0")

    def text(self, name: str, default: str | None = None) -> str:
        """Text of up to 255 bytes."""
        value = self._one(name)
        if value is None and default is not None:
            return default
        return a_name(name, value)

    def word(self, name: str, *words: str) -> str:
        """One of ``words``, the first by default."""
        value = self._one(name)
        if value is None:
            return words[0]
        if value not in words:
            raise bad(f"{name}: expected {' or '.join(words)}")
        return str(value)

    def texts(self, name: str) -> list[str]:
        """A list of such texts, empty if there is none."""
        value = self._given.get(name, [])
        if not isinstance(value, list):
            raise bad(f"{name}: expected a list")
        return [a_name(name, one) for one in value]


def a_name(what: str, value: object) -> str:
    """``value``, if it is text of 1 to 255 bytes of UTF-8; raises ApiError."""
    if isinstance(value, str):
        try:
            if 1 <= len(value.encode()) <= _MAX_NAME:
                return value
        except UnicodeEncodeError:
            # A lone surrogate, which JSON can hold and UTF-8 cannot.
            pass
    raise bad(f"{what}: expected text of 1 to {_MAX_NAME} bytes")


def bad(message: str) -> ApiError:
    """A request that says something that means nothing."""
    return ApiError(BAD_REQUEST, "invalid-request", message)
