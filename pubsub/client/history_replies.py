"""Replies of the HTTP API to a ``HistoryClient``: bounds, limits, readers, commits, errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from http.client import responses
from typing import Any, TypeVar

import urllib3

_Reply = TypeVar("_Reply", "HistoryBounds", "CommitLimits", "Reader", "CommitReply")


class HistoryError(Exception):
    """An error reply of the broker.

    ``status`` is the HTTP status, ``code`` is for programs (for example "expired" or
    "unknown-part"), and ``details`` is the whole reply.
    """

    def __init__(self, status: int, details: Mapping[str, Any]) -> None:
        text = details.get("message") or responses.get(status) or "the reply has no reason"
        super().__init__(f"{text} (HTTP {status})")
        self.status = status
        self.code = str(details.get("error", ""))
        self.details = details


class HistoryUnreachable(Exception):
    """All attempts to reach the broker failed."""


@dataclass(frozen=True, slots=True)
class HistoryBounds:
    """The first offset of the history, the offset after its last, and its epoch.

    ``offset`` belongs to the timestamp that was passed to ``HistoryClient.bounds``. The others are
    those of a shared history: ``position`` is the shared position of the offset ``at``, ``low`` and
    ``high`` belong to the position that was passed, nothing is known to be missing from the offset
    ``whole`` on, and ``shared`` is the same at all brokers that share the history.
    """

    first: int
    next: int
    epoch: str
    offset: int | None = None
    position: str | None = None
    at: int | None = None
    low: int | None = None
    high: int | None = None
    whole: int = 0
    shared: str = ""


@dataclass(frozen=True, slots=True)
class CommitLimits:
    """The broker's limits in bytes: of a batch with all its parts, and of a message."""

    batch_bytes: int
    message_bytes: int


@dataclass(frozen=True, slots=True)
class Reader:
    """The position of a reader. ``updated`` is in µs since the Unix epoch.

    ``owner`` is the subject of the token that reported it, or None. ``quiet`` are the notes
    reported as such.
    """

    name: str
    offset: int
    epoch: str
    updated: int
    lag: int
    owner: str | None = None
    quiet: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True)
class CommitReply:
    """A stored batch: ``messages`` messages, from offset ``first`` to before ``next``.

    ``duplicate`` is true if an earlier commit stored the batch. The broker knows the offsets of the
    last batch of each query only.
    """

    duplicate: bool
    first: int | None = None
    next: int | None = None
    messages: int | None = None


def body_of(response: urllib3.BaseHTTPResponse) -> _ReplyMembers:
    """Return the JSON object of a reply, empty without a body. Raises HistoryError."""
    try:
        found = json.loads(response.data or b"{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _foreign_reply(response.status)
    return _ReplyMembers(response.status, found)


def end_of(response: urllib3.BaseHTTPResponse) -> tuple[int, str]:
    """Return the offset at which a reply with messages ends, and the epoch. Raises HistoryError."""
    try:
        return int(response.headers["Pubsub-Stop"]), response.headers["Pubsub-Epoch"]
    except (KeyError, ValueError):
        response.close()
        raise _foreign_reply(response.status) from None


def _foreign_reply(status: int) -> HistoryError:
    message = "the reply is not one of a broker; check the URL"
    return HistoryError(status, {"error": "foreign-reply", "message": message})


class _ReplyMembers(dict[str, Any]):
    """The members of a reply. One that is missing raises HistoryError."""

    def __init__(self, status: int, members: Mapping[str, Any]) -> None:
        super().__init__(members)
        self._status = status

    def __missing__(self, name: str) -> Any:
        raise _foreign_reply(self._status)


def reply_of(kind: type[_Reply], found: Mapping[str, Any]) -> _Reply:
    """Return the ``kind`` of a reply. A later version of the broker may add members."""
    members = {
        field.name: found[field.name]
        for field in fields(kind)
        if field.name in found or field.default is MISSING
    }
    return kind(**members)


def reader_of(row: Mapping[str, Any]) -> Reader:
    """Return the reader of a row of the reply."""
    begin = row.get("quiet_from")
    quiet = None if begin is None else (begin, row["quiet_topics"])
    return replace(reply_of(Reader, row), quiet=quiet)
