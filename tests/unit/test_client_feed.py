"""The queue of a subscription: its limit, its end, and notices that are not taken."""

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


class LimitTests(SynchronousTestCase):
    """The bytes that are queued"""

    def setUp(self) -> None:
        self.batch = MessageBatch(Messages("t", Columns.of([b"x"]), offsets=[7], timestamp=9))
        self.feed = Feed([Interest("t"), Interest("u", prefix=True)], 2 * self.batch.held, False)
        self.calls: list[str] = []
        self.feed.on_change = lambda: self.calls.append("change")
        self.feed.on_room = lambda: self.calls.append("room")

    def test_full_at_the_limit_until_a_batch_is_taken(self) -> None:
        feed, batch = self.feed, self.batch
        feed.put(batch)
        assert not feed.full
        feed.put(batch)
        assert feed.full
        feed.put(batch)
        assert self.calls == ["change"] * 3
        feed.get()
        assert feed.full
        feed.get()
        assert not feed.full
        feed.get()
        assert self.calls == ["change"] * 3 + ["room"]
        assert feed.nbytes == 0

    def test_after_clear_there_is_room(self) -> None:
        feed, batch = self.feed, self.batch
        for _ in range(2):
            feed.put(batch)
        feed.clear()
        assert not feed.full
        assert feed.get() is None
        feed.put(batch)
        assert not feed.full
        feed.put(batch)
        assert feed.full

    def test_a_gap_has_the_position_of_the_last_message(self) -> None:
        assert self.feed.gap("x") == Gap(("t", "u*"), "x", None, None)
        self.feed.put(self.batch)
        assert self.feed.gap("x") == Gap(("t", "u*"), "x", 7, 9)

    def test_a_gap_behind_messages_that_are_not_stored(self) -> None:
        self.feed.put(self.batch)
        self.feed.put(MessageBatch(Messages("t", Columns.of([b"y"]), timestamp=12)))
        assert self.feed.gap("x") == Gap(("t", "u*"), "x", 7, 12)


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

    def test_a_subscription_is_woken(self) -> None:
        calls: list[str] = []
        self.feed.on_change = lambda: calls.append("change")
        self.feed.notify(Disconnected("x"))
        self.feed.end(None)
        assert calls == ["change"] * 2

    def test_after_clear_a_gap_is_kept(self) -> None:
        for _ in range(NOTICES):
            self.feed.notify(self.feed.gap("x"))
        self.feed.clear()
        for n in range(NOTICES):
            self.feed.notify(Disconnected(str(n)))
        self.feed.notify(self.feed.gap("x"))
        assert type(taken(self.feed)[-1]) is Gap

    def test_after_clear_there_are_no_notices(self) -> None:
        for n in range(2 * NOTICES):
            self.feed.notify(Disconnected(str(n)))
        self.feed.clear()
        self.feed.notify(Disconnected("x"))
        assert taken(self.feed) == [Disconnected("x")]
