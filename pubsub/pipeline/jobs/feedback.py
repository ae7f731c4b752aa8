"""Keeps a job from reading the messages that it publishes.

Such a job would derive messages from its own messages without end.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from pubsub.errors import ConfigurationError
from pubsub.pipeline.options.connector_options import EVENTS, EVENTS_TOPIC, MESSAGES, parse_topics
from pubsub.pipeline.options.topic_selection import TopicSelection

_REMEDY = (
    "choose other topics with --subscribe or --subscribe-pattern, or allow it with --allow-feedback"
)


@dataclass(frozen=True, slots=True)
class Feedback:
    """The topics that a job reads: those of its views ``kinds``. Pickled into tasks."""

    messages: TopicSelection | None
    events: bool

    @classmethod
    def of(cls, options: argparse.Namespace, kinds: Collection[str]) -> Feedback:
        """Return the topics that a job with ``options`` reads. Raises ConfigurationError."""
        subscription = None
        if MESSAGES in kinds:
            topics = parse_topics(options.subscribe)
            subscription = TopicSelection(topics, options.subscribe_pattern)
        return cls(subscription, EVENTS in kinds)

    def check(self, topic: str) -> str:
        """Return ``topic``. Raises ConfigurationError if the job reads it."""
        read = self.messages is not None and self.messages.covers(topic)
        if read or (self.events and topic == EVENTS_TOPIC):
            raise ConfigurationError(
                f"--to topic: the job reads the topic {topic!r}, so it would read its own "
                f"messages; {_REMEDY}"
            )
        return topic

    def checked(self, topic: Column) -> Column:
        """Return the column ``topic``; a row with a topic that the job reads ends the query.

        Raises ConfigurationError if the job reads every topic.
        """
        if self.messages is not None and not self.messages.selective:
            raise ConfigurationError(
                f"--to topic: the job reads every topic, so it would read its own messages; "
                f"{_REMEDY}"
            )
        return F.udf(self._check_value, "string", useArrow=False)(topic)

    def _check_value(self, topic: str | None) -> str | None:
        return None if topic is None else self.check(topic)
