"""The end of a reactor tick."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from twisted.internet.asyncioreactor import AsyncioSelectorReactor
from twisted.internet.epollreactor import EPollReactor
from twisted.internet.selectreactor import SelectReactor
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from pubsub.tuning import PLAIN_EVENTS, TICK_HOOK, TUNED, Tuning, choose
from pubsub.wire.reactor_tick import at_tick_end, idle_tricks, ticks_of
from tests.unit.tunings import without


class Ready:
    """A descriptor that is readable once in each tick."""

    def __init__(self, calls: list[str], fail: bool = False, fail_at_end: bool = False) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.theirs.send(b"x")
        self._calls = calls
        self._fail = fail
        self._fail_at_end = fail_at_end

    def fileno(self) -> int:
        return self.ours.fileno()

    def logPrefix(self) -> str:
        return "ready"

    def doRead(self) -> None:
        self._calls.append("read")
        if self._fail:
            raise ValueError("on purpose")

    def connectionLost(self, reason: object) -> None:
        self._calls.append("lost")
        if self._fail_at_end:
            raise ValueError("on purpose")

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


class TurnEnd(TestCase):
    def made(self, reactor: Any) -> list[str]:
        """Check the order of calls in a reactor with one readable descriptor."""
        calls: list[str] = []
        self.reader = Ready(calls)
        self.addCleanup(self.reader.close)
        reactor.addReader(self.reader)
        self.reactor = reactor
        return calls

    def check_order(self, reactor: Any, tuning: Tuning = TUNED) -> None:
        calls = self.made(reactor)
        add = at_tick_end(reactor, tuning)

        def first() -> None:
            calls.append("first")
            add(lambda: calls.append("of the next turn"))

        add(first)
        add(lambda: calls.append("second"))
        assert calls == []
        # The reactor must not sleep, as there are calls, and neither in the next tick.
        reactor.doIteration(None)
        assert calls == ["read", "first", "second"]
        reactor.removeReader(self.reader)
        reactor.doIteration(None)
        assert calls[3:] == ["of the next turn"]

    def test_epoll(self) -> None:
        self.check_order(EPollReactor())

    def test_select(self) -> None:
        self.check_order(SelectReactor())

    def test_epoll_with_logging_contexts(self) -> None:
        self.check_order(EPollReactor(), without(PLAIN_EVENTS))

    def test_a_version_of_twisted_with_other_names_inside(self) -> None:
        reactor: Any = EPollReactor()
        poller = reactor._poller
        del reactor._poller
        with pytest.raises(AttributeError):
            at_tick_end(reactor, TUNED)
        before = reactor.doIteration
        at_tick_end(reactor, choose(True, "99.1.0"))
        assert reactor.doIteration == before
        reactor._poller = poller

    def test_a_reactor_is_hooked_once(self) -> None:
        reactor = EPollReactor()
        first, second = at_tick_end(reactor, TUNED), at_tick_end(reactor, TUNED)
        assert first == second

    def test_a_tick_has_a_number_and_between_ticks_there_is_none(self) -> None:
        reactor: Any = EPollReactor()
        calls = self.made(reactor)
        ticks = ticks_of(reactor, TUNED)
        numbers: list[int] = []
        self.reader.doRead = lambda: numbers.append(ticks.number)  # type: ignore[method-assign]
        for _ in range(2):
            ticks.add(lambda: numbers.append(ticks.number))
            assert ticks.number == 0
            reactor.doIteration(0)
        first, at_its_end, second, at_the_end_of_that = numbers
        assert 0 < first == at_its_end < second == at_the_end_of_that
        assert (ticks.number, calls) == (0, [])
        assert ticks_of(Clock(), TUNED).number == 0

    def test_a_tick_that_looks_again(self) -> None:
        reactor: Any = EPollReactor()
        calls = self.made(reactor)
        ticks = ticks_of(reactor, TUNED)
        numbers: set[int] = set()

        def wanted(answer: bool) -> bool:
            numbers.add(ticks.number)
            calls.append("asked")
            # An event of the same tick asks for more.
            ticks.look_again(lambda: wanted(answer))
            return answer

        for answer, expected in (
            (True, ["read", "asked", "read", "asked", "read", "end"]),
            (False, ["read", "asked", "end"]),
        ):
            ticks.add(lambda: calls.append("end"))
            ticks.look_again(partial(wanted, answer))
            reactor.doIteration(0)
            assert calls == expected
            # The next tick does not.
            ticks.add(lambda: calls.append("end"))
            reactor.doIteration(0)
            assert calls[len(expected) :] == ["read", "end"]
            calls.clear()
        assert len(numbers) == 2

    def test_a_failing_call(self) -> None:
        reactor: Any = EPollReactor()
        calls = self.made(reactor)
        add = at_tick_end(reactor, TUNED)
        add(lambda: [][0])
        add(lambda: calls.append("after"))
        reactor.doIteration(0)
        assert calls == ["read", "after"]
        assert len(self.flushLoggedErrors(IndexError)) == 1  # type: ignore[no-untyped-call]

    def test_a_failing_reader(self) -> None:
        reactor: Any = EPollReactor()
        calls = self.made(reactor)
        failing = Ready(calls, fail=True)
        self.addCleanup(failing.close)
        reactor.addReader(failing)
        add = at_tick_end(reactor, TUNED)
        add(lambda: calls.append("end"))
        reactor.doIteration(0)
        assert sorted(calls) == ["end", "lost", "read", "read"]
        assert len(self.flushLoggedErrors(ValueError)) == 1  # type: ignore[no-untyped-call]

    def test_a_failing_end_does_not_suppress_other_events(self) -> None:
        reactor: Any = EPollReactor()
        calls: list[str] = []
        for _ in range(2):
            failing = Ready(calls, fail=True, fail_at_end=True)
            self.addCleanup(failing.close)
            reactor.addReader(failing)
        at_tick_end(reactor, TUNED)
        reactor.doIteration(0)
        assert calls == ["read", "lost", "read", "lost"]
        assert len(self.flushLoggedErrors(ValueError)) == 4  # type: ignore[no-untyped-call]

    def test_the_hook_is_a_trick(self) -> None:
        reactor: Any = EPollReactor()
        before = reactor.doIteration
        self.check_delayed(reactor, at_tick_end(reactor, without(TICK_HOOK)))
        assert reactor.doIteration == before

    def test_reactors_with_another_loop(self) -> None:
        reactors: list[Any] = [Clock(), AsyncioSelectorReactor()]
        for reactor in reactors:
            self.check_delayed(reactor, at_tick_end(reactor, TUNED))

    def check_delayed(self, reactor: Any, add: Callable[[Any], object]) -> None:
        """Check that one delayed call is for all calls of a tick."""
        add(lambda: None)
        add(lambda: None)
        (delayed,) = reactor.getDelayedCalls()
        assert delayed.getTime() <= reactor.seconds()
        delayed.cancel()

    def test_delayed_calls_are_run_in_order(self) -> None:
        clock = Clock()
        ticks = ticks_of(clock, TUNED)
        calls: list[str] = []

        def asked() -> bool:
            calls.append("asked")
            return True

        ticks.look_again(asked)
        add = ticks.add

        def first() -> None:
            calls.append("first")
            add(lambda: calls.append("of the next turn"))

        add(first)
        add(lambda: [][0])
        add(lambda: calls.append("last"))
        assert calls == []
        # A clock, unlike a reactor, runs calls that are added in the same step.
        clock.advance(0)
        assert calls == ["first", "last", "of the next turn"]
        assert clock.getDelayedCalls() == []
        assert len(self.flushLoggedErrors(IndexError)) == 1  # type: ignore[no-untyped-call]


class IdleTests(TestCase):
    """idle_tricks"""

    def test_tricks_that_a_reactor_has_no_use_for(self) -> None:
        for kind, idle in (
            (EPollReactor, []),
            (SelectReactor, [PLAIN_EVENTS]),
            (AsyncioSelectorReactor, [TICK_HOOK, PLAIN_EVENTS]),
        ):
            reactor = kind()
            self.addCleanup(reactor.disconnectAll)
            assert idle_tricks(reactor, TUNED) == idle
            assert idle_tricks(reactor, choose(False, "")) == []
            assert idle_tricks(reactor, without(TICK_HOOK)) == idle[-1:]
