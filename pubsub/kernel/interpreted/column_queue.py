"""``ColumnQueue``: small columns of several senders and topics, to be taken together."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from itertools import groupby, repeat
from typing import TYPE_CHECKING, Any

from pubsub.kernel.interpreted.columns import Columns

if TYPE_CHECKING:
    from pubsub.kernel.interpreted.tally import LinkedTally, Tally
    from pubsub.kernel.layout import Senders

_MESSAGE_BYTES = 64


class ColumnQueue:
    """Columns of at most ``small`` bytes each, and ``total`` together, of one protocol.

    A message has the bytes of its payload, and 64 more.
    """

    __slots__ = (
        "_indexes", "_left", "_parts", "_places", "_protocol", "_senders", "_small", "_total",
    )  # fmt: skip

    def __init__(self, small: int, total: int) -> None:
        self._small, self._total = small, total
        self._protocol: str | None = None
        self._begin()

    def _begin(self) -> None:
        self._left = self._total
        self._parts: list[Columns] = []
        self._indexes: list[int] = []
        self._senders: list[tuple[bytes, int]] = []
        self._places: dict[Tally, int] = {}

    def __len__(self) -> int:
        return len(self._parts)

    def open(self, protocol: str) -> None:
        """Have ``put`` accept columns of ``protocol`` until ``take``."""
        self._protocol = protocol

    def _add(self, columns: Columns, topics: Iterable[Tally], sender: bytes, protocol: str) -> bool:
        """Add columns, whose messages have these ``topics``; False if they are not accepted."""
        nbytes = columns.nbytes + _MESSAGE_BYTES * columns.count
        if (
            protocol is not self._protocol
            or not columns.count
            or nbytes > min(self._small, self._left)
        ):
            return False
        self._left -= nbytes
        for topic, run in groupby(topics):
            place = self._places.setdefault(topic, len(self._places))
            count = len(list(run))
            self._indexes += [place] * count
            self._senders.append((sender, count))
        self._parts.append(columns)
        return True

    def put(self, columns: Columns, sender: bytes, protocol: str, tally: LinkedTally) -> bool:
        """Add columns, and count them in ``tally`` as ``LinkedTally.count_linked`` does.

        Their topic is the tally that ``tally`` is linked with. False, and nothing is done, if they
        are empty or too large, or if the queue is full or not open for them. ``protocol`` is the
        same object as that of ``open``.
        """
        if not self._add(columns, repeat(tally.other, columns.count), sender, protocol):
            return False
        tally.count_linked(columns)
        tally.source = columns.source and (*columns.source, sender, protocol)
        return True

    def put_mixed(
        self,
        columns: Columns,
        topics: tuple[Tally, ...],
        sender: bytes,
        protocol: str,
        tally: LinkedTally,
    ) -> bool:
        """Do as ``put``, for columns of several ``topics``, of which they have the indexes.

        They are counted in their topics, and in ``tally`` as ``LinkedTally.count`` does. Raises
        IndexError if a message has no topic.
        """
        each = [topics[index] for index in columns.indexes()]
        if not self._add(columns, each, sender, protocol):
            return False
        for topic, size in zip(each, columns.sizes(), strict=True):
            topic.messages += 1
            topic.nbytes += size
        tally.count(columns)
        return True

    def put_known(
        self,
        columns: Columns,
        topics: Mapping[Any, Tally],
        sender: bytes,
        protocol: str,
        tally: LinkedTally,
    ) -> bool:
        """Do as ``put_mixed``, with the topics by address, which are a dictionary.

        False, and nothing is done, also if ``topics`` does not have all addresses of the columns.
        """
        found = [topics[address] for address in columns.addresses if address in topics]
        if len(found) < len(columns.addresses):
            return False
        return self.put_mixed(columns, tuple(found), sender, protocol, tally)

    def take(self) -> tuple[Columns, Senders, tuple[Tally, ...]]:
        """Remove all messages, close the queue, and return them with their senders and topics.

        The senders are as ``run_record`` takes them, each for messages of one topic. The index of a
        message is that of its topic; the topics are in the order of their first messages.
        """
        senders, counts = tuple(zip(*self._senders, strict=True)) or ((), ())
        payloads = [payload for columns in self._parts for payload in columns.payloads()]
        columns, topics = Columns.of(payloads, self._indexes), tuple(self._places)
        self._begin()
        self._protocol = None
        return columns, (array("I", counts).tobytes(), senders), topics
