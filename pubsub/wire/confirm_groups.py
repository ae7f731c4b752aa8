"""The messages between two confirms, for wires that reply to each message. Sans-IO."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from pubsub.wire.client_events import Confirmed, Level, WireEvent

NOT_KNOWN = "the broker does not know whether the messages are stored"
"""The reason for messages that may or may not have been published, if the wire gives none."""


@dataclass(slots=True)
class ConfirmGroup:
    """The messages between two confirms; ``left`` is the number of replies that are missing.

    ``unknown`` is the number of those that may or may not have been published. ``reason`` is that
    of the first of these or of a refusal, and ``level`` the least of all replies.
    """

    published: int = 0
    refused: int = 0
    unknown: int = 0
    left: int = 0
    reason: str = ""
    level: Level = Level.STORED


class ConfirmGroups:
    """The groups of a connection: ``current``, and those whose confirm was requested, in order."""

    def __init__(self) -> None:
        self.current = ConfirmGroup()
        self._closed: deque[ConfirmGroup] = deque()

    def confirm(self) -> ConfirmGroup:
        """Close the current group and return it; without missing replies it needs a ping."""
        group, self.current = self.current, ConfirmGroup()
        self._closed.append(group)
        return group

    def report(self, events: list[WireEvent]) -> None:
        """Add ``Confirmed`` for each closed group that has all its replies, in order."""
        closed = self._closed
        while closed and not closed[0].left:
            done = closed.popleft()
            refused, unknown = done.refused, done.unknown
            reason = done.reason if refused or unknown else ""
            events.append(Confirmed(done.published, done.level, refused, reason, unknown))
