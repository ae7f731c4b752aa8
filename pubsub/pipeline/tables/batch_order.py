"""The check of a batch that its table has already: its query runs it again, or is another's copy.

Spark runs only its last batch again. So a query whose table has a later one has an old checkpoint:
a copy, or a backup. Its batches begin and end elsewhere than those in the table, so that messages
would be missing if they were taken for the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pubsub.errors import ConfigurationError
from pubsub.pipeline.tables.files import WrittenFile

_REMEDY = (
    "messages would be missing from the table; use a new --checkpoint, with --starting at the "
    "first message that the table does not have"
)


class BatchTable(Protocol):
    """A table that stores each batch of a query once."""

    @property
    def path(self) -> str:
        """The place or the name of the table, for errors."""

    def commit(self, files: Sequence[WrittenFile], query: str, batch: int) -> bool:
        """Add ``files``; return False if the table has that batch of the query or a later one."""

    def last_batch(self, query: str) -> int:
        """Return the number of the last batch of ``query`` in the table, or -1."""

    def batch_rows(self, query: str, batch: int) -> int | None:
        """Return the number of rows that the last batch had, or None if that is not known."""


def commit_once(
    table: BatchTable,
    files: Sequence[WrittenFile],
    query: str,
    batch: int,
    repeatable: bool = False,
) -> bool:
    """Add ``files``; return False if the table has exactly that batch of the query.

    A ``repeatable`` batch has no further rows in a later run. Raises ConfigurationError if the
    table has a later batch, or a smaller one under this number.
    """
    if table.commit(files, query, batch):
        return True
    last = table.last_batch(query)
    if last > batch:
        raise ConfigurationError(
            f"{table.path}: the table has batch {last} of this query, but the checkpoint is at "
            f"batch {batch}: it is a copy, or a backup, of an earlier state; {_REMEDY}"
        )
    stored = table.batch_rows(query, batch) if repeatable else None
    rows = sum(file.rows for file in files)
    # Fewer rows are no error: retention removes messages of single topics.
    if stored is not None and stored < rows:
        raise ConfigurationError(
            f"{table.path}: the table has batch {batch} of this query with {stored} rows, but now "
            f"the batch has {rows}: another job ran with a copy of this checkpoint; {_REMEDY}"
        )
    return False
