"""Rows of a job that become messages: few, published by the driver, each batch once."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from uuid import uuid4

import pyarrow as pa

from pubsub.errors import ConfigurationError
from pubsub.pipeline.arguments import DEFAULT_URL
from pubsub.pipeline.connector_options import Credentials
from pubsub.pipeline.staged_writer import PartStager, StagedBatch


class Publisher:
    """Publishes to ``topic`` at the broker that ``options`` name.

    Raises ConfigurationError if that is a file or several brokers.
    """

    def __init__(self, options: argparse.Namespace, topic: str) -> None:
        if getattr(options, "path", None):
            raise ConfigurationError(
                "publishing: use --url instead of --path; a file cannot be published to"
            )
        self._url = options.url or DEFAULT_URL
        if "," in self._url:
            raise ConfigurationError("publishing: --url must name one broker, not several")
        self._credentials = Credentials(file=options.token_file)
        self._topic = topic
        # Tells what this process stages from what one before it did, and died.
        self._run = uuid4().hex

    def publish(self, values: Sequence[bytes], query: str, batch: int) -> None:
        """Publish ``values``, of batch number ``batch`` of ``query``, unless that has been done.

        Raises Unreachable or Rejected.
        """
        topics = pa.repeat(pa.scalar(self._topic, pa.string()), len(values))
        columns = {"topic": topics, "value": pa.array(values, pa.binary())}
        self.send([pa.RecordBatch.from_pydict(columns)], query, batch)

    def send(self, messages: Sequence[pa.RecordBatch], query: str, batch: int) -> None:
        """As ``publish``, for rows with the columns topic, value and perhaps key and headers."""
        staged_batch = StagedBatch(self._url, self._credentials, query, batch, self._run)
        stager = PartStager(staged_batch)
        for rows in messages:
            stager.add(rows)
        parts = stager.finish()
        if parts:
            staged_batch.commit(list(parts))
