"""A second signal during shutdown aborts the remaining connections."""

from __future__ import annotations

import signal

from twisted.trial.unittest import TestCase

from pubsub.server.shutdown import ForcedShutdown
from tests.unit.fakes import Guest, make_broker
from tests.unit.signalled import Signalled

SIGNALS = signal.SIGINT, signal.SIGTERM


class ForcedShutdownTests(TestCase):
    """A broker with a connection that does not close"""

    def setUp(self) -> None:
        self.before = {number: signal.getsignal(number) for number in SIGNALS}
        for number, handler in self.before.items():
            self.addCleanup(signal.signal, number, handler)
        self.broker = make_broker()
        self.reactor = Signalled()
        service = ForcedShutdown(self.broker, self.reactor)
        service.setServiceParent(self.broker)  # type: ignore[no-untyped-call]
        self.broker.startService()
        self.guest = Guest(self.broker, stubborn=True)

    def test_before_the_shutdown_the_reactor_handles_the_signals(self) -> None:
        assert {number: signal.getsignal(number) for number in SIGNALS} == self.before
        self.broker.clients.discard(self.guest)
        self.successResultOf(self.broker.stopService())

    def test_either_signal_aborts_the_connections(self) -> None:
        for number in SIGNALS:
            with self.subTest(number):
                self.setUp()
                stopped = self.broker.stopService()
                assert self.guest.calls == ["drain"]
                self.assertNoResult(stopped)  # type: ignore[no-untyped-call]
                signal.raise_signal(number)
                self.assertNoResult(stopped)  # type: ignore[no-untyped-call]
                # The handler may interrupt any code, so the reactor's loop calls the broker.
                (call,) = self.reactor.calls
                call()
                assert [word.split(":")[0] for word in self.guest.calls] == ["drain", "abort"]
                self.successResultOf(stopped)
