"""Publish batches that are built before the run, so that sending is one system call.

The first 8 bytes of each payload are its key, a little-endian integer: the publisher number shifted
left by 32 bits, plus the sequence number. In a text payload the first 16 bytes are the hexadecimal
digits of the key. Consecutive keys of one publisher therefore differ by 1. They differ by another
value where publishers alternate, the cycle starts again, or a message is misplaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice, repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.bench.plan import RunPlan
from tests.bench.wires import Frame

Keys = npt.NDArray[np.uint64]

KEY_BYTES = 8
TEXT_KEY_BYTES = 16
PUBLISHER_SHIFT = 32
SEQUENCE_MASK = (1 << PUBLISHER_SHIFT) - 1


def view_keys(buffer: bytearray, frame: Frame) -> Keys:
    """Return the keys of all complete frames in `buffer`, as a view of the buffer."""
    return _view(buffer, frame, "<u8")


def _view(buffer: bytearray, frame: Frame, dtype: str) -> npt.NDArray[Any]:
    count = len(buffer) // frame.size
    return np.ndarray((count,), dtype, buffer, offset=frame.offset, strides=(frame.size,))


def publisher_of(key: bytes) -> int:
    """Return the number of the publisher in the key of a payload, or in its digits."""
    if len(key) == TEXT_KEY_BYTES:
        return int(key, 16) >> PUBLISHER_SHIFT
    return int.from_bytes(key, "little") >> PUBLISHER_SHIFT


def build_batches(
    frame: Frame, publisher: int, plan: RunPlan, heads: Sequence[bytes] = ()
) -> list[memoryview]:
    """Return one cycle of batches of `plan.per_batch` messages, numbered from 0.

    `heads` replace the bytes before the payload in turn; each has the length of `frame.before`.
    """
    rest = b"x" * plan.payload + frame.after
    count = plan.per_batch * plan.cycle
    befores = islice(chain.from_iterable(repeat(heads or [frame.before])), count)
    cycle = bytearray(rest.join([*befores, b""]))
    first = publisher << PUBLISHER_SHIFT
    keys = np.arange(first, first + count, dtype=np.uint64)
    if frame.text:
        digits = np.frombuffer(keys.astype(">u8").tobytes().hex().encode(), f"S{TEXT_KEY_BYTES}")
        _view(cycle, frame, digits.dtype.str)[:] = digits
    else:
        view_keys(cycle, frame)[:] = keys
    size = plan.per_batch * frame.size
    whole = memoryview(cycle)
    return [whole[start : start + size] for start in range(0, len(cycle), size)]
