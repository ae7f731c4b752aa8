"""Records and their bytes."""

from __future__ import annotations

from pubsub.broker.routing.batch import Batch
from pubsub.store.reading.run_log import RunLog
from pubsub.store.records.record import (
    Operation,
    Record,
    encode,
    record_of_runs,
)
from tests.unit.logs import runs_of

SALT, OTHER_SALT = b"saltsalt", b"sugarsug"


def encoded(
    record: Record,
    salt: bytes = SALT,
    epoch: int = 3,
    ceiling: int = 2**40,
    compress: bool = False,
) -> bytes:
    """The bytes of a record."""
    buffers, length = encode(record, salt, epoch, ceiling, compress)
    data = b"".join(buffers)
    assert len(data) == length
    return data


def record_of(
    group: list[Batch], base: int = 0, operations: list[Operation] | None = None
) -> Record:
    """A record of batches from the offset ``base`` on."""
    log = RunLog(2**62, 2**30, base)
    return record_of_runs(runs_of(group, log), operations or [], base, log.next_offset, 7)
