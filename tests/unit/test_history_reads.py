"""Reads of the history that fail: they are repeated, for a bounded time."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred, TimeoutError, ensureDeferred, fail, succeed
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.delivery.history_reads import RETRY_SECONDS, read_history
from pubsub.broker.routing.batch import Page
from pubsub.store.memory_store import MemoryStore
from tests.unit.fakes import Reader, clock_at
from tests.unit.let_go_case import LetGoCase
from tests.unit.streams import logged


class FailingStore(MemoryStore):
    """A store whose next ``failures`` reads fail, or do not end if ``hangs``.

    If ``uncommitted``, a page has nothing yet.
    """

    failures = 0
    hangs = uncommitted = False
    reads = 0

    def __init__(self) -> None:
        super().__init__(1000, 2**26)

    def read(self, *given: Any, **named: Any) -> Deferred[Page]:
        self.reads += 1
        if self.hangs:
            return Deferred()
        if self.uncommitted:
            return succeed(Page([], given[0]))
        if self.failures:
            self.failures -= 1
            return fail(OSError("the disk is gone"))
        return super().read(*given, **named)


class ReadHistoryTests(SynchronousTestCase):
    """read_history"""

    def setUp(self) -> None:
        self.clock = clock_at()
        self.store = FailingStore()

    def read(self) -> Deferred[Page]:
        return ensureDeferred(
            read_history(self.clock, Reader(), lambda: self.store.read(0, None, 1000))
        )

    def test_a_result_is_returned_at_once(self) -> None:
        assert self.successResultOf(self.read()) == Page([], 0)
        assert not self.clock.getDelayedCalls()

    def test_a_failure_is_retried_with_growing_delays(self) -> None:
        lines = logged(self)
        self.store.failures = 3
        page = self.read()
        self.clock.pump([0.1, 0.2])
        self.assertNoResult(page)  # type: ignore[no-untyped-call]
        self.clock.advance(0.4)
        assert self.successResultOf(page) == Page([], 0)
        assert self.store.reads == 4
        assert lines[0] == (
            "cannot read the history for 'bob': the disk is gone; trying again in 0.1 s"
        )

    def test_after_the_deadline_the_failure_is_raised(self) -> None:
        self.store.failures = 1000
        page = self.read()
        self.clock.pump([0.1] * int(10 * RETRY_SECONDS))
        self.failureResultOf(page, OSError)  # type: ignore[no-untyped-call]
        assert self.store.reads < 20
        assert not self.clock.getDelayedCalls()

    def test_a_read_that_does_not_end_times_out(self) -> None:
        self.store.hangs = True
        page = self.read()
        self.clock.advance(RETRY_SECONDS)
        self.failureResultOf(page, TimeoutError)  # type: ignore[no-untyped-call]

    def test_a_cancelled_read_is_not_repeated(self) -> None:
        self.store.failures = 1000
        page = self.read().addErrback(lambda _: None)
        page.cancel()
        self.clock.advance(100)
        assert self.store.reads == 1

    def test_a_late_result_is_used(self) -> None:
        late: Deferred[Page] = Deferred()
        page = ensureDeferred(read_history(self.clock, Reader(), lambda: late))
        late.callback(Page([], 7))
        assert self.successResultOf(page).next_offset == 7
        assert not self.clock.getDelayedCalls()


class CursorTests(LetGoCase):
    """A subscriber that is behind while the history cannot be read"""

    def setUp(self) -> None:
        self.store = FailingStore()
        self.start_broker(self.store)

    def test_it_continues_when_the_history_can_be_read_again(self) -> None:
        bob = self.stuck(self.news)
        self.store.failures = 4
        self.read_all(bob)
        assert self.numbers(bob) == []
        self.publish(self.news, b"4")
        self.clock.pump([0.1] * 20)
        self.advance()
        self.publish(self.news, b"5")
        assert self.numbers(bob) == [b"n%d" % n for n in range(6)]
        assert self.drops() == {}

    def test_after_the_deadline_it_is_disconnected(self) -> None:
        bob = self.stuck(self.news)
        self.store.failures = 1000
        self.read_all(bob)
        self.clock.pump([1.0] * 40)
        assert self.closed == ["the history cannot be read"]
        errors = self.flushLoggedErrors(OSError)  # type: ignore[no-untyped-call]
        assert len(errors) == 1
        self.box(bob).shut("disconnected")
        assert self.drops() == {("news", "disconnected"): 4}

    def test_it_does_not_read_for_one_that_has_left(self) -> None:
        bob = self.stuck(self.news)
        self.store.hangs = True
        self.read_all(bob)
        reads = self.store.reads
        self.box(bob).shut("disconnected")
        self.clock.pump([1.0] * 40)
        assert self.store.reads == reads
        assert self.closed == []
        assert not self.clock.getDelayedCalls()

    def test_it_waits_for_messages_that_cannot_be_read_yet(self) -> None:
        bob = self.stuck(self.news)
        self.store.uncommitted = True
        self.read_all(bob)
        assert self.store.reads == 1
        self.clock.pump([0.05] * 3)
        assert self.store.reads == 4
        self.store.uncommitted = False
        self.clock.advance(0.05)
        self.advance()
        assert self.numbers(bob) == [b"n%d" % n for n in range(4)]
        self.store.uncommitted = True
        self.box(self.stuck(self.sport)).shut("disconnected")
        self.clock.advance(1)
        assert not self.clock.getDelayedCalls()

    def test_few_pages_are_read_at_a_time(self) -> None:
        readers = [self.stuck(self.news) for _ in range(5)]
        self.store.hangs = True
        for reader in readers:
            reader.drain()
        self.advance()
        assert self.store.reads == 2
        self.store.hangs = False
        self.box(readers[0]).shut(None)
        self.advance()
        assert [self.box(reader).cursor is None for reader in readers[2:]] == [True] * 3

    def test_a_page_that_cannot_be_encoded_ends_the_connection(self) -> None:
        bob = self.stuck(self.news)
        cursor = self.box(bob).cursor
        assert cursor is not None
        self.patch(type(cursor), "_deliver_batch", _broken)  # type: ignore[no-untyped-call]
        self.read_all(bob)
        assert self.closed == ["the history cannot be read"]
        errors = self.flushLoggedErrors(ZeroDivisionError)  # type: ignore[no-untyped-call]
        assert len(errors) == 1


def _broken(*_: object) -> None:
    raise ZeroDivisionError
