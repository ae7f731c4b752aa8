"""Decoding and encoding runs of equal frames, without a step of the interpreter for each message.

The bytes before a payload (a header, often an address) are the same for consecutive messages to one
topic: their head. Frames of one length with one head are cut by one ``struct`` call for up to 128
of them. Heads are put before payloads by a join. No protocol, no Twisted, no state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct

from pubsub.broker.message_run import MIXED

# The largest and the smallest number of frames that are cut at a time; fewer are cut one by one.
_MOST = 128
_FEWEST = 8


@lru_cache(maxsize=1024)
def _cutter(before: int, size: int, count: int) -> Struct:
    return Struct(f"{before}x{size}s" * count)


def cut_run(data: bytes, at: int, head: bytes, size: int) -> list[bytes]:
    """Return the payloads of consecutive frames of ``head`` and ``size`` bytes, from ``at`` on.

    They end before a frame that is different or incomplete.
    """
    payloads: list[bytes] = []
    step = len(head) + size
    most = _MOST
    while (count := min((len(data) - at) // step, most)) >= _FEWEST:
        most = count // 4
        # Comparing the last frame first rules out most blocks that are not all alike.
        if data.startswith(head, at + (count - 1) * step):
            cut = _cutter(len(head), size, count).unpack_from(data, at)
            # Cutting skipped the heads. They are all equal if joining them gives the same bytes.
            if data.startswith(head.join((b"", *cut)), at):
                payloads += cut
                at += count * step
                most = count
    stop = at + step
    while stop <= len(data) and data.startswith(head, at):
        payloads.append(data[stop - size : stop])
        at, stop = stop, stop + step
    return payloads


class _Heads(dict[int, bytes]):
    """The heads of payloads by length, made when they are first used."""

    def __init__(self, make: Callable[[int], bytes]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, length: int) -> bytes:
        head = self[length] = self._make(length)
        return head


def join_run(head: Callable[[int], bytes], payloads: Sequence[bytes], size: int) -> bytes:
    """Return the frames of ``payloads``, which have ``size`` bytes each or MIXED.

    ``head`` returns the head of a payload of a given length.
    """
    if size != MIXED:
        return head(size).join((b"", *payloads))
    parts = [b""] * (2 * len(payloads))
    parts[0::2] = map(_Heads(head).__getitem__, map(len, payloads))
    parts[1::2] = payloads
    return b"".join(parts)
