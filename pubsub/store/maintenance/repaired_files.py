"""The files of a log under repair: names, heads of segments, and files that cannot be used."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from pubsub.errors import NewerVersion, StartError
from pubsub.store.metadata.metadata import SealedSegment
from pubsub.store.records.record import HEAD_BYTES, decode_head
from pubsub.store.segments.log_directory import LogDirectory
from pubsub.store.segments.log_files import write_all
from pubsub.store.segments.segment import (
    SEGMENT_HEAD_BYTES,
    NotASegment,
    SegmentHead,
    index_name,
    parse_name,
    segment_name,
)

_ASIDE = ".damaged"


class RepairedFiles:
    """The segments in ``directory``: ``heads`` by name, and those whose heads are ``damaged``.

    ``damaged`` has the reasons. ``report`` is called with each thing that was done.
    """

    def __init__(self, directory: LogDirectory, report: Callable[[str], None]) -> None:
        self._directory = directory
        self._report = report
        self.heads: dict[str, SegmentHead] = {}
        self.damaged: dict[str, str] = {}

    def put_aside(self, name: str, reason: str, stays: bool = False) -> None:
        """Give a file that cannot be used another name.

        One that ``stays`` also keeps its own, which it loses to another file later.
        """
        new, number = name + _ASIDE, 1
        while os.path.lexists(self._directory.path / new):
            number += 1
            new = f"{name}{_ASIDE}{number}"
        if not (stays and self._directory.link(name, new)):
            self._directory.rename(name, new)
        self._directory.remove(index_name(name))
        self._report(f"{name} cannot be used, and is now {new}: {reason}")

    def put_aside_irregular(self, name: str) -> bool:
        """Give a file that is not a regular one another name; return whether it was one."""
        try:
            self._directory.size(name)
        except StartError as error:
            self.put_aside(name, str(error))
            return True
        return False

    # Heads

    def read_heads(self) -> None:
        """Read the head of each segment, and put files aside that are not regular files."""
        for name in self._directory.segments():
            if self.put_aside_irregular(name):
                continue
            try:
                data = self._read(name, 0, SEGMENT_HEAD_BYTES)
                head = SegmentHead.decode(data)
            except NewerVersion:
                raise
            except NotASegment as error:
                self.damaged[name] = str(error)
            else:
                self.heads[name] = head
                if data != head.encode():
                    self._write_head(name, head, "was written again")

    def restore_heads(self, rows: Mapping[tuple[int, int], SealedSegment], log_id: bytes) -> None:
        """Write damaged heads again, from the rows of the metadata; put the other files aside."""
        for name, reason in self.damaged.items():
            row = rows.get(parse_name(name) or (-1, -1))
            if row is None or not self._holds_records(name, row):
                self.put_aside(name, reason)
                continue
            head = SegmentHead(row.base, row.sequence, row.salt, log_id, row.created)
            self._write_head(name, head, "was written again from the metadata")
            self.heads[name] = head
        self.damaged = {}

    def _holds_records(self, name: str, row: SealedSegment) -> bool:
        """Return whether the file is the segment of ``row``: by its size, or its first record."""
        if self._directory.size(name) == row.size:
            return True
        first = self._read(name, SEGMENT_HEAD_BYTES, HEAD_BYTES)
        return decode_head(first, row.salt) is not None

    def _read(self, name: str, position: int, count: int) -> bytes:
        file = self._directory.open(name, os.O_RDONLY)
        try:
            return os.pread(file, count, position)
        finally:
            os.close(file)

    def _write_head(self, name: str, head: SegmentHead, what: str) -> None:
        file = self._directory.open(name, os.O_WRONLY)
        try:
            write_all(file, [head.encode()], 0)
            os.fdatasync(file)
        finally:
            os.close(file)
        self._report(f"{name}: the head of the segment was damaged, and {what}")

    # Names

    def correct_names(self) -> None:
        """Give segments the names that are in their heads; two may have each other's."""
        right_names = {n: segment_name(head.base, head.sequence) for n, head in self.heads.items()}
        taken = {name for name, right in right_names.items() if name == right} | set(self.damaged)
        moved: dict[str, str] = {}
        for name, right in right_names.items():
            if name == right:
                continue
            if right in taken:
                del self.heads[name]
                self.put_aside(name, "its name is that of another segment")
            else:
                taken.add(right)
                moved[name] = right
        # First to names that are free. If the repair is interrupted, the next one continues there.
        for number, name in enumerate(moved):
            self._directory.rename(name, _between(number, name))
        for number, (name, right) in enumerate(moved.items()):
            self._directory.rename(_between(number, name), right)
            self._report(f"{name} had the wrong name, and is now {right}")
        heads = {name: self.heads.pop(name) for name in moved}
        self.heads |= {moved[name]: head for name, head in heads.items()}


def _between(number: int, name: str) -> str:
    return f"{number}-of-repair-{name}"
