"""``ColumnQueue``: small columns of several senders and topics, to be taken together."""

from __future__ import annotations

from array import array
from itertools import repeat
from typing import TYPE_CHECKING

from pubsub.kernel.interpreted.columns import Columns

if TYPE_CHECKING:
    from pubsub.kernel.interpreted.tally import LinkedTally, Tally
    from pubsub.kernel.layout import Senders

_MESSAGE_BYTES = 64


class ColumnQueue:
    """At most ``most`` columns of at most ``small`` bytes each, of one protocol.

    Each is of one topic. A message has the bytes of its payload, and 64 more.
    """

    __slots__ = ("_most", "_parts", "_places", "_protocol", "_senders", "_small")

    def __init__(self, small: int, most: int) -> None:
        self._small, self._most = small, most
        self._parts: list[tuple[int, Columns]] = []
        self._senders: list[bytes] = []
        self._places: dict[Tally, int] = {}
        self._protocol: str | None = None

    def __len__(self) -> int:
        return len(self._parts)

    def open(self, protocol: str) -> None:
        """Have ``put`` accept columns of ``protocol`` until ``take``."""
        self._protocol = protocol

    def put(self, columns: Columns, sender: bytes, protocol: str, tally: LinkedTally) -> bool:
        """Add columns, and count them in ``tally`` as ``LinkedTally.count_linked`` does.

        Their topic is the tally that ``tally`` is linked with. False, and nothing is done, if they
        are empty or too large, or if the queue is full or not open for them. ``protocol`` is the
        same object as that of ``open``.
        """
        if (
            protocol is not self._protocol
            or columns.nbytes + _MESSAGE_BYTES * columns.count > self._small
            or not columns.count
            or len(self._parts) >= self._most
        ):
            return False
        self._parts.append((self._places.setdefault(tally.other, len(self._places)), columns))
        self._senders.append(sender)
        tally.count_linked(columns)
        tally.source = columns.source and (*columns.source, sender, protocol)
        return True

    def take(self) -> tuple[Columns, Senders, tuple[Tally, ...]]:
        """Remove all messages, close the queue, and return them with their senders and topics.

        The senders are as ``run_record`` takes them. The index of a message is that of its topic;
        the topics are in the order of their first messages.
        """
        parts, senders, topics = self._parts, self._senders, tuple(self._places)
        self._parts, self._senders, self._places = [], [], {}
        self._protocol = None
        counts = array("I", [columns.count for _, columns in parts])
        payloads = [payload for _, columns in parts for payload in columns.payloads()]
        indexes = [index for at, columns in parts for index in repeat(at, columns.count)]
        return Columns.of(payloads, indexes), (counts.tobytes(), tuple(senders)), topics
