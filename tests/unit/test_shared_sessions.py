"""Sessions that are resumed at another broker than the one that was left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from twisted.application.service import Service
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from pubsub.backplane.memory_state import MemoryBucket, MemoryState
from pubsub.backplane.shared_sessions import SharedSessions
from tests.unit import cafe_wire, rheos_wire
from tests.unit.fakes import scratch
from tests.unit.replicas import LIMITS, Node, ReplicaCase, at_tick_end
from tests.unit.rheos_wire import ALICE, BOB
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


class CafeTests(SessionCase):
    """cafe's sessions"""

    async def test_a_lost_connection(self) -> None:
        here, there = await self.two()
        client, session = self.subscribed(here)
        here.publish("a", b"0")
        there.publish("a", b"1")
        assert sorted(await self.taken(client, 2)) == [b"0", b"1"]
        client.stream.lose()
        here.publish("a", b"2")
        there.publish("a", b"3")
        here.publish("b", b"other")
        await self.settled(here, there)
        again = await self.resumed(there, session)
        assert sorted(await self.taken(again, 2)) == [b"2", b"3"]
        here.publish("a", b"4")
        assert await self.taken(again, 1) == [b"4"]
        assert len(here.broker.sessions) == 0
        assert len(there.broker.sessions) == 1

    async def test_an_open_connection_is_closed(self) -> None:
        here, there = await self.two()
        client, session = self.subscribed(here)
        here.publish("a", b"0")
        assert await self.taken(client, 1) == [b"0"]
        again = await self.resumed(there, session)
        assert client.closed
        here.publish("a", b"1")
        assert await self.taken(again, 1) == [b"1"]
        assert client.take() == b""
        assert len(here.broker.sessions) == 0

    async def test_there_and_back(self) -> None:
        here, there = await self.two()
        client, session = self.subscribed(here)
        for number, node in enumerate((there, here, there)):
            client.stream.lose()
            here.publish("a", b"%d" % number)
            client = await self.resumed(node, session)
            assert await self.taken(client, 1) == [b"%d" % number]

    async def test_a_broker_that_crashes(self) -> None:
        here, there = await self.two()
        client, session = self.subscribed(here)
        early = [b"e%d" % number for number in range(20)]
        for one in early:
            here.publish("a", one)
        await self.taken(client, 20)
        await self.settled(here, there)
        await self.pass_time(3)
        here.publish("a", b"late")
        assert await self.taken(client, 1) == [b"late"]
        await self.settled(here, there)
        here.crash()
        there.publish("a", b"missed")
        again = await self.resumed(there, session)
        assert await self.taken(again, 1) in ([b"missed"], [b"late", b"missed"])

    async def test_a_broker_that_stops(self) -> None:
        here, there = await self.two()
        client, session = self.subscribed(here)
        here.publish("a", b"0")
        assert await self.taken(client, 1) == [b"0"]
        await self.settled(here, there)
        here.publish("a", b"last")
        client.take()
        stopped: Deferred[None] = here.stop()
        while not stopped.called:
            await self.pass_time(0.1)
        there.publish("a", b"1")
        again = await self.resumed(there, session)
        assert await self.taken(again, 1) == [b"1"]

    async def test_messages_that_the_log_had_lost_reach_a_session_that_was_resumed(self) -> None:
        here, there = await self.two()
        client, session = self.subscribed(here)
        here.publish("a", b"0")
        assert await self.taken(client, 1) == [b"0"]
        client.stream.lose()
        await self.settled(here, there)
        await self.pass_time(2)
        copy = here.crashed(scratch(self) / "copy")
        here.publish("a", b"1")
        await self.settled(here, there)
        here.crash()
        self.log.leave()
        again = self.broker(copy)
        await self.pass_time(1)
        assert await again.payloads() == [b"0"]
        client = await self.resumed(again, session)
        self.log.come_back()
        assert await self.taken(client, 1) == [b"1"]
        assert await again.payloads() == [b"0", b"1"]

    async def test_a_session_that_has_ended(self) -> None:
        here, there = await self.two()
        client, session = self.subscribed(here)
        await self.pass_time(1)
        client.send(cafe_wire.DISCONNECT)
        await self.pass_time(1)
        again = there.house.connect("cafe")
        again.send(cafe_wire.hs_sub(b"", cafe_wire.resume(b"bob", session)))
        await self.until(lambda: bool(again.stream.received))
        assert again.take() == cafe_wire.ack(0, status=1)

    async def test_another_name_and_no_secret(self) -> None:
        here, there = await self.two()
        _, session = self.subscribed(here)
        await self.pass_time(1)
        again = there.house.connect("cafe")
        again.send(cafe_wire.hs_sub(b"", cafe_wire.resume(b"eve", session)))
        await self.until(lambda: bool(again.stream.received))
        assert again.take() == cafe_wire.ack(0, status=1)
        everything = b"".join(one.key.encode() + one.value for one in self.bucket.entries.values())
        assert b"%016x" % session not in everything

    async def test_the_shared_state_is_lost(self) -> None:
        here, there = await self.two()
        client, session = self.subscribed(here)
        await self.pass_time(1)
        # Its revisions begin again, too.
        for _ in range(3):
            client = await self.resumed(there, session)
            client = await self.resumed(here, session)
        self.lose_state(here, there)
        await self.pass_time(1)
        again = await self.resumed(there, session)
        assert client.closed
        here.publish("a", b"0")
        assert await self.taken(again, 1) == [b"0"]

    async def test_the_shared_state_is_lost_before_a_crash(self) -> None:
        here, there = await self.two()
        _, session = self.subscribed(here)
        await self.pass_time(1)
        self.lose_state(here, there)
        await self.pass_time(2)
        here.crash()
        there.publish("a", b"0")
        again = await self.resumed(there, session)
        assert await self.taken(again, 1) == [b"0"]

    async def test_the_engine_is_away(self) -> None:
        here, there = await self.two()
        client, session = self.subscribed(here)
        await self.pass_time(1)
        client.stream.lose()
        here.state.leave()
        there.state.leave()
        again = there.house.connect("cafe")
        again.send(cafe_wire.hs_sub(b"", cafe_wire.resume(b"bob", session)))
        assert again.take() == cafe_wire.ack(0, status=1)
        back = await self.resumed(here, session)
        here.publish("a", b"0")
        assert await self.taken(back, 1) == [b"0"]


def received(data: bytes) -> Iterator[bytes]:
    """Yield the payloads of responses."""
    while data:
        assert data[0] == 0x15
        size = int.from_bytes(data[1:5], "little")
        yield data[21 : 21 + size]
        data = data[21 + size :]


class RheosTests(SessionCase):
    """rheos's client ids"""

    def reader(self, node: SessionNode, client_id: bytes = BOB) -> Client:
        node.broker.topics.create("a")
        client = node.house.connect("rheos")
        client.send(rheos_wire.subscribe(client_id, b"a"))
        return client

    async def responses(self, client: Client, count: int) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < count:
            await self.pass_time(0.05)
            found += received(client.take())
        await self.pass_time(0.5)
        return [*found, *received(client.take())]

    async def acknowledged(self, client: Client) -> None:
        await self.until(lambda: len(client.stream.received) >= 18)
        assert bytes(client.stream.received[:18]) == rheos_wire.topic_ack("a")
        del client.stream.received[:18]

    async def test_a_lost_connection(self) -> None:
        here, there = await self.two()
        client = self.reader(here)
        await self.acknowledged(client)
        here.publish("a", b"0")
        assert await self.responses(client, 1) == [b"0"]
        client.stream.lose()
        here.publish("a", b"1")
        await self.settled(here, there)
        again = self.reader(there)
        await self.acknowledged(again)
        assert await self.responses(again, 1) == [b"1"]
        assert len(here.house.factories["rheos"].shared.clients) == 0

    async def test_an_open_connection_gets_nothing_more(self) -> None:
        here, there = await self.two()
        client = self.reader(here)
        await self.acknowledged(client)
        await self.settled(here, there)
        again = self.reader(there)
        await self.acknowledged(again)
        here.publish("a", b"1")
        assert await self.responses(again, 1) == [b"1"]
        assert client.take() == b""
        assert not client.closed

    async def test_a_broker_that_crashes(self) -> None:
        here, there = await self.two()
        client = self.reader(here)
        await self.acknowledged(client)
        await self.pass_time(2)
        here.publish("a", b"0")
        await self.responses(client, 1)
        await self.settled(here, there)
        here.crash()
        there.publish("a", b"1")
        again = self.reader(there)
        await self.acknowledged(again)
        assert await self.responses(again, 1) in ([b"1"], [b"0", b"1"])

    async def test_a_crash_after_the_client_has_come_back_here(self) -> None:
        here, there = await self.two()
        (await self.lost_reader(here)).stream.lose()
        await self.pass_time(2)
        client = self.reader(here)
        await self.acknowledged(client)
        here.publish("a", b"0")
        assert await self.responses(client, 1) == [b"0"]
        await self.settled(here, there)
        await self.pass_time(3)
        here.crash()
        there.publish("a", b"1")
        again = self.reader(there)
        await self.acknowledged(again)
        assert await self.responses(again, 1) == [b"1"]

    async def test_a_crash_after_the_client_has_moved(self) -> None:
        here, there = await self.two()
        (await self.lost_reader(here)).stream.lose()
        await self.pass_time(2)
        client = self.reader(there)
        await self.acknowledged(client)
        here.publish("a", b"0")
        assert await self.responses(client, 1) == [b"0"]
        await self.settled(here, there)
        await self.pass_time(3)
        there.crash()
        here.publish("a", b"1")
        again = self.reader(here)
        await self.acknowledged(again)
        assert await self.responses(again, 1) == [b"1"]

    async def test_a_second_connection_after_the_client_has_come_back_here(self) -> None:
        here, there = await self.two()
        (await self.lost_reader(here)).stream.lose()
        await self.pass_time(2)
        client = self.reader(here)
        await self.acknowledged(client)
        here.publish("a", b"0")
        assert await self.responses(client, 1) == [b"0"]
        await self.settled(here, there)
        again = self.reader(there)
        await self.acknowledged(again)
        there.publish("a", b"1")
        assert await self.responses(again, 1) == [b"1"]

    async def lost_reader(self, node: SessionNode) -> Client:
        client = self.reader(node)
        await self.acknowledged(client)
        await self.pass_time(2)
        return client

    async def test_a_client_that_connects_elsewhere_while_the_engine_is_away(self) -> None:
        here, there = await self.two()
        client = await self.lost_reader(here)
        client.send(rheos_wire.subscribe(BOB, b"b"))
        await self.until(lambda: bool(client.take()))
        await self.pass_time(1)
        for node in (here, there):
            node.state.leave()
        client.stream.lose()
        here.publish("b", b"missed")
        again = self.reader(there)
        await self.acknowledged(again)
        there.publish("a", b"0")
        assert await self.responses(again, 1) == [b"0"]
        for node in (here, there):
            node.state.come_back()
        # Its subscriptions here and there go on; messages may come again.
        assert b"missed" in await self.responses(again, 1)
        await self.settled(here, there)
        await self.pass_time(1)
        here.publish("a", b"1")
        here.publish("b", b"2")
        assert sorted(await self.responses(again, 2)) == [b"1", b"2"]
        assert len(here.house.factories["rheos"].shared.clients) == 0
        # The session is the one of this broker now.
        again.stream.lose()
        await self.pass_time(1)
        there.publish("a", b"3")
        await self.settled(here, there)
        last = self.reader(here)
        await self.acknowledged(last)
        assert await self.responses(last, 1) == [b"3"]

    async def test_ids_that_nobody_knows_do_not_wait_long(self) -> None:
        here, _ = await self.two()
        here.broker.topics.create("a")
        client = here.house.connect("rheos")
        client.send(rheos_wire.publish(ALICE, b"0", name=b"a"))
        await self.until(lambda: len(client.stream.received) >= 18)
        assert len(rheos_wire.message_ids(client.take())) == 1
