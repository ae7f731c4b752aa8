"""Readers that report to one broker and continue at another one."""

from __future__ import annotations

from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

from twisted.internet import reactor
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.memory_engine.memory_state import MemoryBucket, MemoryState
from pubsub.backplane.positions.shared_position import SharedPosition, decode
from pubsub.backplane.readers import shared_readers
from pubsub.backplane.readers.shared_readers import SharedReaders
from pubsub.errors import BackplaneAway
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


class _SlowState:
    """A state whose answers come when the test gives them."""

    def __init__(self) -> None:
        self.puts: list[tuple[str, bytes, int, Deferred[int]]] = []

    def put(self, key: str, value: bytes, expected: int, seconds: int) -> Deferred[int]:
        done: Deferred[int] = Deferred()
        self.puts.append((key, value, expected, done))
        return done

    def sent(self, number: int) -> tuple[SharedPosition | None, int]:
        """Return the position of a change, and the revision that it expects."""
        _, value, expected, _ = self.puts[number]
        found = shared_readers._decode(value)
        assert found is not None
        return found.position, expected


class OrderTests(SynchronousTestCase):
    """The order of changes"""

    def setUp(self) -> None:
        self.state = cast(Any, _SlowState())
        self.memory = SimpleNamespace(used=0, add=self.add, free=lambda nbytes: self.add(-nbytes))
        positions: Any = SimpleNamespace(origin="here")
        memory: Any = self.memory
        self.clock: Any = Clock()
        self.readers = SharedReaders(self.state, positions, self.clock, memory)

    def add(self, nbytes: int) -> None:
        self.memory.used += nbytes

    def test_the_last_report_of_a_reader_is_written_last(self) -> None:
        """Two changes at a time would be in any order, and the later one could be lost."""
        first, *_, last = (SharedPosition(number) for number in range(1, 5))
        for number in range(1, 5):
            self.readers.report(NAME, SharedPosition(number))
        assert [self.state.sent(0)] == [(first, 0)]
        assert len(self.state.puts) == 1
        assert self.successful(self.readers.elsewhere(NAME)) is None
        self.state.puts[0][3].callback(7)
        assert len(self.state.puts) == 2
        assert self.state.sent(1) == (last, 7)
        assert self.successful(self.readers.elsewhere(NAME)) is None
        assert self.memory.used > 0
        self.state.puts[1][3].callback(8)
        assert len(self.state.puts) == 2
        assert self.memory.used == 0

    def successful(self, work: Coroutine[Any, Any, object]) -> object:
        return self.successResultOf(Deferred.fromCoroutine(work))

    def test_some_at_a_time(self) -> None:
        most = shared_readers._AT_ONCE
        for number in range(most + 2):
            self.readers.report((None, f"r{number}"), SharedPosition(number))
        assert len(self.state.puts) == most
        self.state.puts[0][3].callback(1)
        assert len(self.state.puts) == most + 1
        self.state.puts[1][3].errback(BackplaneAway("x"))
        assert len(self.state.puts) == most + 1
        self.clock.advance(shared_readers._PAUSE)
        assert len(self.state.puts) == most + 2
        for *_, done in self.state.puts[2:]:
            done.callback(2)
        # The one that failed is written, too.
        assert self.state.sent(most + 2)[0] == SharedPosition(1)
        self.state.puts[-1][3].callback(3)
        assert self.memory.used == 0
