"""The seams of the broker: what a protocol plugin, a store, a subscriber's encoding provide.

zope interfaces where Twisted's plugin system or an adapter looks them up, typing protocols
where only the type checker does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IProtocolFactory
from zope.interface import Attribute, Interface

if TYPE_CHECKING:
    from pubsub.broker.batch import Batch, Page
    from pubsub.broker.listener import Listener
    from pubsub.broker.topics import Topic
    from pubsub.settings import Setting


class IWireProtocol(Interface):
    """One wire protocol, found by ``twisted.plugin.getPlugins(IWireProtocol)``."""

    name: str = Attribute("Short lower-case name: the word after ``--proto=``.")
    summary: str = Attribute("One line for ``--help``.")
    port: int = Attribute("Default TCP port.")
    settings: Sequence[Setting] = Attribute("This protocol's own settings of a listener.")

    def make_factory(listener: Listener) -> IProtocolFactory:
        """A factory that serves this protocol's clients for ``listener``.

        Called once a listener, before it listens; creates the topics the listener implies.
        Raises ConfigurationError for settings that contradict each other. Where the factory
        also provides ``IDatagramSource`` the listener opens a UDP port beside its TCP port.
        """


class IDatagramSource(Interface):
    """A factory that can serve UDP on the port number its TCP listener got."""

    def datagram_protocol() -> object | None:
        """A DatagramProtocol to listen with, or None where UDP was not asked for."""


class IStore(Interface):
    """The history: one log of messages, addressed by offset, and small metadata beside it."""

    next_offset: int = Attribute("Offset that the next message appended gets.")
    first_offset: int = Attribute("Smallest offset that can still be read.")
    summary: str = Attribute("One line for the log at start: what is kept, and where.")

    def append(batch: Batch) -> None:
        """Append the batch's messages and set ``batch.offset`` to the first one's offset."""

    def read(offset: int, topics: frozenset[str] | None, max_bytes: int) -> Deferred[Page]:
        """Messages from ``offset`` on, in order, of ``topics`` (None: of all).

        A page holds about ``max_bytes`` of payload at the most, but at least one message if
        there is one; a page without batches whose ``next_offset`` is below the store's says
        only that there was nothing for these topics so far.
        """

    def forget(topic: str) -> None:
        """Let go of the messages of a topic that has ended: its name may be another's now."""

    def put(table: str, key: str, value: bytes) -> None:
        """Keep ``value`` under ``key``, replacing what was there."""

    def items(table: str) -> Iterable[tuple[str, bytes]]:
        """Everything kept in ``table``."""


class Encoding(Protocol):
    """How a batch looks on one wire: equal encodings on a topic share one encoded bytes.

    Instances are compared and hashed by value; ``limit`` is the largest payload, in bytes,
    that a valid frame can carry.
    """

    @property
    def limit(self) -> int: ...

    def encode(self, batch: Batch) -> bytes:
        """The batch as whole frames, in order. Every payload is within ``limit``."""


class Upstream(Protocol):
    """The broker that hosts a topic which is not hosted here (see ``Topic.upstream``)."""

    def publish(self, topic: Topic, batch: Batch) -> None:
        """Send what was published here there; raises TopicUnreachable."""

    def want(self, topic: Topic) -> None:
        """Somebody here reads ``topic``; called for each reader."""

    def unwant(self, topic: Topic) -> None:
        """The last reader of ``topic`` here has gone."""


class Consumer(Protocol):
    """What an outbox writes to: a transport, or what stands for one."""

    def write(self, data: bytes) -> None:
        """Send ``data`` or buffer it; may call the outbox's ``pause`` before it returns."""


class Publishing(Protocol):
    """What backpressure acts on: a connection whose reading can stop for a reason and go on."""

    def hold(self, reason: object) -> None: ...

    def release(self, reason: object) -> None: ...


class Holder(Protocol):
    """Something that holds much memory and can be told to let go of it."""

    @property
    def held(self) -> int: ...

    def evict(self, reason: str) -> None: ...
