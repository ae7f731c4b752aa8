"""What a flood of forged tokens may cost.

A token that was verified before costs a look-up; another costs the verification of a signature,
and forged ones are never remembered. So verifications are rationed: all connections of a broker
share so many a second, and a client whose tokens were wrong several times in a row waits before
the next, longer each time. Clients with tokens that are known are not touched by any of it.
"""

from __future__ import annotations

from pubsub.broker.limits import TokenBucket

VERIFICATIONS = 4000
"""Signatures verified a second, for all connections together."""
_FREE_FAILURES = 3
_FIRST_WAIT, _LONGEST_WAIT = 0.02, 1.0
_EXHAUSTED_WAIT = 0.05


class Throttle:
    """One connection's share of ``bucket``, the verifications of all."""

    __slots__ = ("_bucket", "_failures", "_waited")

    def __init__(self, bucket: TokenBucket) -> None:
        self._bucket = bucket
        self._failures = 0
        self._waited = False

    def wait(self) -> float:
        """Seconds to wait before a token is verified; 0 if it may be now, which is charged."""
        if self._failures > _FREE_FAILURES and not self._waited:
            self._waited = True
            return min(_FIRST_WAIT * 2.0 ** (self._failures - _FREE_FAILURES), _LONGEST_WAIT)
        if self._bucket.available() < 1:
            return _EXHAUSTED_WAIT
        self._bucket.take(1)
        self._waited = False
        return 0.0

    def succeeded(self) -> None:
        """The token was good."""
        self._failures = 0

    def failed(self) -> None:
        """The token was not."""
        self._failures = min(self._failures + 1, 100)
