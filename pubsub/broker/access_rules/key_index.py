"""``KeyIndex``: the items that can be about a client, out of very many."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from heapq import merge
from operator import itemgetter
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class KeyIndex(Generic[_Item]):
    """Items in their order, such as access rules, by keys of the clients that they are about.

    ``keys_of`` returns the keys of an item, which is about clients with one of them at most; None
    stands for all clients. There may be an item for each of thousands of users, groups or networks,
    and a client is not to pay for those of the others.
    """

    def __init__(
        self,
        items: Iterable[_Item],
        keys_of: Callable[[_Item], Collection[Hashable] | None],
    ) -> None:
        self._general: list[tuple[int, _Item]] = []
        self._by_key: dict[Hashable, list[tuple[int, _Item]]] = {}
        for placed in enumerate(items):
            keys = keys_of(placed[1])
            if keys is None:
                self._general.append(placed)
                continue
            for key in dict.fromkeys(keys):
                self._by_key.setdefault(key, []).append(placed)

    @property
    def keys(self) -> Collection[Hashable]:
        """The keys of all items."""
        return self._by_key.keys()

    def candidates(self, keys: Iterable[Hashable]) -> Iterator[_Item]:
        """Return the items that can be about a client with these ``keys``, in their order."""
        own = [self._by_key[key] for key in keys if key in self._by_key]
        last = -1
        for place, item in merge(self._general, *own, key=itemgetter(0)):
            # One with several keys of the client comes several times.
            if place != last:
                last = place
                yield item
