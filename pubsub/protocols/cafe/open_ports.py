"""The UDP ports of this computer that programs have open: a subscriber without one has ended.

Nothing else shows it, as a subscriber may be silent and the operating system accepts datagrams to a
port that is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure

log = Logger()
Ports: TypeAlias = "frozenset[int] | None"
# Those of the network namespace, with connected sockets; Linux alone has them.
_FILES = (Path("/proc/self/net/udp"), Path("/proc/self/net/udp6"))
_LOOK_SECONDS = 30.0
# What the system returns of these files at a time.
_READ_BYTES = 4096


def open_ports(files: tuple[Path, ...] = _FILES) -> Ports:
    """Return the ports that are open; None if the system does not show them.

    The system looks for the place of each read from the start: with 10,000 sockets this takes some
    100 ms. Other threads run while it does.
    """
    found: set[int] = set()
    is_shown = False
    for file in files:
        # Without IPv6 there is one file.
        with suppress(OSError, ValueError, IndexError), file.open("rb", _READ_BYTES) as lines:
            next(lines, b"")
            for line in lines:
                found.add(int(line.split(None, 2)[1].rpartition(b":")[2], 16))
            is_shown = True
    return frozenset(found) if is_shown else None


def read_in_thread(reactor: Any) -> Callable[[], Deferred[Ports]]:
    """Return a function that does as ``open_ports`` in a thread of ``reactor``."""
    return lambda: maybeDeferred(deferToThreadPool, reactor, reactor.getThreadPool(), open_ports)


class OpenPorts:
    """The ports that ``read`` has found in its last two calls.

    Two, as the list is not read at once: a port may be missing once because another one was closed.
    """

    def __init__(self, read: Callable[[], Deferred[Ports]]) -> None:
        self._read = read
        self._is_reading = False
        self._last: Ports = None
        self._last_at = -inf
        self._found: Ports = None
        # The time of the call before the last.
        self._since = -inf

    def look(self, now: float) -> None:
        """Read the ports, unless that was begun less than 30 seconds ago, or has not ended."""
        if self._is_reading or now - self._last_at < _LOOK_SECONDS:
            return
        self._is_reading = True
        self._read().addErrback(_failed).addCallback(self._take, now)

    def _take(self, last: Ports, begun: float) -> None:
        before, self._is_reading = self._last, False
        self._since, self._last_at, self._last = self._last_at, begun, last
        self._found = None if before is None or last is None else before | last

    def is_closed(self, port: int, heard: float) -> bool:
        """Return whether ``port``, from which a datagram came at ``heard``, was closed since."""
        return self._found is not None and heard < self._since and port not in self._found


def _failed(failure: Failure) -> None:
    """No thread could be started, for example: the ports are not known."""
    log.warn("the open UDP ports cannot be read: {reason}", reason=failure.getErrorMessage())
