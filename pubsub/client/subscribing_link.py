"""The link that subscribes: subscriptions that outlive connections, and missed messages. Sans-IO.

After every reconnection all subscriptions are made again. Unless the wire continues exactly where
it was (``Traits.survives``), each feed gets a Gap: even a resumed session lacks messages that were
on their way when the connection broke. One that the broker cannot renew at present is requested
again after pauses, while the others go on.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable

from pubsub.client.broker_urls import BrokerUrls
from pubsub.client.client_errors import ClientClosed, ClientError, SubscriptionRefused
from pubsub.client.feed import Feed
from pubsub.client.feed_table import FeedTable
from pubsub.client.link import Link, LinkState
from pubsub.client.link_timing import Timing
from pubsub.client.messages import MessageBatch, MixedBatch
from pubsub.client.notices import Disconnected, Ended, Notice, Reconnected
from pubsub.client.renewals import Renewals
from pubsub.wire.client_events import (
    Interest,
    Messages,
    Missed,
    MixedMessages,
    NotSubscribed,
    Subscribed,
    SubscriptionEnded,
    Unsubscribed,
    WireEvent,
)
from pubsub.wire.client_wire import ClientWire, Role, WireConnection

_log = logging.getLogger("pubsub.client")


class SubscribingLink(Link):
    """See the module. ``report`` is called with every notice."""

    role = Role.SUBSCRIBER

    def __init__(
        self,
        wire: ClientWire,
        brokers: BrokerUrls,
        timing: Timing,
        random: Callable[[], float],
        report: Callable[[Notice], None],
    ) -> None:
        super().__init__(wire, brokers, timing, random)
        self._report = report
        self._feeds = FeedTable()
        # Subscriptions that a resumed session may still have.
        self._dropped: list[Interest] = []
        # The unsubscriptions without a reply. A feed that is added meanwhile begins after it.
        self._ending: Counter[Interest] = Counter()
        self._interrupted = False
        # After a reconnection: the subscriptions without a reply, and the notice after the last.
        self._repeated: set[Interest] = set()
        self._reconnected: Reconnected | None = None
        self._renewals = Renewals(timing, random)

    # For the client

    @property
    def full(self) -> bool:
        """True if one of the feeds is full: the driver should not read."""
        return self._feeds.full is not None

    def add(self, feed: Feed, now: float) -> None:
        """Subscribe."""
        self._feeds.add(feed)
        for interest in feed.interests:
            if interest in self._ending:
                feed.withheld.add(interest)
            if self.state is LinkState.READY and self.connection is not None:
                self.connection.subscribe(interest)
                self.touched(now)

    def remove(self, feed: Feed, now: float) -> None:
        """End a subscription; the messages in its feed are forgotten."""
        if feed not in self._feeds:
            return
        for interest in self._feeds.remove(feed):
            self._unsubscribe(interest, now)
        feed.clear()
        feed.end(None)

    def _unsubscribe(self, interest: Interest, now: float) -> None:
        self._renewals.settle(interest)
        # Perhaps it waits for its next request, so that no answer would end the wait for it.
        self._answered(interest)
        if self.state is LinkState.READY and self.connection is not None:
            if self.wire.traits.unsubscribes:
                self._request_end(self.connection, interest)
                self.touched(now)
        else:
            self._dropped.append(interest)

    def _request_end(self, connection: WireConnection, interest: Interest) -> None:
        if connection.unsubscribe(interest):
            self._ending[interest] += 1

    # Link

    def first_topic(self) -> str | None:
        """See ``Link``."""
        return next((one.name for one in self._feeds.interests if not one.prefix), None)

    def opened(self, resumed: bool, now: float) -> None:
        """See ``Link``."""
        assert self.connection is not None
        dropped, self._dropped = self._dropped, []
        if resumed and self.wire.traits.unsubscribes:
            for interest in dropped:
                if not self._feeds.has(interest):
                    self._request_end(self.connection, interest)
        for interest in self._feeds.interests:
            self.connection.subscribe(interest)
        if self._interrupted:
            self._interrupted = False
            self._repeated = set(self._feeds.interests)
            place = f"; now at {self.where}" if self.attempts.are_several else ""
            self._reconnected = Reconnected(resumed, self.trouble + place)
            if not (resumed and self.wire.traits.survives):
                state = "its session was resumed" if resumed else "its session was lost"
                reason = f"the connection was interrupted ({self.trouble}); {state}"
                self._tell_gaps(self._feeds, reason)
            self._tell_reconnected()

    def handle(self, event: WireEvent, now: float) -> None:
        """See ``Link``."""
        match event:
            case Subscribed():
                self._accepted(event.interest)
            case NotSubscribed():
                self._not_accepted(event, now)
            case Unsubscribed():
                self._unsubscribed(event.interest)
            case SubscriptionEnded():
                if event.interest is None:
                    self._tell(Ended(event.reason))
                else:
                    feeds = self._feeds.of_interest(event.interest)
                    self._refused(event.interest, event.reason, feeds, now)
            case Missed():
                self._missed(event)
            case MixedMessages():
                self._deliver_mixed(event)
            case _:
                pass

    def _accepted(self, interest: Interest) -> None:
        feeds = self._feeds.of_interest(interest)
        reason = self._renewals.settle(interest)
        if reason is not None and not self.wire.traits.survives:
            self._tell_gaps(feeds, f"the subscription was refused for some time: {reason}")
        for feed in feeds:
            feed.confirm(interest)
        self._answered(interest)

    def _not_accepted(self, event: NotSubscribed, now: float) -> None:
        """End the feeds, except those that the broker served before and may serve again."""
        interest = event.interest
        feeds = self._feeds.of_interest(interest)
        kept = [feed for feed in feeds if event.passing and feed.had(interest)]
        if not kept:
            self._renewals.settle(interest)
        elif self._renewals.put_off(interest, event.reason, now):
            _log.warning(
                "%s: the broker cannot renew the subscription to %r at present: %s; the client "
                "requests it again until it succeeds", self.where, interest.name, event.reason
            )  # fmt: skip
        self._refused(interest, event.reason, [feed for feed in feeds if feed not in kept], now)
        if not kept:
            self._answered(interest)

    def _answered(self, interest: Interest) -> None:
        self._repeated.discard(interest)
        self._tell_reconnected()

    def _tell_reconnected(self) -> None:
        """Report the reconnection once the broker has accepted all subscriptions, or refused."""
        notice = self._reconnected
        if notice is not None and not self._repeated:
            self._reconnected = None
            self._tell(notice)

    def deliver(self, event: Messages) -> None:
        """See ``Link``."""
        batch = MessageBatch(event)
        for feed in self._feeds.of_topic(event.topic):
            feed.put(batch)
            if feed.full:
                self._feeds.filled(feed)

    def _deliver_mixed(self, event: MixedMessages) -> None:
        """Put messages of several topics together into the feeds, unless these differ."""
        first, *others = map(self._feeds.of_topic, event.topics)
        if any(feeds != first for feeds in others):
            for run in event.runs():
                self.deliver(run)
            return
        batch = MixedBatch(event)
        for feed in first:
            feed.put(batch)
            if feed.full:
                self._feeds.filled(feed)

    def _unsubscribed(self, interest: Interest) -> None:
        self._ending[interest] -= 1
        if self._ending[interest] <= 0:
            del self._ending[interest]
            self._release(interest)

    def _release(self, interest: Interest) -> None:
        """Let the feeds of ``interest`` have its messages from now on."""
        for feed in self._feeds.of_interest(interest):
            feed.withheld.discard(interest)
        self._feeds.withheld_changed()

    def _refused(self, interest: Interest, reason: str, feeds: Iterable[Feed], now: float) -> None:
        error = f"{self.where}: the subscription to {interest.name!r} was refused: {reason}"
        for feed in feeds:
            for other in self._feeds.remove(feed):
                # The broker has the other subscriptions of the feed, and would serve them further.
                if other != interest:
                    self._unsubscribe(other, now)
            feed.end(SubscriptionRefused(error))

    def _missed(self, event: Missed) -> None:
        topic = event.topic
        feeds = self._feeds if topic is None else self._feeds.of_topic(topic)
        self._tell_gaps(feeds, event.reason)

    def _tell(self, notice: Notice) -> None:
        for feed in self._feeds:
            feed.notify(notice)
        self._report(notice)

    def _tell_gaps(self, feeds: Iterable[Feed], reason: str) -> None:
        gaps = []
        for feed in feeds:
            gaps.append(gap := feed.gap(reason))
            feed.notify(gap)
        # The last, because ``on_event`` may close subscriptions.
        for gap in gaps:
            self._report(gap)

    def interrupted(self) -> None:
        """See ``Link``."""
        self._interrupted = True
        self._reconnected = None
        self._renewals.clear()
        for interest in self._ending:
            self._release(interest)
        self._ending.clear()
        self._tell(Disconnected(self.trouble))

    def failed(self, error: ClientError) -> None:
        """See ``Link``."""
        self._interrupted = False
        for feed in self._feeds:
            self._feeds.remove(feed)
            feed.end(error)
        self._dropped.clear()
        self._renewals.clear()

    def _check_silence(self, now: float) -> None:
        seconds = self._timing.keepalive
        feed = self._feeds.full
        if feed is not None and now >= self._heard_at + seconds:
            names = ", ".join(repr(one.name) for one in feed.interests[:3])
            _log.warning(
                "%s: the program has left the queue of the subscription to %s full for %g s, and "
                "the client has read nothing meanwhile; take its messages, or close it",
                self.where, names, seconds,
            )  # fmt: skip
        super()._check_silence(now)

    def own_deadline(self) -> float | None:
        """See ``Link``."""
        return self._renewals.due_at

    def expire(self, now: float) -> None:
        """See ``Link``. A subscription waits for the broker without limit."""
        for interest in self._renewals.take(now):
            assert self.connection is not None
            self.connection.subscribe(interest)
            self.touched(now)

    def closed(self) -> None:
        """See ``Link``."""
        self.failed(ClientClosed("the client was closed"))
