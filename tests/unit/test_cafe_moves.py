"""cafe's sessions on their way from another broker: input behind the handshake, and clients that
leave meanwhile.
"""

from __future__ import annotations

from tests.unit import cafe_wire as wire
from tests.unit.session_case import SessionCase, SessionNode
from tests.unit.streams import Client


class MoveTests(SessionCase):
    """A session that is taken over while the client waits"""

    async def connected(self) -> tuple[SessionNode, SessionNode, int]:
        """Return the broker of a session with a client, another broker, and the session."""
        here, there = await self.two()
        _, session = self.subscribed(here)
        await self.settled(here, there)
        await self.pass_time(1)
        return here, there, session

    def ask(
        self, node: SessionNode, session: int, more: bytes = b"", channels: bytes = b""
    ) -> Client:
        """Return a client that resumes the session, which the other broker has to give up first."""
        client = node.house.connect("cafe")
        client.stream.feed(wire.hs_sub(channels, wire.resume(b"bob", session)) + more)
        assert client.take() == b""
        return client

    async def test_input_behind_the_handshake_waits(self) -> None:
        _, there, session = await self.connected()
        client = self.ask(there, session, wire.PING)
        client.stream.feed(wire.PING)
        assert client.take() == b""
        assert client.stream.paused
        await self.until(lambda: bool(client.stream.received))
        await self.pass_time(0.1)
        assert client.take() == wire.ack(session) + wire.PONG * 2
        assert not client.stream.paused

    async def test_a_client_that_leaves_meanwhile_may_come_back(self) -> None:
        here, there, session = await self.connected()
        self.ask(there, session).stream.lose()
        await self.until(lambda: len(there.broker.sessions) == 1)
        assert len(here.broker.sessions) == 0
        here.publish("a", b"missed")
        await self.settled(here, there)
        again = await self.resumed(there, session)
        assert await self.taken(again, 1) == [b"missed"]

    async def test_a_client_that_leaves_meanwhile_may_come_back_elsewhere(self) -> None:
        here, there, session = await self.connected()
        self.ask(there, session).stream.lose()
        await self.until(lambda: len(there.broker.sessions) == 1)
        await self.pass_time(1)
        there.publish("a", b"missed")
        await self.settled(here, there)
        again = await self.resumed(here, session)
        assert await self.taken(again, 1) == [b"missed"]

    async def test_without_room_the_session_stays_where_it_is(self) -> None:
        here, there = await self.two()
        client, session = self.subscribed(here)
        await self.pass_time(1)
        client.stream.lose()
        here.publish("a", b"missed")
        await self.settled(here, there)
        other, _ = self.subscribed(there)
        sessions, memory = there.broker.sessions, there.broker.memory
        for bounded in (sessions, memory):
            client = there.house.connect("cafe")
            before, bounded.limit = bounded.limit, 1
            client.send(wire.hs_sub(b"", wire.resume(b"bob", session)))
            await self.pass_time(1)
            bounded.limit = before
            assert client.take() == wire.ack(0, status=4)
        assert not other.closed
        again = await self.resumed(here, session)
        assert await self.taken(again, 1) == [b"missed"]

    async def test_rights_that_end_meanwhile(self) -> None:
        _, there, session = await self.connected()
        client = self.ask(there, session, channels=b"\x02")
        there.house.listeners["cafe"].reconfigure(
            {**there.house.listeners["cafe"].settings, "allow-subscribe": ("a",)}
        )
        await self.until(lambda: bool(client.stream.received))
        assert client.take() == wire.ack(0, status=8)
        assert client.closed
