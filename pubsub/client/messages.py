"""Messages as a subscription delivers them: one by one, or in the batches in which they arrive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import NamedTuple

from pubsub.kernel import Columns
from pubsub.wire.client_events import Messages, MixedMessages

_NO_HEADERS: Mapping[str, bytes] = {}
# Counted for each batch in addition to its payloads, and for each message.
_BATCH_BYTES, _MESSAGE_BYTES = 400, 16


class Message(NamedTuple):
    """A message. Values that the wire does not show are None, or an empty mapping.

    ``timestamp`` is in µs since the Unix epoch, ``offset`` the number in the broker's history.
    """

    topic: str
    payload: bytes
    sender: bytes | None = None
    timestamp: int | None = None
    offset: int | None = None
    headers: Mapping[str, bytes] = _NO_HEADERS


# A message of its values in order, without a call of Python code.
_make = partial(tuple.__new__, Message)


class MessageBatch:
    """Consecutive messages of one topic, as they arrived together. Iterating gives each Message."""

    __slots__ = ("_event", "held")

    def __init__(self, event: Messages) -> None:
        self._event = event
        columns = event.columns
        self.held = columns.nbytes + _BATCH_BYTES + _MESSAGE_BYTES * columns.count
        """The bytes of memory that count for it."""

    @property
    def topic(self) -> str:
        """The topic of all messages."""
        return self._event.topic

    @property
    def columns(self) -> Columns:
        """The payloads, in columns."""
        return self._event.columns

    @property
    def payloads(self) -> list[bytes]:
        """The payloads; each call makes a new list."""
        return self._event.columns.payloads()

    @property
    def offsets(self) -> Sequence[int] | None:
        """The offset of each message, or None."""
        return self._event.offsets

    @property
    def epoch(self) -> str | None:
        """The epoch of the history to which the offsets belong, or None."""
        return self._event.epoch

    @property
    def nbytes(self) -> int:
        """The bytes of all payloads."""
        return self._event.columns.nbytes

    def __len__(self) -> int:
        return self._event.columns.count

    def __iter__(self) -> Iterator[Message]:
        return _messages(self._event, repeat(self._event.topic), self._event.timestamp)

    def __repr__(self) -> str:
        return f"<MessageBatch: {len(self)} of {self.topic!r}>"

    def last_offset(self) -> int | None:
        """Return the offset of the last message, or None."""
        return self._event.offsets[-1] if self._event.offsets else None

    def last_timestamp(self) -> int | None:
        """Return the timestamp of the last message, or None."""
        return self._event.timestamps[-1] if self._event.timestamps else self._event.timestamp


class MixedBatch:
    """Messages of several topics, as they arrived together. Iterating gives each Message."""

    __slots__ = ("_event", "held")

    def __init__(self, event: MixedMessages) -> None:
        self._event = event
        columns = event.columns
        self.held = columns.nbytes + _BATCH_BYTES + _MESSAGE_BYTES * columns.count
        """See ``MessageBatch``."""

    def __len__(self) -> int:
        return self._event.columns.count

    def __iter__(self) -> Iterator[Message]:
        event = self._event
        return _messages(event, map(event.topics.__getitem__, event.columns.indexes()), None)

    def __repr__(self) -> str:
        return f"<MixedBatch: {len(self)} of {len(self._event.topics)} topics>"

    def parts(self) -> Iterator[MessageBatch]:
        """Yield consecutive messages of one topic in a batch."""
        return map(MessageBatch, self._event.runs())

    def last_offset(self) -> int | None:
        """See ``MessageBatch``."""
        return self._event.offsets[-1] if self._event.offsets else None

    def last_timestamp(self) -> int | None:
        """See ``MessageBatch``."""
        return self._event.timestamps[-1] if self._event.timestamps else None


BATCHES = (MessageBatch, MixedBatch)


def _messages(
    event: Messages | MixedMessages, topics: Iterable[str], timestamp: int | None
) -> Iterator[Message]:
    # No column is of another length than that of the payloads.
    columns = (
        topics,
        event.columns.payloads(),
        _each(event.senders, None),
        _each(event.timestamps, timestamp),
        _each(event.offsets, None),
        _each(event.headers, _NO_HEADERS),
    )
    return map(_make, zip(*columns, strict=False))


def _each(column: Sequence[object] | None, otherwise: object) -> Iterable[object]:
    return repeat(otherwise) if column is None else column
