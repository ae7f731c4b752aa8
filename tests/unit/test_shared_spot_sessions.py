"""Subscriptions of spot's clients with an identity that continue at another broker (spot §3.5)."""

from __future__ import annotations

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import deferLater

from pubsub.broker.session_sharing import SessionContent
from pubsub.protocols.spot.client_sessions import kept_of
from tests.unit.brokers import publish, ready, subscribe, unsubscribe
from tests.unit.streams import Client
from tests.unit.test_shared_sessions import SessionCase, SessionNode


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
        sharing = there.broker.sessions.sharing
        assert sharing is not None
        take = sharing.take

        def slow(key: str, displace: bool = True) -> Deferred[SessionContent | None]:
            # As over a network; the Deferred has been called, and waits for another one.
            begun: Deferred[None] = succeed(None)
            return begun.addCallback(
                lambda _: deferLater(there.house.clock, 0.5, take, key, displace)
            )

        self.patch(sharing, "take", slow)
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
        for names, prefixes in (("", "[]"), ("[]", "[1]"), ("1", "[]"), ("[]", '["\u0100"]')):
            content = SessionContent((), {"": 0}, {"names": names, "prefixes": prefixes})
            assert kept_of(content, NotImplemented) is None
        assert (
            kept_of(SessionContent((), {}, {"names": "[]", "prefixes": "[]"}), NotImplemented)
            is None
        )
