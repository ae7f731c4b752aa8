"""Replies to another broker that wait until it reads again: only the latest of each kind."""

from __future__ import annotations

from collections.abc import Callable


class LatestReplies:
    """Functions that make a reply, by its kind.

    It exists only while a reply waits, so that an idle connection does not pay for it.
    """

    __slots__ = ("_replies",)

    def __init__(self) -> None:
        self._replies: dict[str, Callable[[], bytes]] = {}

    def add(self, kind: str, make: Callable[[], bytes]) -> None:
        """Replace the reply of this kind."""
        self._replies[kind] = make

    def take(self) -> list[tuple[str, Callable[[], bytes]]]:
        """Remove and return the replies, in the order in which their kinds were added."""
        replies, self._replies = self._replies, {}
        return list(replies.items())
