"""The switch interval of CPython."""

from __future__ import annotations

import sys

from twisted.trial.unittest import SynchronousTestCase

from pubsub.server.thread_tuning import tune_threads
from pubsub.tuning import SHORT_SWITCHES, TUNED
from tests.unit.tunings import restore_switches, without


class SwitchTests(SynchronousTestCase):
    """``tune_threads``"""

    def test_the_interval_is_short_with_the_trick(self) -> None:
        restore_switches(self)
        sys.setswitchinterval(0.005)
        tune_threads(without(SHORT_SWITCHES))
        assert sys.getswitchinterval() == 0.005
        tune_threads(TUNED)
        assert sys.getswitchinterval() < 0.0005
