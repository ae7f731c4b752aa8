"""The host's side of reading between brokers: pages of a topic's history (spot §7.8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.defer import ensureDeferred
from twisted.logger import Logger

from pubsub.broker.delivery.history_reads import written
from pubsub.broker.topic_space.topic_names import topic_name
from pubsub.protocols.spot.broker_commands import HistoryPage, Read, encode_broker_command

if TYPE_CHECKING:
    from pubsub.broker.delivery.outbox import Outbox
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.protocols.spot.connection import ZmtpConnection

log = Logger()
_PAGE_BYTES = 256 * 1024


class HistoryPages:
    """Answers READ of another broker, one at a time; of those that wait only the last.

    Any client can say that it is a broker, send many, and not read.
    """

    __slots__ = ("_beginning", "_connection", "_is_reading", "_next")

    def __init__(self, connection: ZmtpConnection) -> None:
        self._connection = connection
        self._is_reading = False
        self._next: Read | None = None
        # The request to begin that waits until the peer has read everything.
        self._beginning: tuple[Read, Topic] | None = None

    def read(self, request: Read) -> None:
        """Reply with a page; raises InvalidTopicName."""
        topic = self._readable(request)
        if topic is None:
            self._reply(HistoryPage(request.topic, b"", request.offset, 0, 0))
        elif not request.epoch:
            self._begin(request, topic)
        elif self._is_reading:
            self._next = request
        else:
            self._is_reading = True
            ensureDeferred(self._answer(request)).addErrback(
                lambda failure: log.failure("spot: cannot read a page of the history", failure)
            )

    def _readable(self, request: Read) -> Topic | None:
        """Return the topic if it is hosted and stored here, and the peer may read it."""
        listener = self._connection.listener
        name = topic_name(request.topic)
        if name not in listener.topics or not self._connection.access.may_read(name):
            return None
        topic = listener.topics.named(name)
        return topic if topic.hosted and topic.durability else None

    def _begin(self, request: Read, topic: Topic) -> None:
        """Report where the history begins and ends, after all messages delivered before."""
        waits, self._beginning = self._beginning is not None, (request, topic)
        if not waits:
            self._begin_when_drained()

    def _deliver_all(self) -> Outbox:
        """Return the peer's outbox, with all messages that were published so far."""
        connection = self._connection
        outbox = connection.open_outbox()
        connection.listener.router.complete(outbox)
        connection.listener.router.flush()
        return outbox

    def _begin_when_drained(self) -> None:
        if self._beginning is None or self._connection.closing:
            self._beginning = None
            return
        outbox = self._deliver_all()
        if outbox.drained:
            self._begun(outbox)
        else:
            # The reply would wait, too, and later messages would overtake it.
            outbox.when_drained(self._begin_when_drained)

    def _begun(self, outbox: Outbox) -> None:
        assert self._beginning is not None
        (request, topic), self._beginning = self._beginning, None
        store = self._connection.listener.store
        end = store.next_offset
        is_subscribed = topic in outbox.subscriptions or outbox.is_behind(topic)
        if outbox.cursor is not None and is_subscribed:
            # The peer has fallen behind and gets the rest from the history.
            end = outbox.cursor.position(topic)
        first = store.first_offset
        self._reply(HistoryPage(request.topic, store.epoch.encode(), request.offset, first, end))

    async def _answer(self, request: Read) -> None:
        try:
            page = await self._page(request)
        finally:
            self._is_reading = False
        if self._connection.closing:
            return
        self._reply(page)
        waiting, self._next = self._next, None
        if waiting is not None:
            self.read(waiting)

    async def _page(self, request: Read) -> HistoryPage:
        listener = self._connection.listener
        store, topic = listener.store, topic_name(request.topic)
        end = store.next_offset
        if end > store.committed:
            await written(store)
            end = min(end, store.committed)
        since = store.continuation(request.epoch.decode(errors="replace"), request.offset)
        if since is None:
            since = store.first_offset
        epoch = store.epoch.encode()
        if since >= end:
            return HistoryPage(request.topic, epoch, since, since, end)
        page = await store.read(since, frozenset({topic}), _PAGE_BYTES)
        for start, stop in page.damaged:
            connection = self._connection
            listener.drop(connection.label, topic, "damaged", stop - start, connection)
        offsets = [batch.offset + at for batch in page.batches for at in range(batch.count)]
        payloads = [payload for batch in page.batches for payload in batch.payloads()]
        return HistoryPage(request.topic, epoch, since, page.next_offset, end, offsets, payloads)

    def _reply(self, page: HistoryPage) -> None:
        self._connection.reply_latest("page", encode_broker_command(page))
