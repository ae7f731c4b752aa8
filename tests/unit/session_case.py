"""The base class of tests of shared sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from twisted.application.service import Service
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from pubsub.backplane.memory_engine.memory_state import MemoryBucket, MemoryState
from pubsub.backplane.sessions.shared_sessions import SharedSessions
from tests.unit import cafe_wire
from tests.unit.fakes import scratch
from tests.unit.replicas import LIMITS, Node, ReplicaCase, at_tick_end
from tests.unit.streams import Client

# Looks whether the threads are idle, after which time passes nevertheless: a test may hold one up.
_LOOKS = 1000


class SessionNode(Node):
    """A broker with cafe, rheos and spot that shares its sessions through ``bucket``."""

    listen: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "cafe": {"channels": "1:a,2:b"}, "rheos": {}, "spot": {},
    }  # fmt: skip
    bucket: MemoryBucket
    open_nodes: ClassVar[list[SessionNode]] = []

    def prepare(self) -> None:
        self.open_nodes.append(self)
        self.state = MemoryState(self.bucket, at_tick_end)
        self.sessions = SharedSessions(
            self.broker, self.state, self.history.positions, self.house.clock
        )
        self.sessions.setServiceParent(self.broker)  # type: ignore[no-untyped-call]
        ends = EndOfHistory(self)
        ends.setServiceParent(self.broker)  # type: ignore[no-untyped-call]

    def stop(self) -> Deferred[None]:
        self.is_open = False
        ended = self.broker.stopService()
        self.house.advance(20)
        return ended

    def crash(self) -> None:
        """Be gone without a word."""
        self.bucket.states.remove(self.state)
        self.bucket.apart.add(self.state)
        self.sessions._values.is_there = False
        self.broker.sessions.sharing = None
        self.close()

    def close(self) -> None:
        """End the shared history."""
        if self in self.open_nodes:
            self.open_nodes.remove(self)
            self.history.close()
            self.stream.close()


class EndOfHistory(Service):
    """Ends the shared history of ``node`` with the other services of its broker."""

    def __init__(self, node: SessionNode) -> None:
        self._node = node

    def stopService(self) -> None:
        super().stopService()  # type: ignore[no-untyped-call]
        self._node.close()


def is_busy(node: Node) -> bool:
    """Return whether a thread writes or reads the history of ``node``."""
    store = node.store
    threads = (store._effects._write_thread, store._effects._sync_thread, store._readers._worker)
    return any(thread.pending for thread in threads)


class SessionCase(ReplicaCase):
    """Brokers that share their sessions."""

    node_class: type[SessionNode] = SessionNode

    def setUp(self) -> None:
        super().setUp()
        self.bucket = MemoryBucket()

    def broker(self, path: Path | None = None) -> SessionNode:
        made = type("Here", (self.node_class,), {"bucket": self.bucket})(
            self.log, path or scratch(self) / "history", LIMITS
        )
        self.nodes.append(made)
        self.addCleanup(self.end, made)
        assert isinstance(made, SessionNode)
        return made

    async def pass_time(self, seconds: float) -> None:
        """Let some time pass at all brokers, which takes them as long on a slow disk."""
        for _ in range(round(seconds / 0.05)):
            for node in self.nodes:
                node.house.clock.advance(0.05)
            await deferLater(reactor, 0)
            for _ in range(_LOOKS):
                if not any(is_busy(node) for node in self.nodes):
                    break
                await deferLater(reactor, 0.0005)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self.pass_time(0.05)

    async def two(self) -> tuple[SessionNode, SessionNode]:
        here, there = self.broker(), self.broker()
        await self.settled(here, there)
        await self.pass_time(1.1)
        return here, there

    def lose_state(self, *nodes: SessionNode) -> None:
        """Begin the shared state again while no broker reaches it."""
        for node in nodes:
            node.state.leave()
        self.bucket.clear()
        for node in nodes:
            node.state.come_back()

    def subscribed(self, node: SessionNode, channels: bytes = b"\x01") -> tuple[Client, int]:
        """Return a subscriber of cafe, and the id of its session."""
        client = node.house.connect("cafe")
        client.send(cafe_wire.hs_sub(channels, b"bob"))
        ((_, payload),) = cafe_wire.frames(client.take())
        assert payload[0] == 0
        node.house.clock.advance(cafe_wire.GAP)
        return client, int.from_bytes(payload[1:], "little")

    async def resumed(self, node: SessionNode, session: int) -> Client:
        client = node.house.connect("cafe")
        client.send(cafe_wire.hs_sub(b"", cafe_wire.resume(b"bob", session)))
        await self.until(lambda: bool(client.stream.received))
        (found, *_) = cafe_wire.frames(bytes(client.stream.received))
        assert found == (3, bytes([0]) + session.to_bytes(8, "little"))
        del client.stream.received[:16]
        return client

    async def taken(self, client: Client, count: int) -> list[bytes]:
        """Return the payloads that ``client`` has got, once it has this number of them."""
        found: list[bytes] = []
        while len(found) < count:
            await self.pass_time(0.05)
            found += cafe_wire.payloads(client.take())
        await self.pass_time(0.5)
        return found + cafe_wire.payloads(client.take())
