"""Mappings of zero or one item, as most subscribers have; a dict of one item takes 224 bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from types import MappingProxyType
from typing import Any, TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

EMPTY_MAP: Mapping[Any, Any] = MappingProxyType({})


class SingleItemMap(Mapping[_Key, _Value]):
    """A mapping of one item."""

    __slots__ = ("_key", "_value")

    def __init__(self, key: _Key, value: _Value) -> None:
        self._key = key
        self._value = value

    def __getitem__(self, key: object) -> _Value:
        if key != self._key:
            raise KeyError(key)
        return self._value

    def __iter__(self) -> Iterator[_Key]:
        yield self._key

    def __len__(self) -> int:
        return 1


def with_item(
    items: Mapping[_Key, _Value], one: SingleItemMap[_Key, _Value]
) -> Mapping[_Key, _Value]:
    """Return ``items`` with the item of ``one`` added; ``items`` must not be used afterwards.

    The result may be ``one`` itself, which can be shared by many owners.
    """
    if isinstance(items, MutableMapping):
        items.update(one)
        return items
    return {**items, **one} if items else one


def without_item(items: Mapping[_Key, _Value], key: _Key) -> Mapping[_Key, _Value]:
    """Return ``items`` without ``key``, which it has; ``items`` must not be used afterwards."""
    if isinstance(items, MutableMapping):
        del items[key]
        return items
    return EMPTY_MAP
