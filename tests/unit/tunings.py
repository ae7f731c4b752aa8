"""Tuning with some of the tricks; the garbage collector after tests of it."""

from __future__ import annotations

import gc

from twisted.trial.unittest import SynchronousTestCase

from pubsub.tuning import TUNED, Trick, Tuning


def without(*tricks: Trick) -> Tuning:
    """Return the tuning with all tricks but these."""
    return Tuning(TUNED.on - set(tricks))


def restore_collector(case: SynchronousTestCase) -> None:
    """Leave objects out of collections after ``case`` if some are left out now."""
    case.addCleanup(gc.freeze if gc.get_freeze_count() else gc.unfreeze)
