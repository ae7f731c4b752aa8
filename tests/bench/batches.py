"""Publish batches built before the run, so that sending is only a system call.

The first 8 bytes of each payload are its key: publisher number shifted left by 32 bits, plus the
sequence number, as a little-endian integer. In text the first 16 bytes are the key's hexadecimal
digits. One key then differs from the next by exactly 1 within a run of messages in order, and by
anything else where publishers alternate, the cycle starts again, or something is wrong.
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
    """The keys of all whole frames in `buffer`, as a view: it changes with the buffer."""
    return _view(buffer, frame, "<u8")


def _view(buffer: bytearray, frame: Frame, dtype: str) -> npt.NDArray[Any]:
    count = len(buffer) // frame.size
    return np.ndarray((count,), dtype, buffer, offset=frame.offset, strides=(frame.size,))


def build_batches(
    frame: Frame, publisher: int, plan: RunPlan, heads: Sequence[bytes] = ()
) -> list[memoryview]:
    """One cycle of batches, `plan.per_batch` messages each, numbered from 0.

    `heads` stand before the messages in turn, each as long as what the frame has there.
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
