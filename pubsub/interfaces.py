"""The seams of the broker: interfaces of the store, of encodings and of connections.

These are zope interfaces where Twisted adapts or looks up an object, and typing protocols where
only the type checker needs them. That of a protocol plugin is in ``plugin.py``; those that mention
a ``Topic`` are in ``broker/topic_space/topics.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from twisted.internet.defer import Deferred
from zope.interface import Attribute, Interface

if TYPE_CHECKING:
    from pubsub.broker.figures.histogram import Histogram
    from pubsub.broker.routing.batch import Batch, Page
    from pubsub.kernel import Head, Senders
    from pubsub.store.records.parcel import Parcel


class IDatagramSource(Interface):
    """A factory that can also serve UDP, on the port number of its TCP listener."""

    def datagram_protocol() -> object | None:
        """Return a DatagramProtocol to listen with, or None if UDP is not configured."""


class Holdable(Protocol):
    """A connection or request that backpressure can hold."""

    def hold(self, reason: object) -> None:
        """Stop reading until ``release`` is called with the same reason."""

    def release(self, reason: object) -> None:
        """Continue to read unless another reason still holds this."""


class PublisherGate(Protocol):
    """A condition that holds publishers (see ``Gate``)."""

    @property
    def shut(self) -> bool:
        """Whether publishers are to wait."""

    def wait(self, publisher: Holdable) -> None:
        """Hold ``publisher`` until the gate opens."""


Value: TypeAlias = "bytes | Callable[[], bytes]"
"""A value of the metadata: bytes, or a slow function that makes them and may run in a thread."""

CommitWatcher: TypeAlias = Callable[[int, int, float], None]
"""Called with the messages and bytes of a commit, and the seconds since its first message."""


class IStore(Interface):
    """The history: one log of messages, addressed by offset, and a small table of metadata.

    All methods are called in the reactor thread. Offsets are assigned at once, in order and without
    gaps. A durable store commits a message some milliseconds later.
    """

    durable: bool = Attribute("True if the history outlives the process.")
    epoch: str = Attribute("Changes when offsets that were shown to a client may be reassigned.")
    next_offset: int = Attribute("Offset of the next message appended.")
    committed: int = Attribute("Every message before this offset is on disk.")
    first_offset: int = Attribute("Smallest offset that can still be read.")
    last_timestamp: int = Attribute(
        "Timestamp (µs) of the last message stored before the store was opened; 0: none."
    )
    summary: str = Attribute("One line for the log at start: what is kept, and where.")
    trouble: str | None = Attribute("Why messages cannot be stored at present; None if they can.")
    gate: PublisherGate = Attribute("Shut while too many bytes wait to be stored.")

    commit_times: Histogram = Attribute("Times from a publish until the message is written.")
    sync_times: Histogram = Attribute("Times from a publish until the message is on disk.")

    def figures() -> Mapping[str, float]:
        """Return the figures of the store, as far as it has them.

        ``bytes`` of messages, ``segments``, ``index_bytes`` and ``metadata_bytes``, ``disk_free``,
        ``commits``, ``failures`` and ``read_errors`` since the start, ``seconds_since_commit``,
        ``stalled_seconds`` of a write or sync, ``metadata_failing`` (0 or 1), ``damaged_offsets``,
        ``unreadable_segments``, whose reads failed last.
        """

    def damaged() -> Sequence[tuple[int, int]]:
        """Return the ranges of offsets (start, stop) that were found damaged or missing, in order.

        Readers and the check after a crash find them; unread messages may be damaged too.
        """

    def watch_commits(watcher: CommitWatcher) -> None:
        """Call ``watcher`` after each commit of messages; a store in memory has none.

        Called before ``open``.
        """

    def open(run: int) -> None:
        """Open the store; called after the process has forked and given up privileges.

        ``run`` is the number from which the ids of this run's messages are made. Raises
        StartError.
        """

    def close() -> Deferred[None]:
        """Commit all that was appended and release every resource, if it was opened."""

    def reconfigure(settings: Mapping[str, Any]) -> None:
        """Apply the broker's settings ``retention``, ``compression``, ``commit-interval`` and
        ``commit-bytes``, as far as the store has them; may be called before ``open``."""

    def append(batch: Batch, senders: Senders | None = None) -> None:
        """Append the batch's messages and set ``batch.offset`` to the offset of the first.

        A batch without headers may have several ``senders``. The messages keep the
        ``run`` and the ``sequence`` that they have, and so their ids. Raises HistoryUnavailable;
        nothing has changed in that case.
        """

    def together() -> AbstractContextManager[None]:
        """Return a context in which ``append`` and ``put`` form one atomic commit.

        That holds for messages of one run.
        The context must end in the reactor tick in which it began. Entering it raises
        HistoryUnavailable; calls within it do not.
        """

    def begin_commit(finish: Callable[[], None]) -> None:
        """Begin one atomic commit that may take several reactor ticks, until ``end_commit``.

        Raises HistoryUnavailable. One such commit at a time is under way. It also has the messages
        and metadata of others that are added meanwhile. ``finish`` is called if it has to end at
        once.
        """

    def continuing() -> AbstractContextManager[None]:
        """Return a context, within a tick, in which ``append`` for that commit does not raise."""

    def end_commit() -> None:
        """End the commit."""

    def when_written(call: Callable[[bool], None]) -> None:
        """As ``when_stored``, when everything so far survives the end of the process."""

    def when_stored(call: Callable[[bool], None]) -> None:
        """Call ``call(True)`` when everything appended and put so far is on disk.

        ``call(False)`` reports that it cannot be written at present; it may still be written
        later. Calls are made in the order of the requests, perhaps before this method returns;
        those with False may come early. If the history is shared, the other brokers can have it.
        """

    def when_synced(call: Callable[[bool], None]) -> None:
        """As ``when_stored``, of the disk of this broker alone."""

    def read(
        offset: int,
        topics: frozenset[str] | None,
        max_bytes: int,
        fresh: bool = False,
        joined: bool = False,
    ) -> Deferred[Page]:
        """Read messages of ``topics`` (None: of all topics) from ``offset`` on, in order.

        A page holds about ``max_bytes`` of payload, but at least one message if there is one. A
        page without batches whose ``next_offset`` is below the store's reports that the range up
        to there has no messages of these topics.

        Only committed messages are read, so that an offset that a client has seen never refers to
        another message after a crash. With ``fresh`` uncommitted messages are read too, for
        readers that do not outlive the process and see no offsets. With ``joined``, small runs
        that follow one another may be one batch with rows (see ``BatchRows``).
        """

    def read_parcel(
        start: int, stop: int, topics: frozenset[str] | None, max_bytes: int
    ) -> Deferred[Parcel]:
        """Read the beginning of a range of committed messages, in columns.

        ``topics`` and ``max_bytes`` are as in ``read``, except that blocks are not cut. The rest
        of the range begins where the parcel stops.
        """

    def offset_at(timestamp: int) -> Deferred[int]:
        """Return the offset of the first committed message at or after ``timestamp``.

        ``timestamp`` is in µs since the Unix epoch. The result is ``committed`` if there is no
        such message.
        """

    def topics_in(start: int, stop: int) -> Deferred[dict[str, tuple[int, int]]]:
        """Return the topics that have committed messages from ``start`` to before ``stop``."""

    def continues(epoch: str, offset: int) -> bool:
        """Return whether a reader at ``offset`` of ``epoch`` can continue in this log."""

    def continuation(epoch: str, offset: int) -> int | None:
        """Return where a reader at ``offset`` of ``epoch`` continues; None if it is unknown.

        It is ``offset``, or a lower one if offsets that the reader has seen were assigned again:
        those of messages that a crash lost before they were written.
        """

    def forget(topic: str) -> None:
        """End ``topic``: none of its messages stored so far is read again."""

    def put(table: str, key: str, value: Value) -> None:
        """Store ``value`` under ``key``, replacing a previous value."""

    def delete(table: str, key: str) -> None:
        """Delete ``key`` and its value."""

    def items(table: str) -> Iterable[tuple[str, bytes]]:
        """Return the keys and values of ``table``."""


Envelopes: TypeAlias = "Sequence[tuple[str, bytes]]"
"""Names of topics, and the bytes that another broker has sent for them."""


class IBackplane(Interface):
    """The way to the other brokers: an engine that passes on bytes by topic.

    All methods are called in the reactor thread. Data of one broker arrives at every other one
    that requests its topic, in the order of sending for each topic and at most once. It does not
    return to its sender. Interests may be declared before ``open``, and last while the engine is
    away.
    """

    summary: str = Attribute("One line for the log at start; without credentials.")
    trouble: str | None = Attribute("Why the engine is away; None if it is there.")
    complaint: str = Attribute("What is wrong with settings in this connection, or nothing.")
    link: int = Attribute("A random number of 64 bits, another one for each connection.")
    limit: int = Attribute("Bytes of the largest message that the engine takes.")
    gate: PublisherGate = Attribute("Shut while too many bytes wait for the engine.")

    def open(receive: Callable[[Envelopes], object]) -> None:
        """Connect; ``receive`` is called with the data of other brokers, in small pieces.

        An engine that cannot be reached is tried again and again. Raises StartError if it answers
        and cannot be used.
        """

    def close() -> Deferred[None]:
        """Send waiting data, within a short time, and disconnect."""

    def send(topic: str, data: bytes, count: int) -> str:
        """Pass ``data`` with ``count`` messages on; return why not, or nothing."""

    def want(topic: str) -> None:
        """Request the data that others send for ``topic``; calls are not counted."""

    def unwant(topic: str) -> None:
        """End ``want``."""

    def want_prefix(prefix: bytes) -> None:
        """Request the data that others send for all topics whose names begin with ``prefix``."""

    def unwant_prefix(prefix: bytes) -> None:
        """End ``want_prefix``."""

    def figures() -> Mapping[str, float]:
        """Return ``subscriptions``, ``queued_bytes``, and totals such as ``reconnects``."""


class RunEncoding(Protocol):
    """Writes batches of one topic for one wire.

    Instances are compared and hashed by value; subscribers with equal encodings share the encoded
    bytes. ``limit`` is the largest payload, in bytes, that a valid frame can carry.
    """

    @property
    def limit(self) -> int: ...

    def encode(self, batch: Batch) -> bytes:
        """Return the batch as whole frames, in order. Every payload is within ``limit``."""


class HeadEncoding(Protocol):
    """As ``RunEncoding``, for frames that are a head and a payload: the kernel writes them.

    ``heads`` are as in ``FrameEncoder``. ``variable_size`` bytes at ``variable_at`` of each head
    differ between batches: ``variable`` returns them. With ``by_timestamp`` they are the same for
    batches with the same timestamp. Encodings of one class differ in their heads only.
    """

    @property
    def limit(self) -> int: ...

    @property
    def heads(self) -> tuple[Head, ...]: ...

    @property
    def variable_at(self) -> int: ...

    @property
    def variable_size(self) -> int: ...

    @property
    def by_timestamp(self) -> bool: ...

    def variable(self, batch: Batch) -> bytes:
        """Return the variable bytes of all heads of ``batch``."""


Encoding: TypeAlias = RunEncoding | HeadEncoding


class Consumer(Protocol):
    """The target of an outbox: a transport, or an object that takes its place."""

    def write(self, data: bytes) -> None:
        """Send ``data`` or buffer it; may call the outbox's ``pause`` before it returns."""


class ConnectedClient(Protocol):
    """A connection as shutdown, housekeeping and lists use it.

    ``accepted_by`` is the listener that accepted it; None for a connection to another broker.
    """

    @property
    def accepted_by(self) -> object: ...

    mark: int
    """See ``Marked``."""
    is_listed: bool
    """True for a connection that a client has opened (see ``ListedConnection``)."""

    def dismiss(self, reason: str) -> None:
        """Close in order, as an administrator requested; at once if it is closing already."""

    def drain(self) -> None:
        """Stop reading, send the queued messages and a goodbye, then close."""

    def abort(self, reason: str) -> None:
        """Close at once."""

    def sweep(self, now: float) -> None:
        """Apply time limits; called about once a second. ``now`` is the reactor's time."""
