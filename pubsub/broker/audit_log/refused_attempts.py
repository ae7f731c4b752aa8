"""Refused attempts in the audit log: requests without the right to them, and their addresses.

Each has a line, in which the address comes first, so that a program such as fail2ban finds it. A
source that continues gets ``LINES`` lines in ``PERIOD`` seconds, and then one with the number of
the others. The number of lines of all sources together is bounded as well.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Network
from typing import TYPE_CHECKING

from pubsub.broker.publishing.rate_limits import TokenBucket
from pubsub.errors import BadToken, MissingPermission, NotAuthorized, WrongKey, WrongPassword

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall, IReactorTime

REASONS = frozenset(
    {
        BadToken.reason,
        MissingPermission.reason,
        NotAuthorized.reason,
        WrongKey.reason,
        WrongPassword.reason,
        "unknown-key",
        "tls-certificate-missing",
        "tls-certificate-expired",
        "tls-certificate-untrusted",
    }
)
"""The reasons of refusals that are attempts."""
LINES = 10
"""Lines of one source in a period."""
PERIOD = 60.0
LINES_A_SECOND = 100.0
"""Lines of all sources."""
SOURCES = 10_000
"""Sources that are distinguished. The one that was refused first is forgotten for a new one."""


@dataclass(slots=True)
class _AttemptSource:
    """The lines of a source since ``since``, and the attempts that got none."""

    since: float
    address: str = ""
    protocol: str = ""
    reason: str = ""
    lines: int = 0
    others: int = 0


class RefusedAttempts:
    """Calls ``record`` with the name of an event and its fields (see ``AuditLog.record``)."""

    def __init__(self, record: Callable[..., None], clock: IReactorTime) -> None:
        self._record = record
        self._clock = clock
        self._bucket = TokenBucket(LINES_A_SECOND, clock.seconds)
        self._sources: OrderedDict[str, _AttemptSource] = OrderedDict()
        self._timer: IDelayedCall | None = None

    def __len__(self) -> int:
        return len(self._sources)

    def refused(self, protocol: str, reason: str, peer: str, count: int = 1) -> None:
        """Record ``count`` refusals of the client at ``peer``: an address with or without a port,
        or ``unix``.
        """
        if reason not in REASONS:
            return
        address = _address(peer)
        source = self._source(_network(address))
        if source.lines < LINES and self._bucket.available() >= 1:
            self._bucket.take(1)
            source.lines += 1
            self._write(address, protocol, reason, count)
        else:
            source.address, source.protocol, source.reason = address, protocol, reason
            source.others += count

    def close(self) -> None:
        """Record the remaining attempts, because the broker stops."""
        while self._sources:
            self._forget()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _source(self, network: str) -> _AttemptSource:
        found = self._sources.get(network)
        if found is None:
            if len(self._sources) >= SOURCES:
                self._forget()
            found = self._sources[network] = _AttemptSource(self._clock.seconds())
            if self._timer is None:
                self._timer = self._clock.callLater(PERIOD, self._end_periods)
        return found

    def _end_periods(self) -> None:
        """Forget the sources whose period is over, and record their remaining attempts."""
        self._timer = None
        now = self._clock.seconds()
        while self._sources:
            since = next(iter(self._sources.values())).since
            if since + PERIOD > now:
                self._timer = self._clock.callLater(since + PERIOD - now, self._end_periods)
                return
            self._forget()

    def _forget(self) -> None:
        _, source = self._sources.popitem(last=False)
        if source.others:
            self._write(source.address, source.protocol, source.reason, source.others)

    def _write(self, address: str, protocol: str, reason: str, count: int) -> None:
        self._record("refused", address=address, protocol=protocol, reason=reason, count=count)


def _address(peer: str) -> str:
    """Return ``peer`` without a port."""
    host, colon, port = peer.rpartition(":")
    return host.strip("[]") if colon and port.isdecimal() else peer


def _network(address: str) -> str:
    """Return the network of one source: an address, or the first 64 bits of an IPv6 address."""
    try:
        return str(IPv6Network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address
