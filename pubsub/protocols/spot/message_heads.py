"""spot's messages as the kernel scans and encodes them: frames with MORE, then the data (spot §3).

The frames before the data (delimiter, command and topic, or the topic alone) are the same for every
message to a topic, and the same bytes in both directions. The data is a short or a long frame.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, ClassVar

from pubsub.kernel import Columns, Head, HeadTable, LengthField
from pubsub.protocols.spot.zmtp import LONG, MORE, frame_head
from pubsub.wire.known_heads import KnownHeads, cache_bytes

if TYPE_CHECKING:
    from pubsub.broker.clients.frame_turns import FrameTurns
    from pubsub.broker.memory_budget import MemoryBudget
    from pubsub.broker.routing.batch import Batch

# Bytes of the longest prefix of a publication that is remembered, and estimated bytes of one, for
# the memory budget. Only with several routing ids is a prefix longer.
_MAX_PREFIX = 640
_PUBLICATION_BYTES = 1200
# The most a frame can hold (RFC 37), and a short one.
MAX_FRAME = 2**63 - 1
_MAX_SHORT = 255


def publish_prefix(topic: bytes) -> bytes:
    """Return the frames before the data in PUBLISH with a delimiter (spot §3.1)."""
    return b"\x01\x00\x01\x01\x01" + frame_head(len(topic), MORE) + topic


def topic_prefix(topic: bytes) -> bytes:
    """Return the frame before the data between PUB and SUB sockets (spot §4)."""
    return frame_head(len(topic), MORE) + topic


def prefix_at(data: bytes, at: int) -> bytes:
    """Return the short frames with MORE that a message begins with."""
    stop, end = at, len(data)
    while stop + 1 < end and data[stop] == MORE:
        stop += 2 + data[stop + 1]
    return data[at:stop]


def end_of(columns: Columns, done: int | None, data: bytes, at: int) -> int:
    """Return where the first ``done`` messages of ``columns``, scanned from ``at`` on, end.

    None stands for all of them.
    """
    if done is None or done == columns.count:
        return columns.end
    before = [len(publication.prefix) for publication in columns.addresses]
    for index, size in islice(zip(columns.indexes(), columns.sizes(), strict=True), done):
        at += before[index]
        at += (9 if data[at] & LONG else 2) + size
    return at


def short_head(prefix: bytes, limit: int = _MAX_SHORT) -> Head:
    """Return the head of a message whose data is a short frame."""
    field = LengthField(len(prefix) + 1, 1)
    return Head(prefix + bytes(2), (field,), min(limit, _MAX_SHORT))


def long_head(prefix: bytes, limit: int, least: int = 0) -> Head:
    """Return the head of a message whose data is a long frame."""
    field = LengthField(len(prefix) + 1, 8, big=True)
    return Head(prefix + bytes((LONG,)) + bytes(8), (field,), limit, least)


@lru_cache(maxsize=4096)
def message_heads(prefix: bytes, limit: int = MAX_FRAME) -> tuple[Head, Head]:
    """Return the heads of a delivery of at most ``limit`` bytes: a short frame if it fits."""
    return short_head(prefix, limit), long_head(prefix, limit, _MAX_SHORT + 1)


@dataclass(frozen=True, slots=True)
class MessageEncoding:
    """Messages of ``prefix`` and one more frame; see ``HeadEncoding``."""

    prefix: bytes
    limit: int = MAX_FRAME
    variable_at: ClassVar[int] = 0
    variable_size: ClassVar[int] = 0
    by_timestamp: ClassVar[bool] = True

    @property
    def heads(self) -> tuple[Head, ...]:
        """See ``HeadEncoding``."""
        return message_heads(self.prefix, self.limit)

    def variable(self, batch: Batch) -> bytes:
        """See ``HeadEncoding``."""
        return b""


@dataclass(frozen=True, slots=True, eq=False)
class Publication:
    """The contents of the frames before the data of a publication; ``prefix`` are these frames.

    There is one for each prefix that is known, so it is compared and hashed as an object: the hash
    of its contents would be computed for each read.
    """

    prefix: bytes
    topic: str
    origin: bytes | None


class KnownPublications:
    """Publications by their prefix, for connections whose roles are alike.

    ``limit`` is the largest data, in bytes, that they accept. The publications are charged to
    ``memory``; ``forgotten`` is called when they were forgotten, so that others forget them too.
    """

    def __init__(
        self,
        limit: int,
        memory: MemoryBudget,
        turns: FrameTurns,
        at_tick_end: Callable[[Callable[[], None]], object],
        forgotten: Callable[[], None] = lambda: None,
    ) -> None:
        self._limit = limit
        self._turns = turns
        self._forgotten = forgotten
        self._known: dict[bytes, Publication] = {}
        self._account = memory.cache(cache_bytes(memory), self._forget)
        self._heads = KnownHeads(self.learn, memory, turns, at_tick_end, forgotten, HeadTable)

    def at(self, data: bytes, at: int) -> Publication | None:
        """Return the publication that begins at ``at``, if its prefix is known."""
        return self._known.get(prefix_at(data, at))

    def add(self, publication: Publication) -> None:
        """Remember a publication, unless ``at`` would not find it or its prefix is too long."""
        prefix = publication.prefix
        if len(prefix) > _MAX_PREFIX:
            return
        if prefix not in self._known and prefix_at(prefix + b"\0\0", 0) == prefix:
            self._known[prefix] = publication
            self._account.charge(_PUBLICATION_BYTES)

    def _forget(self) -> None:
        self._turns.slices.release(list(self._known.values()))
        self._known = {}
        self._heads.clear()
        self._forgotten()

    @property
    def table(self) -> HeadTable:
        """The heads of the known publications."""
        return self._heads.table

    def scan(self, data: bytes, at: int) -> Columns:
        """Return the messages from ``at`` on whose prefixes are known; see ``HeadTable.scan``."""
        return self._heads.scan(data, at)

    def learn(self, data: bytes, at: int) -> tuple[Head, Publication] | None:
        """Return the head of the publication at ``at``, if its prefix is known."""
        publication = self.at(data, at)
        if publication is None:
            return None
        prefix = publication.prefix
        flags = data[at + len(prefix) : at + len(prefix) + 1]
        if flags == b"\0" and len(data) - at >= len(prefix) + 2:
            return short_head(prefix, self._limit), publication
        if flags == bytes((LONG,)) and len(data) - at >= len(prefix) + 9:
            return long_head(prefix, self._limit), publication
        return None
