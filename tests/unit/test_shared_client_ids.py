"""rheos's client ids that go on at another broker."""

from __future__ import annotations

from collections.abc import Iterator

from tests.unit import rheos_wire
from tests.unit.rheos_wire import ALICE, BOB
from tests.unit.session_case import SessionCase, SessionNode
from tests.unit.streams import Client


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

    async def test_several_ids_of_one_connection(self) -> None:
        here, there = await self.two()
        client = self.reader(here)
        client.send(rheos_wire.subscribe(ALICE, b"a"))
        for _ in range(2):
            await self.acknowledged(client)
        await self.pass_time(2)
        client.stream.lose()
        here.publish("a", b"0")
        await self.settled(here, there)
        for client_id in (BOB, ALICE):
            again = self.reader(there, client_id)
            await self.acknowledged(again)
            assert await self.responses(again, 1) == [b"0"]

    async def test_messages_that_the_client_has_not_read_when_its_broker_crashes(self) -> None:
        here, there = await self.two()
        client = await self.lost_reader(here)
        client.stream.stop_reading()
        payloads = [b"%d" % number + bytes(10_000) for number in range(30)]
        for payload in payloads:
            here.publish("a", payload)
        await self.settled(here, there)
        # The transport is full, and the broker has told so.
        await self.pass_time(3)
        written = list(received(bytes(client.stream.buffered)))
        here.crash()
        again = self.reader(there)
        await self.acknowledged(again)
        missing = payloads[len(written) :]
        assert missing
        found = await self.responses(again, len(missing))
        assert found[-len(missing) :] == missing

    async def test_ids_that_nobody_knows_do_not_wait_long(self) -> None:
        here, _ = await self.two()
        here.broker.topics.create("a")
        client = here.house.connect("rheos")
        client.send(rheos_wire.publish(ALICE, b"0", name=b"a"))
        await self.until(lambda: len(client.stream.received) >= 18)
        assert len(rheos_wire.message_ids(client.take())) == 1
