"""``CommonEncoder``: the frames of all topics of a mix, of which each audience gets some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pubsub.broker.routing.encoders import encoder_at_once

if TYPE_CHECKING:
    from pubsub.broker.routing.encoders import BatchEncoder
    from pubsub.broker.topic_space.topics import Topic

# Audiences from which on the frames of all messages are written first, and then copied for each of
# them. Topics at most, as the encoder of more would take milliseconds of a tick to make.
_SEVERAL, _TOPICS = 4, 256
# Calls of ``get`` without a change, from which on it pays to make the encoder.
_CALLS = 2
# Estimated bytes of it for a topic, for the memory budget.
_TOPIC_BYTES = 200


class CommonEncoder:
    """Makes the encoder of ``topics``, after the audiences have come together for some batches.

    It is made if the subscribers of each topic have one encoding, and the kernel writes the frames.
    """

    __slots__ = ("_calls", "_encoder", "_topics")

    def __init__(self, topics: Sequence[Topic]) -> None:
        self._topics = topics
        self._calls = 0
        self._encoder: BatchEncoder | None = None

    def weight(self, audiences: int) -> int:
        """Return the estimated bytes of the encoder for as many ``audiences``; 0 without one."""
        topics = len(self._topics)
        return topics * _TOPIC_BYTES if audiences >= _SEVERAL and topics <= _TOPICS else 0

    def get(self, audiences: int) -> BatchEncoder | None:
        """Return the encoder, if there is one, for a batch that as many ``audiences`` get."""
        if not self.weight(audiences):
            return None
        if self._calls < _CALLS:
            self._calls += 1
            if self._calls == _CALLS:
                self._encoder = _encoder_of(self._topics)
        return self._encoder

    def clear(self) -> None:
        """The subscriptions to the topics have changed."""
        self._calls = 0
        self._encoder = None


def _encoder_of(topics: Sequence[Topic]) -> BatchEncoder | None:
    if any(len(topic.groups) > 1 for topic in topics):
        return None
    groups = {index: group for index, topic in enumerate(topics) for group in topic.groups.values()}
    given = {index: group.encoding for index, group in groups.items()}
    encoder = encoder_at_once(given, len(topics), lambda index, _: groups[index].encoder)
    return None if encoder.writer is None else encoder
