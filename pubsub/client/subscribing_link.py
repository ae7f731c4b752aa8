"""The link that subscribes: subscriptions that outlive connections, and missed messages. Sans-IO.

After every reconnection all subscriptions are made again. Unless the wire continues exactly where
it was (``Traits.survives``), each feed gets a Gap: even a resumed session lacks messages that were
on their way when the connection broke.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from pubsub.client.client_errors import ClientClosed, ClientError, SubscriptionRefused
from pubsub.client.feed import Feed
from pubsub.client.link import Link, LinkState
from pubsub.client.link_timing import Timing
from pubsub.client.messages import MessageBatch
from pubsub.client.notices import Disconnected, Ended, Notice, Reconnected
from pubsub.wire.client_events import (
    Interest,
    Messages,
    Missed,
    NotSubscribed,
    Subscribed,
    SubscriptionEnded,
    Unsubscribed,
    WireEvent,
)
from pubsub.wire.client_wire import ClientWire, Role, WireConnection

_MAX_ROUTES = 4096


class SubscribingLink(Link):
    """See the module. ``report`` is called with every notice."""

    role = Role.SUBSCRIBER

    def __init__(
        self,
        wire: ClientWire,
        where: str,
        timing: Timing,
        random: Callable[[], float],
        report: Callable[[Notice], None],
    ) -> None:
        super().__init__(wire, where, timing, random)
        self._report = report
        self.feeds: list[Feed] = []
        # By interest, the feeds that have it: each interest is one subscription at the broker.
        self._interests: dict[Interest, list[Feed]] = {}
        # By topic, the feeds of its messages, filled when the first message arrives.
        self._routes: dict[str, list[Feed]] = {}
        # Subscriptions that a resumed session may still have.
        self._dropped: list[Interest] = []
        # The unsubscriptions without a reply. A feed that is added meanwhile begins after it.
        self._ending: Counter[Interest] = Counter()
        self._interrupted = False
        # After a reconnection: the subscriptions without a reply, and the notice after the last.
        self._repeated: set[Interest] = set()
        self._reconnected: Reconnected | None = None

    # For the client

    @property
    def full(self) -> bool:
        """True if one of the feeds is full: the driver should not read."""
        for feed in self.feeds:  # noqa: SIM110 -- after every read, for which a generator is much
            if feed.full:
                return True
        return False

    def add(self, feed: Feed, now: float) -> None:
        """Subscribe."""
        self.feeds.append(feed)
        self._routes.clear()
        for interest in feed.interests:
            feeds = self._interests.setdefault(interest, [])
            feeds.append(feed)
            if interest in self._ending:
                feed.withheld.add(interest)
            if self.state is LinkState.READY and self.connection is not None:
                self.connection.subscribe(interest)
                self.touched(now)

    def remove(self, feed: Feed, now: float) -> None:
        """End a subscription; the messages in its feed are forgotten."""
        if feed not in self.feeds:
            return
        self.feeds.remove(feed)
        self._routes.clear()
        for interest in feed.interests:
            feeds = self._interests[interest]
            feeds.remove(feed)
            if not feeds:
                del self._interests[interest]
                self._unsubscribe(interest, now)
        feed.clear()
        feed.end(None)

    def _unsubscribe(self, interest: Interest, now: float) -> None:
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
        return next((one.name for one in self._interests if not one.prefix), None)

    def opened(self, resumed: bool, now: float) -> None:
        """See ``Link``."""
        assert self.connection is not None
        dropped, self._dropped = self._dropped, []
        if resumed and self.wire.traits.unsubscribes:
            for interest in dropped:
                if interest not in self._interests:
                    self._request_end(self.connection, interest)
        for interest in self._interests:
            self.connection.subscribe(interest)
        if self._interrupted:
            self._interrupted = False
            self._repeated = set(self._interests)
            self._reconnected = Reconnected(resumed, self.trouble)
            if not (resumed and self.wire.traits.survives):
                state = "its session was resumed" if resumed else "its session was lost"
                self._tell_gaps(f"the connection was interrupted ({self.trouble}); {state}")
            self._tell_reconnected()

    def handle(self, event: WireEvent, now: float) -> None:
        """See ``Link``."""
        match event:
            case Subscribed():
                for feed in self._interests.get(event.interest, ()):
                    feed.confirm(event.interest)
                self._answered(event.interest)
            case NotSubscribed():
                self._refused(event.interest, event.reason)
                self._answered(event.interest)
            case Unsubscribed():
                self._unsubscribed(event.interest)
            case SubscriptionEnded():
                if event.interest is None:
                    self._tell(Ended(event.reason))
                else:
                    self._refused(event.interest, event.reason)
            case Missed():
                self._missed(event)
            case _:
                pass

    def _answered(self, interest: Interest) -> None:
        self._repeated.discard(interest)
        self._tell_reconnected()

    def _tell_reconnected(self) -> None:
        """Report the reconnection once the broker has replied to all subscriptions."""
        notice = self._reconnected
        if notice is not None and not self._repeated:
            self._reconnected = None
            self._tell(notice)

    def deliver(self, event: Messages) -> None:
        """See ``Link``."""
        feeds = self._routes.get(event.topic)
        if feeds is None:
            feeds = [feed for feed in self.feeds if feed.covers(event.topic)]
            if len(self._routes) >= _MAX_ROUTES:
                self._routes.clear()
            self._routes[event.topic] = feeds
        batch = MessageBatch(event)
        for feed in feeds:
            feed.put(batch)

    def _unsubscribed(self, interest: Interest) -> None:
        self._ending[interest] -= 1
        if self._ending[interest] <= 0:
            del self._ending[interest]
            self._release(interest)

    def _release(self, interest: Interest) -> None:
        """Let the feeds of ``interest`` have its messages from now on."""
        for feed in self._interests.get(interest, ()):
            feed.withheld.discard(interest)
        self._routes.clear()

    def _refused(self, interest: Interest, reason: str) -> None:
        error = f"{self.where}: the subscription to {interest.name!r} was refused: {reason}"
        for feed in list(self._interests.get(interest, ())):
            self._end(feed, SubscriptionRefused(error))

    def _end(self, feed: Feed, error: ClientError) -> None:
        if feed in self.feeds:
            self.feeds.remove(feed)
        self._routes.clear()
        for interest in feed.interests:
            feeds = self._interests.get(interest, [])
            if feed in feeds:
                feeds.remove(feed)
                if not feeds:
                    del self._interests[interest]
                    self._dropped.append(interest)
        feed.end(error)

    def _missed(self, event: Missed) -> None:
        for feed in self.feeds:
            if event.topic is None or feed.covers(event.topic):
                gap = feed.gap(event.reason)
                feed.notify(gap)
                self._report(gap)

    def _tell(self, notice: Notice) -> None:
        self._report(notice)
        for feed in self.feeds:
            feed.notify(notice)

    def _tell_gaps(self, reason: str) -> None:
        for feed in self.feeds:
            gap = feed.gap(reason)
            feed.notify(gap)
            self._report(gap)

    def interrupted(self) -> None:
        """See ``Link``."""
        self._interrupted = True
        self._reconnected = None
        for interest in self._ending:
            self._release(interest)
        self._ending.clear()
        self._tell(Disconnected(self.trouble))

    def failed(self, error: ClientError) -> None:
        """See ``Link``."""
        self._interrupted = False
        for feed in list(self.feeds):
            self._end(feed, error)
        self._dropped.clear()

    def expire(self, now: float) -> None:
        """See ``Link``. A subscription waits for the broker without limit."""

    def closed(self) -> None:
        """See ``Link``."""
        self.failed(ClientClosed("the client was closed"))
