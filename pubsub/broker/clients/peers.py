"""Peers: the other brokers with which this one shares topics, as lists show them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pubsub.broker.broker_objects import SharedObjects

CONNECTED, CONNECTING, LOST = "connected", "connecting", "lost"
"""The states of a peer; it is LOST from the first failure on until it is connected again."""
_KEY: Hashable = "peers"


class Peer(Protocol):
    """Another broker."""

    endpoint: str

    @property
    def state(self) -> str:
        """CONNECTED, CONNECTING or LOST."""

    @property
    def topic_count(self) -> int:
        """The number of topics that it hosts, as far as this broker knows."""


def states_of(peers: Iterable[Peer]) -> Mapping[str, int]:
    """Return the number of peers in each state."""
    return {CONNECTED: 0, CONNECTING: 0, LOST: 0, **Counter(one.state for one in peers)}


def peers_of(shared: SharedObjects) -> list[Peer]:
    """Return the peers of the broker, to which protocols add theirs."""
    make: Callable[[], list[Peer]] = list
    return shared(_KEY, make)
