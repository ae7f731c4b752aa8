"""The base class of tests of batches over HTTP."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.listeners.limits import CONNECTION_BYTES
from tests.unit.web import Answer, WebHouse, stream_of

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def table(topics: list[str], values: list[bytes], **columns: Any) -> pa.Table:
    """Return the messages of a part."""
    texts = pa.array(topics, pa.string())
    return pa.table({"topic": texts, "value": pa.array(values, pa.binary()), **columns})


class WritingCase(SynchronousTestCase):
    """A broker that the query q writes to"""

    def setUp(self) -> None:
        self.house = WebHouse()

    def stage(
        self, data: pa.Table | bytes, batch: int = 0, query: str = "q", **given: Any
    ) -> Answer:
        """Stage a part."""
        body = data if isinstance(data, bytes) else stream_of(data)
        return self.house.post(f"/v1/stage?query={query}&batch={batch}", body, **given)

    def part(self, *values: bytes, topic: str = "a", **given: Any) -> str:
        """Stage a part with these payloads and return its id."""
        answer = self.stage(table([topic] * len(values), list(values)), **given)
        assert answer.status == 201
        id: str = answer.json["part"]
        return id

    def commit(self, *ids: str, batch: int = 0, query: str = "q", **given: Any) -> Answer:
        """Commit parts."""
        body = {"query": query, "batch": batch, "parts": list(ids)}
        return self.house.post("/v1/commit", body, **given)

    def values(self) -> list[bytes]:
        """Return the payloads of the whole history."""
        return [row["value"] for row in self.house.get("/v1/history?start=0").rows]

    def held(self) -> int:
        """Return the bytes that the broker holds, apart from its connections and known tokens."""
        broker = self.house.broker
        tokens = broker.tokens._account
        assert tokens is not None
        return broker.memory.used - tokens.nbytes - CONNECTION_BYTES * broker.counters.connections
