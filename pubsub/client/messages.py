"""What a subscription delivers: messages, one by one or as the batches in which they arrive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pubsub.kernel import Columns
from pubsub.wire.client_events import Messages

_NO_HEADERS: Mapping[str, bytes] = {}


@dataclass(frozen=True, slots=True)
class Message:
    """A message. What the wire does not show is None, or an empty mapping.

    ``timestamp`` is in µs since the Unix epoch, ``offset`` the number in the broker's history.
    """

    topic: str
    payload: bytes
    sender: bytes | None = None
    timestamp: int | None = None
    offset: int | None = None
    headers: Mapping[str, bytes] = field(default_factory=dict)


class MessageBatch:
    """Consecutive messages of one topic, as they arrived together. Iterating gives each Message."""

    __slots__ = ("_event",)

    def __init__(self, event: Messages) -> None:
        self._event = event

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
        """The payloads, made anew by each call."""
        return self._event.columns.payloads()

    @property
    def offsets(self) -> Sequence[int] | None:
        """The offset of each message, or None."""
        return self._event.offsets

    @property
    def nbytes(self) -> int:
        """The bytes of all payloads."""
        return self._event.columns.nbytes

    def __len__(self) -> int:
        return self._event.columns.count

    def __iter__(self) -> Iterator[Message]:
        event = self._event
        topic, timestamp = event.topic, event.timestamp
        details = (event.timestamps, event.offsets, event.senders, event.headers)
        if not any(column is not None for column in details):
            for payload in event.columns.payloads():
                yield Message(topic, payload, None, timestamp, None, _NO_HEADERS)
            return
        for index, payload in enumerate(event.columns.payloads()):
            yield Message(
                topic,
                payload,
                None if event.senders is None else event.senders[index],
                timestamp if event.timestamps is None else event.timestamps[index],
                None if event.offsets is None else event.offsets[index],
                _NO_HEADERS if event.headers is None else event.headers[index],
            )

    def last_offset(self) -> int | None:
        """Return the offset of the last message, or None."""
        return self._event.offsets[-1] if self._event.offsets else None

    def last_timestamp(self) -> int | None:
        """Return the timestamp of the last message, or None."""
        return self._event.timestamps[-1] if self._event.timestamps else self._event.timestamp
