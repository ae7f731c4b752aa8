"""cafe's view of the topic space: a channel, which is one byte, names a topic (cafe §1.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pubsub.broker.routing.batch import Batch
from pubsub.broker.topic_space.topic_names import topic_name
from pubsub.broker.topic_space.topic_registry import TopicRegistry
from pubsub.broker.topic_space.topics import Topic
from pubsub.errors import InvalidTopicName, TopicNotFound
from pubsub.kernel import Head
from pubsub.protocols.cafe.codec import MAX_MESSAGE
from pubsub.protocols.cafe.message_heads import TIMESTAMP_AT, TIMESTAMP_SIZE, message_head
from pubsub.settings import Kind

_HIGHEST = 255
# The last timestamp, and its field in a frame.
_last = [(0, bytes(TIMESTAMP_SIZE))]


@dataclass(frozen=True, slots=True)
class MessageEncoding:
    """Messages as MESSAGE frames on ``channel`` (cafe §3.6); see ``HeadEncoding``."""

    channel: int
    limit: int = MAX_MESSAGE
    variable_at: ClassVar[int] = TIMESTAMP_AT
    variable_size: ClassVar[int] = TIMESTAMP_SIZE
    by_timestamp: ClassVar[bool] = True

    @property
    def heads(self) -> tuple[Head]:
        """See ``HeadEncoding``."""
        return (message_head(self.channel, self.limit),)

    def variable(self, batch: Batch) -> bytes:
        """Return the timestamp, in ms since the Unix epoch."""
        timestamp, field = _last[0]
        # The batches of a tick have the same object.
        if batch.timestamp is not timestamp:
            timestamp = batch.timestamp
            field = (timestamp // 1000).to_bytes(TIMESTAMP_SIZE, "little")
            _last[0] = timestamp, field
        return field


class Channels:
    """The channels that a listener offers, their topics and encodings.

    ``limit`` is the longest message, in bytes, that the transport can carry in one frame.
    """

    def __init__(
        self, names: Mapping[int, str], topics: TopicRegistry, limit: int = MAX_MESSAGE
    ) -> None:
        self.topics = {
            channel: topics.create(name, hosted=False) for channel, name in names.items()
        }
        for topic in self.topics.values():
            topic.configured = True
        self._encodings = {
            topic: MessageEncoding(channel, limit) for channel, topic in self.topics.items()
        }

    def topic(self, channel: int) -> Topic:
        """Return the topic of ``channel``; raises TopicNotFound if it is not offered."""
        topic = self.topics.get(channel)
        if topic is None:
            raise TopicNotFound(f"channel {channel}")
        return topic

    def topic_name(self, channel: int) -> str | None:
        """Return the name of the topic of ``channel``; None if it is not offered."""
        topic = self.topics.get(channel)
        return None if topic is None else topic.name

    def named(self, name: str) -> Topic:
        """Return the topic ``name``; raises TopicNotFound if no channel offers it."""
        for topic in self.topics.values():
            if topic.name == name:
                return topic
        raise TopicNotFound(name)

    def encoding(self, topic: Topic) -> MessageEncoding:
        """Return the encoding of a topic that is offered."""
        return self._encodings[topic]


def _parse(value: object) -> dict[int, str]:
    if not isinstance(value, str):
        raise ValueError(f"expected text such as '0-15,40:orders', not {value!r}")
    names: dict[int, str] = {}
    for item in filter(None, (part.strip() for part in value.split(","))):
        numbers, colon, name = item.partition(":")
        for channel in _range(numbers, item):
            if channel in names:
                raise ValueError(f"channel {channel} is listed twice")
            names[channel] = name if colon else f"cafe/{channel}"
    _check_names(names)
    return names


def _range(text: str, item: str) -> range:
    first, dash, last = text.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and ":" in item):
        raise ValueError(f"expected N, N-M or N:TOPIC, not {item!r}")
    low, high = int(first), int(last) if dash else int(first)
    if not low <= high <= _HIGHEST:
        raise ValueError(f"expected channels from 0 to {_HIGHEST} in order, not {item!r}")
    return range(low, high + 1)


def _check_names(names: dict[int, str]) -> None:
    channels: dict[str, int] = {}
    for channel, name in names.items():
        try:
            topic_name(name)
        except InvalidTopicName as error:
            raise ValueError(f"channel {channel}: {error}") from None
        if name in channels:
            raise ValueError(f"channels {channels[name]} and {channel} have the same topic")
        channels[name] = channel


CHANNELS = Kind("N|N-M|N:TOPIC,...", _parse)
