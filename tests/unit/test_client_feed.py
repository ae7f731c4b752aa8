"""The queue of a subscription: notices that are not taken."""

from __future__ import annotations

import pickle
from copy import copy

from twisted.trial.unittest import SynchronousTestCase

from pubsub.client.client_errors import (
    ClientError,
    ConnectFailed,
    NotPublished,
    OutcomeUnknown,
    TopicNotAddressable,
)
from pubsub.client.feed import NOTICES, Feed, FeedItem
from pubsub.client.messages import MessageBatch
from pubsub.client.notices import Disconnected, Gap
from pubsub.kernel import Columns
from pubsub.wire.client_events import Interest, Messages
from tests.unit.raising import raised


def taken(feed: Feed) -> list[FeedItem]:
    """Take everything."""
    items: list[FeedItem] = []
    while (item := feed.get()) is not None:
        items.append(item)
    return items


class EndTests(SynchronousTestCase):
    """The end of a subscription"""

    def test_errors_can_be_copied_and_pickled(self) -> None:
        errors: list[ClientError] = [
            ConnectFailed("no", refused=True),
            NotPublished("some", 2, 5),
            TopicNotAddressable("no address", "a", ["nsd"]),
            OutcomeUnknown("lost"),
        ]
        for error in errors:
            for again in (copy(error), pickle.loads(pickle.dumps(error))):
                assert type(again) is type(error)
                assert (str(again), vars(again)) == (str(error), vars(error))

    def test_each_call_gets_an_error_of_its_own(self) -> None:
        """Each raise adds to the traceback of its error."""
        feed = Feed([Interest("t")], 1_000_000, False)
        feed.end(ConnectFailed("no", refused=True))
        first, second = raised(ConnectFailed, feed.get), raised(ConnectFailed, feed.get)
        assert first is not second
        assert str(second) == "no"
        assert second.refused


class NoticeTests(SynchronousTestCase):
    """Notices"""

    def setUp(self) -> None:
        self.feed = Feed([Interest("t")], 1_000_000, True)

    def test_they_are_bounded(self) -> None:
        for n in range(10 * NOTICES):
            self.feed.notify(Disconnected(str(n)))
        kept = taken(self.feed)
        assert kept == [Disconnected(str(n)) for n in range(NOTICES)]
        self.feed.notify(Disconnected("again"))
        assert taken(self.feed) == [Disconnected("again")]

    def test_a_gap_is_kept_behind_each_batch(self) -> None:
        """No message may be missing without a Gap, also if the queue is not read for long."""
        for _ in range(NOTICES):
            self.feed.notify(Disconnected("x"))
        for _ in range(3):
            self.feed.put(MessageBatch(Messages("t", Columns.of([b"x"]))))
            for _ in range(3):
                self.feed.notify(self.feed.gap("x"))
        assert [type(item) for item in taken(self.feed)[NOTICES:]] == [MessageBatch, Gap] * 3

    def test_without_events_none_are_kept(self) -> None:
        feed = Feed([Interest("t")], 1_000_000, False)
        feed.notify(Disconnected("x"))
        assert taken(feed) == []

    def test_after_clear_there_is_room(self) -> None:
        for n in range(2 * NOTICES):
            self.feed.notify(Disconnected(str(n)))
        self.feed.clear()
        self.feed.notify(Disconnected("x"))
        assert taken(self.feed) == [Disconnected("x")]
