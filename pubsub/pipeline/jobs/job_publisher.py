"""Publishes the few rows of a job that become messages, from the driver, each batch once."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from uuid import uuid4

import pyarrow as pa

from pubsub.errors import ConfigurationError
from pubsub.pipeline.argument_groups import DEFAULT_URL
from pubsub.pipeline.connector_options import Credentials
from pubsub.pipeline.staged_writer import PartStager, StagedBatch, batch_bytes


class JobPublisher:
    """Publishes to ``topic`` at the broker in ``options``.

    Raises ConfigurationError if they name a file or several brokers.
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
        # Distinguishes the parts of this process from those of an earlier one that was killed.
        self._run = uuid4().hex

    def batch_bytes(self) -> int:
        """Return the bytes of messages that fit into a batch of the broker.

        Raises Unreachable or Rejected.
        """
        return batch_bytes(self._url, self._credentials)

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
        staged_batch = StagedBatch(self._url, self._credentials, query, batch, self._run)
        stager = PartStager(staged_batch)
        for rows in messages:
            stager.add(rows)
        parts = stager.finish()
        if parts:
            staged_batch.commit(list(parts))
