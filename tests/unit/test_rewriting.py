"""Rewriting keeps everything about the messages that are left, and nothing of the others."""

from __future__ import annotations

import gc
import os
from contextlib import closing
from pathlib import Path
from random import Random

from twisted.trial.unittest import SynchronousTestCase

from pubsub.store.maintenance.log_check import LogCheck
from pubsub.store.reading.log_reader import topics_in
from pubsub.store.segments.log_directory import LogDirectory
from pubsub.store.upkeep import rewrite, segment_builder
from pubsub.store.upkeep.retention_limits import RetentionLimits
from tests.unit.fakes import open_files, scratch
from tests.unit.upkeep_log import Log

TOPICS = ("a", "b", "c", "d")


class RewritingCase(SynchronousTestCase):
    """Logs on a disk with space."""

    def setUp(self) -> None:
        self.path = scratch(self) / "history"
        self.patch(LogDirectory, "free_bytes", lambda _: (2**40, 2**40))  # type: ignore[no-untyped-call]

    def maintain(self, log: Log) -> None:
        """Do all that there is to do; a step looks at some of the segments."""
        for _ in range(10):
            log.rest()


class ModelTests(RewritingCase):
    """Logs with messages of all kinds, whose topics end now and then"""

    def fill(self, path: Path, random: Random, compress: bool) -> Log:
        """Return a log of several runs of a broker."""
        for run in (1, 2, 3):
            log = Log(path, compress=compress, run=run)
            for _ in range(60):
                count = random.choice((1, 1, 1, 3, 700))
                size = random.choice((0, 5, 5, 5, 3000)) if count < 700 else 2
                topics = random.sample(TOPICS, random.choice((1, 1, 1, 2)))
                log.put(
                    *[(random.choice(topics), random.randbytes(size)) for _ in range(count)],
                    age=random.choice((0, 0, 0, 5000)),
                    sender=random.choice((b"me", b"you")),
                    headers=random.choice((None, None, {"key": b"value"})),
                )
                if not random.randrange(15):
                    log.end(random.choice(TOPICS))
                if not random.randrange(10):
                    log.seal()
            if run < 3:
                log.close()
        return log

    def test_a_topic_that_ended_among_others_of_a_read(self) -> None:
        """Its name goes with its messages, and the others stay in rows."""
        self.patch(rewrite, "_RECORDS", 4)  # type: ignore[no-untyped-call]
        log = Log(self.path)
        for start in range(0, 600, 60):
            numbers = range(start, start + 60)
            log.put(*[(("stays", "gone", "too")[n // 2 % 3], b"%d" % n) for n in numbers])
        log.end("gone")
        log.seal()
        self.maintain(log)
        assert list(log.messages()) == [n for n in range(600) if n // 2 % 3 != 1]
        log.close()
        data = b"".join([path.read_bytes() for path in self.path.glob("*.log")])
        assert b"stays" in data
        assert b"gone" not in data

    def test_messages_are_the_same_before_and_after(self) -> None:
        self.patch(rewrite, "_NEIGHBOURS", 2)  # type: ignore[no-untyped-call]
        self.patch(rewrite, "_RECORDS", 4)  # type: ignore[no-untyped-call]
        self.patch(segment_builder, "_RUNS", 50)  # type: ignore[no-untyped-call]
        for seed in range(3):
            path = self.path / f"{seed}"
            log = self.fill(path, Random(seed), compress=seed % 2 == 1)
            before, stop, files = log.messages(), log.next, log.files()
            log.seal()
            self.maintain(log)
            assert log.messages() == before
            assert log.files() < files
            counts = {name: count for name, (count, _) in topics_in(log.catalog, 0, stop).items()}
            assert counts == {
                name: sum(one[0] == name for one in before.values())
                for name in {one[0] for one in before.values()}
            }
            listed = [(row.base, row.sequence) for row in log.metadata.segments()]
            assert listed == [one.place for one in log.catalog.segments[:-1]]
            log.close()
            log = Log(path)
            assert log.messages() == before
            assert log.next == stop
            log.close()
            with closing(LogCheck(path)) as check:
                assert not list(check.problems())
                assert check.lost == []
        del log, check
        gc.collect()
        assert not open_files(self.path)


class OrderTests(RewritingCase):
    """The order of the steps at the end of a rewrite"""

    def test_the_new_segment_is_on_disk_before_the_old_one_is_removed(self) -> None:
        log = Log(self.path)
        for number in range(100):
            log.put(("a", b"%d" % number))
        log.seal()
        source = log.catalog.segments[0].name
        synced: dict[int, int] = {}
        names: set[str] = set()
        removed: list[str] = []
        remove = LogDirectory.remove

        def note_data(file: int) -> None:
            found = os.fstat(file)
            synced[found.st_ino] = found.st_size

        def check(directory: LogDirectory, name: str) -> None:
            if name == source:
                new = log.catalog.segments[0]
                found = (self.path / new.name).stat()
                assert synced.get(found.st_ino) == found.st_size
                assert new.name in names
                assert new.place in [(row.base, row.sequence) for row in log.metadata.segments()]
                removed.append(name)
            remove(directory, name)

        self.patch(os, "fdatasync", note_data)  # type: ignore[no-untyped-call]
        self.patch(os, "fsync", lambda file: names.update(os.listdir(file)))  # type: ignore[no-untyped-call]
        self.patch(LogDirectory, "remove", check)  # type: ignore[no-untyped-call]
        self.maintain(log)
        assert removed == [source]
        log.close()

    def test_small_records_that_are_compressed_stay_as_they_are(self) -> None:
        """The next broker does not know that they were made from smaller ones."""
        self.patch(rewrite, "_RECORDS", 4)  # type: ignore[no-untyped-call]
        self.patch(segment_builder, "_RUNS", 10)  # type: ignore[no-untyped-call]
        log = Log(self.path, compress=True)
        for _ in range(100):
            log.put(("a", bytes(1000)))
        log.seal()
        self.maintain(log)
        made = log.catalog.segments[0]
        assert made.index.records > 4
        log.close()
        log = Log(self.path, compress=True)
        self.maintain(log)
        assert log.catalog.segments[0].place == made.place
        log.close()


class ExpiryTests(RewritingCase):
    """Messages expire after a rewrite as they would have before"""

    def test_by_age(self) -> None:
        """Those of ten minutes may expire together."""
        log = Log(self.path)
        for age in range(100, 0, -1):
            log.put(("a", b"x"), age=60 * age)
        log.seal()
        self.maintain(log)
        assert log.catalog.segments[0].index.records < 20
        log.close()
        log = Log(self.path, RetentionLimits("*", seconds=60 * 50))
        self.maintain(log)
        assert 50 <= len(log.messages()) <= 61
        log.close()

    def test_by_number(self) -> None:
        limits = RetentionLimits("*", messages=400)
        log = Log(self.path, limits)
        for _ in range(350):
            log.put(("a", b"x"))
        log.seal()
        self.maintain(log)
        assert log.catalog.segments[0].index.records < 20
        for _ in range(200):
            log.put(("a", b"x"))
        self.maintain(log)
        # An eighth may expire together.
        assert 350 <= len(log.messages()) <= 400
        log.close()
