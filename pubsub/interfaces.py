"""The seams of the broker: what a protocol plugin, a store, a subscriber's encoding provide.

zope interfaces where Twisted's plugin system or an adapter looks them up, typing protocols
where only the type checker does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TypeAlias

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IProtocolFactory
from zope.interface import Attribute, Interface

if TYPE_CHECKING:
    from pubsub.broker.batch import Batch, Page
    from pubsub.broker.limits import Gate
    from pubsub.broker.listener import Listener
    from pubsub.broker.publisher import Publisher
    from pubsub.broker.queue_keys import KeyChange
    from pubsub.broker.topics import Topic
    from pubsub.settings import Setting
    from pubsub.store.block_ranges import Parcel, Topics
    from pubsub.wire.client_side import ClientSide
    from pubsub.wire.dissection import Dissector


class IWireProtocol(Interface):
    """One wire protocol, found by ``twisted.plugin.getPlugins(IWireProtocol)``."""

    name: str = Attribute("Short lower-case name: the word after ``--proto=``.")
    summary: str = Attribute("One line for ``--help``.")
    port: int = Attribute("Default TCP port.")
    settings: Sequence[Setting] = Attribute("This protocol's own settings of a listener.")
    client: ClientSide | None = Attribute(
        "How programs without an event loop publish; None if a URL cannot name this protocol."
    )
    dissect: Dissector | None = Attribute(
        "Decodes the beginning of a malformed frame as far as possible; None if nothing can."
    )
    redacted: Sequence[bytes] = Attribute(
        "Regular expressions for where a secret begins in this protocol's frames. Events show "
        "malformed frames only up to there, whatever protocol they arrived by, as a client may "
        "use the wrong port. The broker's tokens need no pattern."
    )
    contract_driver: str | None = Attribute(
        "Dotted name of the class with which tests/contract tries this protocol, or None."
    )

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


Value: TypeAlias = "bytes | Callable[[], bytes]"
"""What metadata holds: bytes, or what makes them and takes long (it may run in a thread)."""


class IStore(Interface):
    """The history: one log of messages, addressed by offset, and small metadata beside it.

    All methods are the reactor thread's. Offsets are given out at once, in order and without
    gaps; on a durable store a message is committed some milliseconds later.
    """

    durable: bool = Attribute("Does it outlive the process?")
    epoch: str = Attribute(
        "Changes whenever offsets that somebody may have seen could mean other messages now."
    )
    next_offset: int = Attribute("Offset that the next message appended gets.")
    committed: int = Attribute("Every message before this offset is on disk.")
    first_offset: int = Attribute("Smallest offset that can still be read.")
    summary: str = Attribute("One line for the log at start: what is kept, and where.")
    gate: Gate = Attribute("Shut while more waits to be stored than should: publishers wait.")

    def open(run: int) -> None:
        """Make it ready, once the process is what it will be; before that nothing is read.

        ``run`` is the number that the ids of the messages to come are made with. Raises
        StartError.
        """

    def close() -> Deferred[None]:
        """Commit what is left and let go of everything."""

    def append(batch: Batch) -> None:
        """Append the batch's messages and set ``batch.offset`` to the first one's offset.

        Raises HistoryUnavailable, and then has changed nothing.
        """

    def together() -> AbstractContextManager[None]:
        """What is appended and put within is stored all at once or, in a crash, not at all.

        It ends in the turn it began in. Raises HistoryUnavailable, and nothing within does then.
        """

    def when_stored(call: Callable[[bool], None]) -> None:
        """Call ``call`` once all that was appended and put before is on disk, with True.

        Or with False, if it cannot be for now: it may be there later all the same. Calls are
        made in the order they were asked for, perhaps at once; those with False may come early.
        """

    def read(
        offset: int, topics: frozenset[str] | None, max_bytes: int, fresh: bool = False
    ) -> Deferred[Page]:
        """Messages from ``offset`` on, in order, of ``topics`` (None: of all).

        A page holds about ``max_bytes`` of payload at the most, but at least one message if
        there is one; a page without batches whose ``next_offset`` is below the store's says
        only that there was nothing for these topics so far.

        Only committed messages are read, so that no offset shown to anybody can come to mean
        another message after a crash; with ``fresh`` the others too, for readers that do not
        outlive the process and are shown no offsets.
        """

    def read_parcel(
        start: int, stop: int, topics: frozenset[str] | None, max_bytes: int
    ) -> Deferred[Parcel]:
        """The beginning of a range of committed messages, in columns.

        ``topics`` and ``max_bytes`` are as in ``read``, but blocks are not cut. The range goes on
        where the parcel stops.
        """

    def offset_at(timestamp: int) -> Deferred[int]:
        """The first committed message of ``timestamp`` (µs since the Unix epoch) or later.

        ``committed`` if there is none.
        """

    def topics_in(start: int, stop: int) -> Deferred[Topics]:
        """The topics that have committed messages from ``start`` to before ``stop``."""

    def continues(epoch: str, offset: int) -> bool:
        """Can ``offset`` be where a reader of this log got to when its epoch was ``epoch``?"""

    def forget(topic: str) -> None:
        """The topic has ended: nothing that was stored of it so far is read again."""

    def put(table: str, key: str, value: Value) -> None:
        """Keep ``value`` under ``key``, replacing what was there."""

    def delete(table: str, key: str) -> None:
        """Keep nothing under ``key`` any more."""

    def items(table: str) -> Iterable[tuple[str, bytes]]:
        """Everything kept in ``table``, as it was when the store was opened or is now."""


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


class Subscriber(Protocol):
    """Who an outbox delivers to."""

    @property
    def label(self) -> str:
        """The client's name for counters and logs."""

    def evict(self, reason: str) -> None:
        """Given up for ``reason``: the connection has to end."""

    def recheck(self, topic: Topic, change: KeyChange | None) -> bool:
        """What may be read has changed, with a key if ``change`` is given: does this go on?

        It tells its client, in its protocol's terms, before it answers no.
        """


class Consumer(Protocol):
    """What an outbox writes to: a transport, or what stands for one."""

    def write(self, data: bytes) -> None:
        """Send ``data`` or buffer it; may call the outbox's ``pause`` before it returns."""


class Publishing(Protocol):
    """What backpressure acts on: a connection whose reading can stop for a reason and go on.

    ``publisher`` is what it publishes through, once it does (see ``Listener.publisher``).
    """

    publisher: Publisher | None

    def hold(self, reason: object) -> None: ...

    def release(self, reason: object) -> None: ...


class Holder(Protocol):
    """Something that holds much memory and can be told to let go of it."""

    @property
    def held(self) -> int: ...

    def evict(self, reason: str) -> None: ...


class Client(Protocol):
    """A connection, as far as stopping and housekeeping go."""

    def drain(self) -> None:
        """Read nothing more, send what is queued and a goodbye, then close."""

    def abort(self, reason: str) -> None:
        """Close at once."""

    def sweep(self, now: float) -> None:
        """A second or so has passed: see to time limits."""
