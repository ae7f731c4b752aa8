"""A feed: the bounded queue between a subscribing link and one subscription. Sans-IO.

The link puts in all messages that arrive, also beyond the bound; the driver stops reading from the
transport while one of its feeds is full. So a feed holds its limit and one read at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from copy import copy

from pubsub.client.client_errors import ClientClosed, ClientError
from pubsub.client.messages import BATCHES, MessageBatch, MixedBatch
from pubsub.client.notices import Gap, Notice
from pubsub.client.tickets import Ticket
from pubsub.wire.client_events import Interest

NOTICES = 1000
"""Notices that are queued for a subscription that does not get them."""
FeedItem = MessageBatch | MixedBatch | Notice


class Feed:
    """The subscription to ``interests``; ``limit`` in bytes. ``events`` if notices are queued too.

    ``accepted`` is done when the broker has accepted all interests, or has refused one.
    """

    def __init__(self, interests: Sequence[Interest], limit: int, events: bool) -> None:
        self.interests = tuple(interests)
        self.accepted: Ticket[None] = Ticket()
        self.nbytes = 0
        self.full = False
        """True if no more should be read for this feed."""
        self.on_change: Callable[[], None] | None = None
        """Called when there is something to get."""
        self.on_room: Callable[[], None] | None = None
        """Called when the feed is not full any more."""
        self.error: ClientError | None = None
        self.ended = False
        self.withheld: set[Interest] = set()
        """The interests whose messages belong to an earlier subscription until it has ended."""
        self._limit = limit
        self._events = events
        self._items: deque[FeedItem] = deque()
        self._notices = 0
        # There is a Gap behind the last batch.
        self._ends_with_gap = False
        self._missing = set(interests)
        self._last_offset: int | None = None
        self._last_timestamp: int | None = None

    def begin(self, interests: Sequence[Interest]) -> None:
        """Have other interests than those of the start: where these begin was not known yet."""
        self.interests = tuple(interests)
        self._missing = set(interests)

    # For the link

    def put(self, batch: MessageBatch | MixedBatch) -> None:
        """Add messages."""
        offset = batch.last_offset()
        if offset is not None:
            # Messages that are not stored have none.
            self._last_offset = offset
        self._last_timestamp = batch.last_timestamp()
        self.nbytes += batch.held
        self.full = self.nbytes >= self._limit
        self._ends_with_gap = False
        self._items.append(batch)
        if self.on_change is not None:
            self.on_change()

    def notify(self, notice: Notice) -> None:
        """Add a notice, if the subscription takes them.

        If they are not taken, at most NOTICES are kept, and one Gap behind each batch.
        """
        if not self._events:
            return
        is_gap = isinstance(notice, Gap)
        if self._notices >= NOTICES and (not is_gap or self._ends_with_gap):
            return
        self._ends_with_gap |= is_gap
        self._notices += 1
        self._items.append(notice)
        self._changed()

    def gap(self, reason: str) -> Gap:
        """Return a Gap: messages may be missing after those that were put so far."""
        topics = tuple(one.name + ("*" if one.prefix else "") for one in self.interests)
        return Gap(topics, reason, self._last_offset, self._last_timestamp)

    def confirm(self, interest: Interest) -> None:
        """The broker has accepted ``interest``."""
        self._missing.discard(interest)
        if not self._missing:
            self.accepted.succeed(None)

    def had(self, interest: Interest) -> bool:
        """Return whether the broker has accepted ``interest`` before."""
        return interest not in self._missing

    def end(self, error: ClientError | None) -> None:
        """End the input; ``error`` is raised after the queued items."""
        if not self.ended:
            self.ended, self.error = True, error
            self.accepted.fail(error or ClientClosed("the subscription was closed"))
            self._changed()

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()

    # For the subscription

    def get(self) -> FeedItem | None:
        """Return the next item; None if there is none now. Raises the error of ``end``."""
        if self._items:
            item = self._items.popleft()
            if isinstance(item, BATCHES):
                self.nbytes -= item.held
                if self.full and self.nbytes < self._limit:
                    self.full = False
                    if self.on_room is not None:
                        self.on_room()
            else:
                self._notices -= 1
            return item
        if self.error is not None:
            # A new one for each call, as raising one adds to its traceback.
            raise copy(self.error)
        return None

    def clear(self) -> None:
        """Forget the queued items."""
        self._items.clear()
        self.nbytes = self._notices = 0
        self.full = False
        self._ends_with_gap = False
