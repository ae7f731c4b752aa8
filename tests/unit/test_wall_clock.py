"""The wall clock, with a system clock that can be set and a monotonic one that cannot."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.internet.base import DelayedCall, ReactorBase
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.wall_clock import JUMP, LASTING, WallClock
from pubsub.server.clocks import system_wall_clock, use_monotonic_timers
from tests.unit.fakes import START, Lines, Reader, clock_at, make_broker, make_listener
from tests.unit.streams import logged

SECOND = 1_000_000
DAY = 86_400.0


class Times:
    """A system clock that can be set, beside a monotonic one that begins at 1000 s."""

    def __init__(self) -> None:
        self.monotonic = 1000.0
        self.system = START
        self.remembered = ""
        self.limits: list[int] = []
        self.wall = self._make("boot-1")

    def _make(self, boot: str) -> WallClock:
        wall = WallClock(lambda: self.system, lambda: self.monotonic, boot)
        wall.remember = self._remember
        wall.remember_limit = self.limits.append
        return wall

    def _remember(self, text: str) -> None:
        self.remembered = text

    def restart(self, last: float, boot: str = "boot-1") -> None:
        """Make a new clock, after a message that was stored ``last`` seconds after the start."""
        remembered, self.remembered = self.remembered, ""
        self.wall = self._make(boot)
        limit = self.limits[-1] if self.limits else None
        self.wall.start(int((START + last) * SECOND), remembered, limit)
        self.remembered = self.remembered or remembered

    def advance(self, seconds: float) -> None:
        """Time passes, and the broker looks at the clock at the end."""
        self.monotonic += seconds
        self.system += seconds
        self.wall.now()

    def set(self, seconds: float) -> None:
        """Set the system's clock forward, or back."""
        self.system += seconds
        self.wall.now()

    @property
    def stamp(self) -> float:
        """The timestamp of a new message, in seconds since the start."""
        return self.wall.timestamp() / SECOND - START


class Tick:
    """A tick with this number."""

    number = 0


class TimestampTests(SynchronousTestCase):
    """timestamp"""

    def setUp(self) -> None:
        self.times = Times()

    def test_what_a_tick_reads_has_one_timestamp(self) -> None:
        self.times.wall.ticks = tick = Tick()
        tick.number = 1
        first = self.times.stamp
        self.times.system += 0.5
        assert self.times.stamp == first
        tick.number = 2
        assert self.times.stamp == pytest.approx(first + 0.5)

    def test_between_ticks_the_clock_is_read_for_each(self) -> None:
        self.times.wall.ticks = Tick()
        first = self.times.stamp
        self.times.system += 0.5
        assert self.times.stamp == pytest.approx(first + 0.5)

    def test_a_later_start_counts_within_a_tick(self) -> None:
        self.times.wall.ticks = tick = Tick()
        tick.number = 1
        before = self.times.wall.timestamp()
        self.times.wall.start(before + 5)
        assert self.times.wall.timestamp() == before + 5
        tick.number = 2
        assert self.times.wall.timestamp() == before + 5

    def test_it_is_microseconds_since_the_epoch(self) -> None:
        assert self.times.wall.timestamp() == int(START * SECOND)
        self.times.advance(0.25)
        assert self.times.wall.timestamp() == int(START * SECOND) + 250_000

    def test_it_follows_the_system_between_two_checks(self) -> None:
        self.times.wall.now()
        self.times.system += 0.5
        self.times.monotonic += 0.5
        assert self.times.stamp == 0.5

    def test_it_stands_still_while_the_system_is_behind(self) -> None:
        self.times.advance(1)
        assert self.times.stamp == 1
        self.times.set(-3600)
        assert self.times.stamp == 1
        self.times.advance(3600)
        assert self.times.stamp == 1
        self.times.advance(0.5)
        assert self.times.stamp == 1.5

    def test_it_continues_after_the_last_stored_message(self) -> None:
        self.times.wall.start(int((START + 10) * SECOND))
        assert self.times.stamp == 10
        self.times.advance(11)
        assert self.times.stamp == 11

    def test_a_jump_that_ends_early_does_not_count(self) -> None:
        self.times.set(8 * DAY)
        assert self.times.stamp == 0
        self.times.advance(1.5)
        assert self.times.stamp == 1.5
        self.times.set(-8 * DAY)
        assert self.times.stamp == 1.5
        self.times.advance(1)
        assert self.times.stamp == 2.5
        assert self.times.wall.jumps == 1

    def test_a_jump_that_no_check_has_seen_yet_does_not_count(self) -> None:
        self.times.wall.now()
        self.times.system += 8 * DAY
        assert self.times.stamp == 0

    def test_a_jump_that_lasts_counts(self) -> None:
        moved: list[float] = []
        self.times.wall.moved = lambda: moved.append(self.times.stamp)
        self.times.set(8 * DAY)
        self.times.advance(LASTING - 1)
        assert self.times.stamp == LASTING - 1
        assert moved == []
        self.times.advance(1)
        assert self.times.stamp == 8 * DAY + LASTING
        assert moved == [8 * DAY + LASTING]
        self.times.advance(1)
        assert self.times.stamp == 8 * DAY + LASTING + 1
        assert self.times.wall.jumps == 1

    def test_only_a_lasting_jump_counts(self) -> None:
        self.times.set(DAY)
        self.times.advance(LASTING - 1)
        self.times.set(8 * DAY)
        self.times.advance(1)
        assert self.times.stamp == LASTING
        self.times.advance(LASTING - 1)
        assert self.times.stamp == 9 * DAY + 2 * LASTING - 1

    def test_less_than_a_jump_counts_at_once(self) -> None:
        self.times.set(JUMP)
        assert self.times.stamp == JUMP
        assert self.times.wall.jumps == 0

    def test_a_long_silence_is_not_a_jump(self) -> None:
        self.times.advance(30 * DAY)
        assert self.times.stamp == 30 * DAY
        assert self.times.wall.jumps == 0

    @given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(-1e9, 1e9), st.booleans())))
    @example([(0.0, 2.0, True), (0.0, -1.0, False)])
    @example([(0.0, 1e-7, True)])
    def test_it_never_decreases(self, steps: list[tuple[float, float, bool]]) -> None:
        times, stamps = Times(), []
        for passed, step, checks in steps:
            times.monotonic += passed
            times.system = max(times.system + passed + step, 0.0)
            if checks:
                times.wall.now()
            stamps.append(times.wall.timestamp())
        assert stamps == sorted(stamps)


class RetentionTimeTests(SynchronousTestCase):
    """retention_time"""

    def setUp(self) -> None:
        self.times = Times()

    @property
    def judged(self) -> float:
        """The time of retention, in seconds since the start."""
        return self.times.wall.retention_time() - START

    def test_a_jump_does_not_count_before_it_has_lasted(self) -> None:
        self.times.wall.start(int(START * SECOND))
        self.times.set(8 * DAY)
        self.times.advance(LASTING - 1)
        assert self.judged == LASTING - 1
        self.times.advance(1)
        assert self.judged == 8 * DAY + LASTING

    def test_a_first_start_long_after_the_last_message_counts_once_it_has_lasted(self) -> None:
        self.times.wall.start(int((START - 8 * DAY) * SECOND))
        assert self.times.stamp == 0
        assert self.judged == -8 * DAY
        self.times.advance(LASTING - 1)
        assert self.judged == -8 * DAY + LASTING - 1
        self.times.advance(1)
        assert self.judged == LASTING

    def test_a_start_soon_after_the_last_message(self) -> None:
        self.times.wall.start(int((START - JUMP) * SECOND))
        assert self.judged == 0

    def test_a_new_history(self) -> None:
        self.times.wall.start(0)
        assert self.judged == 0

    def test_a_clock_set_back_deletes_less(self) -> None:
        self.times.set(-3600)
        assert self.judged == -3600


class RestartTests(SynchronousTestCase):
    """The state that is kept for the next start"""

    def setUp(self) -> None:
        self.times = Times()
        self.times.wall.start(int(START * SECOND))
        self.times.advance(10)

    def pause(self, seconds: float) -> None:
        """Time passes while no broker runs."""
        self.times.monotonic += seconds
        self.times.system += seconds

    @property
    def judged(self) -> float:
        """The time of retention, in seconds since the start."""
        return self.times.wall.retention_time() - START

    def test_a_long_pause_is_no_jump(self) -> None:
        self.pause(8 * DAY)
        self.times.restart(10)
        assert self.times.stamp == self.judged == 8 * DAY + 10
        assert self.times.wall.jumps == 0

    def test_a_jump_before_the_restart_does_not_count_yet(self) -> None:
        self.times.set(8 * DAY)
        self.times.advance(LASTING - 5)
        self.times.restart(LASTING)
        assert self.times.stamp == self.judged == LASTING + 5
        assert self.times.wall.jumps == 1
        self.times.advance(LASTING)
        assert self.times.stamp == 8 * DAY + 2 * LASTING + 5

    def test_a_jump_during_the_pause_does_not_count_yet(self) -> None:
        self.pause(100)
        self.times.system += 8 * DAY
        self.times.restart(10)
        assert self.times.stamp == self.judged == 110

    def test_a_jump_that_counted_counts_after_the_restart(self) -> None:
        self.times.set(8 * DAY)
        self.times.advance(LASTING)
        self.times.restart(10)
        assert self.times.stamp == self.judged == 8 * DAY + LASTING + 10
        assert self.times.wall.jumps == 0

    def test_nothing_is_remembered_of_another_boot(self) -> None:
        self.times.system += 8 * DAY
        self.times.restart(10, "boot-2")
        assert self.times.stamp == 8 * DAY + 10
        assert self.judged == 10

    def test_other_texts_are_ignored(self) -> None:
        for text in ("", "x", "boot-1", "boot-1 x", "boot-1  1"):
            self.times.remembered = text
            self.times.restart(10)
            assert self.times.stamp == 10

    def test_a_message_of_another_broker_binds_for_a_minute_at_most(self) -> None:
        assert self.times.stamp == 10
        self.pause(5)
        self.times.restart(8 * DAY)
        assert 15 <= self.times.stamp <= 10 + JUMP + 1
        assert self.times.wall.jumps == 0
        self.times.advance(JUMP)
        assert self.times.stamp == self.judged == 15 + JUMP

    def test_its_own_last_message_binds_if_the_clock_is_set_back_too(self) -> None:
        assert self.times.stamp == 10
        self.times.system -= 3600
        self.times.restart(8 * DAY)
        assert 10 <= self.times.stamp <= 10 + JUMP + 1
        assert self.times.wall.jumps

    def test_no_timestamp_exceeds_the_limit_that_was_remembered_before_it(self) -> None:
        for _ in range(600):
            assert self.times.stamp <= self.times.limits[-1] / SECOND - START
            self.times.advance(1)
            self.times.system += 0.7
        assert len(self.times.limits) < 25
        idle = len(self.times.limits)
        self.times.advance(DAY)
        assert len(self.times.limits) == idle

    def test_it_is_not_remembered_every_second(self) -> None:
        texts = set()
        for _ in range(100):
            self.times.advance(1)
            self.times.system += 0.001
            texts.add(self.times.remembered)
        assert len(texts) == 1
        self.times.set(2)
        assert self.times.remembered not in texts

    def test_a_boot_that_is_not_known_is_not_remembered(self) -> None:
        self.times.remembered = ""
        self.times.restart(10, "")
        self.times.advance(1)
        assert self.times.remembered == ""


class ReportTests(SynchronousTestCase):
    """Log lines"""

    def setUp(self) -> None:
        self.times = Times()
        self.lines = logged(self)

    def test_a_jump_that_lasts(self) -> None:
        self.times.set(100)
        self.times.advance(1)
        self.times.advance(LASTING)
        assert self.lines == [
            "clock: the system's clock jumped forward by 100 s; it is accepted if it lasts 600 s",
            "clock: the jump forward by 100 s has lasted 600 s and is accepted",
        ]

    def test_a_jump_that_ends(self) -> None:
        self.times.set(100)
        self.times.advance(5)
        self.times.set(-100)
        assert self.lines == [
            "clock: the system's clock jumped forward by 100 s; it is accepted if it lasts 600 s",
            "clock: the jump forward ended after 5 s and was not accepted",
        ]

    def test_set_back(self) -> None:
        self.times.set(-100)
        self.times.advance(1)
        assert self.lines == [
            "clock: the system's clock was set back by 100 s; timestamps stand still until it has "
            "caught up"
        ]

    def test_a_history_from_the_future(self) -> None:
        self.times.wall.start(int((START + 100) * SECOND))
        assert self.lines == [
            "clock: the last stored message is 100 s ahead of the system's clock; new messages get "
            "its timestamp until the clock has reached it"
        ]

    def test_corrections_are_not_reported(self) -> None:
        self.times.set(-0.5)
        self.times.set(0.5)
        assert self.lines == []


class BrokerTests(SynchronousTestCase):
    """A broker whose two clocks differ"""

    def setUp(self) -> None:
        self.clock = Clock()
        self.system = START
        wall = WallClock(lambda: self.system, self.clock.seconds)
        self.broker = make_broker(self.clock, wall=wall)
        self.broker.startService()

    def tearDown(self) -> None:
        self.broker.stopService()

    def test_housekeeping_checks_the_clock(self) -> None:
        listener = make_listener(self.broker)
        self.system += DAY
        self.clock.pump([1.0] * (int(LASTING) + 2))
        assert listener.wall.jumps == 1
        assert listener.wall.timestamp() == int(self.system * SECOND)

    def test_the_next_broker_is_not_bound_by_the_messages_of_others(self) -> None:
        store = self.broker.store
        last = make_listener(self.broker).wall.timestamp()
        store.last_timestamp = int((START + DAY) * SECOND)
        wall = WallClock(lambda: self.system, self.clock.seconds)
        broker = make_broker(self.clock, wall=wall, store=store)
        broker.startService()
        self.addCleanup(broker.stopService)
        assert last <= wall.timestamp() <= last + (JUMP + 1) * SECOND

    def test_subscriptions_are_checked_again_after_a_jump(self) -> None:
        listener = make_listener(self.broker)
        checked: list[object] = []

        def recheck(topic: object, change: object) -> bool:
            checked.append(topic)
            return True

        listener.router.subscribe(
            listener.outbox(_Nowhere(), Reader("bob", recheck)),
            self.broker.topics.create("news"),
            Lines(),
        )
        self.system += DAY
        self.clock.pump([1.0] * int(LASTING))
        assert checked == []
        self.clock.pump([1.0] * 2)
        assert len(checked) == 1


class _Nowhere:
    """A transport whose output is not of interest."""

    def write(self, data: bytes) -> None:
        """See ``Consumer``."""


class _Reactor(ReactorBase):
    """A reactor without a loop, whose clock can be set."""

    now = START

    def seconds(self) -> float:
        """See IReactorTime."""
        return self.now

    def installWaker(self) -> None:
        """See ReactorBase."""


class MonotonicTimerTests(SynchronousTestCase):
    """use_monotonic_timers"""

    def setUp(self) -> None:
        self.monotonic = 50.0
        self.patch(  # type: ignore[no-untyped-call]
            __import__("time"), "monotonic", lambda: self.monotonic
        )
        self.reactor = _Reactor()
        self.called: list[str] = []

    def later(self, seconds: float, name: str) -> DelayedCall:
        """Schedule a call that is recorded."""
        return self.reactor.callLater(seconds, self.called.append, name)

    def test_a_clock_that_is_set_back_stops_no_timer(self) -> None:
        use_monotonic_timers(self.reactor)
        self.later(5, "new")
        self.reactor.now -= 3600
        self.monotonic += 5
        self.reactor.runUntilCurrent()
        assert self.called == ["new"]

    def test_timers_that_wait_already_keep_their_time_and_their_order(self) -> None:
        first, third = self.later(1, "1"), self.later(9, "9")
        self.later(5, "5")
        assert self.reactor.timeout() == 1
        third.reset(3)
        first.cancel()
        use_monotonic_timers(self.reactor)
        use_monotonic_timers(self.reactor)
        self.monotonic += 3
        self.reactor.runUntilCurrent()
        assert self.called == ["9"]
        assert self.reactor.timeout() == 2
        self.monotonic += 3
        self.reactor.runUntilCurrent()
        assert self.called == ["9", "5"]

    def test_timers_that_are_made_in_a_pass_over_the_timers_wait(self) -> None:
        self.reactor.running = True

        def begin() -> None:
            use_monotonic_timers(self.reactor)
            self.later(1, "new")
            # asyncio's reactor determines this with each timer, which lets the pass see it.
            assert self.reactor.timeout() == 1

        self.reactor.callLater(0, begin)
        self.reactor.runUntilCurrent()
        assert self.called == []
        self.reactor.now -= 3600
        self.monotonic += 1
        self.reactor.runUntilCurrent()
        assert self.called == ["new"]

    def test_a_fake_clock_is_left_as_it_is(self) -> None:
        clock = clock_at()
        use_monotonic_timers(clock)
        assert clock.seconds() == START

    def test_the_wall_clock_of_this_computer(self) -> None:
        wall = system_wall_clock()
        assert wall.timestamp() <= wall.timestamp() <= int(wall.system() * SECOND)
