"""Cutting consecutive frames with equal heads out of a read, many by one call."""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

# Frames cut by one call, and the number from which that is faster than one by one.
_MOST_CUT = 128
_LEAST_CUT = 8


@lru_cache(maxsize=1024)
def _cutter(before: int, size: int, count: int) -> Struct:
    return Struct(f"{before}x{size}s" * count)


def cut(data: bytes, at: int, head: bytes, size: int) -> list[bytes]:
    """Return the payloads of the complete frames from ``at`` on that begin with ``head``."""
    payloads: list[bytes] = []
    step = len(head) + size
    most = _MOST_CUT
    while (count := min((len(data) - at) // step, most)) >= _LEAST_CUT:
        most = count // 4
        # Comparing the last frame first spares most attempts that would fail.
        if data.startswith(head, at + (count - 1) * step):
            cut = _cutter(len(head), size, count).unpack_from(data, at)
            # Cutting skipped the heads; they are equal if joining gives the same bytes.
            if data.startswith(head.join((b"", *cut)), at):
                payloads += cut
                at += count * step
                most = count
    stop = at + step
    while stop <= len(data) and data.startswith(head, at):
        payloads.append(data[stop - size : stop])
        at, stop = stop, stop + step
    return payloads
