"""``HttpSession``: where the subscriptions of a client of the HTTP API go on. Sans-IO."""

from __future__ import annotations

from dataclasses import dataclass, field

from pubsub.wire.client_events import Interest

HttpAddress = tuple[str, int]
"""The host and the port of a broker."""


@dataclass(slots=True)
class HttpSession:
    """The position after the last message of each topic, as ``epoch:offset``.

    A position has a meaning only at the broker at ``home``. Another one goes on behind the time of
    the last message if both share the history ``shared``, and with new messages otherwise: its
    offsets are those of other messages.
    """

    positions: dict[Interest, str] = field(default_factory=dict)
    home: HttpAddress | None = None
    shared: str = ""
    # Of the last message of each topic. After a move also None, for topics without one.
    _times: dict[Interest, int | None] = field(default_factory=dict)

    def belongs_to(self, address: HttpAddress) -> bool:
        """Return whether the positions have a meaning at the broker at ``address``."""
        return self.home is None or self.home == address

    def move(self, home: HttpAddress, shared: str) -> None:
        """Go on at the broker at ``home``, whose history is ``shared`` if that is not empty."""
        if not self.belongs_to(home):
            is_same = bool(shared) and shared == self.shared
            for interest in self.positions:
                time = self._times.get(interest)
                # The beginning is the beginning everywhere, if nothing was received of it.
                if interest in self._times or interest.start != 0:
                    self._times[interest] = time if is_same else None
            self.positions.clear()
        self.home, self.shared = home, shared

    def members(self, interest: Interest) -> dict[str, object]:
        """Return the members of a request that say where the subscription begins."""
        position = self.positions.get(interest)
        if position is not None:
            return {"position": position}
        if interest in self._times:
            time = self._times[interest]
            return {} if time is None else {"timestamp": time + 1}
        if interest.position is not None:
            return {"position": interest.position}
        return {} if interest.start is None else {"start": interest.start}

    def passed(self, interest: Interest, position: str, timestamp: int | None) -> None:
        """The message before ``position`` was received."""
        self.positions[interest] = position
        if timestamp is not None:
            self._times[interest] = timestamp

    def forget(self, interest: Interest) -> None:
        """The subscription has ended."""
        self.positions.pop(interest, None)
        self._times.pop(interest, None)
