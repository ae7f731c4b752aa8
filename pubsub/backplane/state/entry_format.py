"""The format of values in the shared state: a JSON object with a version. Sans-IO."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pubsub.backplane.positions.shared_position import MalformedPosition, SharedPosition, of_json


class MalformedEntry(Exception):
    """A value that no broker of this version has written."""


def encode_members(version: int, members: Mapping[str, object]) -> bytes:
    """Return the value of an object with ``members`` and its version."""
    text = json.dumps({"v": version, **members}, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def decode_members(value: bytes, version: int, max_bytes: int) -> dict[str, Any]:
    """Return the members; raises MalformedEntry."""
    try:
        found = json.loads(value) if len(value) <= max_bytes else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("v") != version:
        raise MalformedEntry
    return found


def decode_position(found: object) -> SharedPosition:
    """Return the position that a member holds; raises MalformedEntry."""
    try:
        return of_json(found)
    except MalformedPosition:
        raise MalformedEntry from None
