"""rheos's client ids: how the subscriptions of an id move between its connections."""

from __future__ import annotations

from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.slices import STEPS
from pubsub.protocols.rheos.client_ids import Clients
from tests.unit import rheos_wire as wire
from tests.unit.fakes import Lines, Reader
from tests.unit.rheos_wire import ALICE, BOB, CAROL, FAILED, Rheos
from tests.unit.streams import Client


class MoveTests(SynchronousTestCase):
    """A subscriber that is evicted while its subscriptions move"""

    def test_a_client_evicted_during_the_move_holds_nothing(self) -> None:
        rheos = Rheos(slow_bytes="100K", slow_consumer="disconnect")
        alice, bob = rheos.reader(ALICE), rheos.reader(BOB)
        topic = rheos.broker.topics.named("news")
        carol = rheos.connect("rheos")
        bob.stream.stop_reading()
        carol.send(wire.publish(CAROL, bytes(60_000), bytes(60_000)))
        carol.stream.feed(wire.publish(CAROL, bytes(60_000), bytes(60_000)))
        # Moving flushes the pending messages, which exceed the limit of the new connection.
        bob.stream.feed(wire.create(ALICE) + wire.subscribe(ALICE) + wire.publish(ALICE, b"x"))
        rheos.turn()
        assert bob.stream.aborted
        assert len(alice.take()) == 4 * 60_021
        carol.send(wire.publish(CAROL, b"hi"))
        assert alice.take() == wire.response(CAROL, b"hi")
        assert [len(group) for group in topic.groups.values()] == [1]
        alice.stream.lose()
        carol.stream.lose()
        rheos.advance(61)
        assert len(rheos.clients) == 0
        assert not topic.groups

    def test_the_next_client_is_evicted_during_the_move(self) -> None:
        rheos = Rheos(slow_bytes="100K", slow_consumer="disconnect")
        topic = rheos.broker.topics.named("news")
        shared, carol = rheos.reader(BOB), rheos.connect("rheos")
        shared.send(wire.create(ALICE))
        alice = rheos.reader(ALICE)
        shared.stream.stop_reading()
        carol.send(wire.publish(CAROL, bytes(60_000), bytes(60_000)))
        carol.stream.feed(wire.publish(CAROL, bytes(60_000), bytes(60_000)))
        # Her deliveries move back to the connection whose limit is exceeded.
        alice.stream.lose()
        assert shared.stream.aborted
        assert not topic.groups
        carol.stream.lose()
        rheos.advance(61)
        assert len(rheos.clients) == 0

    def test_several_ids_move_one_after_another(self) -> None:
        rheos = Rheos()
        ids = [bytes([number]) * 16 for number in range(1, 4)]
        topics = [f"t{number}" for number in range(3)]
        for topic in topics:
            rheos.broker.topics.create(topic)
        before = [rheos.reader(*one) for one in zip(ids, topics, strict=True)]
        new, writer = rheos.connect("rheos"), rheos.connect("rheos")
        for count, one in enumerate(ids, 1):
            new.send(wire.create(one))
            assert new.take() == FAILED
            for topic in topics:
                writer.send(wire.publish(CAROL, b"x", name=topic.encode()))
            assert new.take() == wire.response(CAROL, b"x") * count
            left = [client.take() for client in before]
            assert left == [b""] * count + [wire.response(CAROL, b"x")] * (3 - count)

    def test_a_move_that_fails_ends_the_connection(self) -> None:
        """It would wait for the end of the move forever."""
        rheos = Rheos()
        names = [f"t{number}" for number in range(300)]
        for name in names:
            rheos.broker.topics.create(name)
        first, second = rheos.connect("rheos"), rheos.connect("rheos")
        first.send(b"".join(wire.subscribe(ALICE, name.encode()) for name in names))
        second.stream.feed(wire.create(ALICE))
        assert second.stream.paused
        outcomes = [MemoryError("no memory"), *[None] * len(names)]
        with patch.object(Clients, "_move", side_effect=outcomes):
            rheos.pump()
        assert len(self.flushLoggedErrors(MemoryError)) == 1  # type: ignore[no-untyped-call]
        assert second.stream.aborted

    def test_many_subscriptions_move_in_slices(self) -> None:
        """One read that names several ids, each with many subscriptions."""
        rheos = Rheos()
        ids = [bytes([number]) * 16 for number in range(1, 6)]
        names = [f"t{number}" for number in range(300)]
        for name in names:
            rheos.broker.topics.create(name)
        first, second = rheos.connect("rheos"), rheos.connect("rheos")
        requests = [wire.subscribe(one, name.encode()) for one in ids for name in names]
        first.send(b"".join(requests))
        first.take()
        first.stream.feed(b"".join(map(wire.create, ids)))
        assert first.take() == FAILED * 5

        def moved() -> list[int]:
            found = [rheos.connection(client).outbox for client in (first, second)]
            return [0 if box is None else len(box.subscriptions) for box in found]

        second.stream.feed(b"".join(map(wire.create, ids)))
        assert second.take() == FAILED * 5
        assert moved() == [300, STEPS], "those of the first id, which others still read there"
        assert second.stream.paused, "its requests wait"
        assert rheos.broker.slices, "and others are served"
        rheos.pump()
        assert moved() == [0, 300]
        assert not second.stream.paused
        bob = rheos.connect("rheos")
        bob.send(wire.publish(BOB, b"x", name=b"t7"))
        assert (first.take(), second.take()) == (b"", wire.response(BOB, b"x"))
        # And back, when the second connection ends.
        second.stream.lose()
        assert rheos.broker.slices
        rheos.pump()
        assert moved()[0] == 300
        bob.send(wire.publish(BOB, b"y", name=b"t7"))
        assert first.take() == wire.response(BOB, b"y")
        first.stream.lose()
        rheos.pump()
        assert not any(topic.groups for topic in rheos.broker.topics)

    def subscribed(self, rheos: Rheos, count: int) -> tuple[Client, list[str]]:
        """Return a client of ALICE, and the names of the new topics that she reads."""
        names = [f"t{number}" for number in range(count)]
        for name in names:
            rheos.broker.topics.create(name)
        client = rheos.connect("rheos")
        client.send(b"".join(wire.subscribe(ALICE, name.encode()) for name in names))
        client.take()
        return client, names

    def test_an_id_that_moves_behind_one_with_many_subscriptions(self) -> None:
        rheos = Rheos()
        self.subscribed(rheos, 300)
        bob, second = rheos.reader(BOB), rheos.connect("rheos")
        second.stream.feed(wire.create(ALICE))
        assert second.stream.paused
        rheos.pump()
        second.send(wire.create(BOB))
        rheos.connect("rheos").send(wire.publish(CAROL, b"x"))
        assert second.take() == FAILED * 2 + wire.response(CAROL, b"x")
        assert bob.take() == b""

    def test_requests_meanwhile_find_a_subscription_where_it_is(self) -> None:
        rheos = Rheos()
        first, names = self.subscribed(rheos, 300)
        second = rheos.connect("rheos")
        # The last one is still at the first connection when these are handled.
        last = names[-1].encode()
        own = wire.publish(ALICE, b"mine", name=last)
        second.stream.feed(wire.create(ALICE) + own + wire.subscribe(ALICE, last))
        rheos.pump()
        assert len(second.take()) > len(FAILED)
        assert first.take() == b""
        bob = rheos.connect("rheos")
        bob.send(wire.publish(BOB, b"x", name=last))
        assert (first.take(), second.take()) == (b"", wire.response(BOB, b"x"))

    def test_a_connection_that_ends_meanwhile_gives_them_back(self) -> None:
        rheos = Rheos()
        first, names = self.subscribed(rheos, 500)
        second = rheos.connect("rheos")
        second.stream.feed(wire.create(ALICE))
        second.stream.lose()
        rheos.pump()
        bob = rheos.connect("rheos")
        for name in names:
            bob.send(wire.publish(BOB, b"x", name=name.encode()))
            assert first.take() == wire.response(BOB, b"x"), name
        assert not rheos.broker.slices

    def test_other_subscribers_are_not_affected(self) -> None:
        rheos = Rheos()
        topic = rheos.broker.topics.named("news")
        box = rheos.listener.outbox(rheos.connect("rheos").stream, Reader())
        rheos.broker.router.subscribe(box, topic, Lines())
        for _ in range(3):
            rheos.reader(ALICE)
        assert sorted(len(group) for group in topic.groups.values()) == [1, 1]
