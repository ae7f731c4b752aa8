"""Another broker, as this one knows it: connected to again and again, and what it hosts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.interfaces import IAddress, IStreamClientEndpoint
from twisted.internet.protocol import Factory
from twisted.logger import Logger
from twisted.python.failure import Failure

from pubsub.errors import TopicUnreachable
from pubsub.protocols.spot.peer_connection import PeerConnection

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

    from pubsub.broker.batch import Batch
    from pubsub.broker.listener import Listener
    from pubsub.broker.topics import Topic

log = Logger()
SHORTEST_DELAY, LONGEST_DELAY = 0.1, 5.0
CONNECT_SECONDS = 5.0
_PEER = re.compile(r"tcp://(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[^\[\]:/]+)):(?P<port>\d{1,5})")


def parse_peer(text: str) -> tuple[str, int]:
    """Host and port of ``tcp://host:port``; raises ValueError."""
    match = _PEER.fullmatch(text)
    if match is None or not 0 < int(match["port"]) < 65536:
        raise ValueError(f"expected tcp://HOST:PORT, not {text!r}")
    return match["v6"] or match["host"], int(match["port"])


Reach = Callable[[str, int], IStreamClientEndpoint]
"""How to connect to a host and port."""


def reach_by(reactor: object) -> Reach:
    """By TCP, whatever addresses the host's name has."""
    return lambda host, port: cast(
        IStreamClientEndpoint, HostnameEndpoint(reactor, host, port, timeout=CONNECT_SECONDS)
    )


class TopicDirectory(Protocol):
    """Who decides whose a topic is."""

    def listed(self, node: Node, names: list[bytes]) -> None: ...


class PeerConnectionFactory(Factory):
    """Builds the link of a node for every connection."""

    noisy = False

    def __init__(self, make: Callable[[], PeerConnection]) -> None:
        self._make = make

    def buildProtocol(self, addr: IAddress | None) -> PeerConnection:
        """See IProtocolFactory."""
        return self._make()


class Node:
    """A broker at ``endpoint``; the ``Upstream`` of the topics it hosts (spot §7).

    It has been ``tried`` once it has answered, or failed to for the first time.
    """

    def __init__(
        self,
        endpoint: str,
        topics: TopicDirectory,
        listener: Listener,
        chance: Callable[[], float],
        reach: Reach,
    ) -> None:
        self.endpoint = endpoint
        self._topics = topics
        self._listener = listener
        self._chance = chance
        self._clock = listener.clock
        self._endpoint = reach(*parse_peer(endpoint))
        self.tried = False
        self._hosts: frozenset[str] | None = None
        self._mine: set[Topic] = set()
        self._link: PeerConnection | None = None
        self._failures = 0
        self._stopped = False
        self._retry: IDelayedCall | None = None
        self._attempt: Deferred[Any] | None = None

    # Connecting

    def connect(self) -> None:
        """Connect, and connect again whenever that fails or ends, until ``stop``."""
        self._retry = None
        factory = PeerConnectionFactory(lambda: PeerConnection(self._listener, self))
        self._attempt = attempt = self._endpoint.connect(factory)
        attempt.addCallbacks(self._connected, self._failed)

    def stop(self) -> None:
        """Connect no more."""
        self._stopped = True
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._attempt is not None:
            self._attempt.cancel()

    def _connected(self, link: object) -> None:
        self._attempt = None

    def _failed(self, failure: Failure) -> None:
        self._attempt = None
        self.tried = True
        if not failure.check(CancelledError):
            self._later(failure.getErrorMessage())

    def _later(self, why: str) -> None:
        if self._stopped:
            return
        delay = self._delay()
        if not self._failures:
            log.info("{node} is not connected: {why}", node=self.endpoint, why=why)
        self._failures += 1
        self._retry = self._clock.callLater(delay, self.connect)

    def _delay(self) -> float:
        """Twice as long each time, less up to half of it so that not all come at once."""
        longest = min(SHORTEST_DELAY * 2.0 ** min(self._failures, 16), LONGEST_DELAY)
        return max(longest * (1 - self._chance() / 2), SHORTEST_DELAY)

    # Far

    def opened(self, link: PeerConnection) -> None:
        """See ``PeerEvents``: what is wanted here is asked for anew."""
        self._link = link
        self._failures = 0
        self._hosts = None
        log.info("{node} is connected", node=self.endpoint)
        for topic in self._mine:
            if topic.has_readers:
                link.subscribe(topic)

    def lost(self, link: PeerConnection) -> None:
        """See ``PeerEvents``: the topics it hosts cannot be reached for now."""
        self.tried = True
        if self._link is link:
            self._link = None
            log.warn(
                "{node} is gone, and with it {count} topics",
                node=self.endpoint,
                count=len(self._mine),
            )
        self._later("the connection ended")

    def listed(self, names: list[bytes]) -> None:
        """See ``PeerEvents``."""
        self._hosts = frozenset(name.decode(errors="replace") for name in names)
        self._topics.listed(self, names)
        self.tried = True

    def silent(self) -> None:
        """See ``PeerEvents``."""
        self.tried = True

    def itself(self) -> None:
        """See ``PeerEvents``."""
        log.warn("{node} is this broker itself; it is left alone", node=self.endpoint)
        self.stop()

    # Topics

    def own(self, topic: Topic) -> None:
        """``topic`` is hosted there."""
        self._mine.add(topic)
        if topic.has_readers:
            self.want(topic)

    def disown(self, topic: Topic) -> None:
        """It is not any more."""
        self._mine.discard(topic)
        self.unwant(topic)

    def gave_up(self, topic: Topic) -> bool:
        """Is the broker there, and does it say that it hosts ``topic`` no more?"""
        return self._link is not None and self._hosts is not None and topic.name not in self._hosts

    def publish(self, topic: Topic, batch: Batch) -> None:
        """See ``Upstream``."""
        if self._link is None or not self._link.is_open:
            raise TopicUnreachable(topic.name)
        self._link.publish(topic, batch)

    def want(self, topic: Topic) -> None:
        """See ``Upstream``."""
        if self._link is not None:
            self._link.subscribe(topic)

    def unwant(self, topic: Topic) -> None:
        """See ``Upstream``."""
        if self._link is not None:
            self._link.unsubscribe(topic)
