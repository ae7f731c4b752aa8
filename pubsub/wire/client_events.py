"""The events that a connection of a client reports (``WireConnection.receive``).

A wire reports only the replies of its broker. ``pubsub.client`` handles the consequences, such as a
subscription that must be made again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from pubsub.kernel import Columns


class Level(IntEnum):
    """The safety of a confirmed message; a larger value is safer."""

    HANDLED = 1
    """The broker has accepted the message. On a topic that is stored it may not be written yet."""
    STORED = 2
    """The message is as safe as the durability of its topic demands: written, or on disk."""

    def __str__(self) -> str:
        return self.name.lower()

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


@dataclass(frozen=True, slots=True)
class Interest:
    """A subscription: to the topic ``name``, or to all topics whose names begin with ``name``.

    ``start`` is the offset of the first message that is wanted, None for those that are published
    from now on. ``position`` stands in its place, as ``epoch:offset``.
    """

    name: str
    prefix: bool = False
    start: int | None = None
    position: str | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """The connection may be used. ``resumed`` if it continues the session of an earlier one."""

    resumed: bool = False


@dataclass(frozen=True, slots=True)
class NotResumed:
    """The session has ended; the connection cannot be used, another may open a new session."""


@dataclass(slots=True)
class Messages:
    """Consecutive messages of one topic, in the order in which they were published.

    Everything but the payloads is None if the wire does not show it. ``timestamp`` is that of all
    messages, in µs since the Unix epoch; ``timestamps``, ``offsets``, ``senders`` and ``headers``
    have one entry for each message. The offsets belong to ``epoch``.
    """

    topic: str
    columns: Columns
    timestamp: int | None = None
    timestamps: Sequence[int] | None = None
    offsets: Sequence[int] | None = None
    senders: Sequence[bytes] | None = None
    headers: Sequence[Mapping[str, bytes]] | None = None
    epoch: str | None = None


@dataclass(slots=True)
class MixedMessages:
    """Messages of several ``topics`` that arrived together, in order; see ``Messages``.

    The indexes of ``columns`` are those of the topics.
    """

    topics: tuple[str, ...]
    columns: Columns
    timestamps: Sequence[int] | None = None
    offsets: Sequence[int] | None = None
    senders: Sequence[bytes] | None = None
    headers: Sequence[Mapping[str, bytes]] | None = None

    def runs(self) -> Iterator[Messages]:
        """Yield consecutive messages of one topic together."""
        at = 0
        for index, columns in self.columns.runs():
            own = slice(at, at := at + columns.count)
            yield Messages(
                self.topics[index],
                columns,
                timestamps=None if self.timestamps is None else self.timestamps[own],
                offsets=None if self.offsets is None else self.offsets[own],
                senders=None if self.senders is None else self.senders[own],
                headers=None if self.headers is None else self.headers[own],
            )


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The broker has accepted the subscription, or the wire cannot show that it did not."""

    interest: Interest


@dataclass(frozen=True, slots=True)
class NotSubscribed:
    """The broker has refused the subscription. ``reason`` is a short name or the broker's text.

    ``passing`` if the same request may succeed later, or if the wire does not tell.
    """

    interest: Interest
    reason: str
    passing: bool = False


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    """The reply to the oldest ``unsubscribe`` of ``interest`` without one.

    Messages that arrive later are not of the subscription that it ended.
    """

    interest: Interest


@dataclass(frozen=True, slots=True)
class SubscriptionEnded:
    """The broker has ended a subscription; ``interest`` is None if it did not name it."""

    interest: Interest | None
    reason: str


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The reply to the oldest ``confirm`` without one.

    Of the ``published`` messages since the ``confirm`` before it, ``refused`` were refused, and
    ``unknown`` may or may not have been published, the first of both for ``reason``; the others
    have reached ``level``.
    """

    published: int
    level: Level
    refused: int = 0
    reason: str = ""
    unknown: int = 0


@dataclass(frozen=True, slots=True)
class Missed:
    """The broker says that messages of ``topic`` (None: of any) were not sent to this client.

    ``count`` is None if their number is not known.
    """

    topic: str | None
    reason: str
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Alive:
    """The reply to a ``ping``."""


@dataclass(frozen=True, slots=True)
class Closing:
    """The broker ends the connection in order, for example because it stops."""

    reason: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """The broker does not admit this client, or has ended the connection because of an error.

    ``permanent`` if the same attempt would fail again, such as one with a bad token.
    """

    reason: str
    permanent: bool


@dataclass(frozen=True, slots=True)
class Malformed:
    """The bytes that arrived are not this protocol. The connection cannot be used any more."""

    reason: str


WireEvent: TypeAlias = (
    Opened
    | NotResumed
    | Messages
    | MixedMessages
    | Subscribed
    | NotSubscribed
    | Unsubscribed
    | SubscriptionEnded
    | Confirmed
    | Missed
    | Alive
    | Closing
    | Rejected
    | Malformed
)
ENDS = (NotResumed, Closing, Rejected, Malformed)
"""Events after which the connection has no further ones and takes no requests."""
