"""Signals: the first begins the shutdown, a later one aborts the remaining connections."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

from twisted.trial.unittest import TestCase

from pubsub.server.shutdown import ForcedShutdown
from tests.unit.fakes import Guest, make_broker
from tests.unit.signalled import Signalled
from tests.unit.streams import logged

SIGNALS = signal.SIGINT, signal.SIGTERM


class StartedReactor(Signalled):
    """A reactor that installs its handlers when it starts, and counts its stops."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[int] = []
        self.stops = 0

    def callWhenRunning(self, call: Callable[[], None]) -> None:
        for number in SIGNALS:
            signal.signal(number, self._begin)
        call()

    def _begin(self, number: int, frame: FrameType | None) -> None:
        self.begun.append(number)

    def stop(self) -> None:
        self.stops += 1


class ForcedShutdownTests(TestCase):
    """A broker with a connection that does not close"""

    def setUp(self) -> None:
        for number in SIGNALS:
            self.addCleanup(signal.signal, number, signal.getsignal(number))
        self.lines = logged(self)
        self.broker = make_broker()
        self.reactor = StartedReactor()
        self.now = 5.0
        self.service = ForcedShutdown(self.broker, self.reactor, lambda: self.now)
        self.service.setServiceParent(self.broker)  # type: ignore[no-untyped-call]
        self.broker.startService()
        self.guest = Guest(self.broker, stubborn=True)

    def signal(self, number: int) -> None:
        signal.raise_signal(number)
        # The handler may interrupt any code, so the reactor's loop calls the broker.
        calls, self.reactor.calls = self.reactor.calls, []
        for call in calls:
            call()

    def was_aborted(self) -> bool:
        return any(word.startswith("abort") for word in self.guest.calls)

    def test_the_first_signal_is_the_reactor_s(self) -> None:
        self.signal(signal.SIGINT)
        assert self.reactor.begun == [signal.SIGINT]
        assert not self.was_aborted()

    def test_a_second_one_aborts_the_connections(self) -> None:
        for number in SIGNALS:
            with self.subTest(number):
                self.setUp()
                self.signal(signal.SIGTERM)
                stopped = self.broker.stopService()
                assert self.guest.calls == ["drain"]
                self.now += 1
                signal.raise_signal(number)
                self.assertNoResult(stopped)  # type: ignore[no-untyped-call]
                (call,) = self.reactor.calls
                call()
                assert self.was_aborted()
                self.successResultOf(stopped)
                assert self.reactor.begun == [signal.SIGTERM]

    def test_before_the_services_stop_it_stops_nothing_twice(self) -> None:
        """The reactor has been told to stop, and would log a traceback."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGINT)
        self.now += 0.9
        self.signal(signal.SIGTERM)
        assert self.reactor.begun == [signal.SIGTERM]
        assert not self.was_aborted()
        assert [line for line in self.lines if "stopping already" in line] == [
            f"{name}: the broker is stopping already; another one cuts clients off"
            for name in ("SIGINT", "SIGTERM")
        ]

    def test_a_drained_process_continues_at_the_first(self) -> None:
        """A request has stopped the reactor; a service manager then sends SIGTERM as always."""
        self.service.stop()
        self.service.stop()
        assert self.reactor.stops == 1
        self.signal(signal.SIGTERM)
        assert (self.reactor.begun, self.was_aborted()) == ([], False)
        self.now += 1
        self.signal(signal.SIGTERM)
        assert self.was_aborted()

    def test_a_request_after_a_signal_stops_nothing_twice(self) -> None:
        self.signal(signal.SIGTERM)
        self.service.stop()
        assert self.reactor.stops == 0

    def test_a_reactor_that_another_stopped(self) -> None:
        stopped = self.broker.stopService()
        self.signal(signal.SIGTERM)
        assert self.reactor.begun == []
        self.now += 1
        self.signal(signal.SIGTERM)
        self.successResultOf(stopped)

    def test_an_ignored_signal_stays_ignored(self) -> None:
        """As SIGINT is for a command in the background of a shell."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.service._take_over()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
