"""Readers that report to one broker and continue at another one."""

from __future__ import annotations

from typing import Any

from twisted.internet import reactor
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock

from pubsub.backplane import shared_readers
from pubsub.backplane.memory_state import MemoryBucket, MemoryState
from pubsub.backplane.shared_position import SharedPosition, decode
from pubsub.backplane.shared_readers import SharedReaders
from pubsub.http_api.server import HttpApiFactory
from tests.unit.replicas import Node, ReplicaCase, at_tick_end
from tests.unit.web import Answer, WebClient, admin_settings

ADDRESS = IPv4Address("TCP", "192.0.2.7", 40_001)
NAME = (None, "r")


class ReaderTests(ReplicaCase):
    """/v1/readers"""

    def setUp(self) -> None:
        super().setUp()
        self.bucket = MemoryBucket()
        self.states: dict[Node, MemoryState] = {}
        self.factories: dict[Node, HttpApiFactory] = {}
        self.patch(shared_readers, "_PAUSE", 0.01)

    def reading(self) -> Node:
        """Start a broker with an HTTP API that shares the positions of readers."""
        node = self.node()
        state = self.states[node] = MemoryState(self.bucket, at_tick_end)
        SharedReaders(state, node.history.positions, reactor, node.broker.memory)
        listener = node.broker.make_listener("admin", admin_settings())
        self.factories[node] = HttpApiFactory(listener, maybeDeferred)
        return node

    async def ask(self, node: Node, method: str, body: object = None) -> Answer:
        """Return the answer to a request for the reader."""
        client = WebClient(self.factories[node], node.house.clock, ADDRESS)
        client.ask(method, "/v1/readers/r", body)
        await self.until(lambda: b"\r\n\r\n" in client.stream.received)
        return client.answer(method)

    def shared(self) -> SharedPosition | None:
        """Return what the brokers have agreed upon."""
        entry = self.bucket.entries.get(shared_readers._key(NAME))
        value = None if entry is None else shared_readers._decode(entry.value)
        return None if value is None else value.position

    async def filled(self) -> tuple[Node, Node]:
        """Return two brokers with six messages in different orders."""
        here, there = self.reading(), self.reading()
        for number in range(3):
            here.publish("t", b"h%d" % number)
            there.publish("t", b"t%d" % number)
        await self.settled(here, there)
        for node in (here, there):
            await self.until(lambda node=node: node.store.committed == 6)  # type: ignore[misc]
        return here, there

    async def test_nothing_is_tried_again_after_the_end(self) -> None:
        here = self.reading()
        readers = here.history.positions.readers
        assert isinstance(readers, SharedReaders)
        clock = readers._later._clock = Clock()
        self.states[here].leave()
        readers.report(NAME, None)
        assert clock.getDelayedCalls()
        here.history.positions.close()
        assert not clock.getDelayedCalls()

    async def test_many_reports_while_the_engine_is_away(self) -> None:
        here = self.reading()
        here.publish("t", b"0")
        await self.settled(here)
        readers, state, memory = (
            here.history.positions.readers,
            self.states[here],
            here.broker.memory,
        )
        assert isinstance(readers, SharedReaders)
        clock = readers._later._clock = Clock()
        used, tries, put = memory.used, [0], state.put

        def counted(*change: Any) -> Deferred[int]:
            tries[0] += 1
            return put(*change)

        self.patch(state, "put", counted)
        state.leave()
        for number in range(1000):
            readers.report((None, f"r{number % 100}"), number % 2)
            clock.advance(shared_readers._PAUSE / 100)
        # A few at a time are tried, whatever waits.
        assert len(clock.getDelayedCalls()) == 1
        assert tries[0] < 1000
        assert memory.used >= used + 100 * 256
        state.come_back()
        clock.advance(shared_readers._PAUSE)
        keys = {shared_readers._key((None, f"r{number}")) for number in range(100)}
        await self.until(lambda: keys <= self.bucket.entries.keys())
        assert not clock.getDelayedCalls()
        assert memory.used == used

    async def test_a_reader_goes_on_at_another_broker_and_comes_back(self) -> None:
        here, there = await self.filled()
        assert (await self.ask(there, "GET")).status == 404
        assert (await self.ask(here, "PUT", {"offset": 4})).status == 204
        position = await here.history.positions.at(4)
        await self.until(lambda: self.shared() == position)
        found = (await self.ask(there, "GET")).json
        assert decode(found["position"]) == position
        assert found["epoch"] == there.store.epoch
        read = set((await here.payloads())[:4])
        # It has everything before the offset, and gets all that it lacks.
        assert set((await there.payloads())[: found["offset"]]) <= read
        assert (await self.ask(here, "GET")).json["offset"] == 4
        assert (await self.ask(there, "PUT", {"offset": 6})).status == 204
        position = await there.history.positions.at(6)
        await self.until(lambda: self.shared() == position)
        assert (await self.ask(here, "GET")).json["offset"] == 6

    async def test_a_reader_that_is_deleted(self) -> None:
        here, there = await self.filled()
        await self.ask(here, "PUT", {"offset": 4})
        await self.until(lambda: self.shared() is not None)
        await self.ask(here, "DELETE")
        await self.until(lambda: self.shared() is None)
        assert (await self.ask(there, "GET")).status == 404
        assert self.bucket.seconds[shared_readers._key(NAME)] > 0
        # It can also be deleted where it is not, and nothing is written for one that nobody has.
        await self.ask(here, "PUT", {"offset": 4})
        await self.until(lambda: self.shared() is not None)
        await self.ask(there, "DELETE")
        await self.until(lambda: self.shared() is None)
        before = self.states[there].figures()["state_changes"]
        client = WebClient(self.factories[there], there.house.clock, ADDRESS)
        client.ask("DELETE", "/v1/readers/none")
        await self.until(lambda: b"\r\n\r\n" in client.stream.received)
        assert self.states[there].figures()["state_changes"] == before

    async def test_an_engine_that_is_away(self) -> None:
        here, there = await self.filled()
        self.states[here].leave()
        assert (await self.ask(here, "PUT", {"offset": 2})).status == 204
        assert (await self.ask(here, "PUT", {"offset": 3})).status == 204
        assert (await self.ask(here, "GET")).json["offset"] == 3
        assert (await self.ask(there, "GET")).status == 404
        self.states[here].come_back()
        position = await here.history.positions.at(3)
        await self.until(lambda: self.shared() == position)
        assert decode((await self.ask(there, "GET")).json["position"]) == position

    async def test_values_of_other_versions(self) -> None:
        here, _ = await self.filled()
        for value in (
            b"",
            b"{}",
            b'{"v":2}',
            b'{"v":1,"broker":"x","position":{}}',
            b"[]",
            b"[" * 100_000,
        ):
            self.bucket.write(shared_readers._key(NAME), value)
            assert (await self.ask(here, "GET")).status == 404
        assert (await self.ask(here, "PUT", {"offset": 2})).status == 204
        await self.until(lambda: self.shared() is not None)
