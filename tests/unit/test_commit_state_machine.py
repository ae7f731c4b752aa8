"""Group commits: over all orders of events, callbacks are called once, and truly."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.trial.unittest import SynchronousTestCase

from pubsub.store.commits.commit_gate import MAX_UNWRITTEN, unsynced_limit
from pubsub.store.commits.commit_state_machine import (
    RETRY_SECONDS,
    SYNC_SECONDS,
)
from pubsub.store.reading.run_log import RunLog
from pubsub.store.records.stored_runs import RunRecord
from tests.unit.commit_disk import GROUP, INTERVAL, LARGE, MAX_UNSYNCED, SMALL, Disk
from tests.unit.fakes import Held, batch_of


class CommitMachine(RuleBasedStateMachine):
    """All orders of events."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = Disk()
        self.commits = self.disk.commits
        self.log = RunLog(2**62, 2**40)
        self.asked = 0
        self.called: dict[int, bool] = {}
        self.order: dict[str, list[int]] = {"written": [], "synced": []}
        self.values: dict[str, bytes] = {}
        self.ends = 0
        self.held = -1

    def _callback(self, kind: str) -> Callable[[bool], None]:
        number, offset = self.asked, self.log.next_offset
        self.asked += 1

        def call(done: bool) -> None:
            assert number not in self.called, "called twice"
            self.called[number] = done
            if done:
                there = self.disk.written if kind == "written" else self.disk.synced
                assert there >= offset, f"{kind} up to {there}, not {offset}"
                self.order[kind].append(number)
            else:
                assert self.commits.failing is not None

        return call

    @rule(size=st.sampled_from([SMALL, GROUP, LARGE]), count=st.integers(1, 3))
    @precondition(lambda self: self.commits.failing is None)
    def add(self, size: int, count: int) -> None:
        for _ in range(count):
            self.commits.add(run_of(self.log, size))

    @rule(key=st.sampled_from("ab"), value=st.sampled_from([b"v", b"x"]))
    def put(self, key: str, value: bytes) -> None:
        self.commits.put("t", key, value)
        self.values[key] = value

    @rule()
    def end(self) -> None:
        self.commits.end("t", self.log.next_offset)
        self.ends += 1

    @rule()
    @precondition(lambda self: self.commits.failing is None)
    def together(self) -> None:
        self.commits.hold(self.log.next_offset)
        self.commits.add(run_of(self.log, GROUP))
        self.commits.add(run_of(self.log, SMALL))
        self.put("a", b"w")
        self.commits.release()

    @rule()
    @precondition(lambda self: self.commits.failing is None and self.held < 0)
    def hold(self) -> None:
        self.held = self.log.next_offset
        self.commits.hold(self.held)

    @rule(count=st.integers(1, 3))
    @precondition(lambda self: self.held >= 0)
    def add_more(self, count: int) -> None:
        for _ in range(count):
            self.commits.add(run_of(self.log, SMALL))

    @rule()
    @precondition(lambda self: self.held >= 0)
    def release(self) -> None:
        group = self.commits._group
        pieces = group.pieces(self.disk.written if not group.runs else group.runs[0][1])
        stops = [stop for base, stop, runs, _ in pieces if runs and stop > self.held]
        assert len(stops) <= 1, "what was held is in several records"
        self.held = -1
        self.commits.release()

    @invariant()
    def nothing_of_what_is_held_is_written(self) -> None:
        assert self.held < 0 or self.disk.written <= self.held

    @rule(kind=st.sampled_from(["written", "synced"]))
    def ask(self, kind: str) -> None:
        getattr(self.commits, f"when_{kind}")(self._callback(kind))

    @rule()
    def tick(self) -> None:
        self.disk.tick()

    @rule(seconds=st.sampled_from([INTERVAL, RETRY_SECONDS, SYNC_SECONDS]))
    def advance(self, seconds: float) -> None:
        self.disk.clock.advance(seconds)

    @rule(works=st.booleans())
    @precondition(lambda self: self.disk.writing is not None)
    def end_write(self, works: bool) -> None:
        self.disk.end_write(works)

    @rule(works=st.booleans())
    def end_next_write_at_once(self, works: bool) -> None:
        self.disk.at_once = works

    @rule()
    @precondition(lambda self: self.disk.writing is not None)
    def write_well(self) -> None:
        self.disk.end_write()

    @rule(works=st.booleans())
    @precondition(lambda self: self.disk.syncing is not None)
    def end_sync(self, works: bool) -> None:
        self.disk.end_sync(works)

    @invariant()
    def readers_see_what_is_written(self) -> None:
        assert self.commits.committed == self.disk.written

    @invariant()
    def calls_are_in_order(self) -> None:
        for numbers in self.order.values():
            assert numbers == sorted(numbers)

    @invariant()
    def publishers_are_held_by_the_backlog(self) -> None:
        if self.commits.gate.shut:
            assert self.commits.failing is None
            gate = self.commits.gate
            assert gate.unwritten > MAX_UNWRITTEN // 2 or gate.unsynced > MAX_UNSYNCED // 4 * 3

    def teardown(self) -> None:
        if self.held >= 0:
            self.release()
        self.disk.settle()
        assert sorted(self.called) == list(range(self.asked))
        assert self.commits.failing is None
        assert self.disk.synced == self.disk.written == self.log.next_offset
        assert (self.disk.values, len(self.disk.ended)) == (self.values, self.ends)
        assert not self.commits.gate.shut
        assert self.commits.gate.unwritten == self.commits.gate.unsynced == 0
        assert self.commits._unsynced.nbytes == 0


def run_of(log: RunLog, size: int) -> RunRecord:
    """A run of one message, appended to ``log``."""
    return log.append(batch_of([bytes(size)]))


class OrderTests(SynchronousTestCase):
    """All orders of events"""

    def test_callbacks_are_called_once_and_truly(self) -> None:
        run_state_machine_as_test(
            CommitMachine, settings=settings(settings(), stateful_step_count=40)
        )


class CommitCase(SynchronousTestCase):
    """A disk, and runs for it."""

    def setUp(self) -> None:
        self.disk = Disk()
        self.commits = self.disk.commits
        self.log = RunLog(2**62, 2**40)
        self.called: list[object] = []

    def add(self, size: int = SMALL) -> None:
        self.commits.add(run_of(self.log, size))


class CommitTests(CommitCase):
    """When groups are written and synced"""

    def test_a_group_waits_for_the_interval(self) -> None:
        self.add()
        self.disk.tick()
        self.add()
        assert self.disk.writing is None
        self.disk.clock.advance(INTERVAL)
        assert self.disk.writing is not None
        group, sync = self.disk.writing
        assert group is not None
        assert (len(group.runs), sync) == (2, False)

    def test_so_does_one_that_began_while_another_was_written(self) -> None:
        for _ in range(2):
            self.add(GROUP)
            self.add()
            self.disk.tick()
            self.disk.end_write()
            assert self.disk.writing is None
            self.disk.clock.advance(INTERVAL)
            self.disk.end_write()
        assert self.disk.written == 4

    def test_so_do_values_and_ends_of_topics_without_messages(self) -> None:
        self.commits.put("t", "k", b"v")
        self.disk.tick()
        self.disk.clock.advance(INTERVAL)
        self.disk.end_write()
        self.commits.end("a", 0)
        self.disk.tick()
        self.disk.clock.advance(INTERVAL)
        self.disk.end_write()
        assert (self.disk.values, self.disk.ended) == ({"k": b"v"}, ["a"])

    def test_another_interval_and_size(self) -> None:
        self.commits.reconfigure(INTERVAL * 2, GROUP // 2)
        self.add()
        self.disk.tick()
        self.disk.clock.advance(INTERVAL)
        assert self.disk.writing is None
        self.disk.clock.advance(INTERVAL)
        self.disk.end_write()
        self.add(GROUP // 2)
        self.disk.end_write()
        assert self.disk.written == 2

    def test_a_full_one_does_not_wait(self) -> None:
        self.add(GROUP)
        self.disk.end_write()
        for _ in range(2):
            self.commits.add(run_of(self.log, GROUP // 2))
        self.disk.end_write()
        assert self.disk.written == 3

    def test_a_group_that_a_client_waits_for_is_written_at_the_end_of_the_tick(self) -> None:
        for when, synced in ((self.commits.when_written, False), (self.commits.when_synced, True)):
            self.add()
            when(self.called.append)
            self.add()
            assert self.disk.writing is None
            self.disk.tick()
            assert self.disk.writing is not None
            assert self.disk.writing[1] is synced
            self.disk.end_write()
        assert self.called == [True, True]
        assert not self.disk.reports

    def test_a_client_that_waits_while_the_interval_passes(self) -> None:
        self.add()
        self.disk.tick()
        self.commits.when_written(self.called.append)
        self.disk.tick()
        self.disk.end_write()
        assert self.called == [True]

    def test_thousands_of_groups_between_two_syncs(self) -> None:
        for number in range(2000):
            self.disk.at_once = True
            self.add()
            self.commits.when_written(self.called.append)
            self.disk.tick()
            self.disk.clock.advance(SYNC_SECONDS / 2000)
            if number == 500:
                # Its callback is not called for a sync that began before it.
                self.commits.when_synced(self.called.append)
                self.disk.end_sync()
        assert self.called == [True] * 2001
        # They are kept by the hundredth of a second.
        assert 70 <= len(self.commits._unsynced._groups) <= 80
        assert self.disk.syncing is None
        self.disk.clock.advance(SYNC_SECONDS)
        self.disk.end_sync()
        assert not self.commits._unsynced
        assert self.commits.figures.sync_times.count == self.commits.figures.commits == 2000

    def test_the_times_are_those_of_groups_with_messages(self) -> None:
        self.disk.clock.advance(1000)

        def write() -> None:
            self.disk.at_once = True
            self.disk.clock.advance(INTERVAL / 2)
            self.commits.when_written(self.called.append)
            self.disk.tick()

        self.commits.put("t", "k", b"v")
        write()
        self.add()
        write()
        self.commits.put("t", "k", b"w")
        write()
        self.disk.clock.advance(SYNC_SECONDS)
        self.disk.end_sync()
        figures = self.commits.figures
        assert (figures.commits, figures.write_times.count, figures.sync_times.count) == (3, 1, 1)
        assert figures.write_times.total < figures.sync_times.total < 2 * SYNC_SECONDS

    def test_a_write_that_ends_at_once(self) -> None:
        for _ in range(2):
            self.add()
            self.commits.when_written(self.called.append)
            self.disk.at_once = True
            self.disk.tick()
        assert self.called == [True, True]
        assert self.commits.committed == 2
        self.disk.clock.advance(SYNC_SECONDS)
        self.disk.end_sync()
        assert self.disk.synced == 2

    def test_a_write_that_fails_at_once(self) -> None:
        self.add()
        self.commits.when_written(self.called.append)
        self.disk.at_once = False
        self.disk.tick()
        assert self.called == [False]
        assert self.commits.failing == "no space"
        self.disk.settle()
        assert self.disk.synced == 1

    def test_nothing_to_wait_for(self) -> None:
        self.commits.when_written(self.called.append)
        self.commits.when_synced(self.called.append)
        assert self.called == [True, True]

    def test_a_callback_waits_for_the_sync_of_a_written_group(self) -> None:
        self.add(GROUP)
        self.disk.end_write()
        self.commits.when_written(self.called.append)
        assert self.called == [True]
        self.commits.when_synced(self.called.append)
        assert self.called == [True]
        self.disk.end_sync()
        assert self.called == [True, True]

    def test_a_client_that_waits_with_a_group_that_is_being_written(self) -> None:
        self.add(GROUP)
        self.commits.when_synced(self.called.append)
        self.disk.end_write()
        assert self.called == []
        self.disk.end_sync()
        assert self.called == [True]

    def test_everything_is_synced_within_a_second(self) -> None:
        self.add(GROUP)
        self.disk.end_write()
        self.disk.clock.advance(SYNC_SECONDS)
        # The sync that runs is the one that is waited for.
        self.commits.when_synced(self.called.append)
        self.disk.end_sync()
        assert self.called == [True]
        assert self.disk.synced == 1
        assert self.disk.syncing is None

    def test_a_client_that_waits_for_a_group_that_a_sync_does_not_cover(self) -> None:
        self.add(GROUP)
        self.disk.end_write()
        self.disk.clock.advance(SYNC_SECONDS)
        self.add(GROUP)
        self.disk.end_write()
        self.commits.when_synced(self.called.append)
        self.disk.end_sync()
        assert self.called == []
        self.disk.end_sync()
        assert self.called == [True]

    def test_a_group_written_during_a_sync_is_synced(self) -> None:
        self.add(GROUP)
        self.disk.end_write()
        self.disk.clock.advance(SYNC_SECONDS - INTERVAL)
        self.commits.when_synced(self.called.append)
        self.add(GROUP)
        self.disk.end_write()
        # The timer ends while the sync runs.
        self.disk.clock.advance(INTERVAL)
        self.disk.end_sync()
        assert self.disk.synced == 1
        self.disk.clock.advance(SYNC_SECONDS)
        self.disk.end_sync()
        assert self.disk.synced == 2

    def test_many_bytes_are_synced_at_once(self) -> None:
        for _ in range(2):
            self.add(LARGE)
            self.disk.end_write()
        assert self.disk.syncing == 2

    def test_writes_go_on_while_a_sync_runs(self) -> None:
        self.add(GROUP)
        self.disk.end_write()
        self.commits.when_synced(self.called.append)
        self.add(GROUP)
        self.disk.end_write()
        self.add(GROUP)
        assert self.disk.writing is not None
        assert self.called == []
        self.disk.end_sync()
        assert self.called == [True]

    def test_a_write_with_a_sync_covers_one_that_runs(self) -> None:
        self.add(GROUP)
        self.disk.end_write()
        self.commits.when_synced(self.called.append)
        self.add()
        self.commits.when_synced(self.called.append)
        self.disk.tick()
        self.disk.end_write()
        assert self.called == [True, True]
        self.disk.end_sync()
        assert self.called == [True, True]
        self.disk.settle()

    def test_publishers_are_held_while_too_much_is_not_written(self) -> None:
        held = Held()
        self.add(GROUP)
        self.disk.end_write()
        self.commits.when_synced(self.called.append)
        self.add(MAX_UNWRITTEN)
        assert self.commits.gate.shut
        self.commits.gate.wait(held)
        self.disk.end_sync()
        assert held.reasons
        self.disk.end_write()
        assert not held.reasons
        self.disk.settle()

    def test_the_limit_follows_the_memory(self) -> None:
        mib = 1024**2
        limits = [unsynced_limit(n) // mib for n in (1, 48 * mib, 800 * mib, 4096 * mib, 0)]
        assert limits == [24, 24, 50, 96, 96]

    def test_publishers_are_held_while_too_much_is_not_on_disk(self) -> None:
        held = Held()
        for _ in range(2):
            self.add(MAX_UNWRITTEN - GROUP)
            self.disk.end_write()
        self.add(3 * GROUP)
        assert self.commits.gate.shut
        self.commits.gate.wait(held)
        self.disk.end_write()
        assert held.reasons
        self.disk.end_sync()
        assert not held.reasons

    def test_values_go_with_their_messages(self) -> None:
        self.add()
        self.commits.put("t", "before", b"1")
        self.commits.end("t", 1)
        self.add()
        self.commits.put("t", "after", b"2")
        self.disk.tick()
        self.disk.clock.advance(INTERVAL)
        assert self.disk.writing is not None
        group, _ = self.disk.writing
        assert group is not None
        pieces = group.pieces(0)
        assert [(base, stop, len(runs)) for base, stop, runs, _ in pieces] == [(0, 1, 1), (1, 2, 1)]
        keys = [[getattr(one, "key", "end") for one in piece[3]] for piece in pieces]
        assert keys == [["before"], ["end", "after"]]


class HeldTests(CommitCase):
    """A group that is held over several ticks"""

    def test_it_is_not_written_before_it_is_released(self) -> None:
        self.commits.hold(0)
        self.add(GROUP)
        self.commits.when_written(self.called.append)
        self.disk.tick()
        self.disk.clock.advance(SYNC_SECONDS)
        self.disk.tick()
        assert self.disk.writing is None
        self.add()
        self.commits.release()
        self.disk.tick()
        self.disk.end_write()
        assert self.called == [True]
        assert self.disk.written == 2

    def test_a_small_group_that_became_due_meanwhile_is_written(self) -> None:
        self.add()
        self.disk.tick()
        self.commits.hold(1)
        self.add()
        self.disk.clock.advance(INTERVAL)
        self.commits.release()
        self.disk.tick()
        self.disk.end_write()
        assert self.disk.written == 2

    def test_what_is_written_is_synced_meanwhile(self) -> None:
        self.add(GROUP)
        self.disk.end_write()
        self.commits.hold(1)
        self.add()
        self.disk.clock.advance(SYNC_SECONDS)
        self.disk.end_sync()
        assert self.disk.synced == 1
        self.commits.release()

    def test_it_may_be_held_twice(self) -> None:
        self.commits.hold(0)
        self.add()
        self.commits.hold(1)
        self.add(GROUP)
        assert self.commits.end("a", 2) == 0
        self.commits.release()
        assert self.disk.writing is None
        assert self.commits.end("b", 2) == 0
        self.commits.release()
        assert self.disk.writing is not None

    def test_a_topic_ends_before_what_is_held(self) -> None:
        self.add()
        self.commits.put("t", "before", b"1")
        self.commits.hold(1)
        self.add()
        self.commits.put("t", "within", b"2")
        assert self.commits.end("a", 2) == 1
        assert self.commits.end("b", 2) == 1
        self.add()
        self.commits.put("t", "before", b"3")
        pieces = self.commits._group.pieces(0)
        assert [(base, stop, len(runs)) for base, stop, runs, _ in pieces] == [(0, 1, 1), (1, 3, 2)]
        operations = [sorted([str(one[:2]) for one in piece[3]]) for piece in pieces]
        assert operations == [
            ["('t', 'before')"],
            ["('a', 1)", "('b', 1)", "('t', 'before')", "('t', 'within')"],
        ]

    def test_the_gate_stays_open_while_writing_fails(self) -> None:
        self.add(GROUP)
        self.commits.hold(1)
        self.disk.end_write(works=False)
        self.add(MAX_UNSYNCED)
        assert not self.commits.gate.shut
        self.commits.release()
        self.disk.settle()
        assert self.disk.synced == 2


class FailureTests(CommitCase):
    """Writes and syncs that fail"""

    def test_callbacks_get_the_failure_and_the_write_is_retried(self) -> None:
        self.add(GROUP)
        self.commits.when_written(self.called.append)
        self.commits.when_synced(self.called.append)
        self.add()
        self.commits.when_synced(self.called.append)
        self.disk.end_write(works=False)
        assert self.called == [False, False, False]
        assert self.commits.failing == "no space"
        self.commits.when_written(self.called.append)
        self.commits.when_synced(self.called.append)
        assert self.called[3:] == [False, False]
        for _ in range(2):
            self.disk.clock.advance(RETRY_SECONDS)
            assert self.disk.writing is not None
            assert self.disk.writing[1]
            self.disk.end_write(works=False)
        assert self.commits.figures.failures == 3
        self.disk.clock.advance(RETRY_SECONDS)
        self.disk.end_write()
        assert self.commits.failing is None
        assert self.disk.reports == ["failed: no space", "recovered"]
        self.disk.settle()
        assert self.disk.synced == 2

    def test_an_error_in_a_callback_keeps_nobody_waiting(self) -> None:
        def broken(done: bool) -> None:
            raise ZeroDivisionError

        for works in (True, False):
            for ask in (self.commits.when_written, self.commits.when_synced):
                self.add(GROUP)
                ask(broken)
                ask(self.called.append)
                self.disk.tick()
                self.disk.end_write(works)
                self.disk.settle()
                assert self.called == [works]
                self.called.clear()
        assert self.commits.gate.unwritten == self.commits.gate.unsynced == 0
        logged = self.flushLoggedErrors(ZeroDivisionError)  # type: ignore[no-untyped-call]
        assert len(logged) == 4

    def test_a_sync_that_fails_while_a_write_runs(self) -> None:
        self.add(GROUP)
        self.disk.end_write()
        self.commits.when_synced(self.called.append)
        self.add(GROUP)
        self.commits.when_written(self.called.append)
        self.disk.end_sync(works=False)
        assert self.called == [False, False]
        self.disk.clock.advance(RETRY_SECONDS)
        self.disk.end_write()
        assert self.commits.failing == "no disk"
        self.disk.clock.advance(RETRY_SECONDS)
        assert self.disk.writing == (None, True)
        self.disk.end_write()
        assert self.commits.failing is None
        assert self.disk.synced == 2

    def test_a_write_that_fails_while_a_sync_runs(self) -> None:
        self.add(GROUP)
        self.disk.end_write()
        self.commits.when_synced(self.called.append)
        self.add(GROUP)
        self.disk.end_write(works=False)
        assert self.called == [False]
        self.disk.clock.advance(RETRY_SECONDS)
        assert self.disk.writing is None
        self.disk.end_sync()
        self.disk.clock.advance(RETRY_SECONDS)
        self.disk.end_write()
        assert self.commits.failing is None
        assert self.disk.synced == 2

    def test_the_gate_is_open_meanwhile(self) -> None:
        held = Held()
        self.add(MAX_UNSYNCED)
        self.commits.gate.wait(held)
        self.disk.end_write(works=False)
        assert not held.reasons

    def test_values_are_collected_meanwhile(self) -> None:
        self.add(GROUP)
        self.disk.end_write(works=False)
        self.commits.put("t", "k", b"v")
        self.disk.settle()
        assert self.disk.values == {"k": b"v"}


class FinishTests(CommitCase):
    """The end"""

    def finish(self) -> Deferred[bool]:
        return ensureDeferred(self.commits.finish())

    def test_everything_is_written_and_synced(self) -> None:
        self.add(GROUP)
        self.add()
        self.commits.when_written(self.called.append)
        done = self.finish()
        self.disk.end_write()
        assert not done.called
        while not done.called:
            if self.disk.writing is not None:
                self.disk.end_write()
            elif self.disk.syncing is not None:
                self.disk.end_sync()
        assert self.successResultOf(done) is True
        assert self.disk.synced == 2
        assert self.called == [True]
        assert not self.disk.clock.getDelayedCalls()

    def test_with_nothing_to_do(self) -> None:
        assert self.successResultOf(self.finish()) is True

    def test_a_failure_is_tried_once_more(self) -> None:
        for works in (True, False):
            self.setUp()
            self.add(GROUP)
            self.disk.end_write(works=False)
            done = self.finish()
            self.disk.end_write(works)
            assert self.successResultOf(done) is works
            assert not self.disk.clock.getDelayedCalls()

    def test_it_waits_for_a_write_that_runs_after_a_failure(self) -> None:
        self.add(GROUP)
        self.disk.end_write()
        self.commits.when_synced(self.called.append)
        self.add(GROUP)
        self.disk.end_sync(works=False)
        done = self.finish()
        self.disk.end_write()
        self.disk.end_write()
        assert self.successResultOf(done) is True
        assert self.disk.synced == 2

    def test_a_sync_that_fails_at_the_end(self) -> None:
        self.add(GROUP)
        self.disk.end_write()
        done = self.finish()
        self.disk.end_sync(works=False)
        assert self.disk.writing == (None, True)
        self.disk.end_write(works=False)
        assert self.successResultOf(done) is False
