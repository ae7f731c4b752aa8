"""Lists in pages: rows as JSON, made in slices, with the key of the last row as the cursor.

A page begins after a key, not after a number of rows, so that it costs the same wherever it is
in the list, and rows are neither missed nor repeated because others come and go meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pubsub.broker.memory_budget import MemoryBudget
    from pubsub.broker.slices import Work

DEFAULT_ROWS, MAX_ROWS = 100, 1000
"""The rows of a page, and the most that may be asked for."""
MAX_KEY = 1024
"""The bytes of the longest key after which a list continues: names of up to 255 bytes, and more."""
MAX_PATTERN = 1024
"""The bytes of a pattern: of a name in which each letter is a set of two, such as ``[aA]``."""
# Candidates without a row that one step looks at.
_LOOKED_AT = 8
# The cost of a row besides its bytes.
_ROW_BYTES = 64

Row = Mapping[str, object]
_Candidate = TypeVar("_Candidate")


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The rows that a client asks for: ``limit`` of those that ``matches``, behind ``after``."""

    limit: int = DEFAULT_ROWS
    after: str = ""
    matches: Callable[[str], bool] = lambda name: True


class ListPage:
    """Rows as JSON, and the key after which the list continues; charged until ``close``.

    Raises MemoryExhausted if there is no memory for a page, unless it is ``spared``: those who
    operate the broker need lists most when the memory is used up.
    """

    def __init__(self, request: PageRequest, memory: MemoryBudget, spared: bool = False) -> None:
        self.request = request
        self.next: str | None = None
        self.abandoned: Callable[[], bool] = lambda: False
        """Returns whether the client that requested the page has left."""
        self._rows: list[bytes] = []
        self._memory = memory
        self._held = _ROW_BYTES
        if spared:
            memory.add(self._held)
        else:
            memory.reserve(self._held)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def full(self) -> bool:
        """True if the page has as many rows as it may."""
        return len(self._rows) >= self.request.limit

    def add(self, row: Row) -> None:
        """Add a row."""
        data = to_json(row)
        # The row, and its copy in the body.
        nbytes = 2 * len(data) + _ROW_BYTES
        self._held += nbytes
        self._memory.add(nbytes)
        self._rows.append(data)

    def body(self) -> bytes:
        """Return the page as a JSON object."""
        return b'{"items": [%b], "next": %b}\n' % (b", ".join(self._rows), to_json(self.next))

    def close(self) -> None:
        """Return the memory."""
        held, self._held = self._held, 0
        self._memory.free(held)
        self._rows.clear()


def to_json(value: object) -> bytes:
    """Return ``value`` as JSON in UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": ")).encode(errors="replace")


def fill(
    page: ListPage,
    candidates: Iterable[_Candidate],
    row_of: Callable[[_Candidate], Row | None],
    key_of: Callable[[_Candidate], str],
) -> Work:
    """Add the rows of ``candidates`` to the page until it is full; a row a step.

    ``row_of`` returns None for an object that is not listed. The list continues after the last row.
    """
    key, looked = "", 0
    for candidate in candidates:
        if page.abandoned():
            return
        row = row_of(candidate)
        if row is None:
            looked += 1
            if looked % _LOOKED_AT == 0:
                yield
            continue
        if page.full:
            page.next = key
            return
        page.add(row)
        key = key_of(candidate)
        yield
