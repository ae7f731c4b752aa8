"""Messages as followers get them: events of a stream (server-sent events), or lines of JSON.

Each item for a follower is a chunk of HTTP's chunked coding, so that all followers of a topic
share the bytes, and the transport sends them as they are.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pubsub.broker.routing.encoders import RowEncoding
from pubsub.http_api.reading.message_rows import rows_of
from pubsub.kernel import RowField

if TYPE_CHECKING:
    from pubsub.broker.routing.batch import Batch
    from pubsub.kernel.interpreted import RowTemplate

EVENT_STREAM = "text/event-stream"
RETRY_MILLISECONDS = 1000
"""Milliseconds after which a client of events reconnects."""


def chunk(data: bytes) -> bytes:
    """Return ``data``, which is not empty, as a chunk (RFC 9112, section 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class _ChunkEncoding(RowEncoding):
    """The base of both encodings: the messages of a batch are one chunk."""

    __slots__ = ()

    def rows(self, batch: Batch, names: list[bytes | None]) -> tuple[bytes, int]:
        """See ``RowEncoding``."""
        data, count = self.messages(batch, names)
        return chunk(data) if count else b"", count

    @abstractmethod
    def messages(self, batch: Batch, names: list[bytes | None]) -> tuple[bytes, int]:
        """Return messages as ``rows`` does, but not as a chunk."""


@dataclass(frozen=True, slots=True)
class LinesEncoding(_ChunkEncoding):
    """See ``RowEncoding``: a line for each message."""

    headers: bool
    run: int

    content_type = "application/x-ndjson"

    def messages(self, batch: Batch, names: list[bytes | None]) -> tuple[bytes, int]:
        return rows_of(batch, names, self.run, self.headers, after=(b"\n",))

    def begin(self, offset: int) -> bytes:
        """Return the first bytes of a response; ``offset`` is that of its first message."""
        return chunk(b"\n")

    def heartbeat(self, offset: int | None) -> bytes:
        """Return a sign of life; the next message has this offset at least, if it is known."""
        return chunk(b"\n")

    def notice(self, name: str, **members: object) -> bytes:
        """Return the bytes of a notice."""
        return json.dumps({name: members}).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class EventEncoding(_ChunkEncoding):
    """See ``RowEncoding``: an event for each message (HTML, section 9.2, server-sent events).

    The id of an event is the position after it, as ``epoch:offset``: a client that reconnects sends
    it as Last-Event-ID. A message that is not in the history has none: the next one that is stored
    gets its offset.
    """

    headers: bool
    run: int
    epoch: str

    content_type = EVENT_STREAM

    def messages(self, batch: Batch, names: list[bytes | None]) -> tuple[bytes, int]:
        before: RowTemplate = (b"data: ",)
        if batch.has_place:
            before = f"id: {self.epoch}:".encode(), RowField.NEXT, b"\ndata: "
        return rows_of(batch, names, self.run, self.headers, before, (b"\n\n",))

    def begin(self, offset: int) -> bytes:
        """See ``LinesEncoding``."""
        return chunk(f"retry: {RETRY_MILLISECONDS}\nid: {self.epoch}:{offset}\n\n".encode())

    def heartbeat(self, offset: int | None) -> bytes:
        """See ``LinesEncoding``: an id without data sets the position and causes no event."""
        id = "" if offset is None else f"id: {self.epoch}:{offset}\n"
        return chunk(f": \n{id}\n".encode())

    def notice(self, name: str, **members: object) -> bytes:
        """See ``LinesEncoding``."""
        return f"event: {name}\ndata: {json.dumps(members)}\n\n".encode()


FollowEncoding = LinesEncoding | EventEncoding
