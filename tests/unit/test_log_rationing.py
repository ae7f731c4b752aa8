"""Rationing of lines that repeat."""

from __future__ import annotations

from threading import Thread
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.logger import ILogObserver, LogEvent, LogLevel, formatEvent, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.figures.counters import Counters
from pubsub.server.log_rationing import LINES, SECONDS, Rationing


class Rationed:
    """A rationed log with a clock; ``lines`` are those that were written."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.lines: list[str] = []
        self.events: list[LogEvent] = []
        self.rationing = Rationing(
            cast(ILogObserver, self.write), self.clock.seconds, self.clock.callLater
        )

    def write(self, event: LogEvent) -> None:
        self.events.append(event)
        self.lines.append(formatEvent(event))

    def log(self, text: str = "line {n}", namespace: str = "a", **fields: Any) -> None:
        event = {"log_level": LogLevel.warn, "log_namespace": namespace, "log_format": text}
        self.rationing({**event, **fields})

    def flood(self, count: int = 1000, **fields: Any) -> None:
        for n in range(count):
            self.log(n=n, **fields)


class RationingTests(SynchronousTestCase):
    """Rationing"""

    def setUp(self) -> None:
        self.log = Rationed()

    def test_lines_within_the_limit_are_written(self) -> None:
        for _ in range(5):
            self.log.flood(LINES)
            self.log.clock.advance(SECONDS)
        assert len(self.log.lines) == 5 * LINES
        assert not self.log.clock.getDelayedCalls()

    def test_a_handler_of_a_signal_logs_while_a_line_is_written(self) -> None:
        handlers = [lambda: self.log.log("while a line is written")]

        def seconds() -> float:
            if handlers:
                handlers.pop()()
            return 0.0

        self.log.log("before")
        self.log.rationing._seconds = seconds
        thread = Thread(target=self.log.log, args=("line",), daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
        assert self.log.lines == ["before", "while a line is written", "line"]

    def test_of_more_their_number_and_the_last_are_written(self) -> None:
        self.log.flood()
        assert len(self.log.lines) == LINES
        self.log.clock.advance(SECONDS)
        assert self.log.lines[LINES:] == ["repeated 990 times, the last: line 999"]
        report = self.log.events[-1]
        assert (report["log_level"], report["log_namespace"]) == (LogLevel.warn, "a")
        assert not self.log.clock.getDelayedCalls()

    def test_the_next_event_writes_the_number_too(self) -> None:
        # The timer of a reactor that is held up.
        log = Rationed()
        log.rationing._call_later = lambda seconds, call: None
        log.flood(LINES + 2)
        log.clock.advance(SECONDS)
        log.log("other", "b")
        assert log.lines[LINES:] == ["repeated 2 times, the last: line 11", "other"]

    def test_formats_and_namespaces_have_limits_of_their_own(self) -> None:
        self.log.flood()
        self.log.log("other")
        self.log.log(namespace="b", n=1)
        assert self.log.lines[LINES:] == ["other", "line 1"]

    def test_a_flood_that_goes_on_writes_few_lines(self) -> None:
        for _ in range(100):
            self.log.flood(100)
            self.log.clock.advance(1)
        # In each period of ten seconds, and the line about the one before.
        assert len(self.log.lines) <= 10 * (LINES + 1)
        self.log.clock.advance(SECONDS)
        assert not self.log.clock.getDelayedCalls()
        repeats = sum(event.get("repeats", 1) for event in self.log.events)
        assert repeats == 10_000

    def test_events_without_a_limit(self) -> None:
        self.log.flood(50, unlimited=True)
        self.log.flood(50, log_level=LogLevel.debug)
        self.log.flood(50, log_io="printed")
        assert len(self.log.lines) == 150

    def test_the_first_refusals_for_each_reason_are_written(self) -> None:
        """They are of one format, and few: their totals decide which are worth a line."""
        globalLogPublisher.addObserver(self.log.rationing)
        self.addCleanup(globalLogPublisher.removeObserver, self.log.rationing)
        counters, reasons = Counters(), [f"reason-{number}" for number in range(3 * LINES)]
        for reason in reasons * 9:
            counters.refuse("cafe", reason, "client")
        assert self.log.lines == [
            f"refused: 1 on cafe: {reason}, last by 'client'" for reason in reasons
        ]

    def test_at_the_end_the_number_is_written(self) -> None:
        self.log.flood(LINES + 1)
        self.log.rationing.flush()
        assert self.log.lines[-1] == "repeated 1 times, the last: line 10"
        self.log.rationing.flush()
        assert len(self.log.lines) == LINES + 1

    def test_formats_made_at_run_time_take_bounded_memory(self) -> None:
        for n in range(5000):
            self.log.log(f"format {n}")
        assert len(self.log.lines) == 5000
        assert len(self.log.rationing._windows) <= 1000

    @given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30), st.integers(0, 15))))
    def test_nothing_is_lost_without_a_number(self, bursts: list[tuple[str, int, int]]) -> None:
        log = Rationed()
        for namespace, count, seconds in bursts:
            log.flood(count, namespace=namespace)
            log.clock.advance(seconds)
        log.clock.advance(SECONDS)
        assert not log.clock.getDelayedCalls()
        assert sum(event.get("repeats", 1) for event in log.events) == sum(b[1] for b in bursts)
