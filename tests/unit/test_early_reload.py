"""SIGHUP before its handler is there."""

from __future__ import annotations

import signal

from twisted.trial.unittest import SynchronousTestCase

import pubsub_broker
from pubsub.server.early_reload import EarlyReload, early_reload


class EarlyReloadTests(SynchronousTestCase):
    """The function that remembers the signal"""

    def setUp(self) -> None:
        before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
        self.addCleanup(signal.signal, signal.SIGHUP, before)
        self.addCleanup(early_reload.take)

    def test_the_signal_is_remembered_once(self) -> None:
        early = EarlyReload()
        early.watch()
        assert not early.take()
        signal.raise_signal(signal.SIGHUP)
        assert early.take()
        assert not early.take()

    def test_an_ignored_signal_stays_ignored(self) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        EarlyReload().watch()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN

    def test_it_begins_when_twistd_needs_the_options(self) -> None:
        assert pubsub_broker.Options
        signal.raise_signal(signal.SIGHUP)
        assert early_reload.take()
