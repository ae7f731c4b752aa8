"""Tuning with some of the tricks; the interpreter after tests of them."""

from __future__ import annotations

import gc
import sys

from twisted.trial.unittest import SynchronousTestCase

from pubsub.tuning import TUNED, Trick, Tuning


def without(*tricks: Trick) -> Tuning:
    """Return the tuning with all tricks but these."""
    return Tuning(TUNED.on - set(tricks))


def restore_collector(case: SynchronousTestCase) -> None:
    """Leave no object out of collections after ``case``, unless some are left out before it."""
    if not gc.get_freeze_count():
        case.addCleanup(gc.unfreeze)


def restore_switches(case: SynchronousTestCase) -> None:
    """Give threads the time that they have before ``case``."""
    case.addCleanup(sys.setswitchinterval, sys.getswitchinterval())
