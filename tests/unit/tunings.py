"""Tuning with some of the tricks; the garbage collector after tests of it."""

from __future__ import annotations

import gc

from twisted.trial.unittest import SynchronousTestCase

from pubsub.tuning import TUNED, Trick, Tuning


def without(*tricks: Trick) -> Tuning:
    """Return the tuning with all tricks but these."""
    return Tuning(TUNED.on - set(tricks))


def restore_collector(case: SynchronousTestCase) -> None:
    """Leave no object out of collections after ``case``, unless some are left out before it."""
    if not gc.get_freeze_count():
        case.addCleanup(gc.unfreeze)
