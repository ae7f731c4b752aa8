"""The brokers that share topics with this one: who hosts what (spot §7).

A topic is LOCAL if it is hosted here, and REMOTE if another broker hosts it and this one does
not. A REMOTE topic has its ``Node`` as ``upstream``, and keeps it whatever becomes of that broker,
unless the broker is there again without the topic and another one has it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted.application.service import Service
from twisted.logger import Logger

from pubsub.broker.access import RESERVED
from pubsub.errors import Refused, TopicUnreachable
from pubsub.protocols.spot.node import Node, Reach, parse_peer, reach_by
from pubsub.settings import Kind

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from pubsub.broker.listener import Listener
    from pubsub.broker.topics import Topic

log = Logger()


def _peers(value: object) -> tuple[str, ...]:
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(peer, str) for peer in listed):
        raise ValueError(f"expected tcp://HOST:PORT, or a list of them, not {value!r}")
    peers = [peer.strip() for peer in listed if peer.strip()]
    for peer in peers:
        parse_peer(peer)
    return tuple(dict.fromkeys(peers))


PEERS = Kind("tcp://HOST:PORT", _peers, repeated=True)


def _chance() -> float:
    return secrets.randbits(16) / 2**16


class Cluster(Service):
    """Every other broker this one was told of.

    ``chance`` draws from 0 to 1, for the back-off; ``reach`` says how to connect.
    """

    def __init__(
        self,
        listener: Listener,
        chance: Callable[[], float] = _chance,
        reach: Reach | None = None,
    ) -> None:
        self._listener = listener
        self._chance = chance
        self._reach = reach or reach_by(listener.clock)
        self._nodes: dict[str, Node] = {}
        self._owners: dict[Topic, Node] = {}
        self._warned: set[tuple[str, str]] = set()
        listener.topics.claim_checks.append(self._check_claim)
        self.setServiceParent(listener.services)  # type: ignore[no-untyped-call]

    def join(self, endpoint: str) -> None:
        """Share topics with the broker at ``endpoint``."""
        if endpoint not in self._nodes:
            self._nodes[endpoint] = Node(endpoint, self, self._listener, self._chance, self._reach)

    def startService(self) -> None:
        """Connect to all of them."""
        super().startService()  # type: ignore[no-untyped-call]
        for node in self._nodes.values():
            node.connect()

    def stopService(self) -> Deferred[Any] | None:
        """Connect no more; what is connected closes with the broker's other connections."""
        super().stopService()  # type: ignore[no-untyped-call]
        for node in self._nodes.values():
            node.stop()
        return None

    def _check_claim(self, name: str) -> None:
        """Until the others have been asked once, a topic that is nobody's may be one of theirs.

        What is there before the broker starts is its own.
        """
        if self.running and not all(node.tried for node in self._nodes.values()):
            raise TopicUnreachable(name)

    def listed(self, node: Node, names: list[bytes]) -> None:
        """``node`` hosts the topics of these names."""
        before = len(self._owners)
        for raw in names:
            if raw.startswith(RESERVED.encode()):
                # Each broker has its own.
                continue
            try:
                topic = self._listener.topics.create(raw, hosted=False)
            except Refused as refused:
                self._listener.refuse(refused.reason, node.endpoint)
            else:
                self._found(node, topic)
        found = len(self._owners) - before
        if found:
            log.info("{node} hosts {count} more topics", node=node.endpoint, count=found)

    def _found(self, node: Node, topic: Topic) -> None:
        owner = self._owners.get(topic)
        if topic.hosted:
            self._warn(node, topic, "it is hosted here too, and stays LOCAL")
        elif owner is None or owner.gave_up(topic):
            self._assign(node, topic)
        elif owner is not node:
            self._warn(node, topic, f"it is hosted by {owner.endpoint} too, where it stays")

    def _assign(self, node: Node, topic: Topic) -> None:
        owner = self._owners.get(topic)
        if owner is not None:
            owner.disown(topic)
        self._owners[topic] = node
        topic.upstream = node
        node.own(topic)

    def _warn(self, node: Node, topic: Topic, what: str) -> None:
        key = (node.endpoint, topic.name)
        if key not in self._warned:
            self._warned.add(key)
            log.warn(
                "topic {topic!r} of {node}: {what}",
                topic=topic.name,
                node=node.endpoint,
                what=what,
            )
