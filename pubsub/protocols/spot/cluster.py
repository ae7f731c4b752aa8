"""The brokers that share topics with this one, and which of them hosts each topic (spot §7).

A topic is LOCAL if it is hosted here, and REMOTE if another broker hosts it and this one does not.
A REMOTE topic has its ``Node`` as ``upstream``. It keeps that node even while the broker is away,
and after a restart of this one, which must not host the topic then. The node changes only if the
broker returns without the topic and another broker hosts it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.application.service import Service
from twisted.logger import Logger

from pubsub.broker.access_rules.access import RESERVED
from pubsub.broker.clients.peers import peers_of, states_of
from pubsub.errors import Refused, TopicUnreachable
from pubsub.protocols.spot.node import (
    EndpointFactory,
    Node,
    tcp_endpoints,
    tls_endpoints,
)
from pubsub.protocols.spot.peer_url import parse_peer
from pubsub.settings import Kind
from pubsub.wire.outgoing_tls import NO_FILES, ClientFiles

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.slices import Work
    from pubsub.broker.topic_space.topics import Topic

log = Logger()
REMOTE = "spot-remote"
"""The table of the store's metadata with the endpoint of the broker that hosts each topic."""
# Rows of other brokers that one step looks at.
_ROWS = 64
# The remedy where two brokers host a topic.
_DELETE = "their messages are not shared: delete it at one of the two"


def _peers(value: object) -> tuple[str, ...]:
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(peer, str) for peer in listed):
        raise ValueError(f"expected tcp://HOST:PORT or tls://HOST:PORT, or a list, not {value!r}")
    peers = [peer.strip() for peer in listed if peer.strip()]
    for peer in peers:
        parse_peer(peer)
    return tuple(dict.fromkeys(peers))


PEERS = Kind("tcp|tls://HOST:PORT", _peers, repeated=True)


def _random() -> float:
    return secrets.randbits(16) / 2**16


class Cluster(Service):
    """All other brokers that are configured.

    ``random`` returns a number from 0 to 1, for the back-off.
    """

    def __init__(
        self,
        listener: Listener,
        random: Callable[[], float] = _random,
        endpoint_factory: EndpointFactory | None = None,
    ) -> None:
        self._listener = listener
        self._random = random
        self._endpoint_factory = endpoint_factory or tcp_endpoints(listener.clock)
        self._nodes: dict[str, Node] = {}
        self._owners: dict[Topic, Node] = {}
        # The endpoints of the brokers that were warned about, by topic; as long as there is one.
        self._warned: dict[Topic, set[str]] = {}
        # Those of brokers that have another endpoint too.
        self._doubles: set[str] = set()
        listener.topics.claim_checks.append(self._check_claim)
        listener.topics.watch_removal(self._removed)
        self.setServiceParent(listener.services)  # type: ignore[no-untyped-call]

    def join(self, endpoint: str, files: ClientFiles = NO_FILES) -> None:
        """Share topics with the broker at ``endpoint``; ``files`` are for TLS."""
        if endpoint not in self._nodes:
            endpoints = self._endpoint_factory
            if endpoint.startswith("tls:"):
                endpoints = tls_endpoints(endpoints, files)
            node = Node(endpoint, self, self._listener, self._random, endpoints)
            self._nodes[endpoint] = node
            peers = peers_of(self._listener.shared)
            peers.append(node)
            self._listener.statistics.peers = partial(states_of, peers)
            if self.running:
                # A reload has added the listener, and clients of others are served.
                self._listener.slices.run(self._begin(node))

    def startService(self) -> None:
        """Connect to all of them."""
        super().startService()  # type: ignore[no-untyped-call]
        for _ in self._begin(*self._nodes.values()):
            # No client is served before the start has ended.
            pass

    def stopService(self) -> Deferred[Any] | None:
        """Make no further connections. Open ones close with the broker's other connections."""
        super().stopService()  # type: ignore[no-untyped-call]
        for node in self._nodes.values():
            node.stop()
        for topic in tuple(self._warned):
            self._forget_warnings(topic)
        return None

    def _begin(self, *nodes: Node) -> Work:
        """Connect to ``nodes``, which host the topics that they hosted at the last time."""
        hosts = {node.endpoint.encode(): node for node in nodes}
        for number, (name, endpoint) in enumerate(list(self._listener.store.items(REMOTE))):
            node = hosts.get(endpoint)
            if node is not None:
                topic = self._known(node, name)
                if topic is not None and not topic.hosted and topic not in self._owners:
                    self._assign(node, topic)
            if node is not None or not number % _ROWS:
                yield
        for node in nodes:
            if self.running:
                node.connect()

    def _known(self, node: Node, name: bytes | str) -> Topic | None:
        """Return the topic of this name, which ``node`` hosts; None if it is refused."""
        try:
            return self._listener.topics.create(name, hosted=False)
        except Refused as refused:
            self._listener.refuse(refused.reason, node.endpoint)
            return None

    def _check_claim(self, name: str) -> None:
        """Raise TopicUnreachable until all other brokers have been asked for their topics once.

        Until then a topic without a host may be one of theirs. Topics from before the start are
        this broker's own.
        """
        if self.running and not all(node.tried for node in self._nodes.values()):
            raise TopicUnreachable(name)

    def listed(self, node: Node, names: list[bytes]) -> Work:
        """``node`` hosts the topics of these names; one a step."""
        found = 0
        for raw in names:
            yield
            if raw.startswith(RESERVED.encode()):
                # Each broker hosts its own reserved topics.
                continue
            topic = self._known(node, raw)
            if topic is not None:
                is_new = topic not in self._owners
                self._add(node, topic)
                found += is_new and topic in self._owners
        for topic in [one for one in self._warned if node.no_longer_hosts(one)]:
            self._forget_warning(topic, node)
        if found:
            log.info("{node} hosts more topics: {count}", node=node.endpoint, count=found)

    def _add(self, node: Node, topic: Topic) -> None:
        owner = self._owners.get(topic)
        if topic.hosted:
            self._warn(node, topic, f"it is hosted here too; {_DELETE}")
        elif owner is None or owner.no_longer_hosts(topic):
            self._assign(node, topic)
            self._listener.store.put(REMOTE, topic.name, node.endpoint.encode())
        elif owner.is_broker_of(node):
            self._warn_of_double(node, owner)
        elif owner is not node:
            self._warn(node, topic, f"it is hosted by {owner.endpoint} too; {_DELETE}")

    def _assign(self, node: Node, topic: Topic) -> None:
        self._forget_warning(topic, node)
        owner = self._owners.get(topic)
        earlier = None if owner is None else owner.remove_topic(topic)
        self._owners[topic] = node
        topic.upstream = node
        node.add_topic(topic, earlier)

    def _warn_of_double(self, node: Node, owner: Node) -> None:
        if owner is not node and node.endpoint not in self._doubles:
            self._doubles.add(node.endpoint)
            log.warn(
                "{node} is the same broker as {other}; name it once in peers",
                node=node.endpoint,
                other=owner.endpoint,
            )

    def _removed(self, topic: Topic) -> None:
        self._forget_warnings(topic)
        if topic in self._owners and not topic.configured:
            owner = self._owners.pop(topic)
            topic.upstream = None
            owner.remove_topic(topic)
            self._listener.store.delete(REMOTE, topic.name)

    def _warn(self, node: Node, topic: Topic, problem: str) -> None:
        warned = self._warned.setdefault(topic, set())
        if node.endpoint not in warned:
            warned.add(node.endpoint)
            self._listener.statistics.twice_hosted[topic.name] = node.endpoint
            log.warn(
                "topic {topic!r} of {node}: {problem}",
                topic=topic.name,
                node=node.endpoint,
                problem=problem,
            )

    def _forget_warning(self, topic: Topic, node: Node) -> None:
        """``node`` does not host ``topic`` beside another broker any more."""
        warned = self._warned.get(topic)
        if warned is not None:
            warned.discard(node.endpoint)
            if not warned:
                self._forget_warnings(topic)

    def _forget_warnings(self, topic: Topic) -> None:
        if self._warned.pop(topic, None) is not None:
            self._listener.statistics.twice_hosted.pop(topic.name, None)
