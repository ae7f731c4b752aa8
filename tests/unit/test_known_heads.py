"""``KnownHeads``: how many heads are kept, and how they are let go."""

from __future__ import annotations

from typing import Any

import pytest

from pubsub.broker.clients.frame_turns import FrameTurns
from pubsub.broker.memory_budget import MemoryBudget
from pubsub.broker.slices import Slices
from pubsub.kernel import Head, LengthField
from pubsub.wire.known_heads import HEAD_BYTES, KnownHeads, cache_bytes
from tests.unit.kernel_forms import each_form
from tests.unit.slice_ticks import Ticks

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(0, 128 * MIB), (64 * MIB, 16 * MIB), (512 * MIB, 64 * MIB), (8192 * MIB, 128 * MIB)],
)
def test_they_may_take_a_part_of_the_memory(limit: int, expected: int) -> None:
    assert cache_bytes(MemoryBudget(limit)) == expected


class Lost:
    """An address that notes when it is freed."""

    freed = 0

    def __del__(self) -> None:
        Lost.freed += 1


@each_form
def test_they_are_freed_in_slices(kernel: Any) -> None:
    def learn(data: bytes, at: int) -> tuple[Head, Lost]:
        return Head(data[at : at + 3] + b"\0", (LengthField(3, 1),), 9), Lost()

    ticks, memory, forgotten = Ticks(), MemoryBudget(10_000_000), []
    turns = FrameTurns(Slices(ticks.waiting_for), lambda call: None)
    known = KnownHeads(
        learn, memory, turns, ticks.waiting_for, lambda: forgotten.append(True), kernel.HeadTable
    )
    Lost.freed = 0
    for number in range(3_000):
        turns._left = 1
        known.scan(number.to_bytes(3, "big") + b"\0", 0)
    ticks.turn()
    assert (len(known), memory.used) == (3_000, 3_000 * HEAD_BYTES)
    memory.add(10_000_000)
    assert (len(known), memory.used, forgotten) == (0, 10_000_000, [True])
    assert Lost.freed == 0
    before = 0
    while ticks.waiting:
        ticks.turn()
        assert Lost.freed - before <= 1_000
        before = Lost.freed
    assert Lost.freed == 3_000
