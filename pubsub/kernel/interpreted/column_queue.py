"""``ColumnQueue``: small columns of several senders, to be taken together."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from pubsub.kernel.interpreted.columns import Columns

if TYPE_CHECKING:
    from pubsub.kernel.interpreted.tally import LinkedTally, Tally
    from pubsub.kernel.layout import Senders

_MESSAGE_BYTES = 64


class ColumnQueue:
    """At most ``most`` columns of at most ``small`` bytes each, of one protocol.

    A message has the bytes of its payload, and 64 more.
    """

    __slots__ = ("_most", "_parts", "_protocol", "_senders", "_small", "topic")

    def __init__(self, small: int, most: int) -> None:
        self._small, self._most = small, most
        self._parts: list[Columns] = []
        self._senders: list[bytes] = []
        self._protocol: str | None = None
        self.topic: Tally | None = None

    def __len__(self) -> int:
        return len(self._parts)

    def open(self, protocol: str, topic: Tally) -> None:
        """Have ``put`` accept columns of ``protocol`` until ``take``, all of them of ``topic``."""
        self._protocol, self.topic = protocol, topic

    def put(self, columns: Columns, sender: bytes, protocol: str, tally: LinkedTally) -> bool:
        """Add columns, and count them in ``tally`` as ``LinkedTally.count_linked`` does.

        False, and nothing is done, if they are empty or too large, or if the queue is full or not
        open for them. ``protocol`` is the same object as that of ``open``.
        """
        if (
            protocol is not self._protocol
            or columns.nbytes + _MESSAGE_BYTES * columns.count > self._small
            or not columns.count
            or len(self._parts) >= self._most
        ):
            return False
        self._parts.append(columns)
        self._senders.append(sender)
        tally.count_linked(columns)
        tally.source = columns.source and (*columns.source, sender, protocol)
        return True

    def take(self) -> tuple[Columns, Senders]:
        """Remove all messages, close the queue, and return them with their senders.

        They have index 0. The senders are as ``run_record`` takes them.
        """
        parts, senders = self._parts, self._senders
        self._parts, self._senders = [], []
        self._protocol = self.topic = None
        counts = array("I", [columns.count for columns in parts])
        made = Columns.of([payload for columns in parts for payload in columns.payloads()])
        return made, (counts.tobytes(), tuple(senders))
