"""Limits of handshakes of TLS and CURVE by address: each takes processor time that a client can
spend again and again without proving anything.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

BURST_SECONDS = 10.0
"""An address may do the handshakes of this many seconds at once, such as after a restart."""
ADDRESSES = 10_000
"""Addresses that are counted. The one that was seen least recently is forgotten for another."""


class HandshakeRates:
    """The handshakes left to each address, on all listeners together; ``seconds`` is monotonic."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        # The handshakes that are used up, and when that was.
        self._used: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._used)

    def admit(self, address: str, rate: float) -> bool:
        """Return whether ``address`` may do a handshake now, and count it.

        It may do ``rate`` a second; zero is no limit. One that is refused does not count.
        """
        if not rate:
            return True
        now = self._seconds()
        used, since = self._used.get(address, (0.0, now))
        used = max(0.0, used - max(0.0, now - since) * rate)
        admitted = used + 1 <= max(1.0, rate * BURST_SECONDS)
        if address not in self._used and len(self._used) >= ADDRESSES:
            self._used.popitem(last=False)
        self._used[address] = (used + admitted, now)
        self._used.move_to_end(address)
        return admitted
