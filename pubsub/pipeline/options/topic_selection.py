"""The topics that a query reads from a partition."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

_RESERVED = "$SYS/"


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """The topics that a query reads: ``chosen``, those that match ``pattern``, or all.

    Those in ``excluded`` are read on their own, at another position. Of the others, the query needs
    only ``wanted``, unless that is None.
    """

    chosen: frozenset[str] | None
    pattern: str | None
    wanted: frozenset[str] | None = None
    excluded: frozenset[str] = frozenset()

    @property
    def selective(self) -> bool:
        """True if some topics are not read."""
        some = any(part is not None for part in (self.chosen, self.pattern, self.wanted))
        return some or bool(self.excluded)

    @property
    def is_empty(self) -> bool:
        """True if no topic is read."""
        return self.chosen is not None and not self.chosen

    def covers(self, name: str) -> bool:
        """Return whether the topic is read. A pattern does not cover reserved topics."""
        if self.chosen is not None:
            return name in self.chosen
        if name.startswith(_RESERVED) or name in self.excluded:
            return False
        if self.wanted is not None and name not in self.wanted:
            return False
        # The module re keeps compiled patterns.
        return self.pattern is None or re.fullmatch(self.pattern, name) is not None

    def wanting(self, names: frozenset[str] | None) -> TopicSelection:
        """Return a subscription that covers of the same topics only ``names``; None for all."""
        if names is None:
            return self
        if self.chosen is not None:
            return replace(self, chosen=self.chosen & names)
        return replace(self, wanted=names)

    def without(self, names: Iterable[str]) -> TopicSelection:
        """Return a subscription that does not cover ``names``."""
        if self.chosen is not None:
            return replace(self, chosen=self.chosen.difference(names))
        return replace(self, excluded=self.excluded.union(names))

    def to_json(self) -> dict[str, Any]:
        """Return the subscription as it is stored in a checkpoint."""
        if self.chosen is not None:
            return {"topics": sorted(self.chosen)}
        return {"pattern": self.pattern}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TopicSelection:
        """Return the subscription that ``to_json`` converted."""
        topics = value.get("topics")
        return cls(None if topics is None else frozenset(topics), value.get("pattern"))

    @property
    def digest(self) -> str:
        """A short text that is the same for the same topics."""
        text = json.dumps(self.to_json())
        return hashlib.sha256(text.encode()).hexdigest()[:16]
