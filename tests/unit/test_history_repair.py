"""``pubsub history repair`` of histories that several faults have damaged."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from unittest import SkipTest
from unittest.mock import patch

from pubsub.store.metadata.metadata import Metadata
from pubsub.store.reading.log_view import LogView
from pubsub.store.records.record import HEAD_BYTES
from pubsub.store.segments.log_directory import POSITION
from pubsub.store.segments.log_files import write_note
from pubsub.store.segments.segment import SEGMENT_HEAD_BYTES
from tests.histories import History, history
from tests.unit.history_case import HistoryCase
from tests.unit.shown_log import numbers, shown

OTHER_BOOT = b"another boot...."


class RepairCase(HistoryCase):
    """Repairs, and continues the history."""

    def repair(self) -> list[str]:
        """Repair the history, and return the lines; a second repair finds nothing but losses."""
        code, out = self.run_on("repair")
        assert code == 0, out
        code, again = self.run_on("repair")
        assert code == 0, again
        for line in again.splitlines():
            assert "lost" in line or "nothing had to be repaired" in line
        return out.splitlines()

    def remove_metadata(self) -> None:
        for path in self.path.glob("metadata.db*"):
            path.unlink()

    def foreign_segments(self, count: int) -> list[str]:
        """Put segments of another history beside those of this one; return their names."""
        names = []
        for number in range(count):
            other = self.directory / f"other {number}"
            if not number:
                with history(other) as log:
                    log.put("foreign", [b"x"])
            else:
                shutil.copytree(self.directory / "other 0", other)
            (path,) = other.glob("*.log")
            name = f"{100 + number:020}-{90 + number:08}.log"
            shutil.copy(path, self.path / name)
            names.append(name)
        return names


class OwnerTests(RepairCase):
    """root repairs a history that belongs to the user of a service"""

    def test_the_user_gets_the_files_that_the_repair_makes(self) -> None:
        if os.geteuid() != 0:
            raise SkipTest("only root makes files that are not the user's")
        foreign = self.directory / "foreign"
        foreign.write_text("of root")
        os.link(foreign, self.path / "linked")
        (self.path / "symbolic").symlink_to(foreign)
        for path in (self.path, *self.path.iterdir()):
            if path.name not in ("linked", "symbolic"):
                os.chown(path, 65_534, 65_533)
        self.remove_metadata()
        next(self.path.glob("*.index")).unlink()
        self.repair()
        found = {path.name: path.lstat() for path in self.path.iterdir()}
        assert {found.pop(name).st_uid for name in ("linked", "symbolic")} == {0}
        assert foreign.stat().st_uid == 0
        assert {(one.st_uid, one.st_gid) for one in found.values()} == {(65_534, 65_533)}


class OffsetTests(RepairCase):
    """No offset gets another message after a repair"""

    def continued(self) -> int:
        """Return the offset at which the next broker continues, after a loss of power."""
        with patch("pubsub.store.opening.recovery.boot_id", lambda: OTHER_BOOT):
            broker = History(self.path, 0)
        broker.close()
        return broker.next

    def test_messages_that_a_power_loss_may_have_lost(self) -> None:
        broker = self.start_broker()
        broker.put("a", numbers(range(30, 35)))
        crashed = self.directory / "crashed"
        shutil.copytree(self.path, crashed)
        self.stop_broker()
        self.path = crashed
        self.remove_metadata()
        self.repair()
        assert self.continued() >= 2**14
        assert self.read()[0][:25] == numbers(range(10, 35))

    def test_the_newest_segment_lost_its_records(self) -> None:
        for metadata in (True, False):
            with self.subTest(metadata=metadata):
                os.truncate(self.segments()[-1], SEGMENT_HEAD_BYTES)
                if not metadata:
                    self.remove_metadata()
                self.repair()
                assert self.continued() >= 30

    def test_messages_that_only_the_noted_position_tells_of(self) -> None:
        broker = self.start_broker()
        broker.put("a", numbers(range(30, 35)))
        newest = broker.catalog.segments[-1]
        size = newest.index.end
        broker.put("a", numbers(range(35, 40)))
        crashed = self.directory / "crashed"
        shutil.copytree(self.path, crashed)
        self.stop_broker()
        self.path = crashed
        os.truncate(crashed / newest.name, size)
        assert "offsets 35 to 39 were written and are missing" in self.lines("check")
        lost = "offsets 35 to 39 are lost: they were written and are missing"
        assert lost in self.repair()
        broker = self.start_broker()
        assert broker.next == 40
        self.stop_broker()
        assert self.read()[1] == [(35, 40)]

    def test_more_messages_are_lost_than_an_index_can_count(self) -> None:
        with history(self.path) as log:
            log_id = log.metadata.state().log_id
        with open(self.path / POSITION, "r+b") as note:
            write_note(note.fileno(), log_id, 2**33)
        # The segment that begins with them, which the third broker completes.
        for payload in (b"30", b"31", b"32"):
            with history(self.path) as log:
                log.put("a", [payload])
        assert self.read() == (numbers(range(10, 33)), [(30, 2**33)])
        code, out = self.run_on("check")
        assert (code, "does not match" in out) == (0, False), out
        assert len(self.repair()) == 1

    def test_no_record_tells_of_an_epoch(self) -> None:
        """Those of rewritten segments do not, and the newest is missing."""
        with history(self.path) as log:
            self.rewrite(log)
        for path in self.segments()[1:]:
            path.unlink()
        self.remove_metadata()
        self.repair()
        assert self.continued() >= 30
        assert self.read()[0][:20] == numbers(range(10, 30))


class SegmentTests(RepairCase):
    """Segments that are cut, missing or foreign"""

    def test_a_segment_that_lost_its_end_is_complete_again(self) -> None:
        path = self.segments()[1]
        os.truncate(path, path.stat().st_size - HEAD_BYTES)
        before = self.read()
        self.repair()
        assert self.read() == before == (numbers(range(10, 30)), [])
        with history(self.path) as log:
            log.put("a", [b"more"])
        self.assert_fine()

    def test_a_segment_that_was_cut_is_listed_as_it_is(self) -> None:
        path = self.segments()[1]
        os.truncate(path, SEGMENT_HEAD_BYTES + HEAD_BYTES)
        assert any("and had" in line for line in self.lines("check"))
        assert f"{path.name}: offsets 10 to 19 are damaged and are lost" in self.repair()
        assert self.read() == (numbers(range(20, 30)), [(10, 20)])
        assert not any("and had" in line for line in self.lines("check"))

    def test_bytes_behind_the_end_of_a_segment(self) -> None:
        path, before = self.segments()[1], self.read()
        whole = path.read_bytes()
        path.write_bytes(whole + b"something" + bytes(10) + b"else")
        name = path.name
        problem = f"{name}: 23 bytes behind the last record are not a record"
        assert problem in self.lines("check")
        assert f"{name}: 23 bytes behind the last record were not a record, and were removed" in (
            self.repair()
        )
        assert path.read_bytes() == whole
        assert self.read() == before
        self.assert_fine()

    def test_a_segment_whose_last_record_is_torn(self) -> None:
        """It has no message, and only says that no more follow."""
        path, before = self.segments()[1], self.read()
        size = path.stat().st_size - HEAD_BYTES
        os.truncate(path, size + 40)
        assert any(
            line.startswith(f"{path.name}: ") and "bytes behind the last record" in line
            for line in self.lines("check")
        )
        self.repair()
        assert path.stat().st_size == size
        assert self.read() == before
        self.assert_fine()

    def test_a_segment_that_was_renamed_has_its_name_again(self) -> None:
        path, before = self.segments()[1], self.read()
        path.rename(self.path / "10-2.log")
        code, out = self.run_on("check")
        assert code == 1
        assert "10-2.log cannot be read: its name is not that of a segment" in out
        assert "offsets 10 to 19 are missing" in out
        assert self.repair() == [f"10-2.log had the wrong name, and is now {path.name}"]
        assert self.read() == before
        self.assert_fine()

    def test_of_two_files_with_other_names_that_are_one_segment_none_is_lost(self) -> None:
        path, before = self.segments()[1], self.read()
        content = path.read_bytes()
        shutil.copy(path, self.path / "10-1.log")
        path.rename(self.path / "10-2.log")
        assert self.repair() == [
            "10-2.log cannot be used, and is now 10-2.log.damaged: its name is that of another "
            "segment",
            f"10-1.log had the wrong name, and is now {path.name}",
        ]
        assert (self.path / "10-2.log.damaged").read_bytes() == content
        assert self.read() == before
        self.assert_fine()

    def test_the_history_is_that_of_the_metadata(self) -> None:
        """Not that of most of the segments."""
        before, foreign = self.read(), self.foreign_segments(5)
        lines = self.repair()
        assert len(lines) == 5
        for name in foreign:
            assert os.path.exists(self.path / f"{name}.damaged")
        assert self.read() == before
        self.assert_fine()

    def test_a_foreign_segment_behind_the_others_is_put_aside(self) -> None:
        other = self.directory / "other"
        with history(other) as log:
            log.put("foreign", numbers(range(100)))
        with history(other):
            pass
        foreign = max(other.glob("*.log"))
        shutil.copy(foreign, self.path)
        before = self.read()
        lines = self.repair()
        assert any("it belongs to another history" in line for line in lines)
        assert not (self.path / foreign.name).exists()
        with history(self.path) as log:
            log.put("a", [b"more"])
        assert self.read() == ([*before[0], b"more"], [])

    def test_without_metadata_it_is_that_of_most_segments(self) -> None:
        before, (foreign, _) = self.read(), self.foreign_segments(2)
        self.remove_metadata()
        lines = self.repair()
        assert "metadata.db is missing" in lines
        assert any(
            line.startswith("metadata.db was made again from the segments") for line in lines
        )
        assert os.path.exists(self.path / f"{foreign}.damaged")
        assert self.read() == before
        self.assert_fine()

    def test_without_segments_the_metadata_are_kept(self) -> None:
        before = self.stored()
        for path in self.segments():
            path.unlink()
        assert self.repair() == ["offsets 0 to 29 are lost: they were written and are missing"]
        assert self.stored() == before

    def test_nothing_is_left(self) -> None:
        def damage_all() -> None:
            for path in self.segments():
                path.write_bytes(b"x" * 1000)

        def remove_all() -> None:
            for path in self.segments():
                path.unlink()

        saved = self.path.rename(self.directory / "saved")
        cases: tuple[Callable[[], None], ...] = (damage_all, remove_all)
        for change in cases:
            shutil.copytree(saved, self.path)
            self.remove_metadata()
            (self.path / "metadata.db").write_bytes(b"x" * 1000)
            change()
            code, out = self.run_on("repair")
            assert code == 1
            assert "has neither segments nor metadata that can be read" in out
            shutil.rmtree(self.path)


class LostValueTests(RepairCase):
    """The report says whether queue keys and positions of readers may be lost"""

    def made(self) -> str:
        """Return the line about the metadata."""
        self.remove_metadata()
        (line,) = [one for one in self.repair() if "was made again" in one]
        return line

    def test_segments_with_all_operations(self) -> None:
        before = self.stored()
        assert self.made() == "metadata.db was made again from the segments, which have all of it"
        assert self.stored() == before

    def test_rewritten_segments(self) -> None:
        with history(self.path) as log:
            self.rewrite(log)
        self.check_lost()

    def test_segments_that_were_removed(self) -> None:
        self.segments()[0].unlink()
        self.check_lost()

    def check_lost(self) -> None:
        before, line = self.stored(), self.made()
        assert len(self.stored()) < len(before)
        assert "queue keys, identities of nsd and positions of readers" in line
        assert "set queue keys again before clients connect" in line


class CutCopyTests(RepairCase):
    """A rewritten segment that was cut before the segments that it replaces were removed"""

    def cut(self, size: int, left: int = 3) -> Path:
        """Rewrite the three segments as one, cut that, and put the last ones back."""
        sources = [(path, path.read_bytes()) for path in self.segments()]
        self.before = self.read()
        with history(self.path) as log:
            self.rewrite(log)
        made = self.segments()[0]
        self.size = made.stat().st_size
        os.truncate(made, size)
        for path, data in sources[3 - left :]:
            path.write_bytes(data)
        return made

    def test_it_hides_none_of_them(self) -> None:
        saved = self.path.rename(self.directory / "saved")
        for size in (SEGMENT_HEAD_BYTES, SEGMENT_HEAD_BYTES + 3 * HEAD_BYTES):
            shutil.copytree(saved, self.path)
            made = self.cut(size)
            problem = f"{made.name} cannot be read: it is not complete, and older segments have"
            for _ in range(2):
                assert self.read() == self.before
                code, out = self.run_on("check")
                assert (code, out.count("\n")) == (1, 2)
                assert out.startswith(f"{problem} its messages\n")
                with history(self.path) as log:
                    assert shown(log.catalog) == self.before
            shutil.rmtree(self.path)

    def test_it_is_put_aside(self) -> None:
        made = self.cut(SEGMENT_HEAD_BYTES)
        data = made.read_bytes()
        assert self.repair()[0].startswith(
            f"{made.name} cannot be used, and is now {made.name}.damaged: it is not complete"
        )
        assert Path(f"{made}.damaged").read_bytes() == data
        for _ in range(2):
            assert self.read() == self.before
            self.assert_fine()
            with history(self.path) as log:
                assert shown(log.catalog) == self.before

    def test_one_of_them_was_cut_instead(self) -> None:
        """It hides no message of the segment that has replaced it."""
        made = self.segments()[0].name.replace("01.log", "05.log")
        whole = self.cut(2**20)
        assert (whole.name, whole.stat().st_size) == (made, 2**20)
        sources = [path for path in self.segments() if path.name != made][:3]
        os.truncate(whole, self.size)
        os.truncate(sources[1], SEGMENT_HEAD_BYTES + HEAD_BYTES)
        assert self.read() == self.before
        with history(self.path) as log:
            assert shown(log.catalog) == self.before
        assert not any(path.exists() for path in sources)
        self.assert_fine()

    def test_the_first_of_them_was_removed(self) -> None:
        """Its messages are lost, and no others."""
        self.cut(SEGMENT_HEAD_BYTES, left=2)
        found = numbers(range(10, 30)), [(0, 10)]
        assert self.read() == found
        with history(self.path) as log:
            assert shown(log.catalog) == found
        self.repair()
        assert self.read() == found


class MetadataTests(RepairCase):
    """Files that are not the metadata"""

    def test_an_interrupted_repair_keeps_what_can_be_read(self) -> None:
        """No record has the values that are only in the old file."""
        with history(self.path) as log:
            self.rewrite(log)
        before = self.stored()
        with closing(sqlite3.connect(self.path / "metadata.db")) as connection:
            connection.execute("UPDATE ended SET offset = 'x'")
            connection.commit()
        damaged = (self.path / "metadata.db").read_bytes()
        for place in (
            "maintenance.log_check.SegmentIndex.decode",
            "maintenance.log_repair.Metadata.import_rows",
            "maintenance.log_repair.Metadata.apply",
            "maintenance.log_repair.Metadata.replace_segments",
            "maintenance.repaired_files.RepairedFiles.put_aside",
            "segments.log_directory.LogDirectory.rename",
        ):
            full = OSError(errno.ENOSPC, "No space left on device")
            with patch(f"pubsub.store.{place}", side_effect=full):
                code, out = self.run_on("repair")
            line = (
                f"pubsub: history: {self.path}: No space left on device; make room there, and run "
                "the command again"
            )
            assert (code, out.splitlines()[-1]) == (1, line), place
            assert (self.path / "metadata.db").read_bytes() == damaged
        self.repair()
        assert self.stored() == before
        self.assert_fine()
        assert not list(self.path.glob("*.made*"))

    def test_what_no_record_tells_is_kept_beside_a_damaged_table(self) -> None:
        """Hidden messages stay hidden, and positions of earlier epochs stay valid."""
        with history(self.path) as log:
            self.rewrite(log)
        saved = self.path.rename(self.directory / "saved")
        hides: tuple[Callable[[Metadata], None], ...] = (
            lambda metadata: metadata.set_horizons([("*", 20)]),
            lambda metadata: metadata.import_rows(ended={"a": 20}),
        )
        for hide in hides:
            shutil.copytree(saved, self.path)
            with closing(Metadata(self.path / "metadata.db")) as metadata:
                hide(metadata)
            before = self.read(), self.epochs()
            assert before[0] == (numbers(range(20, 30)), [])
            with closing(sqlite3.connect(self.path / "metadata.db")) as connection:
                connection.execute("UPDATE segments SET stop = 'x'")
                connection.commit()
            assert any("metadata.db was made again" in line for line in self.repair())
            assert (self.read(), self.epochs()) == before
            shutil.rmtree(self.path)

    def test_damaged_pages_cost_their_own_rows_alone(self) -> None:
        """Queue keys of topics are among them, and topics without one are open."""
        with history(self.path) as log:
            self.rewrite(log)
        names = [f"key {number:05}" for number in range(4000)]
        path = self.path / "metadata.db"
        with closing(Metadata(path)) as metadata:
            metadata.import_rows([("test", name, name.encode() * 9) for name in names])
            metadata.import_rows(ended=dict.fromkeys(names, 5))
            before = metadata.items(), metadata.ended(), metadata.epochs()
        data = bytearray(path.read_bytes())
        rows = [b"testkey %05d" % number for number in (0, 900, 1000, 2000)]
        for row in (*rows, b"key 01000\5", b"key 03000\5", b"key 02000\5"):
            places = [found.start() // 4096 * 4096 for found in re.finditer(re.escape(row), data)]
            # A leaf of an index. A damaged page above leaves hides all of them.
            page = next(place for place in places if data[place] == 10)
            data[page : page + 8] = bytes(8)
        path.write_bytes(data)
        self.repair()
        with closing(Metadata(path)) as metadata:
            left = metadata.items(), metadata.ended(), metadata.epochs()
        # Pages of the first table have some 40 rows, those of the second 250.
        for table, rest, most in zip(before[:2], left[:2], (200, 900), strict=True):
            lost = set(table) - set(rest)
            assert 0 < len(lost) < most, len(lost)
            assert len(rest) == len(table) - len(lost)
        assert left[2] == before[2]

    def epochs(self) -> list[tuple[str, int]]:
        """Return the epochs, as a reader sees them."""
        with closing(LogView(self.path)) as view:
            return view.epochs

    def test_a_program_that_has_locked_the_file_costs_nothing(self) -> None:
        with closing(sqlite3.connect(self.path / "metadata.db", isolation_level=None)) as other:
            other.execute("PRAGMA locking_mode = EXCLUSIVE")
            other.execute("BEGIN IMMEDIATE")
            with patch("pubsub.store.metadata.metadata.BUSY_SECONDS", 0.01):
                code, out = self.run_on("repair")
        assert (code, out) == (
            1,
            f"pubsub: history: {self.path}: database is locked; end the program that uses "
            "metadata.db\n",
        )
        self.assert_fine()

    def test_files_beside_it_that_are_not_regular_files(self) -> None:
        before = self.stored()
        for ending in ("-wal", "-shm"):
            path = self.path / f"metadata.db{ending}"
            path.unlink(missing_ok=True)
            path.symlink_to("nowhere")
            assert self.repair()[0].startswith(f"{path.name} cannot be used, and is now ")
            assert self.stored() == before
            self.assert_fine()

    def test_the_log_of_a_missing_file_is_put_aside(self) -> None:
        with history(self.path) as log:
            log.store("tokens", "late", b"value")
            wal = (self.path / "metadata.db-wal").read_bytes()
        before = self.stored()
        self.remove_metadata()
        (self.path / "metadata.db-wal").write_bytes(wal)
        assert any("metadata.db-wal.damaged" in line for line in self.repair())
        assert self.stored() == before
        self.assert_fine()

    def test_a_database_of_something_else(self) -> None:
        self.remove_metadata()
        with closing(sqlite3.connect(self.path / "metadata.db")) as other:
            other.execute("CREATE TABLE a (b)")
        line = self.repair()[0]
        assert line.endswith(".damaged: it is not the metadata of a history"), line
        self.assert_fine()

    def test_a_file_of_something_else(self) -> None:
        before = self.stored()
        for data in (b"something else" * 1000, b"SQLite format 3\0" + bytes(1000)):
            self.remove_metadata()
            (self.path / "metadata.db").write_bytes(data)
            lines = self.repair()
            assert lines[0].startswith("metadata.db cannot be used, and is now metadata.db.damaged")
            aside: Path = max(self.path.glob("metadata.db.damaged*"))
            assert aside.read_bytes() == data
            assert self.stored() == before
            self.assert_fine()

    def test_its_log_is_put_aside_with_it(self) -> None:
        """SQLite would take it for that of the next file."""
        self.remove_metadata()
        (self.path / "metadata.db").write_bytes(b"")
        (self.path / "metadata.db-wal").write_bytes(b"its log")
        assert any("metadata.db-wal.damaged" in line for line in self.repair())
        assert (self.path / "metadata.db-wal.damaged").read_bytes() == b"its log"
        self.assert_fine()
