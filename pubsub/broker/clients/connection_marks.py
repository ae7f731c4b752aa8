"""Marks: the numbers by which log lines, events and the HTTP API name connections.

A mark proves nothing and gives access to nothing, unlike the session id of a wire. It is the time
in µs at which the connection began, or the number after the mark of the connection before it:
marks increase, so that lists of connections can continue after any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

_DIGITS = 16
_HEXADECIMAL = frozenset("0123456789abcdef")


class Marked(Protocol):
    """A connection, as log lines and events refer to it."""

    mark: int

    def log_fields(self) -> dict[str, str]:
        """Return the text of log lines about it (see ``describe``)."""


def make_marks(timestamp: Callable[[], int]) -> Iterator[int]:
    """Yield the marks of the connections of a broker; ``timestamp`` returns the time in µs."""
    mark = 0
    while True:
        mark = max(timestamp(), mark + 1)
        yield mark


def mark_text(mark: int) -> str:
    """Return a mark as 16 hexadecimal digits."""
    return f"{mark:0{_DIGITS}x}"


def mark_of(text: str) -> int | None:
    """Return the mark that ``text`` stands for; None if it is not a mark."""
    if len(text) != _DIGITS or not _HEXADECIMAL.issuperset(text):
        return None
    return int(text, 16)


def describe(mark: int, protocol: str, peer: str, identity: object) -> dict[str, str]:
    """Return the fields of a log line about a connection; ``identity`` has a ``name`` if known."""
    fields = {"mark": mark_text(mark), "protocol": protocol, "peer": peer}
    name = getattr(identity, "name", "")
    return {**fields, "identity": name} if name else fields


def log_fields(client: object) -> dict[str, str]:
    """Return the fields of a log line about ``client``: none if it is not a connection."""
    get = getattr(client, "log_fields", None)
    found: dict[str, str] = {} if get is None else get()
    return found
