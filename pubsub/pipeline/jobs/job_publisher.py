"""Publishes the few rows of a job that become messages, from the driver, each batch once."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from uuid import uuid4

import pyarrow as pa

from pubsub.broker.topic_space.topic_names import topic_name
from pubsub.errors import ConfigurationError, InvalidTopicName
from pubsub.pipeline.command_line.argument_groups import DEFAULT_URL
from pubsub.pipeline.options.connector_options import Credentials
from pubsub.pipeline.options.option_urls import source_urls
from pubsub.pipeline.publishing.shared_sink import (
    SharedBatch,
    SharedPartStager,
    at_any,
    check_shared,
)
from pubsub.pipeline.publishing.staged_writer import PartStager, StagedBatch, batch_bytes_now


class JobPublisher:
    """Publishes to ``topic`` at the broker in ``options``, or at any of those in it.

    Raises ConfigurationError if they name a file, or brokers that do not share a history.
    """

    def __init__(self, options: argparse.Namespace, topic: str) -> None:
        self._urls = broker_urls(options)
        self._credentials = Credentials(file=options.token_file)
        if len(self._urls) > 1:
            check_shared(self._urls, self._credentials)
        self._topic = topic
        # Distinguishes the parts of this process from those of an earlier one that was killed.
        self._run = uuid4().hex

    def batch_bytes(self) -> int:
        """Return the bytes of messages that fit into a batch of the broker.

        Raises Unreachable or Rejected.
        """
        return at_any(self._urls, lambda url: batch_bytes_now(url, self._credentials))

    def publish(self, values: Sequence[bytes], query: str, batch: int) -> None:
        """Publish ``values``, the batch number ``batch`` of ``query``, unless it is published
        already.

        Raises Unreachable or Rejected.
        """
        topics = pa.repeat(pa.scalar(self._topic, pa.string()), len(values))
        columns = {"topic": topics, "value": pa.array(values, pa.binary())}
        self.send([pa.RecordBatch.from_pydict(columns)], query, batch)

    def send(self, messages: Sequence[pa.RecordBatch], query: str, batch: int) -> None:
        """Publish rows with the columns topic and value, and optionally key and headers.

        Otherwise the same as ``publish``.
        """
        if len(self._urls) > 1:
            shared = SharedBatch(self._urls, self._credentials, query, batch, self._run)
            anywhere = SharedPartStager(shared)
            if parts := _stage(anywhere, messages):
                shared.commit(parts, [anywhere.url])
            return
        staged_batch = StagedBatch(self._urls[0], self._credentials, query, batch, self._run)
        if parts := _stage(PartStager(staged_batch), messages):
            staged_batch.commit(list(parts))


def check_destination(options: argparse.Namespace, argument: str, topic: str | None) -> None:
    """Raise ConfigurationError if a job cannot publish to ``topic``, which ``argument`` names.

    The topic is None if the rows name it.
    """
    broker_urls(options)
    try:
        if topic is not None:
            topic_name(topic)
    except InvalidTopicName as error:
        raise ConfigurationError(f"{argument}: {error}") from None


def broker_urls(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the brokers to publish to. Raises ConfigurationError."""
    if getattr(options, "path", None):
        raise ConfigurationError(
            "publishing: use --url instead of --path; a file cannot be published to"
        )
    # A job publishes over HTTP only, like one that reads.
    return source_urls(options.url or DEFAULT_URL)


def _stage(stager: PartStager, messages: Sequence[pa.RecordBatch]) -> tuple[str, ...]:
    for rows in messages:
        stager.add(rows)
    return stager.finish()
