"""Limits the processor time that forged tokens can consume.

A token that was verified before costs a look-up. Any other costs the verification of a signature,
and forged tokens are never remembered. All connections of a broker, over all protocols, share
``VERIFICATIONS`` of wrong tokens a second (``Listener.verifications``): a good token returns what
was taken for it, as its client may sign one for each request. After several wrong tokens in a row a
connection also waits before the next verification, longer each time. Clients whose tokens are known
never wait.
"""

from __future__ import annotations

from collections.abc import Callable

from pubsub.broker.publishing.rate_limits import TokenBucket

VERIFICATIONS = 4000
"""Wrong tokens verified a second, for all connections together."""
_FREE_FAILURES = 3
_FIRST_WAIT, _LONGEST_WAIT = 0.02, 1.0
_EXHAUSTED_WAIT = 0.05


def verification_bucket(seconds: Callable[[], float]) -> TokenBucket:
    """Return the bucket of a broker, whose clock is ``seconds``."""
    return TokenBucket(VERIFICATIONS, seconds)


class VerificationThrottle:
    """Delays one connection's verifications; ``bucket`` is that of all connections.

    ``count`` counts each as a frame, as it takes about as long (see ``FrameTurns``).
    """

    __slots__ = ("_bucket", "_count", "_failures", "_taken", "_waited")

    def __init__(self, bucket: TokenBucket, count: Callable[[], object]) -> None:
        self._bucket = bucket
        self._count = count
        self._failures = 0
        self._taken = 0
        self._waited = False

    def wait(self) -> float:
        """Return the seconds to wait before a token is verified; 0 takes one from the bucket."""
        if self._failures > _FREE_FAILURES and not self._waited:
            self._waited = True
            return min(_FIRST_WAIT * 2.0 ** (self._failures - _FREE_FAILURES), _LONGEST_WAIT)
        if self._bucket.available() < 1:
            return _EXHAUSTED_WAIT
        self._bucket.take(1)
        self._count()
        self._taken = 1
        self._waited = False
        return 0.0

    def succeeded(self) -> None:
        """A token was verified, or was known."""
        self._bucket.put_back(self._taken)
        self._failures = self._taken = 0

    def failed(self) -> None:
        """A token was refused."""
        self._taken = 0
        self._failures = min(self._failures + 1, 100)
