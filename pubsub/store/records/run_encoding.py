"""Runs in the columns of a block (see ``block_columns.py``)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from pubsub.kernel import pack_plain_runs
from pubsub.store.records.block_columns import (
    HAS_HEADERS,
    RUN,
    SEVERAL,
    encode_headers,
    little_endian,
    native,
)
from pubsub.store.records.stored_runs import Mix, RunRecord, payloads_of, some_of, timestamp_of


class RunColumns(NamedTuple):
    """Runs in the columns of a block (see ``block_columns.py``); timestamps are 0 without a run."""

    first_timestamp: int
    last_timestamp: int
    runs: bytes
    lists: bytes
    picks: bytes
    lengths: bytes
    headers: bytes
    payloads: Sequence[bytes]


class _MixColumns:
    """The runs of several topics: the list of topics of each, and the picks of their messages."""

    def __init__(self, name_indexes: dict[bytes, int]) -> None:
        self.lists = array("I")
        self.picks: list[bytes] = []
        self._name_indexes = name_indexes
        # By the identity of the tuple, as many runs have the same.
        self._known: dict[int, array[int]] = {}

    def add(self, mix: Mix) -> None:
        """Add the next run of several topics."""
        topics, picks = mix
        found = self._known.get(id(topics))
        if found is None:
            found = self._known[id(topics)] = self._list(topics)
        self.lists.extend(found)
        self.picks.append(picks)

    def _list(self, topics: Sequence[str]) -> array[int]:
        """Return the number of ``topics`` and the index of the name of each."""
        index_of, names = self._name_indexes.setdefault, self._name_indexes
        return array("I", [len(topics), *[index_of(one.encode(), len(names)) for one in topics]])


class _GroupColumns:
    """The columns of runs so far; see ``encode_runs``."""

    def __init__(self, base: int, name_indexes: dict[bytes, int]) -> None:
        self._base = base
        self._names = name_indexes
        self._rows: list[bytes] = []
        self._mixes = _MixColumns(name_indexes)
        self._lengths: list[bytes] = []
        self._headers: list[bytes] = []
        self._times: list[int] = []
        self._payloads: list[bytes] = []

    def add(self, records: Sequence[RunRecord]) -> None:
        """Add the next runs."""
        at = 0
        while at < len(records):
            plain, at = pack_plain_runs(records, at, self._base, self._names)
            self._rows.append(plain)
            if at < len(records):
                self._add_other(records[at])
                at += 1
        self._times += [min(map(timestamp_of, records)), max(map(timestamp_of, records))]
        self._payloads += map(payloads_of, records)

    def _add_other(self, record: RunRecord) -> None:
        (
            _, offset, timestamp, _, topic, count, _,
            size, lengths, sequence, sender, protocol, headers, mix, _,
        ) = record  # fmt: skip
        # Runs of several senders are plain, also those of several topics.
        assert isinstance(sender, bytes)
        index_of, names = self._names.setdefault, self._names
        start = offset - self._base
        if mix is None:
            place = index_of(topic.encode(), len(names))
        else:
            place = SEVERAL
            self._mixes.add(mix)
        if headers is not None:
            count |= HAS_HEADERS
            self._headers += encode_headers(start, headers)
        if lengths is not None:
            self._lengths.append(lengths)
        sender_at = index_of(sender, len(names))
        protocol_at = index_of(protocol.encode(), len(names))
        self._rows.append(
            RUN.pack(start, count, place, sender_at, protocol_at, size, timestamp, sequence)
        )

    def columns(self) -> RunColumns:
        """Return the columns."""
        lists = self._mixes.lists
        return RunColumns(
            min(self._times, default=0),
            max(self._times, default=0),
            b"".join(self._rows),
            little_endian(lists).tobytes() if lists else b"",
            _words(self._mixes.picks),
            _words(self._lengths),
            b"".join(self._headers),
            self._payloads,
        )


def encode_runs(
    records: Sequence[RunRecord], base: int, name_indexes: dict[bytes, int]
) -> RunColumns:
    """Encode ``records`` for a block that begins at the offset ``base``.

    New names are added to ``name_indexes``.
    """
    encoding = _GroupColumns(base, name_indexes)
    for some in some_of(records):
        encoding.add(some)
    return encoding.columns()


def _words(parts: Sequence[bytes]) -> bytes:
    """Return u32 in this machine's byte order as a column; the conversion is its own inverse."""
    return native(b"".join(parts))
