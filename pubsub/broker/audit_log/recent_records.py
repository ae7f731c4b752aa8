"""The newest records of the audit log, which are kept in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

KEPT = 1000
"""Records that are kept."""
# Characters of a text that are kept; names of topics and clients are shorter.
_TEXT = 1024


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """A record; ``timestamp`` is in µs since the Unix epoch. Numbers begin at 1 at each start."""

    number: int
    timestamp: int
    event: str
    fields: Mapping[str, object]


class RecentRecords:
    """The last ``kept`` records."""

    def __init__(self, kept: int = KEPT) -> None:
        self._records: deque[AuditRecord] = deque(maxlen=kept)
        self._number = 0

    def __len__(self) -> int:
        return len(self._records)

    def add(self, timestamp: int, event: str, fields: Mapping[str, object]) -> None:
        """Add a record; the oldest makes room."""
        self._number += 1
        kept = {name: _cut(value) for name, value in fields.items()}
        self._records.append(AuditRecord(self._number, timestamp, event, kept))

    def before(self, number: int | None) -> Iterator[AuditRecord]:
        """Yield the records with lower numbers (None: all), the newest first."""
        for record in tuple(reversed(self._records)):
            if number is None or record.number < number:
                yield record


def _cut(value: object) -> object:
    return value[:_TEXT] if isinstance(value, str) else value
