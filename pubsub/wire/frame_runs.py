"""Runs of equal frames, in and out, without a step of the interpreter for each message.

What stands before a payload (a header, often an address) is the same for consecutive messages to
one topic: their head. Frames of one length that begin with one head are cut by a single ``struct``
call a block, and heads are put before payloads by a join. No protocol, no Twisted, no state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct

from pubsub.broker.message_run import MIXED

# Frames cut at a time at the most, and at the least: fewer are cut one by one.
_MOST = 128
_FEWEST = 8


@lru_cache(maxsize=1024)
def _cutter(before: int, size: int, count: int) -> Struct:
    return Struct(f"{before}x{size}s" * count)


def cut_run(data: bytes, at: int, head: bytes, size: int) -> list[bytes]:
    """The payloads of the frames, each ``head`` and ``size`` bytes, that stand in a row at ``at``.

    The row ends before a frame that is different or not all there.
    """
    payloads: list[bytes] = []
    step = len(head) + size
    most = _MOST
    while (count := min((len(data) - at) // step, most)) >= _FEWEST:
        most = count // 4
        # A look at the last frame spares most blocks that are not a row the cut.
        if data.startswith(head, at + (count - 1) * step):
            cut = _cutter(len(head), size, count).unpack_from(data, at)
            # Cutting skipped the heads; they are right if putting them back gives the same bytes.
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
    """What stands before a payload of a given length, made when first asked for."""

    def __init__(self, make: Callable[[int], bytes]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, length: int) -> bytes:
        head = self[length] = self._make(length)
        return head


def join_run(head: Callable[[int], bytes], payloads: Sequence[bytes], size: int) -> bytes:
    """Frames of ``payloads``, each of ``size`` bytes or MIXED.

    ``head`` gives what stands before a payload of a length.
    """
    if size != MIXED:
        return head(size).join((b"", *payloads))
    parts = [b""] * (2 * len(payloads))
    parts[0::2] = map(_Heads(head).__getitem__, map(len, payloads))
    parts[1::2] = payloads
    return b"".join(parts)
