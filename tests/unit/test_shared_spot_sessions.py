"""Subscriptions of spot's clients with an identity that continue at another broker (spot §3.5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import deferLater

from pubsub.backplane.sessions import session_values
from pubsub.backplane.state.shared_state import StateEntry
from pubsub.broker.clients.session_sharing import SessionContent
from pubsub.errors import BackplaneAway
from pubsub.protocols.spot.identity_sessions import kept_of
from tests.unit.brokers import publish, ready, subscribe, unsubscribe
from tests.unit.session_case import SessionCase, SessionNode
from tests.unit.streams import Client


class SpotCase(SessionCase):
    """Brokers that share their sessions, and dealers."""

    async def join(
        self, node: SessionNode, identity: bytes, *requests: bytes, kind: bytes = b"DEALER"
    ) -> Client:
        """Return a client that is connected, and has made its requests."""
        client = node.house.connect("spot")
        client.send(ready(kind, identity) + b"".join(requests))
        await self.until(lambda: len(client.stream.received) > 66)
        # Greeting and READY.
        del client.stream.received[: 64 + 2 + client.stream.received[65]]
        await self.pass_time(1.5)
        return client

    def lose(self, client: Client) -> None:
        client.stream.lose()

    def slow_down(self, node: SessionNode) -> None:
        """Let the engine of ``node`` answer after half a second."""
        get = node.state.get

        def slow(key: str) -> Deferred[StateEntry | None]:
            # The Deferred has been called, and waits for another one, as that of a coroutine.
            begun: Deferred[None] = succeed(None)
            return begun.addCallback(lambda _: deferLater(node.house.clock, 0.5, get, key))

        self.patch(node.state, "get", slow)

    async def got(self, client: Client, *messages: bytes) -> None:
        """Check that ``client`` gets exactly these messages, in any order."""
        wanted = sum(map(len, messages))
        await self.until(lambda: len(client.stream.received) >= wanted)
        await self.pass_time(0.5)
        data = client.take()
        assert len(data) == wanted
        assert all(data.count(message) == 1 for message in messages), data


class MoveTests(SpotCase):
    """Clients that connect to another broker"""

    async def test_a_lost_connection(self) -> None:
        here, there = await self.two()
        client = await self.join(here, b"bob", subscribe(b"t"), subscribe(b"a*"))
        here.publish("t", b"0")
        there.publish("a1", b"1")
        await self.got(client, publish(b"t", b"0"), publish(b"a1", b"1"))
        self.lose(client)
        here.publish("t", b"2")
        there.publish("a1", b"3")
        # A topic that is new, and one that nobody has subscribed to.
        here.publish("a2", b"4")
        here.publish("b", b"other")
        await self.settled(here, there)
        again = await self.join(there, b"bob")
        await self.got(again, publish(b"t", b"2"), publish(b"a1", b"3"), publish(b"a2", b"4"))
        here.publish("t", b"5")
        there.publish("a3", b"6")
        await self.got(again, publish(b"t", b"5"), publish(b"a3", b"6"))
        assert len(here.broker.sessions) == 0
        assert len(there.broker.sessions) == 1

    async def test_there_and_back(self) -> None:
        here, there = await self.two()
        client = await self.join(here, b"bob", subscribe(b"t"))
        for number, node in enumerate((there, here, there)):
            self.lose(client)
            here.publish("t", b"%d" % number)
            await self.settled(here, there)
            client = await self.join(node, b"bob")
            await self.got(client, publish(b"t", b"%d" % number))

    async def test_subscriptions_that_have_changed(self) -> None:
        here, there = await self.two()
        client = await self.join(here, b"bob", subscribe(b"t"), subscribe(b"u"), subscribe(b"a*"))
        client.send(unsubscribe(b"t") + unsubscribe(b"a*") + subscribe(b"v"))
        await self.pass_time(1)
        self.lose(client)
        for topic in ("t", "u", "v", "a1"):
            here.publish(topic, topic.encode())
        await self.settled(here, there)
        again = await self.join(there, b"bob")
        await self.got(again, publish(b"u", b"u"), publish(b"v", b"v"))

    async def test_no_subscriptions_are_left(self) -> None:
        here, there = await self.two()
        client = await self.join(here, b"bob", subscribe(b"t"))
        client.send(unsubscribe(b"t"))
        await self.pass_time(1)
        self.lose(client)
        here.publish("t", b"0")
        await self.settled(here, there)
        again = await self.join(there, b"bob")
        assert again.take() == b""
        # It begins again here.
        again.send(subscribe(b"t"))
        await self.pass_time(1)
        here.publish("t", b"1")
        await self.got(again, publish(b"t", b"1"))
        # And continues at the first broker, which had ended the session before.
        self.lose(again)
        there.publish("t", b"2")
        await self.settled(here, there)
        await self.got(await self.join(here, b"bob"), publish(b"t", b"2"))

    async def test_a_client_with_the_same_identity_ends_no_connection(self) -> None:
        here, there = await self.two()
        client = await self.join(here, b"bob", subscribe(b"t"))
        other = await self.join(there, b"bob")
        here.publish("t", b"0")
        await self.got(client, publish(b"t", b"0"))
        assert other.take() == b""
        # The second has a session of its own, which only its broker knows.
        other.send(subscribe(b"u"))
        await self.pass_time(1)
        self.lose(other)
        here.publish("u", b"1")
        await self.settled(here, there)
        await self.got(await self.join(there, b"bob"), publish(b"u", b"1"))
        assert not client.closed

    async def test_two_of_one_identity_at_one_broker(self) -> None:
        here, there = await self.two()
        first = await self.join(here, b"bob", subscribe(b"t"))
        second = await self.join(here, b"bob", subscribe(b"u"))
        self.lose(first)
        self.lose(second)
        here.publish("t", b"0")
        here.publish("u", b"1")
        await self.settled(here, there)
        await self.got(await self.join(there, b"bob"), publish(b"t", b"0"))
        # The other one is still here.
        await self.got(await self.join(here, b"bob"), publish(b"u", b"1"))

    async def test_another_identity_and_another_kind_of_socket(self) -> None:
        here, there = await self.two()
        self.lose(await self.join(here, b"bob", subscribe(b"t")))
        here.publish("t", b"0")
        await self.settled(here, there)
        for kind, identity in ((b"DEALER", b"eve"), (b"DEALER", b""), (b"SUB", b"bob")):
            assert (await self.join(there, identity, kind=kind)).take() == b""
        await self.got(await self.join(there, b"bob"), publish(b"t", b"0"))

    async def test_a_client_that_leaves_before_its_session_is_here(self) -> None:
        here, there = await self.two()
        self.lose(await self.join(here, b"bob", subscribe(b"t")))
        here.publish("t", b"0")
        await self.settled(here, there)
        hasty = there.house.connect("spot")
        hasty.stream.feed(ready(b"DEALER", b"bob"))
        self.lose(hasty)
        await self.pass_time(3)
        assert len(there.broker.sessions) == 1
        await self.got(await self.join(here, b"bob"), publish(b"t", b"0"))

    async def test_requests_wait_for_the_session(self) -> None:
        here, there = await self.two()
        self.lose(await self.join(here, b"bob", subscribe(b"t")))
        here.publish("t", b"0")
        await self.settled(here, there)
        self.slow_down(there)
        again = await self.join(there, b"bob", unsubscribe(b"t"), subscribe(b"u"))
        here.publish("t", b"1")
        there.publish("u", b"2")
        await self.pass_time(1)
        data = again.take()
        assert data.endswith(publish(b"u", b"2"))
        assert publish(b"t", b"1") not in data
        # The change is shared as well.
        self.lose(again)
        there.publish("u", b"3")
        await self.settled(here, there)
        await self.got(await self.join(here, b"bob"), publish(b"u", b"3"))

    async def test_a_client_that_leaves_and_returns_before_its_session_is_here(self) -> None:
        here, there = await self.two()
        self.lose(await self.join(here, b"bob", subscribe(b"t")))
        here.publish("t", b"0")
        await self.settled(here, there)
        self.slow_down(there)
        hasty = there.house.connect("spot")
        hasty.stream.feed(ready(b"DEALER", b"bob"))
        self.lose(hasty)
        await self.got(await self.join(there, b"bob"), publish(b"t", b"0"))
        assert len(there.broker.sessions) == 1
        assert len(here.broker.sessions) == 0

    async def test_takes_for_clients_that_have_left_are_not_made(self) -> None:
        _, there = await self.two()
        self.slow_down(there)
        asked: list[str] = []
        take = there.sessions._taking.take

        def note(key: str, *given: Any) -> Any:
            asked.append(key)
            return take(key, *given)

        self.patch(there.sessions._taking, "take", note)
        for number in range(1000):
            hasty = there.house.connect("spot")
            hasty.stream.feed(ready(b"DEALER", b"%d" % number))
            self.lose(hasty)
        await self.pass_time(3)
        assert len(asked) == 256
        assert len(there.broker.sessions) == 0

    async def test_thousands_of_subscriptions_are_restored_as_one_change(self) -> None:
        here, there = await self.two()
        wanted = [b"p%d*" % number for number in range(1500)]
        client = await self.join(here, b"bob", *map(subscribe, wanted), subscribe(b"t"))
        shared: list[str] = []
        share = there.sessions.share

        def note(key: str, client: Any) -> None:
            shared.append(key)
            share(key, client)

        self.patch(there.sessions, "share", note)
        self.lose(client)
        here.publish("p77-x", b"0")
        await self.settled(here, there)
        await self.got(await self.join(there, b"bob"), publish(b"p77-x", b"0"))
        # Not for each subscription.
        assert len(shared) < 5

    async def test_a_large_session_that_was_just_written(self) -> None:
        here, there = await self.two()
        topics = [b"topic-%d" % number for number in range(1000)]
        client = await self.join(here, b"bob", *map(subscribe, topics))
        client.send(subscribe(b"t"))
        await self.pass_time(0.1)
        other = await self.join(there, b"bob")
        here.publish("t", b"0")
        await self.got(client, publish(b"t", b"0"))
        self.lose(client)
        self.lose(other)
        here.publish("t", b"1")
        await self.settled(here, there)
        await self.got(await self.join(there, b"bob"), publish(b"t", b"1"))

    async def test_a_session_that_is_too_large(self) -> None:
        self.patch(session_values, "MAX_VALUE", 2000)
        await self.check_too_large()

    async def test_a_session_that_is_too_large_for_the_engine(self) -> None:
        self.bucket.max_bytes = 2000
        await self.check_too_large()

    async def check_too_large(self) -> None:
        here, there = await self.two()
        topics = [b"topic-%d" % number for number in range(200)]
        client = await self.join(here, b"bob", *map(subscribe, topics))
        for topic in (b"t", b"u"):
            client.send(subscribe(topic))
            await self.pass_time(2)
        # That is the number of sessions, however often they change.
        assert here.sessions.figures()["sessions_too_large"] == 1
        other = await self.join(there, b"bob")
        there.publish("t", b"0")
        await self.settled(here, there)
        await self.got(client, publish(b"t", b"0"))
        for topic in topics:
            client.send(unsubscribe(topic))
        await self.pass_time(2)
        assert here.sessions.figures()["sessions_too_large"] == 0
        self.lose(client)
        self.lose(other)
        there.publish("u", b"1")
        await self.settled(here, there)
        await self.got(await self.join(there, b"bob"), publish(b"u", b"1"))

    def late_answers(self, node: SessionNode) -> Callable[[bool], None]:
        """Hold answers of the engine back, until a call: then they are given, or have failed."""
        put, late = node.state.put, list[tuple[Deferred[int], Deferred[int]]]()

        def slow(*change: Any) -> Deferred[int]:
            answer: Deferred[int] = Deferred()
            late.append((put(*change), answer))
            return answer

        def answer(arrives: bool) -> None:
            self.patch(node.state, "put", put)
            for done, one in late:
                if arrives:
                    done.chainDeferred(one)
                else:
                    one.errback(BackplaneAway("the engine does not answer"))

        self.patch(node.state, "put", slow)
        return answer

    async def test_changes_while_a_session_is_written(self) -> None:
        for arrives in (True, False):
            here, there = await self.two()
            client = await self.join(here, b"bob", subscribe(b"t"))
            await self.pass_time(1)
            answer = self.late_answers(here)
            client.send(subscribe(b"u"))
            await self.pass_time(0.2)
            client.send(subscribe(b"v"))
            await self.pass_time(0.6)
            answer(arrives)
            await self.pass_time(3)
            assert here.sessions.figures()["sessions_waiting"] == 0
            early = [b"e%d" % number for number in range(20)]
            for one in early:
                here.publish("v", one)
            await self.got(client, *[publish(b"v", one) for one in early])
            await self.settled(here, there)
            await self.pass_time(3)
            here.crash()
            there.publish("v", b"missed")
            # The position of the broker has followed.
            await self.got(await self.join(there, b"bob"), publish(b"v", b"missed"))
            there.crash()
            self.nodes.clear()

    async def test_a_session_that_ends_and_begins_again(self) -> None:
        here, there = await self.two()
        client = await self.join(here, b"bob", subscribe(b"t"))
        await self.pass_time(1)
        answer = self.late_answers(here)
        client.send(unsubscribe(b"t"))
        client.send(subscribe(b"u"))
        await self.pass_time(0.5)
        answer(True)
        await self.pass_time(1)
        self.lose(client)
        here.publish("u", b"0")
        await self.settled(here, there)
        await self.got(await self.join(there, b"bob"), publish(b"u", b"0"))

    async def test_a_session_is_shared_once_its_key_is_free(self) -> None:
        here, there = await self.two()
        first = await self.join(here, b"bob", subscribe(b"t"))
        second = await self.join(there, b"bob", subscribe(b"u"))
        first.send(unsubscribe(b"t"))
        for _ in range(31):
            second.protocol.sweep(there.house.clock.seconds())
        await self.pass_time(1)
        self.lose(second)
        there.publish("u", b"0")
        await self.settled(here, there)
        self.lose(first)
        await self.got(await self.join(here, b"bob"), publish(b"u", b"0"))


class FailureTests(SpotCase):
    """Brokers that crash or stop, and an engine that is away"""

    async def test_a_broker_that_crashes(self) -> None:
        here, there = await self.two()
        client = await self.join(here, b"bob", subscribe(b"t"), subscribe(b"a*"))
        early = [b"e%d" % number for number in range(20)]
        for one in early:
            here.publish("t", one)
        await self.got(client, *[publish(b"t", one) for one in early])
        await self.settled(here, there)
        await self.pass_time(3)
        here.crash()
        there.publish("t", b"missed")
        there.publish("a1", b"new")
        again = await self.join(there, b"bob")
        await self.got(again, publish(b"t", b"missed"), publish(b"a1", b"new"))

    async def test_a_broker_that_crashes_after_a_move(self) -> None:
        here, there = await self.two()
        self.lose(await self.join(here, b"bob", subscribe(b"t")))
        early = [b"e%d" % number for number in range(20)]
        for one in early:
            here.publish("t", one)
        await self.settled(here, there)
        client = await self.join(there, b"bob")
        await self.got(client, *[publish(b"t", one) for one in early])
        await self.pass_time(3)
        there.crash()
        here.publish("t", b"missed")
        # What it got after the move does not come again.
        await self.got(await self.join(here, b"bob"), publish(b"t", b"missed"))

    async def test_a_broker_that_stops(self) -> None:
        here, there = await self.two()
        client = await self.join(here, b"bob", subscribe(b"t"))
        here.publish("t", b"0")
        await self.got(client, publish(b"t", b"0"))
        await self.settled(here, there)
        stopped = here.stop()
        while not stopped.called:
            await self.pass_time(0.1)
        there.publish("t", b"1")
        await self.got(await self.join(there, b"bob"), publish(b"t", b"1"))

    async def test_the_engine_is_away(self) -> None:
        here, there = await self.two()
        self.lose(await self.join(here, b"bob", subscribe(b"t")))
        here.state.leave()
        there.state.leave()
        assert (await self.join(there, b"bob")).take() == b""
        here.publish("t", b"0")
        await self.got(await self.join(here, b"bob"), publish(b"t", b"0"))

    async def test_a_broker_that_has_no_room(self) -> None:
        here, there = await self.two()
        self.lose(await self.join(here, b"bob", subscribe(b"t")))
        here.publish("t", b"0")
        await self.settled(here, there)
        there.broker.sessions.limit = 0
        assert (await self.join(there, b"bob")).take() == b""
        # The session has stayed where it was.
        await self.got(await self.join(here, b"bob"), publish(b"t", b"0"))

    async def test_an_answer_of_the_engine_is_lost(self) -> None:
        here, there = await self.two()
        self.lose(await self.join(here, b"bob", subscribe(b"t")))
        here.publish("t", b"0")
        await self.settled(here, there)
        put = there.state.put

        def lost(*given: Any) -> Deferred[int]:
            put(*given).addErrback(lambda _: None)
            return fail(BackplaneAway("no answer"))

        with patch.object(there.state, "put", lost):
            hasty = await self.join(there, b"bob")
            assert hasty.take() == b""
        self.lose(hasty)
        await self.got(await self.join(there, b"bob"), publish(b"t", b"0"))

    async def test_a_value_that_is_malformed(self) -> None:
        here, there = await self.two()
        self.lose(await self.join(here, b"bob", subscribe(b"t")))
        await self.pass_time(1)
        for entry in list(self.bucket.entries.values()):
            if entry.key.startswith("s."):
                value = entry.value.replace(b'"names"', b'"nomes"')
                assert value != entry.value
                self.bucket.entries[entry.key] = entry._replace(value=value)
        again = await self.join(there, b"bob")
        assert again.take() == b""
        again.send(subscribe(b"t"))
        await self.pass_time(1)
        here.publish("t", b"0")
        await self.got(again, publish(b"t", b"0"))

    def test_malformed_notes(self) -> None:
        deep = "[" * 100_000
        for names, prefixes in (
            ("", "[]"), ("[]", "[1]"), ("1", "[]"), ("[]", '["\u0100"]'), (deep, "[]")
        ):  # fmt: skip
            content = SessionContent((), {"": 0}, {"names": names, "prefixes": prefixes})
            assert kept_of(content, NotImplemented) is None
        assert (
            kept_of(SessionContent((), {}, {"names": "[]", "prefixes": "[]"}), NotImplemented)
            is None
        )
