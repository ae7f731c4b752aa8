"""Encoders: a batch, as frames of one wire, for subscribers of one or of several of its topics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from copy import copy
from functools import lru_cache
from itertools import groupby
from json.encoder import encode_basestring
from operator import itemgetter
from sys import maxsize
from typing import TYPE_CHECKING, Protocol

from pubsub.kernel import FrameEncoder

if TYPE_CHECKING:
    from pubsub.broker.routing.batch import Batch
    from pubsub.interfaces import Encoding, HeadEncoding, RunEncoding
    from pubsub.kernel import Head

# Topics whose heads are looked up in a step, and the units of work for them (see
# ``sliced_routing.py``); topics for which the kernel makes an encoder in a unit.
_STEP, _STEP_UNITS, _IN_UNIT = 64, 10, 6


class BatchEncoder(Protocol):
    """Writes batches whose topics have the encodings it was made for.

    ``limit`` is the largest payload that all of them carry, ``limits`` has that of each index.
    ``writer`` writes the frames if nothing in them but ``stamp`` differs between batches, otherwise
    it is None. ``frames`` is the same, but None if ``stamp`` differs between batches with the same
    timestamp. ``kind`` is the class of the encodings, if there is a writer.
    """

    writer: FrameEncoder | None
    frames: FrameEncoder | None
    kind: type[object]

    @property
    def limit(self) -> int: ...

    @property
    def limits(self) -> Sequence[int]: ...

    def stamp(self, batch: Batch) -> bytes:
        """Return the variable bytes of the frames of ``batch``."""

    def frames_with(self, stamp: bytes) -> FrameEncoder:
        """Return what writes the frames of the only topic with this ``stamp``.

        Only if there is a ``writer``.
        """

    def encode(self, batch: Batch) -> tuple[bytes, int]:
        """Return whole frames, in order, and the number of messages in them.

        Messages over the limit of their encoding, and those of topics without one, are left out.
        """


def make_encoder(encodings: Sequence[Encoding | None]) -> BatchEncoder:
    """Return the encoder for batches whose topics have ``encodings``, by index."""
    given = {index: one for index, one in enumerate(encodings) if one is not None}
    if not _have_heads(given):
        return _without_heads(given, len(encodings))
    heads = [() if one is None else _heads_of(one) for one in encodings]  # type: ignore[arg-type]
    return _HeadEncoder(given, heads)  # type: ignore[arg-type]


def encoder_in_steps(
    given: Mapping[int, Encoding],
    number: int,
    known: Callable[[int, Encoding], BatchEncoder | None],
) -> Generator[int, None, BatchEncoder]:
    """Return the encoder for ``number`` topics, of which some have the ``given`` encodings.

    Yields the units of work of each step but the last. ``known`` returns an encoder for one topic
    alone, if there is one. It has the heads already, which take far longer to make, and to free,
    than all else here.
    """
    if not _have_heads(given):
        return _without_heads(given, number)
    heads: list[tuple[Head, ...]] = [()] * number
    for count, (index, encoding) in enumerate(given.items(), 1):
        one = known(index, encoding)
        if isinstance(one, _HeadEncoder):
            heads[index] = one.heads
        else:
            heads[index] = _heads_of(encoding)  # type: ignore[arg-type]
        if count % _STEP == 0:
            yield _STEP_UNITS
    if len(given) > _STEP:
        yield len(given) // _IN_UNIT
    return _HeadEncoder(given, heads)  # type: ignore[arg-type]


def encoder_at_once(
    given: Mapping[int, Encoding],
    number: int,
    known: Callable[[int, Encoding], BatchEncoder | None],
) -> BatchEncoder:
    """Return the same in one step."""
    steps = encoder_in_steps(given, number, known)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            encoder: BatchEncoder = done.value
            return encoder


def _have_heads(given: Mapping[int, Encoding]) -> bool:
    types = set(map(type, given.values()))
    return len(types) == 1 and hasattr(next(iter(given.values())), "heads")


def _without_heads(given: Mapping[int, Encoding], number: int) -> BatchEncoder:
    one = next(iter(given.values()), None)
    if isinstance(one, RowEncoding) and all(other == one for other in given.values()):
        return _RowEncoder(given, number, one)
    return _RunEncoder(given, number)


def stamps_of(encoders: Iterable[BatchEncoder], batch: Batch) -> list[bytes]:
    """Return ``BatchEncoder.stamp`` of each encoder, all of which have a writer."""
    # Encodings of one class have the same stamp.
    made: dict[type[object], bytes] = {}
    stamps = []
    for encoder in encoders:
        stamp = made.get(encoder.kind)
        if stamp is None:
            stamp = made[encoder.kind] = encoder.stamp(batch)
        stamps.append(stamp)
    return stamps


def encode_joined(encoder: BatchEncoder, batch: Batch) -> tuple[bytes, int]:
    """Do as ``BatchEncoder.encode``, for a batch that may have rows."""
    rows, writer = batch.rows, encoder.writer
    if rows is None or writer is None:
        return encoder.encode(batch)
    found: list[tuple[bytes, int]] = []
    one, stamped, start = copy(batch), [], 0
    # Rows with the same time and sender, such as those of one read, have one stamp.
    each = zip(rows.timestamps, rows.senders, rows.counts, strict=True)
    for (one.timestamp, one.sender), same in groupby(each, itemgetter(0, 1)):
        stamped.append((encoder.stamp(one), sum([count for _, _, count in same])))
    # Rows with the same stamp are written at once.
    for stamp, alike in groupby(stamped, itemgetter(0)):
        stop = start + sum([count for _, count in alike])
        found.append(writer.encode(batch.columns.slice(start, stop), stamp))
        start = stop
    return b"".join([data for data, _ in found]), sum([count for _, count in found])


def too_large(encoder: BatchEncoder, batch: Batch) -> Counter[int]:
    """Return how many messages of each index are over the limit of their encoding."""
    limits, columns = encoder.limits, batch.columns
    return Counter(
        index
        for index, size in zip(columns.indexes(), columns.sizes(), strict=True)
        if size > limits[index]
    )


@lru_cache(maxsize=1024)
def _heads_of(encoding: HeadEncoding) -> tuple[Head, ...]:
    """Return the heads of ``encoding``; many audiences of a read have it."""
    return encoding.heads


@lru_cache(maxsize=4096)
def _stamped(encoding: HeadEncoding, stamp: bytes) -> FrameEncoder:
    """Return what writes the frames of ``encoding`` with this ``stamp``; a gateway repeats both."""
    at, stop = encoding.variable_at, encoding.variable_at + len(stamp)
    heads = [
        head._replace(data=head.data[:at] + stamp + head.data[stop:]) for head in encoding.heads
    ]
    return FrameEncoder([tuple(heads)])


class _Encoder:
    """The base of encoders: the limits of the ``given`` encodings of ``number`` topics."""

    __slots__ = ("_given", "_number", "frames", "kind", "limit", "writer")

    def __init__(self, given: Mapping[int, Encoding], number: int) -> None:
        self.writer: FrameEncoder | None = None
        self.frames: FrameEncoder | None = None
        self.kind: type[object] = object
        self._given = given
        self._number = number
        self.limit = min([encoding.limit for encoding in given.values()], default=maxsize)

    @property
    def limits(self) -> Sequence[int]:
        limits = [maxsize] * self._number
        for index, encoding in self._given.items():
            limits[index] = encoding.limit
        return limits

    def stamp(self, batch: Batch) -> bytes:
        return b""

    def frames_with(self, stamp: bytes) -> FrameEncoder:
        raise NotImplementedError


class _HeadEncoder(_Encoder):
    """A step of the kernel for each message. If there is one index, ``heads`` are those of it."""

    __slots__ = ("_frames", "_variable", "heads")

    def __init__(self, given: Mapping[int, HeadEncoding], heads: list[tuple[Head, ...]]) -> None:
        super().__init__(given, len(heads))
        self.heads = heads[0] if len(heads) == 1 else ()
        one = next(iter(given.values()))
        self.kind = type(one)
        self._frames = FrameEncoder(heads, one.variable_at, one.variable_size)
        self.writer = self._frames
        self._variable = one.variable if one.variable_size else None
        if one.by_timestamp:
            self.frames = self._frames

    def stamp(self, batch: Batch) -> bytes:
        return b"" if self._variable is None else self._variable(batch)

    def frames_with(self, stamp: bytes) -> FrameEncoder:
        (encoding,) = self._given.values()
        return _stamped(encoding, stamp)  # type: ignore[arg-type]

    def encode(self, batch: Batch) -> tuple[bytes, int]:
        if self._variable is None:
            return self._frames.encode(batch.columns)
        return self._frames.encode(batch.columns, self._variable(batch))


class _RunEncoder(_Encoder):
    """A call of ``RunEncoding.encode`` for consecutive messages of one topic."""

    __slots__ = ()

    _given: Mapping[int, RunEncoding]

    def encode(self, batch: Batch) -> tuple[bytes, int]:
        parts: list[bytes] = []
        count = 0
        for index, run in batch.runs():
            encoding = self._given.get(index)
            fitting = None if encoding is None else run.within(encoding.limit)
            if encoding is not None and fitting is not None:
                parts.append(encoding.encode(fitting))
                count += fitting.columns.count
        return b"".join(parts), count


class RowEncoding(ABC):
    """A ``RunEncoding`` whose frames name the topic, so that it writes messages of several.

    The name is JSON. A message may have any size.
    """

    __slots__ = ()

    @property
    def limit(self) -> int:
        """See ``RunEncoding``."""
        return maxsize

    def encode(self, batch: Batch) -> bytes:
        """See ``RunEncoding``."""
        return self.rows(batch, [encode_basestring(batch.topic).encode()])[0]

    @abstractmethod
    def rows(self, batch: Batch, names: list[bytes | None]) -> tuple[bytes, int]:
        """Return the messages as whole frames, in order, and their number.

        ``names`` has the name of each of the batch's topics; the messages of None are left out.
        The batch may have rows.
        """


class _RowEncoder(_Encoder):
    """A call of ``RowEncoding.rows`` for all messages."""

    __slots__ = ("_encoding", "_names", "_topics")

    def __init__(self, given: Mapping[int, Encoding], number: int, encoding: RowEncoding) -> None:
        super().__init__(given, number)
        self._encoding = encoding
        # The names of the topics of the last batch; those of a mix have the same ones.
        self._topics: tuple[str, ...] = ()
        self._names: list[bytes | None] = []

    def encode(self, batch: Batch) -> tuple[bytes, int]:
        if batch.topics != self._topics:
            self._topics = batch.topics
            self._names = [None] * len(batch.topics)
            for index in self._given:
                self._names[index] = encode_basestring(batch.topics[index]).encode()
        if not batch.unstored:
            return self._encoding.rows(batch, self._names)
        # The rows have the offsets of their messages.
        found = [self._encoding.rows(part, self._names) for part in batch.numbered()]
        return b"".join([data for data, _ in found]), sum([count for _, count in found])
