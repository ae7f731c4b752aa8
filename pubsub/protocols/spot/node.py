"""Another broker: the connection to it, which is renewed when it ends, and the topics it hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.interfaces import IAddress, IStreamClientEndpoint
from twisted.internet.protocol import Factory
from twisted.logger import Logger
from twisted.python.failure import Failure

from pubsub.broker.clients.peers import CONNECTED, CONNECTING, LOST
from pubsub.errors import TopicUnreachable
from pubsub.protocols.spot.outgoing_connection import OutgoingConnection
from pubsub.protocols.spot.peer_connection import PeerConnection
from pubsub.protocols.spot.peer_url import parse_peer
from pubsub.protocols.spot.program_connection import ProgramConnection
from pubsub.protocols.spot.topic_copies import PageReader, TopicCopies, TopicCopy
from pubsub.wire.outgoing_tls import ClientFiles, TlsEndpoint

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.slices import Work
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.kernel import Columns

log = Logger()
# Names of a list that one step decodes.
_NAMES = 64
SHORTEST_DELAY, LONGEST_DELAY = 0.1, 5.0
CONNECT_SECONDS = 5.0
EndpointFactory = Callable[[str, int], IStreamClientEndpoint]
"""Returns the endpoint of a host and port."""


def tcp_endpoints(reactor: object) -> EndpointFactory:
    """Return a factory of TCP endpoints that try all addresses of a host name."""
    return lambda host, port: cast(
        IStreamClientEndpoint, HostnameEndpoint(reactor, host, port, timeout=CONNECT_SECONDS)
    )


def tls_endpoints(plain: EndpointFactory, files: ClientFiles) -> EndpointFactory:
    """Return a factory of endpoints that speak TLS over those of ``plain``."""
    return lambda host, port: TlsEndpoint(plain(host, port), host, "spot", files)


class TopicDirectory(Protocol):
    """Decides which node a topic belongs to."""

    def listed(self, node: Node, names: list[bytes]) -> Work:
        """``node`` hosts the topics of these names."""


class PeerConnectionFactory(Factory):
    """Builds the connections of a node."""

    noisy = False

    def __init__(self, make: Callable[[], OutgoingConnection]) -> None:
        self._make = make

    def buildProtocol(self, addr: IAddress | None) -> OutgoingConnection:
        """See IProtocolFactory."""
        return self._make()


class Node:
    """The broker at ``endpoint``; the ``Upstream`` of the topics it hosts (spot §7).

    It may also be a PUB or XPUB socket, which has no topics and only publishes (spot §7.6). That
    is known once its handshake has been read, or guessed if it does not complete the handshake.

    ``random`` returns a number from 0 to 1, for the back-off.
    """

    def __init__(
        self,
        endpoint: str,
        directory: TopicDirectory,
        listener: Listener,
        random: Callable[[], float],
        endpoint_factory: EndpointFactory,
    ) -> None:
        self.endpoint = endpoint
        self.tried = False
        """True once the broker has listed its topics, or failed to for the first time."""
        self._directory = directory
        self._listener = listener
        self._random = random
        self._clock = listener.clock
        self._endpoint = endpoint_factory(*parse_peer(endpoint))
        # The names in the last list of the present connection.
        self._listed: set[str] | None = None
        self._topics: set[Topic] = set()
        self._copies = TopicCopies(listener, endpoint)
        self._connection: PeerConnection | None = None
        self._is_publisher = self._publisher_is_open = False
        self._failures = 0
        self._stopped = False
        self._retry: IDelayedCall | None = None
        self._attempt: Deferred[Any] | None = None

    # As a ``Peer``

    @property
    def state(self) -> str:
        """See ``Peer``."""
        if self._connection is not None or self._publisher_is_open:
            return CONNECTED
        return LOST if self._failures else CONNECTING

    @property
    def topic_count(self) -> int:
        """See ``Peer``."""
        return len(self._topics)

    # Connecting

    def connect(self) -> None:
        """Connect, and connect again whenever the connection fails or ends, until ``stop``."""
        self._retry = None
        kind = ProgramConnection if self._is_publisher else PeerConnection
        factory = PeerConnectionFactory(lambda: kind(self._listener, self))
        self._attempt = attempt = self._endpoint.connect(factory)
        attempt.addCallbacks(self._connected, self._failed)

    def stop(self) -> None:
        """Make no further attempts to connect."""
        self._stopped = True
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._attempt is not None:
            self._attempt.cancel()

    def _connected(self, connection: object) -> None:
        self._attempt = None

    def _failed(self, failure: Failure) -> None:
        self._attempt = None
        self.tried = True
        if not failure.check(CancelledError):
            self._retry_later(failure.getErrorMessage())

    def _retry_later(self, reason: str) -> None:
        if self._stopped:
            return
        delay = self._delay()
        if not self._failures:
            log.info("{node} is not connected: {reason}", node=self.endpoint, reason=reason)
        self._failures += 1
        self._retry = self._clock.callLater(delay, self.connect)

    def _delay(self) -> float:
        """The delay doubles each time. Up to half of it is taken off at random, so that several
        brokers do not connect at the same time."""
        longest = min(SHORTEST_DELAY * 2.0 ** min(self._failures, 16), LONGEST_DELAY)
        return max(longest * (1 - self._random() / 2), SHORTEST_DELAY)

    # Events of the connection

    def opened(self, connection: OutgoingConnection) -> None:
        """See ``PeerEvents``: subscribe again to the topics that have readers here."""
        self._failures = 0
        self._listed = None
        log.info("{node} is connected", node=self.endpoint)
        if not isinstance(connection, PeerConnection):
            self._publisher_is_open = self.tried = True
            return
        self._connection = connection
        for topic in self._topics:
            if topic.has_readers:
                self.want(topic)

    def lost(self, connection: OutgoingConnection) -> None:
        """See ``PeerEvents``: the topics of the broker cannot be reached for now."""
        self.tried = True
        if self._publisher_is_open:
            self._publisher_is_open = False
            log.warn("{node} is disconnected", node=self.endpoint)
        if self._connection is connection:
            self._connection = None
            self._copies.interrupted()
            log.warn(
                "{node} is disconnected; its topics cannot be reached: {count}",
                node=self.endpoint,
                count=len(self._topics),
            )
        if connection.handshake_refused:
            self._is_publisher = not self._is_publisher
        self._retry_later(connection.trouble or "the connection ended")

    def listed(self, names: list[bytes]) -> Work:
        """See ``PeerEvents``."""
        listed: set[str] = set()
        for start in range(0, len(names), _NAMES):
            some = names[start : start + _NAMES]
            listed.update([name.decode(errors="replace") for name in some])
            yield
        self._listed = listed
        yield from self._directory.listed(self, names)
        self.tried = True

    def query_timed_out(self) -> None:
        """See ``PeerEvents``."""
        self.tried = True

    def set_publisher(self, publisher: bool) -> None:
        """See ``PeerEvents``."""
        self._is_publisher = publisher

    def connected_to_itself(self) -> None:
        """See ``PeerEvents``."""
        log.warn("{node} is this broker itself; no connection is made", node=self.endpoint)
        # Without waiting for the end of the connection.
        self.tried = True
        self.stop()

    # Topics

    def add_topic(self, topic: Topic, earlier: TopicCopy | None) -> None:
        """``topic`` is hosted by this node; ``earlier`` is the copy from the one before."""
        self._topics.add(topic)
        self._copies.follow(topic, earlier)
        if topic.has_readers:
            self.want(topic)

    def remove_topic(self, topic: Topic) -> TopicCopy | None:
        """``topic`` is no longer hosted by this node; return its copy, if there is one."""
        self._topics.discard(topic)
        self.unwant(topic)
        return self._copies.drop(topic)

    def no_longer_hosts(self, topic: Topic) -> bool:
        """See ``Upstream``."""
        connected = self._connection is not None and self._listed is not None
        return connected and topic.name not in (self._listed or ())

    def is_broker_of(self, other: Node) -> bool:
        """Return whether both are connected to one broker, which has two addresses then."""
        if self._connection is None or other._connection is None:
            return False
        return self._connection.run_id == other._connection.run_id != b""

    def publish(self, topic: Topic, batch: Batch) -> None:
        """See ``Upstream``."""
        if self._connection is None or not self._connection.is_open:
            raise TopicUnreachable(topic.name)
        self._expect(topic)
        self._connection.publish(topic, batch)

    def when_confirmed(self, topic: Topic, call: Callable[[bool], None]) -> None:
        """See ``Upstream``."""
        if self._connection is None or not self._connection.is_open:
            call(False)
        else:
            self._connection.when_confirmed(topic, call)

    def want(self, topic: Topic) -> None:
        """See ``Upstream``."""
        if self._connection is not None:
            # Before it is subscribed to: then no message is missing between the copy and later
            # ones.
            self.update(topic)
            self._expect(topic)
            self._connection.subscribe(topic)

    def _expect(self, topic: Topic) -> None:
        """A message or a subscription makes the broker host the topic again if it has ended."""
        topic.idle_since = None
        if self._listed is not None:
            self._listed.add(topic.name)

    def update(self, topic: Topic) -> Deferred[bool]:
        """See ``Upstream``."""
        connection, copies = self._connection, self._copies
        if not topic.durability or not (topic.history_readers or topic in copies):
            return succeed(True)
        if connection is None:
            return succeed(copies.is_settled(topic))
        if not connection.reads_history:
            copies.keep(topic)
            return succeed(True)
        return copies.update(topic, connection)

    def received(self, topic: Topic, columns: Columns, reader: PageReader) -> None:
        """See ``PeerEvents``."""
        dispatcher, sender = self._listener.dispatcher, self.endpoint.encode()
        copies = self._copies
        if copies.is_beginning(topic) or copies.is_due(topic):
            dispatcher.relay_unstored(topic, columns, sender, self._listener.protocol)
            if not copies.is_beginning(topic):
                copies.notify(topic, reader, 0)
        elif copies.has_begun(topic):
            copies.notify(topic, reader, columns.count)
        else:
            dispatcher.relay(topic, columns, sender, self._listener.protocol)

    def unwant(self, topic: Topic) -> None:
        """See ``Upstream``."""
        self._copies.interrupted(topic)
        if self._connection is not None:
            self._connection.unsubscribe(topic)
