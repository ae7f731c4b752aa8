"""``GatheredRequest``: messages that one request publishes (docs/websocket.md). Sans-IO."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from pubsub.client.http_connection import encode
from pubsub.wire.client_wire import Headers

SIZE_BYTES = 11
"""Bytes of a size and an index in a request, at most."""
# Bytes of a message's list of headers, and of a header beside its key and value, with the commas.
_LIST_BYTES, _HEADER_BYTES = 3, 30

HeaderRows: TypeAlias = list[dict[str, str]]
"""The headers of a message, as a request has them."""


@dataclass(slots=True)
class GatheredRequest:
    """Messages with these ``members`` in common, such as the sender.

    ``nbytes`` is what the request takes, at most. ``topics`` has the places of the topics in the
    request; ``indexes`` has that of each message's topic, and ``headers`` the headers of each.
    """

    members: Mapping[str, object]
    nbytes: int
    topics: dict[str, int] = field(default_factory=dict)
    indexes: list[int] = field(default_factory=list)
    headers: list[HeaderRows] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)

    def all_members(self) -> dict[str, object]:
        """Return the members of the request."""
        topics, headers = list(self.topics), self.headers
        members = {**self.members, "topic": topics[0]}
        if len(topics) > 1:
            members = {**self.members, "topics": topics, "indexes": self.indexes}
        if len(self.payloads) > 1:
            members["sizes"] = list(map(len, self.payloads))
        if any(headers):
            alike = headers.count(headers[0]) == len(headers)
            members["headers"] = headers[0] if alike else headers
        return members


def header_rows(headers: Headers) -> HeaderRows:
    """Return the headers of a message as a request has them."""
    return [
        {"key": key, "value_base64": base64.b64encode(value).decode()}
        for key, value in headers.items()
    ]


def bytes_of_rows(rows: HeaderRows) -> int:
    """Return the bytes that the headers of a message take in a request, at most."""
    nbytes = _LIST_BYTES
    for row in rows:
        nbytes += _HEADER_BYTES + bytes_of_text(row["key"]) + len(row["value_base64"])
    return nbytes


def bytes_of_text(text: str) -> int:
    """Return the bytes that a text takes in a list of a request, with its comma."""
    return len(encode(text).encode()) + 1
