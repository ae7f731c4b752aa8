"""A batch that is committed at one broker is known to the others, and published once."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest
from twisted.internet.defer import Deferred, DeferredList, ensureDeferred, fail
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from pubsub.backplane.batches import shared_batches
from pubsub.backplane.batches.shared_batches import BegunElsewhere, CommittedElsewhere
from pubsub.backplane.history import spool
from pubsub.backplane.state.outdated import Outdated
from pubsub.broker.topic_space.durability import Durability
from pubsub.errors import BackplaneAway, HistoryUnavailable
from pubsub.store.commits import unsynced_commits
from pubsub.store.commits.write_group import WriteGroup
from pubsub.store.records.stored_runs import topic_of
from tests.unit.batch_brokers import QUERY, BatchCase
from tests.unit.fakes import scratch
from tests.unit.replicas import Node
from tests.unit.web import WebHouse


class BatchTests(BatchCase):
    """/v1/commit at several brokers"""

    async def test_a_batch_is_published_once(self) -> None:
        here, there = self.writing(), self.writing()
        first, second = await self.stage(here, 0, b"1", b"2"), await self.stage(there, 0, b"1")
        assert await self.commit(here, 0, first) == (200, False)
        assert await self.commit(here, 0, first) == (200, True)
        for shared in (True, False):
            assert await self.commit(there, 0, second, shared=shared) == (200, True)
        # The parts are gone there, too.
        assert await self.commit(there, 1, second) == (409, "unknown-part")
        # The next one at the other broker, and back.
        assert await self.commit(there, 1, await self.stage(there, 1, b"3")) == (200, False)
        for batch in (0, 1):
            assert await self.commit(here, batch) == (200, True)
        assert await self.commit(here, 2, await self.stage(here, 2, b"4")) == (200, False)
        await self.has(here, [b"1", b"2", b"3", b"4"])
        await self.has(there, [b"1", b"2", b"3", b"4"])

    async def test_nothing_is_tried_again_after_the_end(self) -> None:
        node = self.writing()
        batches, clock = self.batches[node], Clock()
        batches._clock = batches._later._clock = clock
        self.states[node].leave()
        batches.settle(QUERY, 0, True)
        batches._open[("o", "r")] = 0
        self.patch(node.store, "when_stored", lambda call: call(False))
        batches.published(("o", "r"), 0)
        assert len(clock.getDelayedCalls()) == 2
        batches.close()
        assert not clock.getDelayedCalls()
        batches.settle(QUERY, 0, True)
        assert not clock.getDelayedCalls()

    async def test_a_state_that_takes_nothing_for_long(self) -> None:
        node = self.writing()
        batches, clock = self.batches[node], Clock()
        batches._clock = batches._later._clock = clock
        self.bucket.refuses = True
        # As a client that tries again and again.
        for _ in range(50):
            await self.failure(batches.reserve(QUERY, 0))
            clock.advance(shared_batches._PAUSE / 4)
        assert len(clock.getDelayedCalls()) == 1
        self.bucket.refuses = False
        clock.advance(shared_batches._PAUSE)
        assert not batches._unsettled
        assert not clock.getDelayedCalls()
        await batches.reserve(QUERY, 0)

    async def failure(self, work: Coroutine[Any, Any, None]) -> None:
        with pytest.raises(BackplaneAway):
            await work

    async def test_two_reserve_a_batch_at_the_same_time(self) -> None:
        """The one that is refused keeps nothing: it would put the batch back as its own."""
        nodes = self.writing(), self.writing()
        tries = [ensureDeferred(self.batches[node].reserve(QUERY, 0)) for node in nodes]
        found = await DeferredList(tries, consumeErrors=True)
        assert sorted(done for done, _ in found) == [False, True]
        (refused,) = (node for node, (done, _) in zip(nodes, found, strict=True) if not done)
        (error,) = (failure for done, failure in found if not done)
        assert error is not None
        assert error.check(BegunElsewhere)
        batches, store = self.batches[refused], refused.store
        await self.until(lambda: not batches._unsettled)
        assert not batches._open
        assert not list(store.items(shared_batches.RESERVED_BATCHES))

    async def test_another_broker_commits_before_the_batch_is_reserved(self) -> None:
        await self.overtake("reserve")

    async def test_another_broker_commits_while_the_batch_is_reserved(self) -> None:
        await self.overtake("_change")

    async def overtake(self, step: str) -> None:
        """Commit at another broker in ``step``, which did not have the batch when asked first."""
        here, there = self.writing(), self.writing()
        first, second = await self.stage(here, 0, b"x"), await self.stage(there, 0, b"x")
        work = getattr(self.batches[there], step)
        others: list[tuple[int, object]] = []

        async def late(*arguments: Any) -> None:
            if not others:
                others.append(await self.commit(here, 0, first))
            await work(*arguments)

        self.patch(self.batches[there], step, late)
        assert await self.commit(there, 0, second) == (409, "batch-elsewhere")
        assert others == [(200, False)]
        await self.until(lambda: not self.batches[there]._unsettled)
        assert not self.batches[there]._open
        assert not list(there.store.items(shared_batches.RESERVED_BATCHES))
        # The parts are kept for the next try, which finds out.
        assert await self.commit(there, 0, second) == (200, True)
        assert await self.commit(there, 0, shared=False) == (200, True)
        assert await self.commit(there, 1, second) == (409, "unknown-part")
        for node in (here, there):
            await self.has(node, [b"x"])

    async def test_a_broker_is_killed_before_it_publishes(self) -> None:
        here, there = self.writing(), self.writing()
        await self.batches[here].reserve(QUERY, 0)
        part = await self.stage(there, 0, b"1")
        await self.end_of(here)
        assert await self.commit(there, 0, part) == (409, "batch-elsewhere")
        assert await self.commit(there, 0, part, shared=False) == (409, "batch-elsewhere")
        self.writing(here.path)
        await self.free()
        assert await self.commit(there, 0, part) == (200, False)

    async def test_a_broker_is_killed_after_it_has_published(self) -> None:
        here, there = self.writing(), self.writing()
        part = await self.stage(there, 0, b"1")

        def settle(query: object, batch: int, done: bool) -> None:
            """Be killed."""

        self.patch(self.batches[here], "settle", settle)
        assert await self.commit(here, 0, await self.stage(here, 0, b"1")) == (200, False)
        await self.end_of(here)
        assert await self.commit(there, 0, part) == (409, "batch-elsewhere")
        # The next one would not have begun before this one was published.
        assert await self.commit(there, 1, await self.stage(there, 1, b"2")) == (200, False)
        assert await self.commit(there, 0, part) == (200, True)
        again = self.writing(here.path)
        assert list(again.store.items(shared_batches.RESERVED_BATCHES))
        await self.until(lambda: not self.batches[again]._unsettled)
        await self.end_of(again)
        again = self.writing(here.path)
        assert not list(again.store.items(shared_batches.RESERVED_BATCHES))
        await self.has(there, [b"1", b"2"])

    def hold_messages(self, node: Node) -> list[Callable[[], None]]:
        """Hold writes of messages of topic ``t``; return the list of them."""
        held: list[Callable[[], None]] = []
        write = node.store._effects.write

        def hold(group: WriteGroup | None, sync: bool) -> None:
            call = partial(write, group, sync)
            if group is not None and "t" in map(topic_of, group.runs):
                held.append(call)
            else:
                call()

        self.patch(node.store._effects, "write", hold)
        return held

    async def test_no_other_broker_has_messages_that_are_not_on_disk(self) -> None:
        here, there = self.writing(), self.writing()
        held = self.hold_messages(here)
        done = ensureDeferred(self.commit(here, 0, await self.stage(here, 0, b"1")))
        await self.until(lambda: bool(held))
        here.publish("u", b"behind it")
        there.publish("v", b"other")
        await self.has(here, [b"1", b"behind it", b"other"])
        assert await there.payloads() == [b"other"]
        copy = here.crashed(scratch(self) / "copy")
        ended = here.stop()
        for call in held:
            call()
        await ended
        done.addErrback(lambda failure: None)
        done.cancel()
        # Neither the messages nor the record of the commit were written before the crash.
        self.writing(copy)
        await self.free()
        assert await self.commit(there, 0, await self.stage(there, 0, b"1")) == (200, False)
        await self.has(there, [b"1", b"other"])

    async def test_messages_are_shared_once_they_are_on_disk(self) -> None:
        self.patch(unsynced_commits, "_RETRY_SECONDS", 0.01)
        here, there = self.writing(), self.writing()
        held = self.hold_messages(here)
        done = ensureDeferred(self.commit(here, 0, await self.stage(here, 0, b"1")))
        await self.until(lambda: bool(held))
        full = Failure(OSError(28, "No space left on device"))
        here.store._commits.write_failed(full)
        # The client is told early; the write is repeated.
        assert await done == (503, "history-unavailable")
        assert await there.payloads() == []
        write = held.pop()
        await self.until(lambda: bool(held))
        write()
        await self.has(there, [b"1"])
        assert await self.commit(here, 0) == (200, True)
        assert await self.commit(there, 0) == (200, True)

    async def test_it_says_so_when_it_is_back(self) -> None:
        here, there = self.writing(), self.writing()
        part = await self.stage(there, 0, b"1")
        self.patch(self.batches[here], "settle", lambda *_: None)
        assert await self.commit(here, 0, await self.stage(here, 0, b"1")) == (200, False)
        await self.end_of(here)
        again = self.writing(here.path)
        await self.until(lambda: not self.batches[again]._unsettled)
        assert await self.commit(there, 0, part) == (200, True)
        await self.has(there, [b"1"])

    async def test_a_publication_that_fails_leaves_the_batch_to_others(self) -> None:
        here, there = self.writing(), self.writing()
        here.broker.topics.create("t")
        part = await self.stage(here, 0, b"1")
        here.broker.topics.get("t").upstream = object()  # type: ignore[union-attr]
        assert await self.commit(here, 0, part) == (409, "remote-topic")
        await self.free()
        assert await self.commit(there, 0, await self.stage(there, 0, b"1")) == (200, False)

    async def test_a_reservation_whose_answer_is_lost_is_given_up(self) -> None:
        here, there = self.writing(), self.writing()
        part, state = await self.stage(here, 0, b"1"), self.states[here]
        put = state.put

        def lose_answer(*arguments: Any) -> Deferred[int]:
            self.patch(state, "put", put)
            return put(*arguments).addCallback(lambda _: self.away())

        self.patch(state, "put", lose_answer)
        assert await self.commit(here, 0, part) == (503, "backplane-away")
        await self.free()
        assert await self.commit(there, 0, await self.stage(there, 0, b"1")) == (200, False)
        await self.has(here, [b"1"])

    async def test_a_reservation_that_comes_about_late_is_refused(self) -> None:
        here, there = self.writing(), self.writing()
        part, state = await self.stage(here, 0, b"1"), self.states[here]
        put, late = state.put, []

        def delay(*arguments: Any) -> Deferred[int]:
            self.patch(state, "put", put)
            late.append(arguments)
            return fail(BackplaneAway("the engine does not answer"))

        self.patch(state, "put", delay)
        assert await self.commit(here, 0, part) == (503, "backplane-away")
        await self.free()
        with pytest.raises(Outdated):
            await put(*late[0])
        assert await self.commit(there, 0, await self.stage(there, 0, b"1")) == (200, False)

    def away(self) -> int:
        raise BackplaneAway("the engine does not answer")

    async def test_a_batch_that_is_stored_late_is_known_to_others(self) -> None:
        here, there = self.writing(), self.writing()
        held = self.hold_messages(here)
        done = ensureDeferred(self.commit(here, 0, await self.stage(here, 0, b"1")))
        await self.until(lambda: bool(held))
        here.store._commits.write_failed(Failure(OSError(28, "No space left on device")))
        assert await done == (503, "history-unavailable")
        write = held.pop()
        await self.until(lambda: bool(held))
        write()
        # The client does not come back to the first broker.
        key = shared_batches._state_key(QUERY)
        await self.until(lambda: b'"done":true' in self.bucket.entries[key].value)
        assert await self.commit(there, 0, await self.stage(there, 0, b"1")) == (200, True)
        await self.has(there, [b"1"])

    async def test_a_batch_is_published_for_others_once_it_is_stored(self) -> None:
        node = self.writing()
        batches, key = self.batches[node], shared_batches._state_key(QUERY)
        await batches.reserve(QUERY, 0)
        waiting: list[Callable[[bool], None]] = []
        self.patch(node.store, "when_stored", waiting.append)
        batches.published(QUERY, 0)
        waiting.pop()(False)
        await self.until(lambda: bool(waiting))
        assert b'"done":false' in self.bucket.entries[key].value
        assert batches._settled.last(QUERY) == -1
        waiting.pop()(True)
        await self.until(lambda: b'"done":true' in self.bucket.entries[key].value)
        assert not waiting

    async def test_nothing_is_reserved_that_is_not_on_disk(self) -> None:
        node = self.writing()
        key = shared_batches._state_key(QUERY)
        self.patch(node.store, "when_synced", lambda call: call(False))
        with pytest.raises(HistoryUnavailable):
            await self.batches[node].reserve(QUERY, 0)
        await self.until(lambda: not self.batches[node]._unsettled)
        assert b'"broker":""' in self.bucket.entries[key].value

    async def test_one_of_two_brokers_wins(self) -> None:
        here, there = (self.batches[self.writing()] for _ in range(2))
        await here.reserve(QUERY, 3)
        with pytest.raises(BegunElsewhere):
            await there.reserve(QUERY, 3)
        here.settle(QUERY, 3, False)
        await there.reserve(QUERY, 3)
        # What this broker says about its former try has no effect any more.
        here.settle(QUERY, 3, False)
        with pytest.raises(BegunElsewhere):
            await here.reserve(QUERY, 3)
        there.settle(QUERY, 3, True)
        for batches in (here, there):
            with pytest.raises(CommittedElsewhere):
                await batches.check(QUERY, 2)

    async def test_the_engine_is_away(self) -> None:
        here = self.writing()
        await self.settled(here)
        part = await self.stage(here, 0, b"1")
        self.states[here].leave()
        assert await self.commit(here, 0, part) == (503, "backplane-away")
        assert await self.commit(here, 0, part, shared=False) == (200, False)
        # It is reported when the engine is back.
        assert await self.commit(here, 0) == (200, True)
        key = shared_batches._state_key(QUERY)
        assert key not in self.bucket.entries
        self.states[here].come_back()
        await self.until(lambda: key in self.bucket.entries)
        assert b'"done":true' in self.bucket.entries[key].value

    async def test_the_stream_is_away_too(self) -> None:
        here = self.writing()
        await self.settled(here)
        self.patch(spool, "SYNC_SECONDS", 0.01)
        self.states[here].leave()
        self.log.leave()
        part = await self.stage(here, 0, b"1")
        assert await self.commit(here, 0, part, shared=False) == (200, False)
        assert await self.commit(here, 0, part, shared=False) == (200, True)
        assert (await self.put(here, "/v1/readers/r", {"offset": 0})).status == 204
        # The messages of such a topic are acknowledged when the others can have them.
        here.broker.topics.create("t").set_durability(Durability.SYNC)
        part = await self.stage(here, 1, b"2")
        for _ in range(2):
            status = await self.commit(here, 1, part, shared=False)
            assert status == (503, "history-unavailable")
        # Also after a restart.
        await self.end_of(here)
        again = self.writing(here.path)
        await self.until(lambda: again.figure("unreplicated") > 0)
        assert await self.commit(again, 1, shared=False) == (503, "history-unavailable")

    async def test_values_of_another_version(self) -> None:
        here = self.writing()
        endless = b'{"v":1,"batch":1e999,"broker":"","done":true}'
        for value in (b'{"v":2}', b"[", b"3", b"[" * 100_000, endless):
            self.bucket.write(shared_batches._state_key(QUERY), value)
            with pytest.raises(BackplaneAway):
                await self.batches[here].check(QUERY, 0)

    def test_a_broker_without_others(self) -> None:
        body = {"query": "q", "batch": 0, "parts": [], "shared": True}
        answer = WebHouse().post("/v1/commit", body)
        assert (answer.status, answer.json["error"]) == (409, "not-shared")
