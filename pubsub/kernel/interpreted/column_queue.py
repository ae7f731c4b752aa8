"""``ColumnQueue``: small columns of several senders, to be taken together."""

from __future__ import annotations

from pubsub.kernel.interpreted.columns import Columns

_MESSAGE_BYTES = 64


class ColumnQueue:
    """At most ``most`` columns of at most ``small`` bytes each, of one protocol.

    A message has the bytes of its payload, and 64 more.
    """

    __slots__ = ("_most", "_parts", "_protocol", "_small")

    def __init__(self, small: int, most: int) -> None:
        self._small, self._most = small, most
        self._parts: list[tuple[Columns, bytes]] = []
        self._protocol: str | None = None

    def __len__(self) -> int:
        return len(self._parts)

    def open(self, protocol: str) -> None:
        """Have ``put`` accept columns of ``protocol`` until ``take``."""
        self._protocol = protocol

    def put(self, columns: Columns, sender: bytes, protocol: str) -> bool:
        """Add columns; False if they are too large, or if the queue is full or not open for them.

        ``protocol`` is the same object as that of ``open``.
        """
        if (
            protocol is not self._protocol
            or columns.nbytes + _MESSAGE_BYTES * columns.count > self._small
            or len(self._parts) >= self._most
        ):
            return False
        self._parts.append((columns, sender))
        return True

    def take(self) -> list[tuple[Columns, bytes]]:
        """Remove all columns, close the queue, and return them with their senders."""
        taken, self._parts, self._protocol = self._parts, [], None
        return taken
