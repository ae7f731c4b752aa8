"""The journal's files: exactly the records of a segment are read back."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.batch import Batch
from pubsub.store.block import Block, decode_block
from pubsub.store.journal import SUFFIXES, Journal, Segment
from pubsub.store.run_log import RunLog
from tests.profiles import examples
from tests.unit.fakes import batch_of, scratch
from tests.unit.stores import RUN, Stored, messages
from tests.unit.test_block import batches

EPOCH = "12-00c0ffee"


class FileTests(SynchronousTestCase):
    """Journals without a store"""

    @examples(0.5)
    @given(
        st.lists(st.lists(batches(), min_size=1, max_size=3), min_size=1, max_size=8),
        st.integers(0, 8),
        st.data(),
    )
    def test_what_is_there_is_read_up_to_where_it_is_damaged(
        self, groups: list[list[Batch]], second: int, data: st.DataObject
    ) -> None:
        path = scratch(self) / "h.db"
        journal = Journal(path)
        journal.begin(EPOCH)
        log = RunLog(2**62, 2**30)
        segments = Segment(0), Segment(1)
        ends = {0}
        for number, group in enumerate(groups):
            segment = segments[number >= second]
            runs = [run for run in map(log.append, group) if run is not None]
            journal.write(segment, segment.add(RUN, runs, 100_000))
            ends.add(log.next_offset)
        published = messages([batch for group in groups for batch in group])
        assert _read(journal.read(EPOCH, 0)) == published
        assert journal.read("12-00c0ffef", 0) == []
        slot = data.draw(st.integers(0, 1))
        size = segments[slot].size
        if size:
            at = data.draw(st.integers(0, size - 1))
            file = journal._files[slot]
            (byte,) = os.pread(file, 1, at)
            os.pwrite(file, bytes([byte ^ 1 << data.draw(st.integers(0, 7))]), at)
            left = journal.read(EPOCH, 0)
            found = _read(left)
            assert found != published
            assert {block.stop for block in left} <= ends
            assert [m for m in published if m in found] == found
        journal.close()

    def test_a_payload_cannot_pass_for_a_record(self) -> None:
        path = scratch(self) / "h.db"
        journal = Journal(path)
        self.addCleanup(journal.close)
        journal.begin(EPOCH)
        log = RunLog(2**62, 2**30)

        def record(segment: Segment, payload: bytes, topic: str = "t") -> int:
            """Write one group; return where its record ends."""
            run = log.append(batch_of([payload], topic))
            assert run is not None
            journal.write(segment, segment.add(RUN, [run], 1))
            return segment.size

        # The next record of another journal, as an attacker could forge it.
        other = Journal(path.with_name("other"))
        self.addCleanup(other.close)
        other.begin(EPOCH)
        forger = RunLog(2**62, 2**30, 2)
        forged = forger.append(batch_of([b"forged"], "secret"))
        assert forged is not None
        segment = Segment(0)
        other.write(segment, segment.add(RUN, [forged], 1))
        forgery = os.pread(other._files[0], segment.size, 0)
        empty = Segment(1)
        start = record(empty, b"")
        log = RunLog(2**62, 2**30)
        record(Segment(0), b"#" * 100 + forgery)
        new = Segment(0)
        record(new, b"#" * 100)
        assert start < new.size
        at = os.pread(journal._files[0], 4096, 0).index(forgery)
        assert at == new.size
        assert [m.offset for m in _read(journal.read(EPOCH, 1))] == [1]

    def test_a_file_grows_in_steps_and_is_nobody_elses_to_read(self) -> None:
        path = scratch(self) / "h.db"
        journal = Journal(path)
        self.addCleanup(journal.close)
        journal.begin(EPOCH)
        segment, log, sizes = Segment(1), RunLog(2**62, 2**30), set()
        for _ in range(100):
            run = log.append(batch_of([bytes(10_000)]))
            assert run is not None
            journal.write(segment, segment.add(RUN, [run], 10_000))
            sizes.add(Path(f"{path}{SUFFIXES[1]}").stat().st_size)
        assert 2 <= len(sizes) <= 5
        assert Path(f"{path}{SUFFIXES[1]}").stat().st_mode & 0o077 == 0
        blocks = journal.read(EPOCH, 0)
        assert len(blocks) > 1
        assert [m.offset for m in _read(blocks)] == list(range(100))


def _read(blocks: list[Block]) -> list[Stored]:
    return messages([run.batch() for block in blocks for run in decode_block(block)])
