"""Identities of nsd that go on at another broker than the one that was left."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any, ClassVar
from unittest.mock import patch

from twisted.internet.defer import Deferred

from pubsub.backplane.identities import log_numbers, shared_identities
from pubsub.backplane.identities.identity_entry import (
    IdentityEntry,
    decode_identity,
    encode_identity,
    encode_limit,
    identity_key,
    limit_key,
    points_key,
)
from pubsub.backplane.identities.shared_identities import SharedIdentities
from pubsub.backplane.positions.shared_position import SharedPosition
from pubsub.backplane.positions.shared_positions import SharedPositions
from pubsub.broker.clients.identity_sharing import IdentityContent
from pubsub.protocols.nsd.identities import PLACE_BYTES
from tests.profiles import rounds
from tests.unit import nsd_lines as wire
from tests.unit.fakes import scratch
from tests.unit.nsd_lines import NOTHING, SUCCESS
from tests.unit.session_case import SessionCase, SessionNode
from tests.unit.streams import Client
from tests.unit.user_files import user_file

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

    async def test_a_request_that_is_refused_moves_nothing(self) -> None:
        await self.begin("a", "b")
        await self.done(self.here, wire.subscribe("ada", "a"))
        await self.settled(self.here, self.there)
        listener = self.there.house.listeners["nsd"]
        for settings, line, answer in (
            ({"allow-subscribe": ("b",)}, wire.subscribe("ada", "a"), "NOT AUTHORIZED: a"),
            (
                {"allow-subscribe": (), "allow-publish": ()},
                wire.open_("ada"),
                "NOT AUTHORIZED: ada",
            ),
            ({}, wire.subscribe("ada", "none"), "NO SUCH CHANNEL: none"),
            ({}, wire.unsubscribe("ada", "none"), "NO SUCH CHANNEL: none"),
            ({"max-identities": 0}, wire.subscribe("ada", "b"), "LIMIT REACHED: identities"),
            ({"max-identities": 0}, wire.open_("ada"), "LIMIT REACHED: identities"),
        ):
            before = listener.settings
            listener.reconfigure({**before, **settings})
            assert await self.ask(self.there, line) == wire.error(answer)
            listener.reconfigure(before)
        assert self.there.identities.figures()["identities_taken"] == 0
        assert self.here.identities.figures()["identities_lost"] == 0

    async def test_a_first_request_that_does_not_say_what_was_read(self) -> None:
        await self.begin("a", "b")
        for line in (wire.subscribe, wire.unsubscribe, lambda name, channel: wire.open_(name)):
            name = f"ada-{line.__name__}"
            await self.done(self.here, wire.subscribe(name, "a"))
            for number in range(5):
                (self.here, self.there)[number % 2].publish("a", b"%d" % number)
            await self.settled(self.here, self.there)
            seen = await self.get(self.here, name)
            assert await self.get(self.here, name, seen[-1][0]) == []
            await self.done(self.there, line(name, "b"))
            assert await self.get(self.there, name, seen[-1][0]) == []
            # One that has read less than the last list.
            assert bodies(seen)[-1] in bodies(await self.get(self.there, name, seen[-2][0]))

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
        # So old numbers are known no more.
        assert len(await self.get(self.there, "ada", 1)) == 12

    async def test_the_shared_state_is_lost(self) -> None:
        await self.begin("a")
        await self.done(self.here, wire.subscribe("ada", "a"))
        self.here.publish("a", b"0")
        ((when, _),) = await self.polled(self.here, "ada", 0, 1)
        for node in (self.here, self.there):
            node.state.leave()
        for key in list(self.bucket.entries):
            self.bucket.remove(key)
        for node in (self.here, self.there):
            node.state.come_back()
        await self.pass_time(2)
        assert await self.get(self.there, "ada", when) == []
        self.there.publish("a", b"1")
        assert bodies(await self.polled(self.there, "ada", when, 1)) == ["1"]

    async def test_the_shared_state_begins_again_with_small_revisions(self) -> None:
        await self.begin("a")
        await self.done(self.here, wire.subscribe("ada", "a"))
        self.here.publish("a", b"0")
        ((when, _),) = await self.polled(self.here, "ada", 0, 1)
        for node in (self.there, self.here) * 4:
            self.here.publish("a", b"more")
            ((when, _),) = await self.polled(node, "ada", when, 1)
        await self.pass_time(2)
        self.lose_state(self.here, self.there)
        await self.pass_time(2)
        self.here.publish("a", b"1")
        ((when, _),) = await self.polled(self.here, "ada", when, 1)
        lost = self.here.identities.figures()["identities_lost"]
        # The broker answers, so it is known what the client has got.
        assert await self.get(self.there, "ada", when) == []
        assert self.here.identities.figures()["identities_lost"] == lost + 1

    async def test_a_broker_that_was_started_again_answers_for_all_its_identities(self) -> None:
        await self.begin("a")
        # It looks at none of them by itself.
        self.patch(shared_identities, "_LOOKED_AT", 0)
        names = [f"ada-{number}" for number in range(60)]
        for name in names:
            await self.done(self.here, wire.subscribe(name, "a"))
        given = {}
        for name in names:
            self.here.publish("a", name.encode())
            self.there.publish("a", name.encode(), b"more")
            await self.settled(self.here, self.there)
            given[name] = await self.get(self.here, name)
        await self.stopped(self.here)
        again = self.broker(self.here.path)
        await self.settled(again, self.there)
        await self.get(again, names.pop())
        await self.pass_time(1.1)
        for name in names:
            more = await self.get(self.there, name, given[name][-1][0])
            assert len(given[name]) + len(more) == 180

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
        assert bodies(await self.get(self.there, "ada", moved[-1][0])) == []

    async def test_a_broker_that_was_killed_is_asked_only_once(self) -> None:
        await self.begin("a")
        names = ("ada", "ben", "eve")
        for name in names:
            await self.done(self.here, wire.subscribe(name, "a"))
        await self.pass_time(1)
        self.here.crash()
        clock, waited = self.there.house.clock, []
        for name in names:
            before = clock.seconds()
            await self.done(self.there, wire.subscribe(name, "a"))
            waited.append(clock.seconds() - before > 0.5)
        assert waited == [True, False, False]

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

    async def test_a_broker_that_stops_tells_the_newest_places_first(self) -> None:
        """Old ones are left out if the time is too short for all."""

        async def note(numbers: log_numbers.LogNumbers) -> None:
            """The last second of the log is not known otherwise."""

        noting = patch.object(log_numbers.LogNumbers, "note", note)
        noting.start()
        self.addCleanup(noting.stop)
        await self.begin("a")
        await self.done(self.here, wire.subscribe("ada", "a"))
        clock, at = self.here.house.clock, SharedPositions.at
        when = 0
        for number in range(10):
            self.here.publish("a", b"%d" % number)
            ((when, _),) = await self.polled(self.here, "ada", when, 1)
        self.here.publish("a", b"last")
        await self.settled(self.here, self.there)

        def slow(positions: SharedPositions, offset: int) -> Deferred[SharedPosition]:
            clock.rightNow += 1.5
            return at(positions, offset)

        with patch.object(SharedPositions, "at", slow):
            await self.stopped(self.here)
        assert bodies(await self.get(self.there, "ada", when)) == ["last"]

    async def test_a_broker_stops_soon_after_it_was_started_again(self) -> None:
        await self.begin("a")
        for name in ("ada", "ben"):
            await self.done(self.here, wire.subscribe(name, "a"))
        for number in range(10):
            (self.here, self.there)[number % 2].publish("a", b"%d" % number)
            await self.settled(self.here, self.there)
        (*_, (when, _)) = await self.get(self.here, "ben")
        await self.stopped(self.here)
        again = self.broker(self.here.path)
        await self.settled(again, self.there)
        await self.get(again, "ada")
        await self.stopped(again)
        # The other client did not come meanwhile.
        assert await self.get(self.there, "ben", when) == []

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

    async def test_subscriptions_that_have_changed_elsewhere_in_the_meantime(self) -> None:
        await self.begin("a", "b")
        await self.done(self.here, wire.subscribe("ada", "a"))
        await self.stopped(self.here)
        await self.done(self.there, wire.unsubscribe("ada", "a"))
        await self.done(self.there, wire.subscribe("ada", "b"))
        self.there.publish("a", b"0")
        self.there.publish("b", b"1")
        again = self.broker(self.here.path)
        await self.settled(self.there, again)
        assert bodies(await self.get(again, "ada")) == ["1"]
        assert again.broker.topics.named("a").history_readers == 0
        assert again.broker.topics.named("b").history_readers == 1

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
        beyond = await position(self.there, position=True, epoch=moved["epoch"], after=after + 9)
        assert (beyond["when"], beyond["continues"]) == (after, True)
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
        await self.each(range(rounds(0.03)), crashes=False)

    async def test_with_crashes(self) -> None:
        await self.each(range(104, 104 + rounds(0.03)), crashes=True)


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

    async def test_a_form_that_was_known_before_the_identity_was_opened(self) -> None:
        await self.begin()
        client = self.there.house.connect("nsd")
        for _ in range(3):
            answer = await self.answer(client, wire.publish("ada", "early"))
            assert answer == wire.error("NO SUCH CHANNEL: ada")
        await self.done(self.here, wire.open_("ada"))
        await self.settled(self.here, self.there)
        await self.pass_time(0.5)
        for _ in range(2):
            assert await self.answer(client, wire.publish("ada", "x")) == SUCCESS

    async def test_a_read_with_an_identity_that_was_opened_elsewhere(self) -> None:
        await self.begin()
        client = self.here.house.connect("nsd")
        for name in ("ada", "ben"):
            answer = await self.answer(client, wire.publish(name, "early"))
            assert answer == wire.error(f"NO SUCH CHANNEL: {name}")
        await self.done(self.here, wire.open_("ada"))
        await self.done(self.there, wire.open_("ben"))
        await self.settled(self.here, self.there)
        client.send(wire.publish("ada", "0") + wire.publish("ben", "1"))
        await self.until(lambda: client.stream.received.count(b"\n") == 2)
        assert client.take() == SUCCESS * 2

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

    async def test_many_requests_to_an_engine_that_does_not_answer(self) -> None:
        self.patch(shared_identities, "_CLAIMS", 2)
        self.patch(shared_identities, "_WAIT", 3.0)
        await self.begin("a")
        get = self.here.state.get
        self.patch(self.here.state, "get", lambda key: Deferred())
        clients = [self.here.house.connect("nsd") for _ in range(20)]
        for number, client in enumerate(clients):
            client.send(wire.subscribe(f"ada-{number}", "a"))
        await self.pass_time(5.5)
        # None waits for all others.
        assert [client.take() for client in clients] == [BUSY] * 20
        self.patch(self.here.state, "get", get)
        for number, client in enumerate(clients):
            assert await self.answer(client, wire.subscribe(f"ada-{number}", "a")) == SUCCESS

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
        # Each move makes the numbers larger than the offsets.
        after = 0
        for node in (self.here, self.there, self.here):
            self.here.publish("a", b"x")
            await self.settled(self.here, self.there)
            after = (await self.polled(node, "ada", after, 1))[-1][0]
        work = self.here.broker.unused_names.delete_identity("ada")
        assert work is not None
        await self.here.broker.slices.finish(work)
        await self.pass_time(0.2)
        assert await self.get(self.there, "ada") == []
        for node in (self.there, self.here):
            await self.done(node, wire.subscribe("ada", "a"))
            node.publish("a", b"last")
            found = await self.polled(node, "ada", after, 1)
            assert bodies(found)[-1] == "last"
            after = found[-1][0]

    async def test_one_that_has_ended_is_not_open_at_other_brokers(self) -> None:
        await self.begin()
        await self.done(self.here, wire.open_("ada"))
        work = self.here.broker.unused_names.delete_identity("ada")
        assert work is not None
        await self.here.broker.slices.finish(work)
        await self.pass_time(0.2)
        answer = await self.ask(self.there, wire.publish("ada", "0"))
        assert answer == wire.error("NO SUCH CHANNEL: ada")
        await self.done(self.there, wire.open_("ada"))
        await self.done(self.there, wire.publish("ada", "1"))

    async def test_one_of_another_broker_is_deleted_there_only(self) -> None:
        await self.begin("a")
        await self.done(self.here, wire.open_("ada"))
        await self.settled(self.here, self.there)
        await self.done(self.there, wire.publish("ada", "0"))
        assert self.there.broker.unused_names.delete_identity("ada") is None

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

    async def test_places_of_numbers_are_charged(self) -> None:
        await self.begin("a")
        await self.done(self.here, wire.subscribe("ada", "a"))
        for number in range(8):
            self.here.publish("a", b"%d" % number)
        await self.settled(self.here, self.there)
        await self.get(self.here, "ada")
        assert await self.get(self.there, "ada", 8) == []
        memory = self.there.broker.memory
        used = memory.used - memory.cached
        for number in range(1, 8):
            await self.get(self.there, "ada", number)
        # The one that was asked for first, and three more.
        assert memory.used - memory.cached == used + 3 * PLACE_BYTES
        await self.get(self.here, "ada")
        await self.pass_time(0.2)
        assert memory.used - memory.cached < used

    async def test_they_expire_where_they_are(self) -> None:
        await self.begin("a")
        await self.done(self.here, wire.subscribe("ada", "a"))
        self.here.publish("a", b"0")
        await self.settled(self.here, self.there)
        await self.get(self.there, "ada")
        for node in (self.here, self.there):
            keeper = node.broker.unused_names.keepers[0]
            for _ in range(2):
                work = keeper.expire(lambda since: since is not None, ())
                await node.broker.slices.finish(work)
        await self.pass_time(0.2)
        found = decode_identity(self.bucket.entries[identity_key("ada")].value)
        assert found.ended
        assert found.content.former
        for node in (self.here, self.there):
            assert node.identities.figures()["identities"] == 0

    async def test_a_channel_is_deleted(self) -> None:
        await self.begin("a", "b")
        await self.done(self.here, wire.subscribe("ada", "a"))
        await self.done(self.here, wire.subscribe("ada", "b"))
        lifecycle = self.here.broker.topic_lifecycle
        lifecycle.end(self.here.broker.topics.named("a"))
        await self.pass_time(0.2)
        found = decode_identity(self.bucket.entries[identity_key("ada")].value)
        assert found.content.channels == ("b",)


class UpkeepTests(IdentityCase):
    """Values that are kept, and the limits of what is shared"""

    async def test_identities_from_before_are_shared(self) -> None:
        await self.begin("a")
        identities = self.here.house.factories["nsd"]._identities
        identities.subscribe("old", "a", 10, 10)
        await self.pass_time(2)
        self.here.publish("a", b"0")
        await self.settled(self.here, self.there)
        assert bodies(await self.get(self.there, "old")) == ["0"]

    async def test_values_are_written_again_after_a_day(self) -> None:
        await self.begin("a")
        await self.done(self.here, wire.subscribe("ada", "a"))
        await self.pass_time(1)
        before = self.bucket.entries[identity_key("ada")].revision
        await self.pass_time(2)
        assert self.bucket.entries[identity_key("ada")].revision == before
        self.here.house.clock.advance(25 * 3600)
        await self.pass_time(2)
        assert self.bucket.entries[identity_key("ada")].revision > before

    async def test_nothing_is_written_while_nothing_changes(self) -> None:
        await self.begin("a")
        await self.done(self.here, wire.subscribe("ada", "a"))
        await self.pass_time(3)
        before = dict(self.bucket.entries)
        await self.pass_time(5)
        assert self.bucket.entries == before

    async def test_an_answer_of_the_engine_that_was_lost(self) -> None:
        await self.begin("a")
        await self.done(self.here, wire.subscribe("ada", "a"))
        await self.pass_time(1)
        key = points_key(self.here.identities._numbers.log)
        value = self.bucket.entries[key].value
        self.bucket.write(key, value)
        self.here.publish("a", b"0")
        await self.pass_time(1)
        # Other brokers learn nevertheless where the log ends now.
        assert self.bucket.entries[key].value != value

    async def test_a_value_that_is_gone(self) -> None:
        await self.begin("a", "b")
        await self.done(self.here, wire.subscribe("ada", "a"))
        self.bucket.remove(identity_key("ada"))
        await self.done(self.here, wire.subscribe("ada", "b"))
        found = decode_identity(self.bucket.entries[identity_key("ada")].value)
        assert found.content.channels == ("a", "b")

    async def test_a_broker_that_learns_of_it_at_its_next_change(self) -> None:
        await self.begin("a", "b")
        await self.done(self.here, wire.subscribe("ada", "a"))
        entry = IdentityEntry("elsewhere", IdentityContent(channels=("b",)), top=9)
        self.bucket.write(identity_key("ada"), encode_identity(entry))
        assert await self.ask(self.here, wire.subscribe("ada", "b")) == BUSY
        await self.done(self.here, wire.subscribe("ada", "b"))
        found = decode_identity(self.bucket.entries[identity_key("ada")].value)
        assert found.content.channels == ("b",)
        assert found.content.shift == 9

    async def test_a_broker_whose_limit_is_unknown(self) -> None:
        await self.begin("a")
        entry = IdentityEntry("elsewhere", IdentityContent(channels=("a",)))
        self.bucket.write(identity_key("ada"), encode_identity(entry))
        assert await self.ask(self.here, wire.subscribe("ada", "a")) == BUSY
        self.bucket.write(limit_key("elsewhere"), encode_limit(100))
        await self.done(self.here, wire.subscribe("ada", "a"))
        self.here.publish("a", b"0")
        ((when, _),) = await self.polled(self.here, "ada", 90, 1)
        assert when == 101

    async def test_a_channel_for_which_the_other_broker_has_no_room(self) -> None:
        await self.begin("a")
        self.here.broker.topics.create("b")
        for channel in "ab":
            await self.done(self.here, wire.subscribe("ada", channel))
        topics = self.there.broker.topics
        topics.limit = 1
        await self.get(self.there, "ada")
        assert "b" not in topics
        topics.limit = 10
        assert topics.create("b").history_readers == 1
        await self.done(self.there, wire.subscribe("ben", "b"))
        await self.get(self.here, "ada")
        await self.pass_time(0.2)
        assert topics.named("b").history_readers == 1

    async def test_too_many_channels(self) -> None:
        self.patch(shared_identities, "MAX_CHANNELS", 30)
        await self.begin("a", "b" * 20, "c" * 20)
        await self.done(self.here, wire.subscribe("ada", "a"))
        await self.done(self.here, wire.subscribe("ada", "b" * 20))
        assert await self.ask(self.here, wire.subscribe("ada", "c" * 20)) == wire.error(
            "LIMIT REACHED: subscriptions"
        )

    async def test_one_from_before_with_too_many_channels_stays(self) -> None:
        await self.begin("a", "b")
        identities = self.here.house.factories["nsd"]._identities
        identities.subscribe("old", "a", 10, 10)
        self.patch(shared_identities, "MAX_CHANNELS", 1)
        await self.done(self.here, wire.subscribe("old", "b"))
        await self.pass_time(1)
        assert identity_key("old") not in self.bucket.entries
        self.here.publish("a", b"0")
        assert bodies(await self.polled(self.here, "old", 0, 1)) == ["0"]

    async def test_an_engine_that_takes_only_small_values(self) -> None:
        self.bucket.max_bytes = 1000
        names = [f"{number:0100}" for number in range(6)]
        await self.begin(*names)
        for name in names[:4]:
            await self.done(self.here, wire.subscribe("ada", name))
        assert await self.ask(self.here, wire.subscribe("ada", names[4])) == wire.error(
            "LIMIT REACHED: subscriptions"
        )
        await self.done(self.there, wire.subscribe("ada", names[0]))
        assert self.there.identities.figures()["identities_taken"] == 1

    async def test_an_engine_that_takes_less_than_before(self) -> None:
        """An identity that is too large now goes on at its broker."""
        await self.begin(*"abcde")
        for name in "abcd":
            await self.done(self.here, wire.subscribe("ada", name))
        self.bucket.max_bytes = 20
        await self.done(self.here, wire.subscribe("ada", "e"))
        self.here.publish("e", b"0")
        assert bodies(await self.polled(self.here, "ada", 0, 1)) == ["0"]

    async def test_memory_is_full(self) -> None:
        await self.begin("a")
        await self.done(self.here, wire.subscribe("ada", "a"))
        memory = self.there.broker.memory
        memory.limit = 1
        assert await self.ask(self.there, wire.subscribe("ada", "a")) == BUSY
        memory.limit = 0
        await self.done(self.there, wire.subscribe("ada", "a"))

    async def test_opened_while_away_and_started_again(self) -> None:
        await self.begin()
        self.here.state.leave()
        await self.done(self.here, wire.open_("ada"))
        await self.done(self.here, wire.publish("ada", "0"))
        await self.stopped(self.here)
        again = self.broker(self.here.path)
        await self.settled(self.there, again)
        await self.pass_time(1)
        assert bodies(await self.get(self.there, "ada")) == ["0"]

    async def test_polling_writes_nothing(self) -> None:
        await self.begin("a")
        await self.done(self.here, wire.subscribe("ada", "a"))
        before = self.here.state.figures()["state_changes"]
        for _ in range(20):
            await self.get(self.here, "ada")
        assert self.here.state.figures()["state_changes"] == before


class OwnerTests(IdentityCase):
    """Identities that belong to users"""

    async def test_a_user_keeps_an_identity_at_every_broker(self) -> None:
        top = {"password-file": user_file(scratch(self))}
        listen = {"nsd": {"identity-password": "required"}, "spot": {}}
        self.patch(IdentityNode, "top", top)
        self.patch(IdentityNode, "listen", listen)
        await self.begin("a")
        bob, ann = await self.user(self.here, "bob"), await self.user(self.there, "ann")
        assert await self.answer(bob, wire.subscribe("second", "a")) == SUCCESS
        assert await self.answer(ann, wire.get("second")) == wire.error("WRONG PASSWORD")
        assert await self.answer(ann, wire.subscribe("second", "a")) == wire.error("WRONG PASSWORD")
        # It was not moved by that.
        assert self.there.identities.figures()["identities_taken"] == 0
        self.here.publish("a", b"0")
        await self.settled(self.here, self.there)
        again = await self.user(self.there, "bob")
        assert wire.bodies(await self.answer(again, wire.get("second"))) == ["0"]
        values = b"".join(one.value for one in self.bucket.entries.values())
        assert b"sesame" not in values

    async def test_two_users_at_once(self) -> None:
        top = {"password-file": user_file(scratch(self))}
        listen = {"nsd": {"identity-password": "required"}, "spot": {}}
        self.patch(IdentityNode, "top", top)
        self.patch(IdentityNode, "listen", listen)
        await self.begin("a")
        users = [await self.user(self.here, "bob"), await self.user(self.there, "ann")]
        for user in users:
            user.send(wire.subscribe("second", "a"))
        for user in users:
            await self.until(lambda user=user: b"\n" in user.stream.received)  # type: ignore[misc]
        answers = sorted([user.take() for user in users])
        assert answers == sorted([SUCCESS, wire.error("WRONG PASSWORD")])

    async def user(self, node: SessionNode, name: str) -> Client:
        client = node.house.connect("nsd")
        password = {"bob": "sesame", "ann": "other"}[name]
        line = json.dumps({**json.loads(wire.open_(name)), "password": password}).encode()
        assert await self.answer(client, line + b"\n") == SUCCESS
        return client
