"""Notices of a client beside messages and errors: reconnections, and messages perhaps missed.

They go to ``on_event`` of ``connect``, in order to a subscription with ``events=True``, and to the
log ``pubsub.client``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages of ``topics`` may be missing here. Nothing is missing where there is no Gap.

    ``offset`` is that of the last stored message before it, and ``timestamp`` (µs since the Unix
    epoch) that of the last message; None if the wire does not show them or there was none.
    """

    topics: tuple[str, ...]
    reason: str
    offset: int | None = None
    timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class Reconnected:
    """The broker has accepted the subscriptions again. ``resumed`` if it continues their session.

    Where messages may be missing, a Gap comes before.
    """

    resumed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection of a subscription has ended and is made again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The broker has ended a subscription without naming it, for example after a new queue key."""

    reason: str


@dataclass(frozen=True, slots=True)
class Uncertain:
    """``count`` messages may or may not have been published, for example as a connection ended."""

    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """``count`` messages are not published, and their confirmation is not awaited."""

    count: int
    reason: str


Notice: TypeAlias = Gap | Reconnected | Disconnected | Ended | Uncertain | Refusal
