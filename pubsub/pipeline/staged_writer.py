"""Exactly-once writing over HTTP: parts are staged by tasks and appended by one commit."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pubsub.pipeline.connector_options import Credentials
from pubsub.pipeline.history import Rejected
from pubsub.pipeline.http_history import ErrorReply, HttpApi
from pubsub.pipeline.retry import Retry

# Bytes of Arrow data that are sent as one part.
_PART_BYTES = 8 * 1024**2
_UNKNOWN_PART = "unknown-part"


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """A batch of a query at a broker, in one of its runs. Raises Unreachable or Rejected."""

    url: str
    credentials: Credentials
    query: str
    batch_id: int
    run: str = ""

    def stage(self, api: HttpApi, data: pa.Table) -> str:
        """Leave a part with the broker; its id."""

        def stage() -> str:
            with api.client() as client:
                return client.stage(self.query, self.batch_id, data, self.run)

        # Tried again: what is staged twice is committed once.
        return Retry().call(stage)

    def commit(self, parts: list[str]) -> None:
        """Append the parts in this order, unless the batch has been appended before."""
        api = HttpApi(self.url, self.credentials)

        def commit() -> None:
            with api.client() as client:
                client.commit(self.query, self.batch_id, parts)

        try:
            # Tried again: the broker knows the batch.
            Retry().call(commit)
        except ErrorReply as reply:
            if reply.code == _UNKNOWN_PART:
                raise Rejected(
                    f"the broker at {self.url} was restarted and lost the parts of batch "
                    f"{self.batch_id}; nothing was appended; restart the query to run it again"
                ) from None
            raise

    def abort(self) -> None:
        """Have what was staged forgotten."""
        with HttpApi(self.url, self.credentials).client() as client:
            client.abort(self.query, self.batch_id)


class PartStager:
    """The rows of one task, staged in parts so that no part is large."""

    def __init__(self, batch: StagedBatch) -> None:
        self.messages = 0
        self._batch = batch
        self._api = HttpApi(batch.url, batch.credentials)
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0
        self._parts: list[str] = []

    def add(self, table: pa.RecordBatch) -> None:
        """Rows to be staged; may wait for the broker."""
        for start, rows in _slices(table):
            self.messages += rows
            self._waiting.append(table.slice(start, rows))
            self._bytes += table.nbytes * rows // table.num_rows
            if self._bytes >= _PART_BYTES:
                self._send()

    def finish(self) -> tuple[str, ...]:
        """The ids of all parts, in order."""
        if self._waiting:
            self._send()
        return tuple(self._parts)

    def _send(self) -> None:
        table = _grouped_by_topic(pa.Table.from_batches(self._waiting))
        self._waiting, self._bytes = [], 0
        self._parts.append(self._batch.stage(self._api, table))


def _grouped_by_topic(table: pa.Table) -> pa.Table:
    """The rows with those of a topic together, in their order: the broker takes runs of them."""
    if len(pc.unique(table["topic"])) == 1:
        return table
    # This sort is stable.
    return table.take(pc.sort_indices(table, sort_keys=[("topic", "ascending")]))


def _slices(table: pa.RecordBatch) -> list[tuple[int, int]]:
    """Where a table begins to be cut into pieces of about a part, and their rows."""
    if not table.num_rows:
        return []
    rows = max(1, table.num_rows * _PART_BYTES // max(table.nbytes, 1))
    return [(at, min(rows, table.num_rows - at)) for at in range(0, table.num_rows, rows)]
