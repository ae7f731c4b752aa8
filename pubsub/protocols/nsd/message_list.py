"""nsd: the response to Get, a list of the history's messages of any length (nsd §3.5)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from twisted.internet.defer import Deferred

from pubsub.broker.delivery.history_reads import PAGE_BYTES, read_history, written
from pubsub.broker.delivery.start_positions import Position, Resumption, offset_of
from pubsub.broker.routing.batch import Batch
from pubsub.protocols.nsd.codec import LIST_END, LIST_START, LineStream
from pubsub.protocols.nsd.figures import CHANNEL as FIGURES

if TYPE_CHECKING:
    from pubsub.broker.slices import Work
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.protocols.nsd.encoded_batches import EncodedBatches
    from pubsub.protocols.nsd.figures import UnseenFigures
    from pubsub.wire.connection import Connection

# Channels whose permission is checked in one step.
_FEW = 16
# Offsets of which a list reads the first page without waiting for its turn, as most lists do.
_AT_ONCE = 1000


class ListStart(NamedTuple):
    """The beginning of a list of messages, and how they are numbered.

    Their numbers are offsets plus 1 plus ``shift``. If brokers share the identity, the list ends
    before the offset that ``end`` returns, and ``gave`` is told the one behind its last message.
    """

    position: Position
    shift: int = 0
    end: Callable[[], int] | None = None
    gave: Callable[[int], None] = lambda offset: None


class _ListTurn:
    """The wait of a list for its next page, among the subscribers that read the history."""

    def __init__(self) -> None:
        self.has_come: Deferred[None] = Deferred()

    def read(self) -> None:
        """See ``Turn``."""
        self.has_come.callback(None)


class MessageList:
    """Sends the messages of ``channels`` from ``start`` on to ``connection``.

    Channels that the client may not read are left out. ``line`` is the response line in the dialect
    of the request; ``encoded`` the encoded batches; ``figures`` those of the broker, if they were
    subscribed. The connection is held while the list waits, with the list as the reason.
    """

    __slots__ = (
        "_channels",
        "_connection",
        "_encoded",
        "_figures",
        "_last",
        "_line",
        "_start",
        "_taken",
        "_writable",
    )

    def __init__(
        self,
        connection: Connection,
        channels: Collection[str],
        start: ListStart,
        line: LineStream,
        encoded: EncodedBatches,
        figures: UnseenFigures | None,
    ) -> None:
        self._connection = connection
        self._channels = channels
        self._start = start
        # The offset behind the last message, if brokers share the identity.
        self._last = -1
        position = start.position
        self._taken = position.taken if isinstance(position, Resumption) else None
        self._line = line
        self._encoded = encoded
        self._figures = figures
        self._writable: Deferred[None] | None = None

    async def send(self) -> None:
        """Send the list a page of the history at a time, as fast as the client reads it."""
        connection, line = self._connection, self._line
        listener = connection.listener
        await self._replies_sent()
        rights = self._rights
        channels, remote = await self._readable()
        # Messages published while the list is sent are left to the next Get.
        offset = max(offset_of(self._start.position), 0)
        channels -= await self._ask_hosts(remote)
        end = await self._stored_end() if channels else offset
        pieces, comma = [LIST_START], b""
        if channels and end - offset > _AT_ONCE:
            await self._next_turn()
        while channels and offset < end and not connection.closing:
            if rights != self._rights:
                # The client may have lost a channel meanwhile; it does not get others.
                rights = self._rights
                channels &= (await self._readable())[0]
                continue
            page = await read_history(
                listener.clock,
                connection,
                partial(listener.store.read, offset, channels, PAGE_BYTES, joined=True),
            )
            if rights != self._rights:
                continue
            for start, stop in page.damaged:
                listener.drop(connection.label, "*", "damaged", stop - start, connection)
            for batch in self._given(page.batches, end):
                encoded = self._encoded.encode(batch, self._start.shift)
                connection.count_sent(batch.count, len(encoded))
                pieces += (comma, encoded)
                comma = b","
            offset = page.next_offset if self._start.end is None else min(page.next_offset, end)
            if offset < end:
                connection.reply(line.feed(*pieces))
                pieces.clear()
                await self._next_turn()
        # A list of one page, the usual result of polling clients, is sent with its end in one
        # write.
        if not connection.closing:
            figures = self._take_figures(offset) if FIGURES in channels else b""
            if figures:
                pieces += (comma, figures)
            connection.reply(line.finish(*pieces, LIST_END))
        if self._last >= 0:
            self._start.gave(self._last)

    def _given(self, batches: Iterable[Batch], end: int) -> Iterable[Batch]:
        """Return the messages that the list is to have."""
        return batches if self._start.end is None else self._cut(batches, end)

    def _cut(self, batches: Iterable[Batch], end: int) -> Iterator[Batch]:
        """Yield the messages before ``end`` that the client was not given at another broker."""
        for batch in chain.from_iterable(map(Batch.parts, batches)):
            taken = self._taken
            start = 0 if taken is None else taken.prefix(batch.run, batch.sequence, batch.count)
            stop = min(batch.count, end - batch.offset)
            if start < stop:
                self._last = batch.offset + stop
                yield batch if stop - start == batch.count else batch.slice(start, stop)

    def _take_figures(self, offset: int) -> bytes:
        """Return the broker's figures as the last message: the client continues at ``offset``."""
        figures = self._figures
        if figures is None or not self._connection.access.may_read(FIGURES):
            return b""
        message = figures.take(offset + self._start.shift)
        self._connection.count_sent(bool(message), len(message))
        return message

    @property
    def _rights(self) -> object:
        """Equal to its earlier value unless the client may have lost a right since."""
        connection = self._connection
        return connection.listener.access_version, connection.access

    async def _readable(self) -> tuple[frozenset[str], list[Topic]]:
        """Return the channels that may be read, and those of them that other brokers host."""
        listener, access = self._connection.listener, self._connection.access
        readable: set[str] = set()
        remote: list[Topic] = []

        def check(channels: Iterator[str]) -> Work:
            while some := tuple(islice(channels, _FEW)):
                permitted = list(filter(access.may_read, some))
                readable.update(permitted)
                topics = map(listener.topics.get, permitted)
                remote.extend(t for t in topics if t is not None and t.upstream is not None)
                yield

        if len(self._channels) <= _FEW:
            for _ in check(iter(self._channels)):
                pass
        else:
            self._connection.hold(self)
            # Subscriptions may change meanwhile.
            await listener.slices.finish(check(iter(tuple(self._channels))))
        return frozenset(readable), remote

    async def _ask_hosts(self, topics: list[Topic]) -> frozenset[str]:
        """Wait until the history has the messages of topics that other brokers host.

        Returns the channels of which it has only messages that will be copied again later. All
        hosts are asked before the first has replied: those that are silent delay the list once.
        """
        asked: list[tuple[str, Deferred[bool]]] = []

        def ask() -> Work:
            for topic in topics:
                if topic.upstream is not None:
                    asked.append((topic.name, topic.upstream.update(topic)))
                yield

        if topics:
            self._connection.hold(self)
            await self._connection.listener.slices.finish(ask())
        return frozenset([name for name, settled in asked if not await settled])

    async def _stored_end(self) -> int:
        """The offset where the history ends now, once it is committed up to there.

        So a client finds the messages that it has published before.
        """
        store = self._connection.listener.store
        end: int = store.next_offset
        if self._start.end is not None:
            end = min(end, self._start.end())
        if end > store.committed:
            stored = written(store)
            self._connection.hold(self)
            await stored
        return min(end, store.committed)

    async def _replies_sent(self) -> None:
        """Wait for the responses to earlier requests: behind these the list would be in memory."""
        connection = self._connection
        while connection.replies is not None and not connection.closing:
            self._writable = Deferred()
            connection.hold(self)
            await self._writable

    async def _next_turn(self) -> None:
        """Wait until the transport has room again, and it is the turn of this list."""
        connection, turn = self._connection, _ListTurn()
        connection.hold(self)
        if connection.output_full:
            self._writable = Deferred()
            await self._writable
        # Many lists would otherwise take a page each in one tick.
        connection.listener.cursors.schedule(turn)
        await turn.has_come

    def resume(self) -> None:
        """Continue: the transport has room, earlier responses are sent, or the connection ends."""
        if self._writable is not None:
            writable, self._writable = self._writable, None
            writable.callback(None)
