"""``python -m tests.crash.keeping DIRECTORY LIFE``: write and maintain a log until killed.

Each message has its offset and the number of the life as its payload. Each line of standard output
is an event: ``begun OFFSET VALUE``, ``written START STOP TOPIC``, ``synced STOP``, ``closed``.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from pubsub.broker.routing.batch import Batch
from pubsub.kernel import Columns
from pubsub.settings import matcher
from pubsub.store.catalog.catalog import Horizon, set_horizons
from pubsub.store.commits import log_writer
from pubsub.store.commits.log_writer import LogWriter
from pubsub.store.commits.write_group import WriteGroup
from pubsub.store.opening.recovery import boot_id, recover
from pubsub.store.reading.run_log import RunLog
from pubsub.store.records.record import Begin, End, Put
from pubsub.store.records.stored_runs import first_offset_of, last_offset_of, topic_of
from pubsub.store.segments.log_directory import LogDirectory
from pubsub.store.upkeep import rewrite
from pubsub.store.upkeep.expired_messages import ExpiredMessages, grain_of
from pubsub.store.upkeep.retention_limits import RetentionLimits
from pubsub.store.upkeep.upkeep import Upkeep

KEPT, EXPIRING = "kept", "expiring"
_RETENTION = (RetentionLimits(EXPIRING, messages=20),)
_GROUPS = 24


def payload_of(offset: int, life: int) -> bytes:
    """The payload of the message at ``offset``."""
    return b"%d in life %d " % (offset, life) * (1 + offset % 7)


class Keeper:
    """A log that is written in this thread."""

    def __init__(self, path: Path, life: int) -> None:
        self._life = life
        self._draw = random.Random(life)
        self._directory = LogDirectory(path, create=True)
        self._directory.lock()
        found = recover(self._directory)
        self._metadata = found.metadata
        horizons = [Horizon(one.pattern, matcher([one.pattern])) for one in _RETENTION]
        set_horizons(found.catalog, horizons, found.metadata.horizons())
        known = found.metadata.epochs()
        number = known[-1].number + 1 if known else 1
        grain = grain_of(_RETENTION)
        self._writer = LogWriter(self._directory, found.catalog, found.metadata, 7, grain=grain)
        begin = Begin(number, life, 0, boot_id())
        self._writer.begin(found.offset, number, found.sequence, [begin], found.lost)
        self._directory.keep_reserve()
        self._log = RunLog(2**62, 2**30, found.offset)
        self._upkeep = Upkeep(
            self._directory,
            found.catalog,
            found.metadata,
            self._writer,
            ExpiredMessages(found.catalog, _RETENTION),
            0,
            grain,
        )
        values = {key: value for _, key, value in found.metadata.items()}
        print("begun", found.offset, int(values.get("k", b"0")), flush=True)

    def write(self, number: int) -> None:
        """Write one group, and perhaps sync."""
        draw = self._draw
        group = WriteGroup()
        for _ in range(draw.randint(1, 3)):
            batch = self._batch(draw.choice((KEPT, KEPT, EXPIRING)), draw.randint(1, 20))
            group.runs.append(self._log.append(batch))
        stop = self._log.next_offset
        # The value says that the messages are there.
        group.puts["t", "k"] = Put("t", "k", b"%d" % stop)
        if number % 8 == 7:
            group.end(End("ended", stop))
        sync = draw.random() < 0.3
        self._writer.write(group, sync)
        for run in group.runs:
            print("written", first_offset_of(run), last_offset_of(run) + 1, topic_of(run))
        sys.stdout.flush()
        if sync:
            print("synced", stop, flush=True)

    def _batch(self, topic: str, count: int) -> Batch:
        first = self._log.next_offset
        payloads = [payload_of(offset, self._life) for offset in range(first, first + count)]
        now = time.time_ns() // 1000
        return Batch((topic,), Columns.of(payloads), now, first, b"", "toy")

    def maintain(self) -> None:
        """Do all steps that there are."""
        while self._upkeep.step(time.time_ns() // 1000):
            pass

    def close(self) -> None:
        """Close the log properly."""
        self._writer.close()
        self._metadata.close()
        self._directory.close()
        print("closed", flush=True)


def main(path: Path, life: int) -> None:
    """Run to the end, unless killed."""
    log_writer.SEGMENT_BYTES = 3000
    rewrite._NEIGHBOURS = 3
    keeper = Keeper(path, life)
    for number in range(_GROUPS):
        keeper.write(number)
        if number % 8 == 4:
            keeper.maintain()
    keeper.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
