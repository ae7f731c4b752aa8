"""Sessions that are resumed at another broker than the one that was left."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from pubsub.backplane.sessions.session_entry import request_key
from tests.unit import cafe_wire
from tests.unit.fakes import scratch
from tests.unit.session_case import SessionCase


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

    async def test_a_session_that_came_back_stays_when_the_engine_is_reached_again(self) -> None:
        here, there = await self.two()
        client, session = self.subscribed(here)
        await self.pass_time(1)
        for node in (there, here):
            client = await self.resumed(node, session)
            await self.pass_time(1)
        # The request of the other broker is still there, and is reported again.
        assert [key for key in self.bucket.entries if key.startswith(f"x.{here.sessions.run}.")]
        here.state.leave()
        here.state.come_back()
        await self.pass_time(2)
        assert not client.closed
        here.publish("a", b"0")
        assert await self.taken(client, 1) == [b"0"]

    async def test_a_session_that_a_newer_broker_has(self) -> None:
        here, _ = await self.two()
        client, _ = self.subscribed(here)
        await self.pass_time(1)
        (key,) = [key for key in self.bucket.entries if key.startswith("s.")]
        self.bucket.write(key, b'{"v":2}')
        client.stream.lose()
        await self.pass_time(2)
        assert self.bucket.entries[key].value == b'{"v":2}'
        assert len(here.broker.sessions) == 0

    async def test_a_connection_that_lasts_for_days(self) -> None:
        here, there = await self.two()
        client, session = self.subscribed(here)
        await self.pass_time(1)
        (key,) = [key for key in self.bucket.entries if key.startswith("s.")]
        written = self.bucket.entries[key].revision
        for _ in range(2):
            here.house.clock.advance(13 * 3600)
            await self.pass_time(2)
            before, written = written, self.bucket.entries[key].revision
            assert written > before
        # The time of the value did not end in between.
        assert self.bucket.seconds[key] > 24 * 3600
        assert not client.closed
        here.publish("a", b"0")
        assert await self.taken(client, 1) == [b"0"]
        await self.resumed(there, session)

    async def test_the_position_of_a_broker_waits_for_its_sessions(self) -> None:
        here, there = await self.two()
        client, session = self.subscribed(here)
        here.publish("a", b"0")
        assert await self.taken(client, 1) == [b"0"]
        await self.settled(here, there)
        await self.pass_time(3)
        put = here.state.put

        def without_sessions(key: str, *change: Any) -> Deferred[int]:
            return Deferred() if key.startswith("s.") else put(key, *change)

        self.patch(here.state, "put", without_sessions)
        for number in range(1, 4):
            client.stream.lose()
            here.publish("a", b"%d" % number)
            await self.settled(here, there)
            await self.pass_time(1)
        here.crash()
        again = await self.resumed(there, session)
        found = await self.taken(again, 3)
        assert found[-3:] == [b"1", b"2", b"3"]

    async def test_a_broker_that_crashes_while_it_takes_a_session(self) -> None:
        here, there = await self.two()
        third = self.broker()
        client, session = self.subscribed(here)
        here.publish("a", b"0")
        assert await self.taken(client, 1) == [b"0"]
        await self.settled(here, there, third)
        await self.pass_time(3)
        (key,) = here.sessions._values.shared
        here.crash()
        third.publish("a", b"missed")
        await self.settled(there, third)
        await self.pass_time(3)
        # It has all messages, and gives none of them to the client.
        taken: list[object] = []
        there.sessions.take(key).addCallback(taken.append)
        await self.until(lambda: bool(taken))
        there.crash()
        again = await self.resumed(third, session)
        assert await self.taken(again, 1) in ([b"missed"], [b"0", b"missed"])

    async def test_a_broker_that_crashed_is_asked_only_once(self) -> None:
        here, there = await self.two()
        sessions = [self.subscribed(here)[1] for _ in range(3)]
        await self.pass_time(1)
        here.crash()
        clock, waited = there.house.clock, []
        for session in sessions:
            before = clock.seconds()
            await self.resumed(there, session)
            waited.append(clock.seconds() - before > 0.5)
        assert waited == [True, False, False]

    async def test_a_broker_that_crashes_soon_after_its_start(self) -> None:
        here = self.broker()
        await self.settled(here)
        there = self.broker()
        await self.settled(here, there)
        _, session = self.subscribed(there)
        await self.pass_time(0.2)
        there.crash()
        here.publish("a", b"0")
        again = await self.resumed(here, session)
        assert await self.taken(again, 1) == [b"0"]

    async def test_a_client_that_comes_to_two_brokers_after_a_crash(self) -> None:
        here, there = await self.two()
        third = self.broker()
        await self.settled(here, there, third)
        _, session = self.subscribed(here)
        await self.pass_time(3)
        here.crash()
        clients = there.house.connect("cafe"), third.house.connect("cafe")
        # The first one has the session while the second one still waits for the broker.
        for number in range(60):
            if number in (0, 10):
                clients[number // 10].send(cafe_wire.hs_sub(b"", cafe_wire.resume(b"bob", session)))
            third.publish("a", b"%d" % number)
            await self.pass_time(0.05)
        await self.pass_time(0.5)
        found = [cafe_wire.frames(client.take()) for client in clients]
        for ack, *_ in found:
            assert ack == (3, bytes([0]) + session.to_bytes(8, "little"))
        assert clients[0].closed
        given = [payload[9:] for _, *messages in found for _, payload in messages]
        assert given == [b"%d" % number for number in range(60)]

    async def test_a_session_that_changes_while_it_is_taken(self) -> None:
        here, there = await self.two()
        client, session = self.subscribed(here)
        await self.pass_time(1)
        client.stream.lose()
        await self.pass_time(1)
        here.publish("a", b"0")
        await self.settled(here, there)
        put, changes = there.state.put, [0]

        def late(key: str, *change: Any) -> Deferred[int]:
            if key.startswith("s.") and not changes[0]:
                changes[0] += 1
                self.bucket.write(key, self.bucket.entries[key].value)
            return put(key, *change)

        self.patch(there.state, "put", late)
        again = await self.resumed(there, session)
        assert changes == [1]
        assert await self.taken(again, 1) == [b"0"]

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
        await self.written(here)
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

    async def test_a_session_that_is_written_while_another_broker_asks_for_it(self) -> None:
        here, there = await self.two()
        _, session = self.subscribed(here)
        await self.pass_time(2)
        put = there.state.put

        def slow(key: str, *change: Any) -> Deferred[int]:
            if not key.startswith("s."):
                return put(key, *change)
            late = deferLater(there.house.clock, 0.2, lambda: None)
            return late.addCallback(lambda _: put(key, *change))

        self.patch(there.state, "put", slow)
        client = await self.resumed(there, session)
        there.publish("a", b"0")
        await self.settled(here, there)
        assert cafe_wire.payloads(client.take()) == [b"0"]
        before = here.house.clock.seconds()
        again = await self.resumed(here, session)
        waited = here.house.clock.seconds() - before
        assert client.closed
        there.publish("a", b"1")
        assert await self.taken(again, 1) == [b"1"]
        # There it was written once more, without a connection.
        assert waited < 0.7

    async def test_a_session_that_cannot_be_written_when_another_broker_asks_for_it(self) -> None:
        """The engine has no room for it then. Neither broker may end it."""
        here, there = await self.two()
        client, session = self.subscribed(here)
        await self.pass_time(1)
        (key,) = [key for key in self.bucket.entries if key.startswith("s.")]
        self.bucket.refuses = True
        request = request_key(here.sessions.run, key.removeprefix("s."))
        self.bucket.write(request, there.sessions.run.encode())
        await self.until(lambda: client.closed)
        here.publish("a", b"0")
        await self.pass_time(1)
        self.bucket.refuses = False
        await self.pass_time(3)
        here.publish("a", b"1")
        await self.pass_time(3)
        again = await self.resumed(there, session)
        assert await self.taken(again, 2) == [b"0", b"1"]
        assert len(here.broker.sessions) == 0

    async def test_a_session_that_ends_while_another_broker_asks_for_it(self) -> None:
        here, there = await self.two()
        client, session = self.subscribed(here)
        other, lasting = self.subscribed(here)
        await self.pass_time(2)
        again = there.house.connect("cafe")
        again.send(cafe_wire.hs_sub(b"", cafe_wire.resume(b"bob", session)))
        client.send(cafe_wire.DISCONNECT)
        before = there.house.clock.seconds()
        await self.until(lambda: bool(again.stream.received))
        assert again.take() == cafe_wire.ack(0, status=1)
        # The end is an answer, too.
        waited = there.house.clock.seconds() - before
        here.publish("a", b"0")
        await self.settled(here, there)
        assert cafe_wire.payloads(other.take()) == [b"0"]
        again = await self.resumed(there, lasting)
        here.publish("a", b"1")
        assert await self.taken(again, 1) == [b"1"]
        assert waited < 0.5

    async def test_a_broker_that_crashed_long_ago(self) -> None:
        here, there = await self.two()
        _, session = self.subscribed(here)
        await self.pass_time(2)
        here.crash()
        assert self.bucket.seconds[f"p.{here.sessions.run}"] > here.broker.sessions.window
        # As at the end of the resume window.
        self.bucket.remove(f"p.{here.sessions.run}")
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
