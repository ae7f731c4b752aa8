"""A cache whose keys are combinations: tuples of topics, addresses or names."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

_Value = TypeVar("_Value")

MAX_COMBINATION = 1024
"""Items of the largest combination that is worth remembering."""
# Items of all keys together, so that combinations that clients choose cannot fill memory.
_MAX_ITEMS = 65_536


class CombinationCache(Generic[_Value]):
    """Remembers values by combination; begins again when it is full."""

    __slots__ = ("_items", "_values")

    def __init__(self) -> None:
        self._values: dict[tuple[Any, ...], _Value] = {}
        self._items = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: tuple[Any, ...]) -> _Value | None:
        """Return the value for ``key``, or None."""
        return self._values.get(key)

    def put(self, key: tuple[Any, ...], value: _Value) -> None:
        """Remember ``value`` for ``key``, which is not there yet."""
        if self._items + len(key) > _MAX_ITEMS:
            self._values.clear()
            self._items = 0
        self._values[key] = value
        self._items += len(key)

    def discard(self, key: tuple[Any, ...]) -> None:
        """Forget ``key`` if it is there."""
        if self._values.pop(key, None) is not None:
            self._items -= len(key)
