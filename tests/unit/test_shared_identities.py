"""Identities of nsd that go on at another broker than the one that was left."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any, ClassVar

from pubsub.backplane import log_numbers
from pubsub.backplane.identity_entry import identity_key
from pubsub.backplane.shared_identities import SharedIdentities
from tests.unit import nsd_lines as wire
from tests.unit.fakes import scratch
from tests.unit.nsd_lines import NOTHING, SUCCESS
from tests.unit.streams import Client
from tests.unit.test_shared_sessions import SessionCase, SessionNode

BUSY = wire.error("BROKER BUSY")
Seen = list[tuple[int, str]]


class IdentityNode(SessionNode):
    """A broker with nsd that shares its identities."""

    listen: ClassVar[Mapping[str, Mapping[str, object]]] = {"nsd": {}, "spot": {}}

    def prepare(self) -> None:
        super().prepare()
        self.identities = SharedIdentities(
            self.broker, self.store, self.state, self.history.positions, self.house.clock
        )
        self.sessions.also.append(self.identities.leave)
        self.identities.setServiceParent(self.broker)  # type: ignore[no-untyped-call]

    def crash(self) -> None:
        self.identities.is_there = False
        super().crash()


class IdentityCase(SessionCase):
    """Brokers that share identities."""

    node_class = IdentityNode
    here: IdentityNode
    there: IdentityNode

    async def begin(self, *channels: str) -> None:
        """Start two brokers with some channels."""
        here, there = await self.two()
        assert isinstance(here, IdentityNode)
        assert isinstance(there, IdentityNode)
        self.here, self.there = here, there
        for node in (here, there):
            for name in channels:
                node.broker.topics.create(name)

    async def stopped(self, node: SessionNode) -> None:
        """Stop a broker in order."""
        done: list[None] = []
        node.stop().addCallback(done.append)
        await self.until(lambda: bool(done))

    async def answer(self, client: Client, line: bytes) -> bytes:
        client.send(line)
        await self.until(lambda: b"\n" in client.stream.received)
        return client.take()

    async def ask(self, node: SessionNode, line: bytes) -> bytes:
        client = node.house.connect("nsd")
        answer = await self.answer(client, line)
        client.stream.lose(clean=True)
        return answer

    async def done(self, node: SessionNode, line: bytes) -> None:
        assert await self.ask(node, line) == SUCCESS

    async def get(self, node: SessionNode, identity: str, after: int = 0) -> Seen:
        """Return the numbers and bodies of a list."""
        found: dict[str, Any] = json.loads(await self.ask(node, wire.get(identity, after)))
        seen = [(one["when"], one["body"]) for one in found["messages"]]
        numbers = [when for when, _ in seen]
        assert numbers == sorted(set(numbers))
        assert not numbers or numbers[0] > after
        return seen

    async def polled(self, node: SessionNode, identity: str, after: int, count: int) -> Seen:
        """Poll until there are so many messages."""
        found: Seen = []
        while len(found) < count:
            await self.pass_time(0.05)
            found += await self.get(node, identity, found[-1][0] if found else after)
        return found


def bodies(seen: Seen) -> list[str]:
    return [body for _, body in seen]


class MoveTests(IdentityCase):
    """A client leaves a broker, and goes on at another one"""

    async def test_both_brokers_run(self) -> None:
        await self.begin("a")
        await self.done(self.here, wire.subscribe("ada", "a"))
        self.here.publish("a", b"0", b"1")
        self.there.publish("a", b"2")
        await self.settled(self.here, self.there)
        seen = await self.get(self.here, "ada")
        assert sorted(bodies(seen)) == ["0", "1", "2"]
        self.here.publish("a", b"3")
        await self.settled(self.here, self.there)
        moved = await self.get(self.there, "ada", seen[-1][0])
        assert bodies(moved) == ["3"]
        assert await self.get(self.there, "ada", moved[-1][0]) == []
        assert self.here.identities.figures()["identities_lost"] == 1
        assert self.there.identities.figures()["identities_taken"] == 1

    async def test_an_old_number_is_asked_for_again_and_again(self) -> None:
        await self.begin("a")
        await self.done(self.here, wire.subscribe("ada", "a"))
        self.here.publish("a", b"0")
        ((when, _),) = await self.polled(self.here, "ada", 0, 1)
        for _ in range(3):
            assert await self.get(self.there, "ada", when) == []
        self.here.publish("a", b"1")
        assert bodies(await self.polled(self.there, "ada", when, 1)) == ["1"]
        assert bodies(await self.get(self.there, "ada", when)) == ["1"]

    async def test_there_and_back(self) -> None:
        await self.begin("a")
        await self.done(self.here, wire.subscribe("ada", "a"))
        after = 0
        for number in range(12):
            self.here.publish("a", b"%d" % number)
            await self.settled(self.here, self.there)
            node = (self.there, self.here)[number % 2]
            ((after, body),) = await self.polled(node, "ada", after, 1)
            assert body == str(number)

    async def test_everything_is_read_from_the_beginning(self) -> None:
        await self.begin("a")
        self.here.publish("a", b"0")
        await self.done(self.here, wire.subscribe("ada", "a"))
        self.there.publish("a", b"1")
        await self.settled(self.here, self.there)
        assert len(await self.get(self.here, "ada")) == 2
        assert sorted(bodies(await self.get(self.there, "ada"))) == ["0", "1"]
        assert sorted(bodies(await self.get(self.there, "ada", -5))) == ["0", "1"]

    async def test_a_broker_is_killed(self) -> None:
        await self.begin("a")
        await self.done(self.here, wire.subscribe("ada", "a"))
        for number in range(40):
            (self.here, self.there)[number % 2].publish("a", b"%d" % number)
            await self.pass_time(0.1)
        await self.settled(self.here, self.there)
        seen = await self.polled(self.here, "ada", 0, 40)
        self.here.crash()
        self.there.publish("a", b"last")
        moved = await self.polled(self.there, "ada", seen[-1][0], 1)
        assert bodies(moved)[-1] == "last"
        assert len(moved) <= 10
        # The broker is asked only once.
        assert bodies(await self.get(self.there, "ada", moved[-1][0])) == []

    async def test_an_old_number_of_a_broker_that_was_killed(self) -> None:
        await self.begin("a")
        await self.done(self.here, wire.subscribe("ada", "a"))
        for number in range(30):
            self.here.publish("a", b"%d" % number)
            await self.pass_time(0.6)
        seen = await self.polled(self.here, "ada", 0, 30)
        await self.settled(self.here, self.there)
        await self.pass_time(1)
        self.here.crash()
        for place in (29, 20, 10, 0):
            expected = [str(number) for number in range(place + 1, 30)]
            found = bodies(await self.get(self.there, "ada", seen[place][0]))
            assert found == expected

    async def test_a_broker_stops(self) -> None:
        await self.begin("a")
        await self.done(self.here, wire.subscribe("ada", "a"))
        self.here.publish("a", b"0")
        self.there.publish("a", b"1")
        await self.settled(self.here, self.there)
        seen = await self.polled(self.here, "ada", 0, 2)
        await self.stopped(self.here)
        self.there.publish("a", b"2")
        before = self.there.house.clock.seconds()
        assert bodies(await self.polled(self.there, "ada", seen[-1][0], 1)) == ["2"]
        # It was not waited for.
        assert self.there.house.clock.seconds() - before < 0.5

    async def test_a_broker_that_is_started_again(self) -> None:
        await self.begin("a")
        await self.done(self.here, wire.subscribe("ada", "a"))
        await self.done(self.here, wire.subscribe("ben", "a"))
        self.here.publish("a", b"0")
        ((when, _),) = await self.polled(self.here, "ada", 0, 1)
        await self.stopped(self.here)
        moved = await self.get(self.there, "ada")
        again = self.broker(self.here.path)
        await self.settled(self.there, again)
        self.there.publish("a", b"1")
        await self.settled(self.there, again)
        # One that was not needed elsewhere continues with its numbers.
        assert await self.polled(again, "ben", when, 1) == [(when + 1, "1")]
        assert bodies(await self.polled(again, "ada", moved[-1][0], 1)) == ["1"]

    async def test_a_subscribe_that_asks_for_the_position(self) -> None:
        await self.begin("a")

        async def position(node: SessionNode, **fields: object) -> dict[str, Any]:
            line = {"_class": "SubscribeRequest", "identity": "ada", "channel": "a", **fields}
            found = json.loads(await self.ask(node, json.dumps(line).encode() + b"\n"))
            assert isinstance(found, dict)
            return found

        first = await position(self.here, position=True)
        assert first["continues"] is False
        self.here.publish("a", b"0")
        await self.settled(self.here, self.there)
        ((after, _),) = await self.polled(self.here, "ada", first["when"], 1)
        moved = await position(self.there, position=True, epoch=first["epoch"], after=after)
        assert moved["continues"] is True
        assert moved["when"] == after
        self.here.publish("a", b"1")
        ((after, body),) = await self.polled(self.there, "ada", after, 1)
        assert body == "1"
        again = await position(self.there, position=True, epoch=moved["epoch"], after=after)
        assert (again["when"], again["continues"]) == (after, True)
        back = await position(self.here, position=True)
        assert back["when"] > after
        assert back["continues"] is False


class ModelTests(IdentityCase):
    """A client moves at random between brokers that crash, and loses nothing"""

    async def moves(self, seed: int, crashes: bool) -> None:
        await self.begin("a", "b")
        self.chance = random.Random(seed)
        self.places = [self.here, self.there]
        await self.done(self.here, wire.subscribe("ada", "a"))
        await self.done(self.there, wire.subscribe("ada", "b"))
        self.sent: list[str] = []
        self.got: list[str] = []
        self.after = 0
        for step in range(60):
            await self.step(f"{seed}-{step}", crashes)
        for node in self.places:
            if node.state in self.bucket.apart:
                node.state.come_back()
        await self.settled(*self.places)
        # A broker that was away first learns that it may give messages.
        await self.pass_time(2)
        while set(self.got) != set(self.sent):
            count = len(self.got)
            await self.poll(self.places[0], lost=0)
            assert len(self.got) > count, sorted(set(self.sent) - set(self.got))
        if not crashes:
            assert len(self.got) == len(set(self.got))

    async def poll(self, node: IdentityNode, lost: float = 0.2) -> None:
        seen = await self.get(node, "ada", self.after)
        # Some responses are lost.
        if seen and self.chance.random() >= lost:
            self.got += bodies(seen)
            self.after = seen[-1][0]

    async def step(self, body: str, crashes: bool) -> None:
        chance, places = self.chance, self.places
        chance.choice(places).publish(chance.choice("ab"), body.encode())
        self.sent.append(body)
        if chance.random() < 0.2:
            await self.settled(*places)
        if chance.random() < 0.2:
            await self.pass_time(0.6)
        if chance.random() < 0.5:
            await self.poll(chance.choice(places))
        if crashes and chance.random() < 0.1:
            state = chance.choice(places).state
            if state in self.bucket.apart:
                state.come_back()
            else:
                state.leave()
        if crashes and chance.random() < 0.05:
            node = chance.choice(places)
            await self.written(node)
            node.crash()
            places.remove(node)
            again = self.broker(node.crashed(scratch(self) / "again"))
            assert isinstance(again, IdentityNode)
            places.append(again)

    async def each(self, seeds: range, crashes: bool) -> None:
        for seed in seeds:
            await self.moves(seed, crashes)
            for node in self.nodes:
                if isinstance(node, IdentityNode) and node in node.open_nodes:
                    await self.stopped(node)
            self.setUp()

    async def test_without_crashes(self) -> None:
        await self.each(range(3), crashes=False)

    async def test_with_crashes(self) -> None:
        await self.each(range(104, 107), crashes=True)


class AgreementTests(IdentityCase):
    """One broker at a time has an identity"""

    async def test_subscriptions_at_two_brokers_at_once(self) -> None:
        await self.begin("a", "b")
        clients = [node.house.connect("nsd") for node in (self.here, self.there)]
        for client, channel in zip(clients, ("a", "b"), strict=True):
            client.send(wire.subscribe("ada", channel))
        for client in clients:
            await self.until(lambda client=client: b"\n" in client.stream.received)  # type: ignore[misc]
            assert client.take() == SUCCESS
        self.here.publish("a", b"0")
        self.there.publish("b", b"1")
        await self.settled(self.here, self.there)
        for node in (self.here, self.there, self.here):
            assert sorted(bodies(await self.get(node, "ada"))) == ["0", "1"]

    async def test_a_broker_that_is_apart_gives_no_numbers_of_the_other(self) -> None:
        self.patch(log_numbers, "AHEAD", 20)
        await self.begin("a")
        await self.done(self.here, wire.subscribe("ada", "a"))
        self.here.publish("a", b"0")
        ((when, _),) = await self.polled(self.here, "ada", 0, 1)
        await self.pass_time(1)
        self.here.state.leave()
        for number in range(60):
            self.here.publish("a", b"%d" % (number + 1))
            self.there.publish("a", b"t%d" % number)
        await self.settled(self.here, self.there)
        # The broker that is apart serves the identity up to its limit.
        apart = await self.get(self.here, "ada", when)
        assert 0 < len(apart) < 60
        assert await self.get(self.here, "ada", apart[-1][0]) == []
        assert await self.ask(self.here, wire.subscribe("ada", "b")) == wire.error(
            "NO SUCH CHANNEL: b"
        )
        assert await self.ask(self.here, wire.unsubscribe("ada", "a")) == BUSY
        moved = await self.get(self.there, "ada", apart[-1][0])
        assert len({*bodies(apart), *bodies(moved)}) == 120
        self.here.state.come_back()
        await self.pass_time(2)
        self.there.publish("a", b"last")
        await self.settled(self.here, self.there)
        assert bodies(await self.polled(self.here, "ada", moved[-1][0], 1)) == ["last"]

    async def test_it_is_known_where_an_identity_was_opened(self) -> None:
        await self.begin()
        await self.done(self.here, wire.open_("ada"))
        await self.settled(self.here, self.there)
        await self.done(self.there, wire.publish("ada", "0"))
        await self.done(self.there, wire.open_("ada"))
        assert self.there.identities.figures()["identities"] == 0
        await self.settled(self.here, self.there)
        assert bodies(await self.get(self.here, "ada")) == ["0"]
        assert await self.ask(self.there, wire.publish("ben", "0")) == wire.error(
            "NO SUCH CHANNEL: ben"
        )
        assert await self.ask(self.there, wire.get("ben")) == NOTHING

    async def test_a_value_of_another_version(self) -> None:
        await self.begin("a")
        self.bucket.write(identity_key("ada"), b'{"v":2}')
        assert await self.ask(self.here, wire.subscribe("ada", "a")) == BUSY
        assert await self.ask(self.here, wire.get("ada")) == NOTHING
        assert await self.ask(self.here, wire.publish("ada", "0")) == BUSY
        await self.done(self.here, wire.subscribe("ben", "a"))


class EngineTests(IdentityCase):
    """The engine is away"""

    async def test_messages_are_published_and_read_and_subscriptions_stay(self) -> None:
        await self.begin("a", "b")
        await self.done(self.here, wire.subscribe("ada", "a"))
        self.here.state.leave()
        self.here.publish("a", b"0")
        ((when, _),) = await self.polled(self.here, "ada", 0, 1)
        assert await self.ask(self.here, wire.subscribe("ada", "b")) == BUSY
        assert await self.ask(self.here, wire.subscribe("new", "b")) == BUSY
        await self.done(self.here, wire.open_("ben"))
        await self.done(self.here, wire.publish("ben", "1"))
        assert await self.ask(self.here, wire.get("ben")) == NOTHING
        self.here.state.come_back()
        await self.pass_time(1)
        assert bodies(await self.get(self.here, "ben")) == ["1"]
        await self.settled(self.here, self.there)
        assert bodies(await self.get(self.there, "ben")) == ["1"]
        assert await self.get(self.there, "ada", when) == []

    async def test_a_change_that_is_lost_is_refused(self) -> None:
        await self.begin("a", "b")
        await self.done(self.here, wire.subscribe("ada", "a"))
        self.bucket.apart.add(self.here.state)
        assert await self.ask(self.here, wire.subscribe("ada", "b")) == BUSY
        self.bucket.apart.discard(self.here.state)
        await self.pass_time(2)
        assert self.here.identities.figures()["identities_waiting"] == 0
        await self.done(self.here, wire.subscribe("ada", "b"))


class EndTests(IdentityCase):
    """Identities that end"""

    async def test_numbers_grow_after_the_end(self) -> None:
        await self.begin("a")
        await self.done(self.here, wire.subscribe("ada", "a"))
        for number in range(10):
            self.here.publish("a", b"%d" % number)
        await self.settled(self.here, self.there)
        seen = await self.polled(self.here, "ada", 0, 10)
        work = self.here.broker.expiry.delete_identity("ada")
        assert work is not None
        await self.here.broker.slices.finish(work)
        await self.pass_time(0.2)
        assert await self.get(self.there, "ada") == []
        await self.done(self.there, wire.subscribe("ada", "a"))
        self.there.publish("a", b"last")
        found = bodies(await self.polled(self.there, "ada", seen[-1][0], 1))
        assert found[-1] == "last"

    async def test_one_of_another_broker_is_deleted_there_only(self) -> None:
        await self.begin("a")
        await self.done(self.here, wire.open_("ada"))
        await self.settled(self.here, self.there)
        await self.done(self.there, wire.publish("ada", "0"))
        assert self.there.broker.expiry.delete_identity("ada") is None

    async def test_memory_is_given_back(self) -> None:
        await self.begin(*"abcdefgh")
        used = [node.broker.memory.used for node in (self.here, self.there)]
        for channel in "abcdefgh":
            await self.done(self.here, wire.subscribe("ada", channel))
        assert self.here.broker.memory.used > used[0]
        await self.get(self.there, "ada")
        await self.pass_time(0.2)
        assert self.here.broker.memory.used == used[0]
        assert self.there.broker.memory.used > used[1] + 8 * 128
