"""The UDP ports of this computer that programs have open: a subscriber without one has ended.

Nothing else shows it, as a subscriber may be silent and the operating system accepts datagrams to a
port that is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path

# Those of the network namespace, with connected sockets; Linux alone has them.
_FILES = (Path("/proc/self/net/udp"), Path("/proc/self/net/udp6"))
_LOOK_SECONDS = 30.0


def open_ports(files: tuple[Path, ...] = _FILES) -> frozenset[int] | None:
    """Return the ports that are open; None if the system does not show them."""
    found: set[int] = set()
    is_shown = False
    for file in files:
        # Without IPv6 there is one file.
        with suppress(OSError, ValueError, IndexError):
            for line in file.read_text().splitlines()[1:]:
                found.add(int(line.split()[1].rpartition(":")[2], 16))
            is_shown = True
    return frozenset(found) if is_shown else None


class OpenPorts:
    """The ports that ``read`` has found in its last two calls.

    Two, as the list is not read at once: a port may be missing once because another one was closed.
    """

    def __init__(self, read: Callable[[], frozenset[int] | None] = open_ports) -> None:
        self._read = read
        self._last: frozenset[int] | None = None
        self._last_at = -inf
        self._found: frozenset[int] | None = None
        # The time of the call before the last.
        self._since = -inf

    def look(self, now: float) -> None:
        """Read the ports, unless they were read less than 30 seconds ago."""
        if now - self._last_at < _LOOK_SECONDS:
            return
        before, last = self._last, self._read()
        self._since, self._last_at, self._last = self._last_at, now, last
        self._found = None if before is None or last is None else before | last

    def is_closed(self, port: int, heard: float) -> bool:
        """Return whether ``port``, from which a datagram came at ``heard``, was closed since."""
        return self._found is not None and heard < self._since and port not in self._found
