"""The settings of CPython for threads that compute beside the reactor."""

from __future__ import annotations

import sys

from pubsub.tuning import SHORT_SWITCHES, Tuning

_SWITCH_SECONDS = 0.0002


def tune_threads(tuning: Tuning) -> None:
    """Use the trick of ``tuning`` in this process.

    The reactor gives the interpreter away at each call of the system, several times for a message.
    A thread that computes, such as one that encodes the history for a client, then keeps it for up
    to the switch interval, which is 5 ms by default.
    """
    if SHORT_SWITCHES in tuning:
        sys.setswitchinterval(_SWITCH_SECONDS)
