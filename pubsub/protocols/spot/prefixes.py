"""Prefixes of topics' names, which subscriptions have (spot §3.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator


class Prefixes:
    """Prefixes, each of which may be there several times.

    Whether one of them begins a name takes a look-up for each length that prefixes have, of which
    there are at most 256, and not one for each prefix.
    """

    __slots__ = ("_counts", "_lengths")

    def __init__(self, prefixes: Iterable[bytes] = ()) -> None:
        self._counts: Counter[bytes] = Counter()
        self._lengths: Counter[int] = Counter()
        for prefix in prefixes:
            self.add(prefix)

    def __len__(self) -> int:
        """The number of different prefixes."""
        return len(self._counts)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._counts)

    def __contains__(self, prefix: bytes) -> bool:
        return prefix in self._counts

    def add(self, prefix: bytes) -> None:
        """Add ``prefix`` once."""
        if prefix not in self._counts:
            self._lengths[len(prefix)] += 1
        self._counts[prefix] += 1

    def discard(self, prefix: bytes, all_of_it: bool = False) -> bool:
        """Remove ``prefix`` once, or as often as it is there; return whether it was the last."""
        if prefix not in self._counts:
            return False
        self._counts[prefix] -= 1
        if self._counts[prefix] and not all_of_it:
            return False
        del self._counts[prefix]
        self._lengths[len(prefix)] -= 1
        if not self._lengths[len(prefix)]:
            del self._lengths[len(prefix)]
        return True

    def cover(self, name: bytes) -> bool:
        """Return whether one of the prefixes begins ``name``."""
        counts = self._counts
        return any(name[:length] in counts for length in self._lengths)
