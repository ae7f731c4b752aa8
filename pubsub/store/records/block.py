"""The messages of a record of the history, in columns. Sans-IO.

``block_columns.py`` describes the columns. A block also has its base (the offset of its first
message), its number of messages, their first and last timestamp, and the number of the broker run
that the message ids come from.

The messages of a block are numbered from its base. A run that has expired leaves its numbers out.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import mul

from pubsub.broker.routing.batch import Headers, headers_nbytes
from pubsub.store.records.block_columns import (
    HAS_HEADERS,
    MIXED,
    RUN,
    RUN_COUNT,
    RUN_PROTOCOL,
    RUN_SENDER,
    RUN_SIZE,
    RUN_TOPIC,
    RUN_WORDS,
    SEVERAL,
    decode_headers,
    decode_lists,
    decode_names,
    encode_headers,
    encode_names,
    little_endian,
    native,
    numbers,
)
from pubsub.store.records.run_encoding import encode_runs
from pubsub.store.records.stored_runs import RunRecord, StoredRun, overhead_of
from pubsub.store.records.topic_counts import TopicCounts, add_counts


@dataclass(slots=True)
class Block:
    """Messages in columns.

    ``first`` and ``last`` are timestamps in µs; ``run`` is the number of the broker run.
    """

    base: int
    count: int
    first: int
    last: int
    run: int
    names: bytes
    runs: bytes
    lengths: bytes
    headers: bytes
    payloads: bytes | memoryview
    lists: bytes = b""
    picks: bytes = b""

    @property
    def stop(self) -> int:
        """The offset after the last message."""
        return self.base + self.count

    def topics(self) -> set[str]:
        """Return the topics of the messages. The block must have been checked."""
        names = decode_names(self.names)
        return {names[index].decode() for index in self.topic_indexes()}

    def topic_indexes(self) -> set[int]:
        """Return the indexes of the topics in the names."""
        indexes = set(numbers("I", self.runs)[RUN_TOPIC::RUN_WORDS])
        indexes.discard(SEVERAL)
        indexes.update(*decode_lists(self.lists))
        return indexes

    def totals(self) -> TopicCounts:
        """Return the messages of each topic and their bytes (see ``messages_nbytes``).

        The block must have been checked.
        """
        raw_names = decode_names(self.names)
        names = [name.decode(errors="replace") for name in raw_names]
        headers = {at: headers_nbytes(own) for at, own in decode_headers(self.headers)}
        found: TopicCounts = {}
        lists = iter(decode_lists(self.lists))
        lengths, picks = numbers("I", self.lengths), numbers("I", self.picks)
        length_at = pick_at = 0
        for start, flagged, topic, sender, _, size, _, _ in RUN.iter_unpack(self.runs):
            count = flagged & ~HAS_HEADERS
            beside = len(raw_names[sender])
            own: Sequence[int] = ()
            if size == MIXED:
                own = lengths[length_at : length_at + count]
                length_at += count
            if flagged & HAS_HEADERS:
                sizes = own or [size] * count
                own = [each + headers.get(start + i, 0) for i, each in enumerate(sizes)]
            if topic != SEVERAL:
                nbytes = sum(own) if own else size * count
                add_counts(found, [(names[topic], (count, nbytes + beside * count))])
                continue
            listed = next(lists)
            chosen = picks[pick_at : pick_at + count]
            pick_at += count
            add_counts(
                found,
                [
                    (names[listed[pick]], (number, nbytes + beside * number))
                    for pick, number, nbytes in _by_pick(chosen, own, size)
                ],
            )
        return found


def _by_pick(
    picks: Sequence[int], sizes: Sequence[int], size: int
) -> Iterator[tuple[int, int, int]]:
    """Yield each pick with its messages and their bytes; ``size`` is that of all without sizes."""
    counted = Counter(picks)
    nbytes = dict.fromkeys(counted, 0)
    for pick, each in zip(picks, sizes, strict=False):
        nbytes[pick] += each
    for pick, number in counted.items():
        yield pick, number, nbytes[pick] if sizes else number * size


def encode_block(records: Sequence[RunRecord], run: int, base: int, stop: int) -> Block:
    """Return the block of ``records``, which are in order, from ``base`` to before ``stop``.

    ``run`` is the number of the broker run.
    """
    names: dict[bytes, int] = {}
    columns = encode_runs(records, base, names)
    return Block(
        base,
        stop - base,
        columns.first_timestamp,
        columns.last_timestamp,
        run,
        encode_names(names),
        columns.runs,
        columns.lengths,
        columns.headers,
        b"".join(columns.payloads),
        columns.lists,
        columns.picks,
    )


def join_blocks(blocks: Sequence[Block]) -> Block:
    """Return one block of neighbours that have the same broker run and have been checked.

    There is no step for each of their runs.
    """
    first = blocks[0]
    names: dict[bytes, int] = {}
    records: list[bytes] = []
    headers: list[bytes] = []
    lists: list[bytes] = []
    for block in blocks:
        shift = block.base - first.base
        indexes: dict[int, int] = {SEVERAL: SEVERAL}
        own_indexes = [names.setdefault(name, len(names)) for name in decode_names(block.names)]
        indexes.update(enumerate(own_indexes))
        words = numbers("I", block.runs)
        words[::RUN_WORDS] = array("I", map(shift.__add__, words[::RUN_WORDS]))
        for column in (RUN_TOPIC, RUN_SENDER, RUN_PROTOCOL):
            own = words[column::RUN_WORDS]
            words[column::RUN_WORDS] = array("I", map(indexes.__getitem__, own))
        records.append(little_endian(words).tobytes())
        for listed in decode_lists(block.lists):
            moved = array("I", [len(listed), *map(indexes.__getitem__, listed)])
            lists.append(little_endian(moved).tobytes())
        if block.headers:
            for index, one in decode_headers(block.headers):
                headers += encode_headers(index + shift, (one,))
    return Block(
        first.base,
        blocks[-1].stop - first.base,
        min(block.first for block in blocks),
        max(block.last for block in blocks),
        first.run,
        encode_names(names),
        b"".join(records),
        b"".join([block.lengths for block in blocks]),
        b"".join(headers),
        b"".join([block.payloads for block in blocks]),
        b"".join(lists),
        b"".join([block.picks for block in blocks]),
    )


BlockRun = tuple[
    int, int, int, tuple[int, ...], bytes, int, int, int, "array[int] | None", int, int, int, int
]
"""A run of a block: its first offset, number of messages, whether they have headers, the indexes of
its topics, picks (empty unless there may be several topics), the indexes of sender and protocol,
size, the lengths of messages that differ in length, where its payloads begin and end, timestamp and
sequence."""


def runs_of(block: Block, start: int = 0) -> Iterator[BlockRun]:
    """Yield the runs of a block that has been checked.

    Those that end before the offset ``start`` may be left out.
    """
    lengths = numbers("I", block.lengths)
    lists = iter(decode_lists(block.lists))
    row = end = length_at = pick_at = 0
    if start > block.base and not (block.lengths or block.lists):
        row, end = _run_at(block, start)
    for first, flagged, topic, sender, protocol, size, timestamp, sequence in RUN.iter_unpack(
        memoryview(block.runs)[row * RUN.size :]
    ):
        count = flagged & ~HAS_HEADERS
        own = None
        if size == MIXED:
            own = lengths[length_at : length_at + count]
            length_at += count
        begin = end
        end += size * count if own is None else sum(own)
        listed: tuple[int, ...] = (topic,)
        picks = b""
        if topic == SEVERAL:
            listed = tuple(next(lists))
            picks = block.picks[pick_at : pick_at + 4 * count]
            pick_at += 4 * count
        yield (
            block.base + first, count, flagged & HAS_HEADERS, listed, picks, sender, protocol, size,
            own, begin, end, timestamp, sequence,
        )  # fmt: skip


def _run_at(block: Block, offset: int) -> tuple[int, int]:
    """Return the place of the run with ``offset``, or before it, and where its payloads begin.

    All runs have messages of one size and one topic each.
    """
    words = numbers("I", block.runs)
    row = max(bisect_right(words[::RUN_WORDS], offset - block.base) - 1, 0)
    counts = [count & ~HAS_HEADERS for count in words[RUN_COUNT::RUN_WORDS][:row]]
    return row, sum(map(mul, counts, words[RUN_SIZE::RUN_WORDS]))


class BlockRuns:
    """Makes the runs of a block that has been checked, of ``topics`` (None: of all)."""

    def __init__(self, block: Block, topics: frozenset[str] | None) -> None:
        self.names = decode_names(block.names)
        self.wanted = None if topics is None else _indexes(topics, self.names)
        self._block = block
        self._texts: dict[int, str] = {}
        self._headers: dict[int, Headers] | None = None

    def text(self, index: int) -> str:
        """Return the name of a topic or a protocol."""
        text = self._texts.get(index)
        if text is None:
            text = self._texts[index] = self.names[index].decode()
        return text

    def of(self, run: BlockRun) -> Iterable[StoredRun]:
        """Return the run whole if all of its topics are wanted, and otherwise runs of these."""
        wanted, listed = self.wanted, run[3]
        if wanted is None or wanted.issuperset(listed):
            return (self.whole(run),)
        if wanted.isdisjoint(listed):
            return ()
        return self.whole(run).only([index in wanted for index in listed])

    def whole(self, run: BlockRun) -> StoredRun:
        """Return the run with the messages of all of its topics."""
        (
            first, count, has_headers, listed, picks, sender_at, protocol, size, lengths, begin,
            end, timestamp, sequence,
        ) = run  # fmt: skip
        data = bytes(self._block.payloads[begin:end])
        some, mix, topic = None, None, ""
        if has_headers:
            if self._headers is None:
                self._headers = dict(decode_headers(self._block.headers))
            start = first - self._block.base
            some = [self._headers.get(start + place, {}) for place in range(count)]
        if picks:
            mix = tuple(map(self.text, listed)), native(picks)
        else:
            topic = self.text(listed[0])
        sender = self.names[sender_at]
        return StoredRun(
            first + count - 1, first, timestamp, len(data) + overhead_of(sender, some), topic,
            count, data, size, lengths, sequence, sender, self.text(protocol), some, mix,
        )  # fmt: skip


def decode_block(block: Block, topics: frozenset[str] | None = None) -> Iterator[StoredRun]:
    """Yield the runs of a block that has been checked, of ``topics`` (None: of all).

    A run of several topics is yielded whole if all of them are wanted, and split otherwise.
    """
    runs = BlockRuns(block, topics)
    for run in runs_of(block):
        yield from runs.of(run)


def _indexes(topics: frozenset[str], names: Sequence[bytes]) -> frozenset[int]:
    wanted = frozenset(map(str.encode, topics))
    return frozenset(index for index, name in enumerate(names) if name in wanted)
