"""The heads that the frames of a listener's clients begin with, charged to the memory budget.

Clients choose the heads: each token, topic or origin that one of them uses is another. They are
remembered only so that messages are recognized faster, so they are the first to go when memory is
short. A head takes some 20 µs to learn, so each counts as a frame that is handled on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from pubsub.kernel import Columns

if TYPE_CHECKING:
    from pubsub.broker.clients.frame_turns import FrameTurns
    from pubsub.broker.memory_budget import MemoryBudget

Learn: TypeAlias = Callable[[bytes, int], "tuple[Any, Hashable] | None"]
HEAD_BYTES = 1200
"""Estimated bytes of a head with its address, for the memory budget."""
# The part of the memory bound that the heads of a listener may take, and its bounds.
_PART, _LEAST, _MOST = 8, 16 * 1024 * 1024, 128 * 1024 * 1024


class Table(Protocol):
    """A ``HeadTable`` or a ``TextTable``."""

    def held(self) -> list[object]: ...

    def scan(self, data: bytes, at: int = 0) -> Columns: ...

    def __len__(self) -> int: ...


T = TypeVar("T", bound=Table)


def cache_bytes(memory: MemoryBudget) -> int:
    """Return the bytes that a listener may keep of what its clients' frames begin with.

    They are for 110,000 heads with the default bound: a device has a topic, and thus a head.
    """
    return max(_LEAST, min(memory.limit // _PART or _MOST, _MOST))


class KnownHeads(Generic[T]):
    """A table of heads that is charged to ``memory``.

    ``learn`` is as in ``table``, which ``make_table`` makes. When the ``turns`` of a tick are over
    no head is learnt: a scan ends there, and the frame is handled on its own. ``forgotten`` is
    called when the table was emptied, so that others forget its addresses too. ``scan`` is the
    table's own method, as a call more would cost each read.
    """

    def __init__(
        self,
        learn: Learn,
        memory: MemoryBudget,
        turns: FrameTurns,
        at_tick_end: Callable[[Callable[[], None]], object],
        forgotten: Callable[[], None],
        make_table: Callable[[Learn], T],
    ) -> None:
        self._learn_head = learn
        self._make_table = make_table
        self._turns = turns
        self._at_tick_end = at_tick_end
        self._forgotten = forgotten
        self._account = memory.cache(cache_bytes(memory), self._forget)
        self._scheduled = False
        self._begin()

    def __len__(self) -> int:
        return len(self.table)

    def _begin(self) -> None:
        self.table = self._make_table(self._learn)
        self.scan: Callable[[bytes, int], Columns] = self.table.scan

    def _learn(self, data: bytes, at: int) -> tuple[Any, Hashable] | None:
        if self._turns.are_over:
            return None
        learnt = self._learn_head(data, at)
        if learnt is not None:
            self._turns.count()
            if not self._scheduled:
                # The table must not be emptied within its scan.
                self._scheduled = True
                self._at_tick_end(self._charge)
        return learnt

    def _charge(self) -> None:
        self._scheduled = False
        self._account.charge(len(self.table) * HEAD_BYTES - self._account.nbytes)

    def clear(self) -> None:
        """Forget all heads."""
        self._begin_again()
        self._account.clear()

    def _forget(self) -> None:
        self._begin_again()
        self._forgotten()

    def _begin_again(self) -> None:
        self._turns.slices.release(self.table.held())
        self._begin()
