"""SIGINT before the reactor handles it."""

from __future__ import annotations

import signal
from unittest.mock import patch

from click import Context
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

import pubsub_broker
from pubsub.commands import command
from pubsub.server.early_interrupt import end_at_interrupt, leave_interrupt_to


class EarlyInterruptTests(SynchronousTestCase):
    """The handler of the signal until the reactor starts"""

    def setUp(self) -> None:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        self.reactor = MemoryReactorClock()

    def start_reactor(self) -> None:
        leave_interrupt_to(self.reactor)
        for call, arguments, keywords in self.reactor.triggers["before"]["startup"]:
            call(*arguments, **keywords)

    def test_the_process_ends_by_it_until_the_reactor_starts(self) -> None:
        end_at_interrupt()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
        self.start_reactor()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_an_ignored_signal_stays_ignored(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        end_at_interrupt()
        self.start_reactor()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN

    def test_the_command_has_its_handler_once_it_is_imported(self) -> None:
        handlers: list[object] = []

        def run() -> int:
            handlers.append(signal.getsignal(signal.SIGINT))
            assert command.pubsub.get_command(Context(command.pubsub), "topics") is not None
            handlers.append(signal.getsignal(signal.SIGINT))
            return 0

        with patch.object(command, "main", run):
            assert pubsub_broker.main() == 0
        assert handlers == [signal.SIG_DFL, signal.default_int_handler]

    def test_it_begins_when_twistd_needs_the_options(self) -> None:
        assert pubsub_broker.Options
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
