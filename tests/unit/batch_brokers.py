"""Brokers in one process that share exactly-once batches, with their HTTP APIs."""

from __future__ import annotations

import time
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.address import IPv4Address
from twisted.internet.defer import maybeDeferred

from pubsub.backplane.batches import shared_batches
from pubsub.backplane.batches.shared_batches import SharedBatches
from pubsub.backplane.memory_engine.memory_state import MemoryBucket, MemoryState
from pubsub.http_api.server import HttpApiFactory
from tests.unit.replicas import Node, ReplicaCase, at_tick_end
from tests.unit.web import Answer, WebClient, admin_settings, stream_of
from tests.unit.writing_case import table

ADDRESS = IPv4Address("TCP", "192.0.2.7", 40_001)
QUERY = (None, "q")


class BatchCase(ReplicaCase):
    """Brokers at one engine that share batches."""

    def setUp(self) -> None:
        super().setUp()
        self.bucket = MemoryBucket()
        self.states: dict[Node, MemoryState] = {}
        self.batches: dict[Node, SharedBatches] = {}
        self.factories: dict[Node, HttpApiFactory] = {}
        self.patch(shared_batches, "_PAUSE", 0.01)

    def writing(self, path: Path | None = None) -> Node:
        """Start a broker with an HTTP API that shares batches."""
        node = self.node(path)
        state = self.states[node] = MemoryState(self.bucket, at_tick_end)
        batches = self.batches[node] = SharedBatches(
            state, node.store, reactor, node.broker.memory, time.time
        )
        batches.open()
        node.history.positions.batches = batches
        listener = node.broker.make_listener("admin", admin_settings())
        factory = self.factories[node] = HttpApiFactory(listener, maybeDeferred)
        factory.startFactory()  # type: ignore[no-untyped-call]
        return node

    async def post(self, node: Node, path: str, body: object) -> Answer:
        return await self.ask(node, "POST", path, body)

    async def put(self, node: Node, path: str, body: object) -> Answer:
        return await self.ask(node, "PUT", path, body)

    async def ask(self, node: Node, method: str, path: str, body: object) -> Answer:
        client = WebClient(self.factories[node], node.house.clock, ADDRESS)
        client.ask(method, path, body)
        await self.until(lambda: b"\r\n\r\n" in client.stream.received)
        return client.answer(method)

    async def stage(self, node: Node, batch: int, *values: bytes) -> str:
        """Stage a part; return its id."""
        data = stream_of(table(["t"] * len(values), list(values)))
        answer = await self.post(node, f"/v1/stage?query=q&batch={batch}", data)
        assert answer.status == 201, answer.json
        part: str = answer.json["part"]
        return part

    async def commit(
        self, node: Node, batch: int, *parts: str, shared: bool = True
    ) -> tuple[int, object]:
        """Return the status, and whether it is a duplicate, or the error."""
        body = {"query": "q", "batch": batch, "parts": list(parts), "shared": shared}
        answer = await self.post(node, "/v1/commit", body)
        return answer.status, answer.json.get("duplicate", answer.json.get("error"))

    async def end_of(self, node: Node) -> None:
        await self.written(node)
        await node.stop()

    async def free(self) -> None:
        """Wait until anyone may publish the batch."""
        key = shared_batches._state_key(QUERY)
        await self.until(lambda: b'"broker":""' in self.bucket.entries[key].value)
