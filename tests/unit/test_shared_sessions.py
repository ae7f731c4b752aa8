"""Sessions that are resumed at another broker than the one that was left."""

from __future__ import annotations

from collections.abc import Iterator

from twisted.internet.defer import Deferred

from tests.unit import cafe_wire, rheos_wire
from tests.unit.fakes import scratch
from tests.unit.rheos_wire import ALICE, BOB
from tests.unit.session_case import SessionCase, SessionNode
from tests.unit.streams import Client


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
        await self.crash_after_return(here, there, source=here)

    async def test_a_crash_after_the_client_has_moved(self) -> None:
        here, there = await self.two()
        (await self.lost_reader(here)).stream.lose()
        await self.crash_after_return(there, here, source=here)

    async def crash_after_return(
        self, node: SessionNode, other: SessionNode, source: SessionNode
    ) -> None:
        """Have the lost client connect to ``node``, which crashes, and then to ``other``.

        The message before the crash is published at ``source``.
        """
        await self.pass_time(2)
        client = self.reader(node)
        await self.acknowledged(client)
        source.publish("a", b"0")
        assert await self.responses(client, 1) == [b"0"]
        await self.settled(node, other)
        await self.pass_time(3)
        node.crash()
        other.publish("a", b"1")
        again = self.reader(other)
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
