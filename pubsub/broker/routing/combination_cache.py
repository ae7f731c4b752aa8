"""Caches by combination: tuples of topics, addresses or names."""

from __future__ import annotations

from sys import maxsize
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from pubsub.broker.memory_budget import MemoryBudget

_Value = TypeVar("_Value")

MAX_COMBINATION = 1024
"""Items of the largest combination that is worth remembering."""
MAX_ENDED = 1000
"""Items that may have ended and are still kept."""
# Items of all keys together, so that combinations that clients choose cannot fill memory.
_MAX_ITEMS = 65_536
# Estimated bytes of a key with its value, and of an item of a key, for the memory budget. The items
# themselves are counted elsewhere.
KEY_BYTES = 400
ITEM_BYTES = 32
# Combinations that are known to have come, at most, and the estimated bytes of each.
_MAX_PAST, _HASH_BYTES = 1024, 100


class CombinationCache(Generic[_Value]):
    """Remembers values by combination; begins again when it is full.

    With ``memory`` it is charged there, and begins again when that is full too. ``most``
    limits the items of all keys together further.
    """

    __slots__ = ("_account", "_ended", "_items", "_most", "_values", "_weights")

    def __init__(self, memory: MemoryBudget | None = None, most: int = 0) -> None:
        self._most = most
        self._values: dict[tuple[Any, ...], _Value] = {}
        # Bytes of values that are charged besides KEY_BYTES.
        self._weights: dict[tuple[Any, ...], int] = {}
        self._items = self._ended = 0
        self._account = None if memory is None else memory.cache(maxsize, self._forget)

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: tuple[Any, ...]) -> _Value | None:
        """Return the value for ``key``, or None."""
        return self._values.get(key)

    def put(self, key: tuple[Any, ...], value: _Value) -> None:
        """Remember ``value`` for ``key``, which is not there yet."""
        if self._items + len(key) > (self._most or _MAX_ITEMS):
            self.clear()
        self._values[key] = value
        self._items += len(key)
        self._charge(KEY_BYTES + ITEM_BYTES * len(key))

    def weigh(self, key: tuple[Any, ...], nbytes: int) -> None:
        """The value for ``key``, if it is there, has ``nbytes`` from now on; may forget all."""
        if key in self._values:
            before = self._weights.pop(key, 0)
            if nbytes:
                self._weights[key] = nbytes
            self._charge(nbytes - before)

    def discard(self, key: tuple[Any, ...]) -> None:
        """Forget ``key`` if it is there."""
        if self._values.pop(key, None) is not None:
            self._items -= len(key)
            self._charge(-KEY_BYTES - ITEM_BYTES * len(key) - self._weights.pop(key, 0))

    def note_ended(self, _item: object) -> None:
        """An item may have ended: begin again after many, as nothing else lets go of them."""
        self._ended += 1
        if self._ended > MAX_ENDED:
            self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._forget()
        if self._account is not None:
            self._account.clear()

    def _forget(self) -> None:
        self._values.clear()
        self._weights.clear()
        self._items = self._ended = 0

    def _charge(self, nbytes: int) -> None:
        if self._account is not None:
            self._account.charge(nbytes)


class PastCombinations:
    """Tells combinations that have come before, if a ``CombinationCache`` would still have them."""

    __slots__ = ("_account", "_hashes", "_items")

    def __init__(self, memory: MemoryBudget) -> None:
        self._hashes: set[int] = set()
        self._items = 0
        self._account = memory.cache(_MAX_PAST * _HASH_BYTES, self._forget)

    def note(self, key: tuple[Any, ...]) -> bool:
        """Return whether ``key`` has come before; from now on it has."""
        number = hash(key)
        if number in self._hashes:
            return True
        if self._items + len(key) > _MAX_ITEMS:
            self._account.clear()
        self._hashes.add(number)
        self._items += len(key)
        self._account.charge(_HASH_BYTES)
        return False

    def _forget(self) -> None:
        self._hashes.clear()
        self._items = 0
