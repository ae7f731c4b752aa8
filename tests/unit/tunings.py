"""Tuning with some of the tricks."""

from __future__ import annotations

from pubsub.tuning import TUNED, Trick, Tuning


def without(*tricks: Trick) -> Tuning:
    """Return the tuning with all tricks but these."""
    return Tuning(TUNED.on - set(tricks))
