"""The feeds of a subscribing link, by interest and by topic. Sans-IO.

A client may have thousands of subscriptions, so that nothing here looks at all of them for each
message or each read.
"""

from __future__ import annotations

from collections.abc import Iterator

from pubsub.client.feed import Feed
from pubsub.wire.client_events import Interest

_MAX_ROUTES = 4096


class FeedTable:
    """The feeds, in the order in which they were added."""

    def __init__(self) -> None:
        self._feeds: dict[Feed, None] = {}
        # Each interest is one subscription at the broker.
        self._interests: dict[Interest, dict[Feed, None]] = {}
        self._named: dict[str, list[Interest]] = {}
        self._prefixes: dict[Interest, None] = {}
        # By topic, the feeds of its messages, filled when the first message arrives.
        self._routes: dict[str, list[Feed]] = {}
        # Those that were full, among them all that are.
        self._full: dict[Feed, None] = {}

    def __iter__(self) -> Iterator[Feed]:
        """Iterate over the feeds that are there now, so that some may be added and removed."""
        return iter(list(self._feeds))

    def __contains__(self, feed: Feed) -> bool:
        return feed in self._feeds

    @property
    def interests(self) -> list[Interest]:
        """All interests, each once."""
        return list(self._interests)

    def has(self, interest: Interest) -> bool:
        """Return whether a feed has ``interest``."""
        return interest in self._interests

    def of_interest(self, interest: Interest) -> list[Feed]:
        """Return the feeds that have ``interest``."""
        return list(self._interests.get(interest, ()))

    def of_topic(self, topic: str) -> list[Feed]:
        """Return the feeds of the messages of ``topic``."""
        feeds = self._routes.get(topic)
        if feeds is None:
            interests = list(self._named.get(topic, ()))
            interests += [one for one in self._prefixes if topic.startswith(one.name)]
            found = (
                feed
                for interest in interests
                for feed in self._interests[interest]
                if interest not in feed.withheld
            )
            feeds = list(dict.fromkeys(found))
            if len(self._routes) >= _MAX_ROUTES:
                self._routes.clear()
            self._routes[topic] = feeds
        return feeds

    def withheld_changed(self) -> None:
        """The interests that a feed withholds are others."""
        self._routes.clear()

    def add(self, feed: Feed) -> None:
        """Add a feed with its interests."""
        self._feeds[feed] = None
        self._routes.clear()
        for interest in feed.interests:
            feeds = self._interests.get(interest)
            if feeds is None:
                feeds = self._interests[interest] = {}
                self._index(interest)
            feeds[feed] = None

    def _index(self, interest: Interest) -> None:
        if interest.prefix:
            self._prefixes[interest] = None
        else:
            self._named.setdefault(interest.name, []).append(interest)

    def remove(self, feed: Feed) -> list[Interest]:
        """Remove a feed, if it is there; return its interests that no other feed has."""
        if feed not in self._feeds:
            return []
        del self._feeds[feed]
        self._full.pop(feed, None)
        self._routes.clear()
        left = []
        for interest in feed.interests:
            feeds = self._interests[interest]
            del feeds[feed]
            if not feeds:
                del self._interests[interest]
                self._forget(interest)
                left.append(interest)
        return left

    def _forget(self, interest: Interest) -> None:
        if interest.prefix:
            del self._prefixes[interest]
            return
        same = self._named[interest.name]
        same.remove(interest)
        if not same:
            del self._named[interest.name]

    # Room

    def filled(self, feed: Feed) -> None:
        """``feed`` has become full."""
        self._full[feed] = None

    @property
    def full(self) -> Feed | None:
        """One of the feeds that are full."""
        while self._full:
            feed = next(iter(self._full))
            if feed.full:
                return feed
            del self._full[feed]
        return None
