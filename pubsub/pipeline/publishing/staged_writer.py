"""Exactly-once writing over HTTP: tasks stage parts, and one commit appends them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from pubsub.client.history_replies import CommitReply
from pubsub.pipeline.histories.history import HistoryRefused, PartsLost
from pubsub.pipeline.histories.http_history import SINK, ErrorReply, HttpApi
from pubsub.pipeline.histories.retry import Retry
from pubsub.pipeline.options.connector_options import Credentials
from pubsub.pipeline.publishing.message_pieces import pieces

PART_BYTES = 8 * 1024**2
"""Bytes of Arrow data in one part."""
RUN_AGAIN = "restart the query to run it again"
"""The end of the text of PartsLost."""
UNKNOWN_PART = "unknown-part"
"""The code of the reply to a commit with parts that the broker does not have."""
# The share of a batch that messages may take, as Arrow adds the ends and the padding of columns.
_FILLED = 0.75
# The limit of brokers that do not report theirs.
_EARLIER_BATCH_BYTES = 32 * 1024**2
_NOT_FOUND = "not-found"


def batch_bytes(url: str, credentials: Credentials) -> int:
    """Return the bytes of messages that fit into a batch of the broker at ``url``.

    Raises Unreachable or Rejected.
    """
    return Retry().call(lambda: batch_bytes_now(url, credentials))


def batch_bytes_now(url: str, credentials: Credentials) -> int:
    """Return the same after one try."""
    try:
        with HttpApi(url, credentials, SINK).client() as client:
            limit = client.limits().batch_bytes
    except ErrorReply as reply:
        if reply.code != _NOT_FOUND:
            raise
        limit = _EARLIER_BATCH_BYTES
    return int(limit * _FILLED)


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """A batch in one run of a query at a broker. Its methods raise Unreachable or Rejected."""

    url: str
    credentials: Credentials
    query: str
    batch_id: int
    run: str = ""

    def stage(self, api: HttpApi, data: pa.Table, retry: Retry | None = None) -> str:
        """Stage a part and return its id."""
        # A retry is safe: a part that was staged twice is committed once.
        return (retry or Retry()).call(lambda: self.stage_once(api, data))

    def stage_once(self, api: HttpApi, data: pa.Table) -> str:
        """Stage a part with one try."""
        with api.client() as client:
            return client.stage(self.query, self.batch_id, data, self.run)

    def commit_next(self, parts: list[str]) -> None:
        """Append the parts of a query whose batches are committed in order; see ``commit``.

        Raises HistoryRefused if the broker has a later batch.
        """
        reply = self.commit(parts)
        # The broker knows the offsets of the last batch, unless another one has published it.
        if reply.duplicate and reply.first is None and not self._shares_history():
            raise HistoryRefused(
                f"sink: the broker at {self.url} has a later batch of this query than "
                f"{self.batch_id}: the checkpoint is a copy, or a backup, of an earlier state; "
                "nothing was appended; use a new checkpoint"
            )

    def _shares_history(self) -> bool:
        with HttpApi(self.url, self.credentials, SINK).client() as client:
            return client.bounds().position is not None

    def commit(self, parts: list[str]) -> CommitReply:
        """Append the parts in this order, unless the batch has been appended before."""
        api = HttpApi(self.url, self.credentials, SINK)

        def commit() -> CommitReply:
            with api.client() as client:
                return client.commit(self.query, self.batch_id, parts)

        try:
            # A retry is safe: the broker remembers the batch.
            return Retry().call(commit)
        except ErrorReply as reply:
            if reply.code == UNKNOWN_PART:
                raise PartsLost(
                    f"sink: the broker at {self.url} no longer has the parts of batch "
                    f"{self.batch_id}: it was restarted, they expired, or another run replaced "
                    f"them; nothing was appended; {RUN_AGAIN}"
                ) from None
            raise

    def abort(self) -> None:
        """Drop the staged parts."""
        with HttpApi(self.url, self.credentials, SINK).client() as client:
            client.abort(self.query, self.batch_id)


class PartStager:
    """Stages the rows of one task in parts of about ``part_bytes``."""

    def __init__(self, batch: StagedBatch, part_bytes: int = PART_BYTES) -> None:
        self.messages = 0
        self._part_bytes = part_bytes
        self._batch = batch
        self._api = HttpApi(batch.url, batch.credentials, SINK)
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0
        self._parts: list[str] = []

    def add(self, table: pa.RecordBatch) -> None:
        """Add rows; blocks while a part is sent."""
        self.messages += table.num_rows
        for rows in _divided(table, self._part_bytes):
            nbytes = rows.nbytes
            if nbytes > self._part_bytes and self._waiting:
                # Such a row can fill a batch of the broker alone.
                self._send()
            self._waiting.append(rows)
            self._bytes += nbytes
            if self._bytes >= self._part_bytes:
                self._send()

    def finish(self) -> tuple[str, ...]:
        """Send the rows that are left and return the ids of all parts, in order."""
        if self._waiting:
            self._send()
        return tuple(self._parts)

    def _send(self) -> None:
        table = _grouped_by_topic(pa.Table.from_batches(self._waiting))
        self._waiting, self._bytes = [], 0
        self._handle(table)

    def _handle(self, part: pa.Table) -> None:
        self._parts.append(self._batch.stage(self._api, part))


class PartPublisher(PartStager):
    """Publishes the rows of one task in parts, each a batch of its own that is published once.

    A second attempt of the task publishes no part again, if its rows come in the same order.
    """

    def _handle(self, part: pa.Table) -> None:
        batch = self._batch
        batch.commit([batch.stage(self._api, part)])
        self._batch = replace(batch, batch_id=batch.batch_id + 1)


def _grouped_by_topic(table: pa.Table) -> pa.Table:
    """Sort the rows by topic, each topic in its order: the broker stores runs of a topic."""
    if len(pc.unique(table["topic"])) == 1:
        return table
    # This sort is stable.
    return table.take(pc.sort_indices(table, sort_keys=[("topic", "ascending")]))


def _divided(table: pa.RecordBatch, part_bytes: int) -> list[pa.RecordBatch]:
    """Return ``table`` in pieces of up to ``part_bytes``, or of one row."""
    if not table.num_rows:
        return []
    if table.nbytes <= part_bytes:
        return [table]
    whole = pa.Table.from_batches([table])
    return [rows for piece in pieces(whole, table.num_rows, part_bytes) for rows in piece]
