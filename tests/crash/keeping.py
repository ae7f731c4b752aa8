"""``python -m tests.crash.keeping FILE``: commit and maintain in turn until killed.

Each message is its own offset. Every committed offset is written to standard output. Blocks are
merged as soon as they exist, which never happens in a broker that runs for a second.
"""

from __future__ import annotations

import sys
import time
from itertools import count
from pathlib import Path

from pubsub.broker.batch import Batch
from pubsub.kernel import Columns
from pubsub.store.merge import Merger
from pubsub.store.retention import Retention
from pubsub.store.run_log import RunLog
from pubsub.store.schema import NEXT, begin_epoch
from pubsub.store.stored_runs import last_offset_of
from pubsub.store.writer import Group, Writer

_COMMITS = 20


def main(path: Path) -> None:
    """Run until killed."""
    writer = Writer(path, 1, Retention(()))
    writer._mergers = (Merger(0, 0), Merger(0, 0))
    begin_epoch(writer.connection)
    (offset,) = writer.connection.execute(NEXT).fetchone()
    log = RunLog(2**62, 2**20, offset)
    for number in count():
        payload = b"%d" % log.next_offset
        now = time.time_ns() // 1000
        batch = Batch(("t",), Columns.one(payload), now, log.next_offset, b"", "toy")
        run = log.append(batch)
        assert run is not None
        writer.commit(Group([run]))
        print(last_offset_of(run), flush=True)
        if number % _COMMITS == _COMMITS - 1:
            while writer.tidy()[1]:
                pass
        if number % (10 * _COMMITS) == 0:
            writer.checkpoint()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
