"""Batches that are committed once, when the shared state is lost and made again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.batches import returning_batches, settled_batches, shared_batches
from pubsub.backplane.batches.settled_batches import KEPT, SETTLED_BATCHES, SettledBatches
from pubsub.backplane.batches.shared_batches import BegunElsewhere, CommittedElsewhere
from pubsub.backplane.state import state_format
from pubsub.errors import BackplaneAway
from pubsub.store.memory_store import MemoryStore
from tests.unit.batch_brokers import QUERY, BatchCase
from tests.unit.replicas import Node

KEY = shared_batches._state_key(QUERY)
DONE, OPEN = (200, True), (200, False)


class ReturningTests(BatchCase):
    """/v1/commit after a loss of the shared state"""

    def setUp(self) -> None:
        super().setUp()
        self.wait(0.05)
        self.patch(returning_batches, "_PAUSE", 0.01)

    def wait(self, seconds: float) -> None:
        """Give the brokers so much time to put batches back."""
        self.patch(returning_batches, "_OTHERS", seconds)

    async def lose(self, *nodes: Node) -> None:
        """Begin the shared state again while no broker reaches it; ``nodes`` come back."""
        await self.complete(*self.states)
        for state in self.states.values():
            state.leave()
        self.bucket.clear()
        for node in nodes:
            self.states[node].come_back()
        id = self.bucket.entries[state_format.KEY].value
        for node in nodes:
            returning = self.batches[node]._returning
            await self.until(lambda returning=returning: returning._id == id)  # type: ignore[misc]

    async def publish(self, node: Node, batch: int) -> tuple[int, object]:
        part = await self.stage(node, batch, b"%d" % batch)
        return await self.commit(node, batch, part)

    async def complete(self, *nodes: Node) -> None:
        """Wait until these brokers begin batches again."""
        for node in nodes:
            returning = self.batches[node]._returning
            await self.until(
                lambda returning=returning: (  # type: ignore[misc]
                    self.bucket.entries[state_format.KEY].value == returning._complete
                )
            )

    def value(self) -> tuple[int, bool] | None:
        if KEY not in self.bucket.entries:
            return None
        found = json.loads(self.bucket.entries[KEY].value)
        return found["batch"], found["done"]

    async def test_a_batch_is_published_once(self) -> None:
        here, there = self.writing(), self.writing()
        assert await self.publish(here, 0) == OPEN
        await self.has(there, [b"0"])
        await self.lose(here, there)
        part = await self.stage(there, 0, b"0")
        await self.until(lambda: self.value() == (0, True))
        assert await self.commit(there, 0, part) == DONE
        await self.complete(here, there)
        assert await self.publish(there, 1) == OPEN
        assert await self.commit(here, 1) == DONE
        await self.has(here, [b"0", b"1"])
        # NATS keeps it for the rest of its time.
        assert KEPT - 90 < self.bucket.seconds[KEY] <= KEPT

    async def test_a_commit_waits_until_the_others_are_back(self) -> None:
        here, there = self.writing(), self.writing()
        assert await self.publish(here, 0) == OPEN
        self.wait(60)
        await self.lose(there)
        assert await self.publish(there, 0) == (503, "backplane-away")
        self.states[here].come_back()
        await self.until(lambda: self.value() == (0, True))
        assert await self.publish(there, 0) == DONE
        assert await self.publish(there, 1) == (503, "backplane-away")

    async def test_a_state_that_was_made_again_before_it_is_reported(self) -> None:
        here, there = self.writing(), self.writing()
        assert await self.publish(here, 0) == OPEN
        await self.complete(there)
        self.states[here].leave()
        self.bucket.states.remove(self.states[there])
        self.bucket.clear()
        assert await self.publish(there, 0) == (503, "backplane-away")
        self.states[here].come_back()
        await self.until(lambda: self.value() == (0, True))
        assert await self.publish(there, 0) == DONE
        await self.has(here, [b"0"])

    async def test_a_restart_continues_the_wait(self) -> None:
        here, there = self.writing(), self.writing()
        assert await self.publish(here, 0) == OPEN
        await self.complete(there)
        self.wait(60)
        await self.lose(there)
        assert await self.publish(there, 0) == (503, "backplane-away")
        await self.end_of(there)
        again = self.writing(there.path)
        assert await self.publish(again, 0) == (503, "backplane-away")
        await self.end_of(here)
        self.writing(here.path)
        await self.until(lambda: self.value() == (0, True))
        assert await self.publish(again, 0) == DONE

    async def test_newer_values_stay(self) -> None:
        here, there = self.writing(), self.writing()
        for node, batch in ((here, 0), (there, 1)):
            assert await self.publish(node, batch) == OPEN
        for order in ((here, there), (there, here)):
            await self.lose()
            for node in order:
                self.states[node].come_back()
                await self.complete(node)
            assert self.value() == (1, True)

    async def test_batches_of_others_are_known(self) -> None:
        here, there = self.writing(), self.writing()
        assert await self.publish(here, 0) == OPEN
        assert await self.publish(there, 0) == DONE
        await self.lose(there)
        assert await self.publish(there, 0) == DONE
        await self.complete(there)
        assert self.value() == (0, True)

    async def test_a_batch_that_is_being_published(self) -> None:
        here, there = self.writing(), self.writing()
        await self.batches[here].reserve(QUERY, 3)
        await self.lose(here, there)
        await self.complete(here, there)
        assert self.value() == (3, False)
        with pytest.raises(BegunElsewhere):
            await self.batches[there].reserve(QUERY, 3)
        self.batches[here].settle(QUERY, 3, True)
        with pytest.raises(CommittedElsewhere):
            await self.batches[there].reserve(QUERY, 3)

    async def test_the_state_is_lost_during_a_reservation(self) -> None:
        here = self.writing()
        await self.complete(here)
        self.wait(60)
        state = self.states[here]
        put, reported = state.put, self.batches[here]._returning.state_changed

        def lose_after(*arguments: Any) -> Deferred[int]:
            self.patch(state, "put", put)
            done = put(*arguments)
            self.bucket.clear()
            reported([self.bucket.entries[state_format.KEY]])
            return done

        self.patch(state, "put", lose_after)
        with pytest.raises(BackplaneAway):
            await self.batches[here].reserve(QUERY, 0)
        await self.until(lambda: self.value() == (0, False))

    async def test_the_engine_goes_away_meanwhile(self) -> None:
        here = self.writing()
        for batch in range(2):
            assert await self.publish(here, batch) == OPEN
        get, state = self.states[here].get, self.states[here]

        def leave(key: str) -> Deferred[Any]:
            self.patch(state, "get", get)
            state.leave()
            return get(key)

        self.patch(state, "get", leave)
        await self.lose(here)
        await self.until(lambda: state in self.bucket.apart)
        state.come_back()
        await self.complete(here)
        assert self.value() == (1, True)

    async def test_values_of_another_version_stay(self) -> None:
        here = self.writing()
        assert await self.publish(here, 0) == OPEN
        await self.lose()
        self.bucket.write(KEY, b'{"v":2}')
        self.states[here].come_back()
        await self.complete(here)
        assert self.bucket.entries[KEY].value == b'{"v":2}'

    async def test_unexpected_errors_stop_nothing(self) -> None:
        here = self.writing()
        assert await self.publish(here, 0) == OPEN
        returning = self.batches[here]._returning

        async def fails(query: object) -> None:
            raise ZeroDivisionError

        self.patch(returning, "_put_back", fails)
        await self.lose(here)
        await self.complete(here)
        errors = self.flushLoggedErrors(ZeroDivisionError)  # type: ignore[no-untyped-call]
        assert len(errors) == 1

    async def test_many_are_put_back_a_few_at_a_time(self) -> None:
        here = self.writing()
        await self.complete(here)
        batches, state = self.batches[here], self.states[here]
        for number in range(100):
            batches._settled.keep(("owner", f"q{number}"), 0)
        held: list[Callable[[], object]] = []
        get = state.get

        def hold(key: str) -> Deferred[Any]:
            done: Deferred[Any] = Deferred()
            held.append(lambda: get(key).chainDeferred(done))
            return done

        self.patch(state, "get", hold)
        await self.lose(here)
        await self.until(lambda: bool(held))
        assert len(held) == returning_batches._TOGETHER
        while held:
            held.pop()()
        await self.complete(here)
        found = [key for key in self.bucket.entries if key.startswith("q.")]
        assert len(found) == 100

    async def test_the_broker_ends_meanwhile(self) -> None:
        here = self.writing()
        assert await self.publish(here, 0) == OPEN
        self.states[here].leave()
        ended = ensureDeferred(self.end_of(here))
        await ended
        self.bucket.clear()
        self.states[here].come_back()
        await self.settled()
        assert KEY not in self.bucket.entries


class _Memory:
    """Adds up what is charged."""

    used = 0

    def add(self, nbytes: int) -> None:
        self.used += nbytes

    def free(self, nbytes: int) -> None:
        self.used -= nbytes


class SettledTests(SynchronousTestCase):
    """The batches that a broker keeps"""

    def setUp(self) -> None:
        self.store, self.memory, self.now = MemoryStore(10, 1000), _Memory(), 1_700_000_000.0
        self.settled = self.make()

    def make(self) -> SettledBatches:
        return SettledBatches(self.store, self.memory, lambda: self.now)  # type: ignore[arg-type]

    def test_they_are_bounded_for_each_owner(self) -> None:
        self.patch(settled_batches, "MAX_QUERIES", 2)  # type: ignore[no-untyped-call]
        for name in ("a", "b", "a", "c"):
            self.now += 1
            self.settled.keep(("o", name), int(self.now))
        self.settled.keep((None, "a"), 5)
        self.settled.keep((None, "a"), 4)
        again = self.make()
        again.restore()
        for settled in (self.settled, again):
            assert list(settled.queries()) == [("o", "c"), ("o", "a"), (None, "a")]
            assert [settled.last((owner, "b")) for owner in ("o", None)] == [-1, -1]
            assert settled.last((None, "a")) == 5
        assert self.memory.used == 6 * settled_batches._QUERY_BYTES

    def test_they_end(self) -> None:
        self.settled.keep(QUERY, 3)
        self.now += KEPT - 10
        assert (self.settled.last(QUERY), self.settled.seconds(QUERY)) == (3, 10)
        self.now += 10
        assert self.settled.last(QUERY) == -1
        self.settled.keep(QUERY, 0)
        assert self.settled.last(QUERY) == 0

    def test_those_that_end_are_removed(self) -> None:
        """Of all owners, with the next commit of any query or the next start."""
        for number in range(5):
            self.settled.keep((f"owner {number}", "q"), 1)
        self.now += KEPT / 2
        self.settled.keep(QUERY, 1)
        self.now += KEPT / 2
        self.settled.keep(QUERY, 2)
        assert list(self.settled.queries()) == [QUERY]
        assert self.memory.used == settled_batches._QUERY_BYTES
        assert len(list(self.store.items(SETTLED_BATCHES))) == 1
        self.now += KEPT
        again = self.make()
        again.restore()
        assert not list(again.queries())
        assert not list(self.store.items(SETTLED_BATCHES))
        assert self.memory.used == settled_batches._QUERY_BYTES
        assert again.seconds(QUERY) == 1
