"""Columns on the side of a client: a batch becomes frames, scanned frames become ``Messages``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat

from pubsub.kernel import Columns, FrameEncoder, Head
from pubsub.wire.client_events import Messages, MixedMessages

# Encoders that are kept: those of the topics that a client has published to last.
_MAX_TOPICS = 4096


class FrameWriter:
    """Writes messages as frames.

    ``heads`` returns the heads of the frames of a topic. They have to fit every payload that has
    passed the checks of the ``ClientWire``.
    """

    def __init__(self, heads: Callable[[str], tuple[Head, ...]]) -> None:
        self._heads = heads
        self._encoders: dict[str, FrameEncoder] = {}

    def write(self, topic: str, columns: Columns) -> bytes:
        """Return the frames of ``columns``, all of index 0."""
        encoder = self._encoders.get(topic)
        if encoder is None:
            if len(self._encoders) >= _MAX_TOPICS:
                self._encoders.clear()
            encoder = self._encoders[topic] = FrameEncoder([self._heads(topic)])
        data, count = encoder.encode(columns)
        assert count == columns.count
        return data


def messages_of(
    columns: Columns, topics: Sequence[str], senders: Sequence[bytes] | None = None
) -> list[Messages | MixedMessages]:
    """Return the messages of ``columns`` as an event, or nothing if there are none.

    ``topics`` has the topic of each address of the columns, ``senders`` its sender.
    """
    if not columns.count:
        return []
    if len(topics) == 1:
        sender = None if senders is None else list(repeat(senders[0], columns.count))
        return [Messages(topics[0], columns, senders=sender)]
    each = None if senders is None else list(map(senders.__getitem__, columns.indexes()))
    names = tuple(dict.fromkeys(topics))
    if len(names) < len(topics):
        places = {name: place for place, name in enumerate(names)}
        columns = columns.remap([places[topic] for topic in topics])
    if len(names) == 1:
        return [Messages(names[0], columns, senders=each)]
    return [MixedMessages(names, columns, senders=each)]
