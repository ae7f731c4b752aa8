"""JSON that clients send: it is parsed only if that is quick.

A document is parsed at once, and nobody else is served meanwhile. 1 MiB of text takes less than a
millisecond; as many empty lists, or numbers of thousands of digits, take 50 to 200 ms, and 30 times
their size in memory.
"""

from __future__ import annotations

import json
from typing import Any

from pubsub.http_api.requests.api_error import TOO_LARGE, ApiError

_MAX_NODES, _MAX_ITEMS, _MAX_QUOTES = 16_384, 32_768, 65_536
# Bytes of a document that is parsed without being counted.
_SHORT = 32 * 1024
# Digits of a number in a longer document: more than any number of the API has.
_MAX_DIGITS = 40


def parse_json(data: bytes) -> Any:
    """Return the value of a document in UTF-8.

    Raises ValueError, RecursionError, and ApiError if there are too many values.
    """
    text = data.decode("utf-8-sig")
    if len(data) <= _SHORT:
        return json.loads(text)
    if not _is_small(data) and not _is_small(_without_strings(data)):
        message = (
            f"the JSON has more than {_MAX_NODES} lists, objects and members, "
            f"or more than {_MAX_ITEMS} items; send several requests"
        )
        raise ApiError(TOO_LARGE, "too-large", message)
    return json.loads(text, parse_int=_integer, parse_float=_float)


def _is_small(data: bytes) -> bool:
    """Return whether there are few values, by the characters that begin or separate them."""
    nodes = data.count(b"[") + data.count(b"{") + data.count(b":")
    return nodes <= _MAX_NODES and data.count(b",") <= _MAX_ITEMS


def _without_strings(data: bytes) -> bytes:
    """Return what is between the strings of a document."""
    plain = data.replace(rb"\\", b"").replace(rb"\"", b"")
    if plain.count(b'"') > _MAX_QUOTES:
        # To divide it would take long as well.
        return data
    return b"".join(plain.split(b'"')[::2])


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError("a number has too many digits")
    return int(text)


def _float(text: str) -> float:
    if len(text) > _MAX_DIGITS:
        raise ValueError("a number has too many digits")
    return float(text)
