"""The URLs of the brokers that a client may use, and the order of the attempts. Sans-IO."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pubsub.client.client_errors import ConnectFailed
from pubsub.client.client_url import ClientUrl
from pubsub.client.link_timing import Timing


class BrokerUrls:
    """The URLs in the order in which they were given.

    ``good`` is the index of the one that last led to a broker, for all links of the client.
    """

    def __init__(self, urls: Sequence[ClientUrl]) -> None:
        self.urls = tuple(urls)
        self.good = 0

    def from_good(self) -> tuple[ClientUrl, ...]:
        """Return the URLs, the good one first."""
        return self.urls[self.good :] + self.urls[: self.good]

    def found(self, url: ClientUrl) -> None:
        """``url`` has led to a broker."""
        self.good = self.urls.index(url)


class ConnectAttempts:
    """The attempts of one link, in rounds: each URL once, at once, and then a pause.

    A round begins with the good URL, and the others follow in order. After a connection that has
    lasted they follow in random order: the clients of a broker that has gone away would otherwise
    all go to the same other one.
    """

    def __init__(self, brokers: BrokerUrls, timing: Timing, random: Callable[[], float]) -> None:
        self._brokers = brokers
        self._timing = timing
        self._random = random
        self._at = brokers.good
        # The URLs that this round has not tried.
        self._left: list[int] = []
        # The rounds without a connection that has lasted.
        self._rounds = 0
        # By URL, the reason for its failure in this round, and whether it has refused the client.
        self._failures: dict[int, tuple[str, bool]] = {}

    @property
    def url(self) -> ClientUrl:
        """The URL of the present attempt."""
        return self._brokers.urls[self._at]

    @property
    def are_several(self) -> bool:
        """True if there is more than one URL."""
        return len(self._brokers.urls) > 1

    @property
    def are_over(self) -> bool:
        """True if no URL is left in this round."""
        return not self._left

    @property
    def all_refused(self) -> bool:
        """True if each broker has refused the client in this round, for good."""
        refused = [refused for _, refused in self._failures.values()]
        return all(refused) and len(refused) == len(self._brokers.urls)

    def begin(self) -> None:
        """Begin with a first round."""
        self._rounds = 0
        self._begin_round()

    def _begin_round(self) -> None:
        good, count = self._brokers.good, len(self._brokers.urls)
        self._at, *self._left = [(good + step) % count for step in range(count)]
        self._failures.clear()

    def advance(self) -> None:
        """Go on to the next URL, or to the next round if none is left."""
        if self._left:
            self._at = self._left.pop(0)
        else:
            self._begin_round()

    def succeeded(self) -> None:
        """The present attempt has led to a broker."""
        self._brokers.good = self._at

    def ended(self, lasted: bool) -> None:
        """The connection has ended; after one that ``lasted`` all other URLs are tried."""
        if not lasted:
            return
        self._rounds = 0
        self._failures.clear()
        others = [index for index in range(len(self._brokers.urls)) if index != self._at]
        others.sort(key=lambda _index: self._random())
        # Another link of the client may be there already.
        others.sort(key=lambda index: index != self._brokers.good)
        self._left = others

    def failed(self, why: str, refused: bool) -> None:
        """The present attempt has failed, or its connection has ended."""
        self._failures[self._at] = why, refused

    def pause(self) -> float:
        """Return the pause before the next attempt: none within a round."""
        if self._left:
            return 0.0
        self._rounds += 1
        return self._timing.pause(self._rounds, self._random)

    def error(self) -> ConnectFailed:
        """Return the error of a round in which all have failed."""
        urls = self._brokers.urls
        reasons = "; ".join(f"{urls[index]}: {why}" for index, (why, _) in self._failures.items())
        return ConnectFailed(f"cannot connect to {reasons}", self.all_refused)
