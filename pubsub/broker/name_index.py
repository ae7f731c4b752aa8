"""``NameIndex``: the items that can be about a name, out of very many."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from heapq import merge
from operator import itemgetter
from typing import Generic, TypeVar

from pubsub.settings import is_pattern

_Item = TypeVar("_Item")


class NameIndex(Generic[_Item]):
    """Items in their order, such as access rules, by the names that they are about.

    ``names_of`` returns the names of an item, which may be patterns; none stand for all. There may
    be an item for each of thousands of users, and a client is not to pay for those of the others.
    """

    def __init__(
        self, items: Iterable[_Item], names_of: Callable[[_Item], Collection[str]]
    ) -> None:
        self._general: list[tuple[int, _Item]] = []
        self._by_name: dict[str, list[tuple[int, _Item]]] = {}
        for placed in enumerate(items):
            names = names_of(placed[1])
            if not names or any(map(is_pattern, names)):
                self._general.append(placed)
                continue
            for name in dict.fromkeys(names):
                self._by_name.setdefault(name, []).append(placed)

    def candidates(self, name: str) -> Iterable[_Item]:
        """Return the items that can be about ``name``, in their order."""
        own = self._by_name.get(name, ())
        return map(itemgetter(1), merge(self._general, own, key=itemgetter(0)))
