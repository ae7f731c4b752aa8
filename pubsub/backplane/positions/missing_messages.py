"""``MissingMessages``: messages of the shared history that this log does not have. Sans-IO.

The stream removes its oldest messages, so a broker that was away for too long, or that is new, goes
on behind them. Messages that an origin had published before the first one after such a gap may
be missing. A broker whose history is older than its part in the shared one has messages, too, that
are at no other broker.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple

from pubsub.backplane.positions.shared_position import EVERYTHING, Extent, SharedPosition

MISSING = "shared-missing"
"""The table of the metadata with ``MissingBefore`` by origin; a mark says that more may follow."""
_ANY = "*"
_VALUE = struct.Struct("<3Q")
_MARK = b"?"


class MissingBefore(NamedTuple):
    """Messages of an origin before ``sequence`` of ``run`` may be missing.

    They would be before ``offset`` in this log.
    """

    run: int
    sequence: int
    offset: int


class MissingMessages:
    """The last gap of each origin; ``put`` and ``delete`` are those of the store."""

    def __init__(
        self, put: Callable[[str, str, bytes], object], delete: Callable[[str, str], object]
    ) -> None:
        self._put, self._delete = put, delete
        self._gaps: dict[str, MissingBefore] = {}
        # The origins whose next messages may come after a gap.
        self._open: set[str] = set()

    def restore(self, rows: Iterable[tuple[str, bytes]]) -> None:
        """Take the stored entries."""
        for origin, value in rows:
            if value.endswith(_MARK) and len(value) != _VALUE.size:
                self._open.add(origin)
                value = value[: -len(_MARK)]
            if value:
                self._gaps[origin] = MissingBefore(*_VALUE.unpack(value))

    def expect(self, origins: Iterable[str]) -> None:
        """The stream removed messages before they were read, of these origins or of others."""
        for origin in (*origins, _ANY):
            self._open.add(origin)
            self._put(MISSING, origin, self._packed(origin) + _MARK)

    def arrived(self, origin: str, gap: MissingBefore, last: tuple[int, int]) -> bool:
        """Messages of ``origin`` follow, from ``gap`` on; ``last`` is where those before ended.

        Return whether some that followed these were missed.
        """
        is_first = not any(last)
        if origin not in self._open and not (is_first and _ANY in self._open):
            return False
        self._open.discard(origin)
        if gap.run == last[0] and gap.sequence <= last[1]:
            # No message was missed now; those missed earlier may still be. Some may come again: the
            # origin did not read them in the former stream.
            if origin in self._gaps:
                self._put(MISSING, origin, self._packed(origin))
            else:
                self._delete(MISSING, origin)
            return False
        self.keep(origin, gap)
        return not is_first

    def keep(self, origin: str, gap: MissingBefore) -> None:
        """Note that messages of ``origin`` are missing."""
        self._gaps[origin] = gap
        self._put(MISSING, origin, self._packed(origin))

    def _packed(self, origin: str) -> bytes:
        return _VALUE.pack(*self._gaps[origin]) if origin in self._gaps else b""

    @property
    def offset(self) -> int:
        """The offset from which on nothing is known to be missing in this log."""
        return max([gap.offset for gap in self._gaps.values()], default=0)

    def before(self, offset: int) -> SharedPosition:
        """Return the position before which are all messages that are missing before ``offset``."""
        return SharedPosition(
            0,
            {
                origin: {gap.run: gap.sequence}
                for origin, gap in self._gaps.items()
                if gap.offset <= offset
            },
        )

    def lacks(self, low: Extent, high: Extent | None, present: Extent) -> bool:
        """Return whether messages between two positions may be missing; the log has ``present``."""
        for gap in self._gaps.values():
            is_wanted = high is None or gap.run in high.listed or high.following(gap.run) > 0
            if is_wanted and not _is_within(low, gap):
                return True
        if high is None or _ANY not in self._open:
            return False
        # Of an origin that is gone, the stream may have had nothing any more.
        return any(
            present.following(run) < following and low.following(run) < following
            for run, following in high.listed.items()
        )


def _is_within(low: Extent, gap: MissingBefore) -> bool:
    """Return whether everything that may be missing lies before ``low``."""
    following = low.following(gap.run)
    if following == EVERYTHING or gap.run in low.listed:
        return following >= gap.sequence
    return False
