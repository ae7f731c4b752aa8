"""An engine in memory: the brokers of one process share messages, in tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, succeed
from zope.interface import implementer

from pubsub.broker.publishing.publisher_gates import Gate
from pubsub.interfaces import IBackplane

if TYPE_CHECKING:
    from pubsub.interfaces import Envelopes


class MemoryEngine:
    """Forwards messages between open backplanes. ``away`` is the reason why it does not."""

    def __init__(self, limit: int = 1024**2) -> None:
        self.limit = limit
        self.away: str | None = None
        self.links = 0
        self.open: list[MemoryBackplane] = []

    def send(self, sender: MemoryBackplane | None, topic: str, data: bytes) -> None:
        """Give ``data`` to all but ``sender`` that want ``topic``."""
        for one in self.open:
            if one is not sender and one.wants(topic):
                one.take(topic, data)

    def leave(self, reason: str) -> None:
        """Lose later messages."""
        self.away = reason

    def come_back(self) -> None:
        """Take messages again, over new connections."""
        self.away = None
        for one in self.open:
            one.connect()


@implementer(IBackplane)
class MemoryBackplane:
    """One broker's connection to ``engine``; ``later`` runs a call after this tick's events."""

    summary, complaint = "in the memory of this process", ""

    def __init__(self, engine: MemoryEngine, later: Callable[[Callable[[], None]], object]) -> None:
        self._engine = engine
        self._later = later
        self._receive: Callable[[Envelopes], object] = lambda envelopes: None
        self._arrived: list[tuple[str, bytes]] = []
        self.topics: set[str] = set()
        self.prefixes: set[bytes] = set()
        self.gate = Gate()
        self.limit = engine.limit
        self.link = 0

    @property
    def trouble(self) -> str | None:
        """See ``IBackplane``."""
        return self._engine.away

    def open(self, receive: Callable[[Envelopes], object]) -> None:
        """See ``IBackplane``."""
        self._receive = receive
        self._engine.open.append(self)
        self.connect()

    def connect(self) -> None:
        """Use another link from now on."""
        self._engine.links += 1
        self.link = self._engine.links

    def close(self) -> Deferred[None]:
        """See ``IBackplane``."""
        if self in self._engine.open:
            self._engine.open.remove(self)
        return succeed(None)

    def send(self, topic: str, data: bytes, count: int) -> str:
        """See ``IBackplane``."""
        if self._engine.away is not None:
            return "backplane-away"
        self._engine.send(self, topic, data)
        return ""

    def want(self, topic: str) -> None:
        """See ``IBackplane``."""
        self.topics.add(topic)

    def unwant(self, topic: str) -> None:
        """See ``IBackplane``."""
        self.topics.discard(topic)

    def want_prefix(self, prefix: bytes) -> None:
        """See ``IBackplane``."""
        self.prefixes.add(prefix)

    def unwant_prefix(self, prefix: bytes) -> None:
        """See ``IBackplane``."""
        self.prefixes.discard(prefix)

    def figures(self) -> Mapping[str, float]:
        """See ``IBackplane``."""
        return {"subscriptions": len(self.topics) + len(self.prefixes)}

    def wants(self, topic: str) -> bool:
        """Return whether messages of ``topic`` are requested."""
        return topic in self.topics or any(map(topic.encode().startswith, self.prefixes))

    def take(self, topic: str, data: bytes) -> None:
        """Receive ``data`` at the end of the tick."""
        if not self._arrived:
            self._later(self._hand_over)
        self._arrived.append((topic, data))

    def _hand_over(self) -> None:
        arrived, self._arrived = self._arrived, []
        self._receive(arrived)
