"""The newest messages of the history, in memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate, chain

from pubsub.broker.routing.batch import Batch, Page, rows_with
from pubsub.kernel import Senders
from pubsub.store.reading.joined_runs import ROW_BYTES, JoinedRuns, batches_among, rows_of
from pubsub.store.reading.mixed_rows import places_among
from pubsub.store.records.stored_runs import (
    MESSAGE_BYTES,
    REMOVED,
    RUN_BYTES,
    RunRecord,
    StoredRun,
    batch_of,
    batches_of,
    count_of,
    first_offset_of,
    has_one_sender,
    is_single,
    last_offset_of,
    mixed_topics_of,
    nbytes_of,
    protocol_of,
    record_of,
    run_of,
    split,
    timestamp_of,
    topic_of,
    topics_of,
)
from pubsub.store.records.topic_counts import TopicCounts, add_counts

# What one read examines, so that a reader of a rare topic does not delay the others: runs; messages
# of those that have several topics or senders; and topics of these that take as long as a message.
_SCAN, _SCAN_MESSAGES, _COMPARED = 2_000, 5_000, 32
# Bytes that are removed at a time, for each MiB that is kept.
_STEP, _MIB = 4096, 1024**2
# Runs that are removed together.
_TRIMMED = 64
# Topics that have ended before their runs are removed, and runs and messages that each further one
# examines: all at once would delay other clients.
_FORGOTTEN, _EXAMINED, _MESSAGES = 10_000, 2_000, 5_000
RECENT = 8 * 1024**2
"""Bytes of messages that are kept for readers, beside those that are not written."""


class RunLog:
    """The newest ``messages`` messages within ``nbytes`` bytes; the oldest runs go first.

    With either bound at zero nothing is kept; offsets are still counted, from ``offset``.
    """

    def __init__(self, messages: int, nbytes: int, offset: int = 0) -> None:
        self.max_messages = messages if nbytes else 0
        self.max_bytes = nbytes
        self._runs: list[RunRecord] = []
        # Runs before this index are removed. The list is cut after many removals, not at each.
        self._head = 0
        self._bytes = 0
        self._forgotten: dict[str, int] = {}
        # The topics of these whose runs are being removed, and the offset up to which they are.
        self._leaving: dict[str, int] = {}
        self._cleared = 0
        self.next_offset = offset

    @property
    def first_offset(self) -> int:
        """The offset of the oldest message, or the next offset if there is none."""
        if self._head < len(self._runs):
            return first_offset_of(self._runs[self._head])
        return self.next_offset

    @property
    def nbytes(self) -> int:
        """Bytes of the runs, with their overhead."""
        return self._bytes

    def append(self, batch: Batch, senders: Senders | None = None) -> RunRecord:
        """Assign ``batch`` its offset and keep it; see ``IStore.append``. Returns its record."""
        offset = batch.offset = self.next_offset
        record = record_of(batch, senders) if self.max_messages else REMOVED
        # Counted only now, so that an error above leaves no gap in the offsets.
        self.next_offset = after = offset + batch.columns.count
        if not self.max_messages:
            return record
        self._runs.append(record)
        self._bytes += nbytes_of(record)
        if self._bytes > self.max_bytes or (
            # The first comparison is only there because the second costs more.
            after > self.max_messages
            and after - first_offset_of(self._runs[self._head]) > self.max_messages
        ):
            self._trim()
        return record

    def read(
        self,
        offset: int,
        topics: frozenset[str] | None,
        max_bytes: int,
        end: int | None = None,
        joined: bool = False,
    ) -> Page:
        """As ``IStore.read``, up to the offset ``end`` if it is given. A run must end there."""
        runs = self._runs
        start = bisect_right(runs, offset - 1, lo=self._head, key=last_offset_of)
        last = self.next_offset if end is None else end
        found: list[Batch] = []
        small = JoinedRuns(found)
        room, examined = max_bytes, 0
        next_offset = max(offset, self.first_offset)
        for record in runs[start : start + _SCAN]:
            if first_offset_of(record) >= last:
                next_offset = max(next_offset, last)
                break
            next_offset = last_offset_of(record) + 1
            examined += len(mixed_topics_of(record) or ()) // _COMPARED
            if self._may_show(record, topics):
                rows = rows_of(record) if joined and first_offset_of(record) >= offset else ()
                for row in rows:
                    if self._is_visible(row[1], row[2], topics):
                        small.add(row, protocol_of(record), run_of(record))
                        room -= len(row[-1]) + ROW_BYTES
                if not rows:
                    small.finish()
                    shown, next_offset = self._shown_batches(record, offset, topics, joined, room)
                    found += shown
                    room -= _cost(record, shown)
                    if next_offset <= last_offset_of(record):
                        break
                examined += 0 if is_single(record) else count_of(record)
            if room <= 0 or examined > _SCAN_MESSAGES:
                break
        else:
            if start + _SCAN >= len(runs):
                # All runs were examined. The last may have been removed with a topic that ended.
                next_offset = max(next_offset, last)
        small.finish()
        return Page(found, next_offset)

    def records_from(
        self, start: int, stop: int, topics: frozenset[str] | None, max_bytes: int
    ) -> tuple[list[RunRecord], int]:
        """Return records of a range with messages of ``topics``, and the offset they reach.

        Those of several topics are whole, also if only some of these are wanted: to divide them is
        left to the thread that encodes them. Messages of topics that have ended are left out.
        """
        begin = bisect_right(self._runs, start - 1, lo=self._head, key=last_offset_of)
        found, compared = list[RunRecord](), 0
        for record in self._runs[begin : begin + _SCAN]:
            if first_offset_of(record) >= stop:
                return found, stop
            if compared > _SCAN_MESSAGES:
                return found, max(start, first_offset_of(record))
            compared += len(mixed_topics_of(record) or ()) // _COMPARED
            for one in self._kept(record, start) if self._may_show(record, topics) else ():
                if last_offset_of(one) >= start:
                    found.append(one)
                    max_bytes -= nbytes_of(one) + MESSAGE_BYTES * count_of(one)
                    if max_bytes <= 0 or len(found) > _SCAN:
                        return found, min(last_offset_of(one) + 1, stop)
        if begin + _SCAN < len(self._runs):
            stop = min(stop, first_offset_of(self._runs[begin + _SCAN]))
        return found, max(start, stop)

    def totals(self, start: int, stop: int) -> TopicCounts:
        """Return the messages of a range, and their bytes, by topic."""
        if start >= stop:
            return {}
        runs = self._runs
        first = bisect_right(runs, start - 1, lo=self._head, key=last_offset_of)
        last = bisect_left(runs, stop, lo=first, key=first_offset_of)
        # Those that are in the range as a whole; the first and the last may not be.
        begin = bisect_left(runs, start, lo=first, hi=last, key=first_offset_of)
        end = bisect_left(runs, stop, lo=begin, hi=last, key=last_offset_of)
        found: TopicCounts = {}
        for run in (*runs[first:begin], *runs[end:last]):
            parts = [StoredRun.of(one) for one in chain.from_iterable(map(split, self._kept(run)))]
            cut = [one.within(start, stop).record() for one in parts if one.offset < stop]
            add_counts(found, topics_of([one for one in cut if count_of(one)]).items())
        # Whole runs, between the offsets at which topics have ended.
        for offset in sorted({*self._forgotten.values()}):
            until = bisect_left(runs, offset, lo=begin, hi=end, key=last_offset_of)
            self._add_shown(found, begin, until)
            if until < end and first_offset_of(runs[until]) < offset:
                # It has ended within this one.
                add_counts(found, topics_of(list(self._kept(runs[until]))).items())
                until += 1
            begin = until
        self._add_shown(found, begin, end)
        return found

    def _add_shown(self, found: TopicCounts, begin: int, end: int) -> None:
        """Add the messages of runs, each of whose topics is hidden in all of them, or in none."""
        if begin < end:
            offset = first_offset_of(self._runs[begin])
            counts = topics_of(self._runs[begin:end])
            add_counts(
                found, [one for one in counts.items() if self._is_visible(one[0], offset, None)]
            )

    def offset_at(self, timestamp: int) -> int:
        """Return the offset of the first message at or after ``timestamp`` (µs).

        The next offset if there is none.
        """
        at = bisect_left(self._runs, timestamp, lo=self._head, key=timestamp_of)
        return first_offset_of(self._runs[at]) if at < len(self._runs) else self.next_offset

    def forget(self, topic: str, before: int | None = None) -> None:
        """Hide the messages that ``topic`` has so far, or ``before`` an offset.

        Their offsets stay unused. Removing them means a pass over the log, which would delay all
        clients; so that is done once for many topics, and in steps.
        """
        self._forgotten[topic] = self.next_offset if before is None else before
        if not self._leaving and len(self._forgotten) > _FORGOTTEN:
            self._leaving, self._cleared = self._forgotten.copy(), self.first_offset
        if self._leaving:
            self._remove_some()

    def _remove_some(self) -> None:
        """Remove the messages of topics that have ended from the next runs of the pass."""
        runs = self._runs
        start = bisect_right(runs, self._cleared - 1, lo=self._head, key=last_offset_of)
        examined = runs[start : start + _EXAMINED]
        counts = accumulate(map(count_of, examined))
        last = next((n for n, count in enumerate(counts, 1) if count > _MESSAGES), None)
        examined = examined[:last]
        left = [one for run in examined for one in self._kept(run)]
        is_last = start + len(examined) >= len(runs)
        if examined:
            self._cleared = last_offset_of(examined[-1]) + 1
        self._bytes += sum(map(nbytes_of, left)) - sum(map(nbytes_of, examined))
        runs[start : start + len(examined)] = left
        if is_last:
            for topic, offset in self._leaving.items():
                if self._forgotten.get(topic) == offset:
                    del self._forgotten[topic]
            self._leaving = {}

    def _may_show(self, record: RunRecord, topics: frozenset[str] | None) -> bool:
        """Return False if no message of ``record`` is of ``topics``, as far as is quickly seen."""
        mixed = mixed_topics_of(record)
        if mixed is None:
            return self._is_shown(record, topics)
        return topics is None or not topics.isdisjoint(mixed)

    def _has_hidden(self, record: RunRecord, topics: Iterable[str]) -> bool:
        """Return whether a message may be hidden; its topic is one of ``topics``."""
        first, forgotten = first_offset_of(record), self._forgotten
        return bool(forgotten) and any(forgotten.get(topic, 0) > first for topic in topics)

    def _kept(self, record: RunRecord, start: int = 0) -> Iterable[RunRecord]:
        """Return what is not hidden from ``start`` on, in few records: each takes memory."""
        mixed = mixed_topics_of(record)
        if mixed is None:
            return (record,) if self._is_shown(record, None) else ()
        if not self._has_hidden(record, mixed):
            return (record,)
        if not has_one_sender(record):
            return [one for one in split(record) if self._is_shown(one, None)]
        batch, first = batch_of(record, start), first_offset_of(record)
        hidden = [self._forgotten.get(topic, 0) for topic in mixed]
        # One by one: of a large run there may be more than a page takes.
        if any(first < offset <= last_offset_of(record) for offset in hidden):
            each = (record_of(run) for _index, run in batch.runs())
            return (one for one in each if self._is_shown(one, None))
        spans = rows_with(batch.columns, [offset <= first for offset in hidden])
        return (record_of(batch.slice(low, high)) for low, high in spans)

    def _shown_batches(
        self, record: RunRecord, offset: int, topics: frozenset[str] | None, joined: bool, room: int
    ) -> tuple[list[Batch], int]:
        """Return the messages that are shown as batches, and the offset that they reach.

        They are those of ``topics`` from ``offset`` on. Those of topics that have ended are hidden.
        If ``joined``, batches may have several runs, and do not take much more than ``room``.
        """
        stop = last_offset_of(record) + 1
        if mixed_topics_of(record) is None:
            is_shown = self._is_shown(record, topics)
            return (list(batches_of(record, offset)) if is_shown else []), stop
        if not has_one_sender(record):
            return [
                one
                for one in batches_of(record, offset)
                if self._is_visible(one.topic, one.offset, topics)
            ], stop
        batch = batch_of(record, offset)
        has_all = topics is None or topics.issuperset(batch.topics)
        if has_all and not self._has_hidden(record, batch.topics):
            return [batch], stop
        batch = batch.slice(0, min(batch.count, _SCAN_MESSAGES))
        stop, among = batch.stop, places_among(batch.topics, topics)
        hidden = {place: self._forgotten.get(topic, 0) for topic, place in among.items()}
        first = {place: offset for place, offset in hidden.items() if offset < stop}
        if joined and batch.headers is None:
            return batches_among(batch, first, room)
        return [run for index, run in batch.runs(first) if run.offset >= first[index]], stop

    def _is_shown(self, record: RunRecord, topics: frozenset[str] | None) -> bool:
        return self._is_visible(topic_of(record), first_offset_of(record), topics)

    def _is_visible(self, topic: str, offset: int, topics: frozenset[str] | None) -> bool:
        """Return whether ``topic`` is one of ``topics`` and its message at ``offset`` is kept."""
        if topics is not None and topic not in topics:
            return False
        return offset >= self._forgotten.get(topic, 0)

    def _trim(self) -> None:
        """Remove the oldest runs, but never the newest."""
        runs = self._runs
        head = self._head
        # A little more room than for one run, as small runs come one by one.
        room = self.max_bytes
        if self._bytes > room:
            room -= room // _MIB * _STEP
        while head < len(runs) - 1 and (
            self._bytes > room or self.next_offset - first_offset_of(runs[head]) > self.max_messages
        ):
            number, nbytes = 1, nbytes_of(runs[head])
            if self._bytes - room > _TRIMMED * RUN_BYTES and head + _TRIMMED < len(runs):
                # Perhaps many small runs, of which none may stay.
                many = sum(map(nbytes_of, runs[head : head + _TRIMMED]))
                if self._bytes - many > room:
                    number, nbytes = _TRIMMED, many
            self._bytes -= nbytes
            # Releases the memory before the list is cut.
            runs[head : head + number] = [REMOVED] * number
            head += number
        self._head = head
        if head > 1024 and head * 2 > len(runs):
            del runs[:head]
            self._head = 0


def _cost(record: RunRecord, shown: Iterable[Batch]) -> int:
    """Return how many bytes of a page the messages of ``record`` take that are ``shown``."""
    if is_single(record):
        return nbytes_of(record) + MESSAGE_BYTES * count_of(record)
    return sum([batch.nbytes + MESSAGE_BYTES * batch.count for batch in shown])
