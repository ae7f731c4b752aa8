"""Exactly-once writing over HTTP: parts are staged by tasks and appended by one commit."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pyarrow as pa

from pubsub.pipeline.api import ARROW, Answer, Api
from pubsub.pipeline.logs import Rejected
from pubsub.pipeline.options import Credentials
from pubsub.pipeline.patience import Patience

# Bytes of Arrow data that are sent as one part.
_PART = 8 * 1024**2
_CONFLICT = 409


@dataclass(frozen=True, slots=True)
class Stages:
    """A batch of a query at a broker. Methods raise Unreachable or Rejected."""

    url: str
    credentials: Credentials
    query: str
    batch_id: int

    def stage(self, api: Api, body: bytes) -> str:
        """Leave a part with the broker; its id."""
        asked = {"query": self.query, "batch": self.batch_id}
        # Tried again: what is staged twice is committed once.
        answer = Patience().call(lambda: api.ask("POST", "/v1/stage", asked, body, ARROW))
        return str(answer["part"])

    def commit(self, parts: list[str]) -> None:
        """Append the parts in this order, unless the batch has been appended before."""
        try:
            # Tried again: the broker knows the batch.
            Patience().call(lambda: self._post("/v1/commit", parts=parts))
        except Answer as answer:
            if answer.status == _CONFLICT:
                raise Rejected(
                    f"the broker at {self.url} has lost what was staged for batch {self.batch_id}, "
                    "as it was restarted; nothing was appended. Restart the query, and it runs "
                    "the batch again"
                ) from None
            raise

    def abort(self) -> None:
        """Have what was staged forgotten."""
        self._post("/v1/abort")

    def _post(self, path: str, **more: object) -> None:
        body = json.dumps({"query": self.query, "batch": self.batch_id, **more}).encode()
        Api(self.url, self.credentials).ask("POST", path, body=body)


class Stager:
    """The rows of one task, staged in parts so that no part is large."""

    def __init__(self, stages: Stages) -> None:
        self.messages = 0
        self._stages = stages
        self._api = Api(stages.url, stages.credentials)
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0
        self._parts: list[str] = []

    def add(self, table: pa.RecordBatch) -> None:
        """Rows to be staged; may wait for the broker."""
        for start, rows in _cuts(table):
            self.messages += rows
            self._waiting.append(table.slice(start, rows))
            self._bytes += table.nbytes * rows // table.num_rows
            if self._bytes >= _PART:
                self._send()

    def finish(self) -> tuple[str, ...]:
        """The ids of all parts, in order."""
        if self._waiting:
            self._send()
        return tuple(self._parts)

    def _send(self) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._waiting[0].schema) as stream:
            for table in self._waiting:
                stream.write_batch(table)
        self._waiting, self._bytes = [], 0
        self._parts.append(self._stages.stage(self._api, sink.getvalue().to_pybytes()))


def _cuts(table: pa.RecordBatch) -> list[tuple[int, int]]:
    """Where a table begins to be cut into pieces of about a part, and their rows."""
    if not table.num_rows:
        return []
    rows = max(1, table.num_rows * _PART // max(table.nbytes, 1))
    return [(at, min(rows, table.num_rows - at)) for at in range(0, table.num_rows, rows)]
