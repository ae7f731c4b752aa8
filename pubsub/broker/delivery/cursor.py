"""Cursors: a subscriber that is behind reads the history until it has caught up and is live again.

This is the only way to catch up, after a session is resumed as well as after a subscriber was too
slow for live delivery. Nothing waits for a cursor, and it holds one page at most. The cursors of a
broker take turns in reading (see ``cursors.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from pubsub.broker.clients.connection_marks import log_fields
from pubsub.broker.delivery.behind_outbox import receives_all
from pubsub.broker.delivery.history_reads import PAGE_BYTES, read_history
from pubsub.broker.delivery.start_positions import offset_of
from pubsub.broker.delivery.subscriber_positions import SubscriberPositions
from pubsub.broker.routing.audience import Share
from pubsub.broker.routing.encoders import BatchEncoder, encode_joined, make_encoder, too_large

if TYPE_CHECKING:
    from pubsub.broker.delivery.behind_outbox import BehindOutbox
    from pubsub.broker.delivery.cursors import Cursors
    from pubsub.broker.delivery.start_positions import Position
    from pubsub.broker.routing.batch import Batch, Page
    from pubsub.broker.topic_space.topics import DeliverySource, Topic
    from pubsub.interfaces import Encoding

log = Logger()
# Seconds after which a page is read again that had nothing, before the end of the log: the next
# messages are neither in memory nor committed yet.
_UNCOMMITTED_SECONDS = 0.05
# With more subscriptions than this a page is read of all topics.
_NAMED = 1000


class Cursor:
    """Delivers the stored topics of ``outbox`` from the history, then makes it live again.

    A topic starts at the offset with which it was added, the others at ``offset``. A page is read
    when the outbox has sent the one before. The page that reaches the end of the log and the change
    to live delivery are one step, so that no message is delivered twice or lost in between.
    """

    __slots__ = (
        "_cursors", "_encoders", "_exact", "_gone", "_later", "_limit", "_outbox", "_overtaken",
        "_page", "_place", "_positions", "_stopped", "_waiting", "behind",
    )  # fmt: skip

    def __init__(self, cursors: Cursors, outbox: BehindOutbox, offset: int) -> None:
        self._cursors = cursors
        self._outbox = outbox
        self._positions = SubscriberPositions(offset)
        self._place = offset
        cursors.outboxes.add(outbox)
        cursors.places += offset
        self.behind: dict[Topic, Encoding] = {}
        """The topics that are delivered from here alone. The others are not published to, and are
        added with the next message."""
        self._encoders: dict[tuple[Topic, ...], BatchEncoder] = {}
        # True if the pending messages are known, which those of a resumed session are not.
        self._exact = True
        self._gone = 0  # the offset before which all had expired when the client chose its start
        self._overtaken = False
        self._waiting = True
        self._stopped = False
        self._page: Deferred[Page] | None = None
        self._later: IDelayedCall | None = None
        self._limit: IDelayedCall | None = None
        seconds = outbox.policy.catch_up_seconds
        if seconds:
            reason = f"slow consumer: has not caught up within {seconds:g} s"
            self._limit = cursors.clock.callLater(seconds, outbox.evict, reason)

    # Topics

    @property
    def distance(self) -> int:
        """The offsets between the next page and the end of the history."""
        return max(self._cursors.end - self._place, 0)

    def position(self, topic: Topic) -> int:
        """Return the offset of the first message of ``topic`` that the outbox was not given."""
        return self._positions.offset_of(topic)

    def continuation(self, topic: Topic) -> Position:
        """Return where ``topic`` continues if the outbox is given nothing more."""
        return self._positions.position_of(topic)

    def let_go(self, topic: Topic, offset: int, count: int) -> None:
        """Deliver ``topic`` from ``offset`` on; ``count`` messages of it were in the queue."""
        self._positions.add(topic, offset, self._page is not None).pending = count
        self._note_place(min(offset, self._place))

    def resume(self, topic: Topic, encoding: Encoding, start: Position) -> None:
        """Deliver ``topic`` from ``start`` on: it is newly subscribed, or again."""
        offset = offset_of(start)
        self._exact = self._exact and offset >= self._cursors.end
        if self._outbox.chooses_start:
            self._gone = self._cursors.store.first_offset
        self._positions.add(topic, start, self._page is not None)
        self._note_place(min(offset, self._place))
        self.suspend(topic, encoding)

    def discard(self, topic: Topic) -> None:
        """Deliver nothing more of ``topic``, which is no longer subscribed."""
        self._positions.discard(topic)
        self._encoders.clear()
        self.behind.pop(topic, None)

    def pass_over(self, source: DeliverySource, count: int) -> None:
        """Messages were to be delivered live: read them from the history if they are stored."""
        counters, outbox = self._cursors.router.counters, self._outbox
        for topic, number in source.counts(count):
            counters.delivered -= number
            encoding = outbox.subscriptions.get(topic) or self.behind.get(topic)
            if encoding is None or not topic.durability:
                self._drop(topic.name, "slow-consumer", number)
                continue
            self._positions.of(topic).pending += number
            if topic not in self.behind:
                # From now on only counted, however many messages are published.
                self.suspend(topic, encoding)

    def suspend(self, topic: Topic, encoding: Encoding) -> None:
        """Deliver ``topic`` from here alone."""
        self.behind[topic] = encoding
        self._cursors.router.fall_behind(self._outbox, topic)
        self._positions.of(topic).passed = topic.passed

    # Pages

    def wake(self) -> None:
        """The outbox has sent everything: read on, if the cursor has waited for this."""
        if self._waiting and not self._stopped:
            self._waiting = False
            self._cursors.schedule(self)

    def read(self) -> None:
        """Read a page, unless the outbox is not ready for it."""
        if self._stopped:
            return
        if not self._outbox.drained:
            self._waiting = True
            return
        if self._positions.needs_rewind:
            self._positions.rewind()
        self._note_expired()
        self._note_place(self._positions.offset)
        store, start, names = self._cursors.store, self._positions.offset, self._names()
        # Uncommitted messages are read too: a subscriber sees no offsets and does not outlive the
        # process, and could not reach the end of a busy log without them.
        reading = read_history(
            self._cursors.clock,
            self._outbox,
            lambda: store.read(start, names, PAGE_BYTES, fresh=True, joined=True),
        )
        page = self._page = ensureDeferred(reading)
        if not page.called:
            self._cursors.page_begun()
            page.addBoth(self._cursors.page_ended)
        page.addCallback(self._deliver).addErrback(self._failed)

    def _note_place(self, offset: int) -> None:
        self._cursors.places += offset - self._place
        self._place = offset

    def _names(self) -> frozenset[str] | None:
        """Return the topics to read; None if they are too many to be looked for."""
        live, behind = self._outbox.subscriptions, self.behind
        if len(live) + len(behind) > _NAMED:
            return None
        return frozenset(topic.name for topic in chain(live, behind) if topic.durability)

    def _deliver(self, page: Page) -> None:
        self._page = None
        if not self._stopped:
            self._outbox.make_changes()
        if self._stopped:
            return
        for start, stop in page.damaged:
            self._drop("*", "damaged", stop - start)
            self._exact = False
            self._outbox.missed(start, stop, "damaged")
        for batch in page.batches:
            if not self._stopped:
                self._deliver_batch(batch)
        self._encoders.clear()
        if self._stopped:
            return
        positions, start = self._positions, self._positions.offset
        positions.offset = max(start, page.next_offset)
        if self._is_at_end():
            # The page has the messages of this tick; they are passed over here. A client that
            # cannot take them may end, and so release publishers: no page has their messages.
            self._cursors.router.complete(self._outbox)
            if self._is_at_end():
                self._finish()
                return
        self._outbox.flush()
        if self._stopped:
            return
        self._waiting = True
        if positions.offset == start and not positions.needs_rewind:
            self._later = self._cursors.clock.callLater(_UNCOMMITTED_SECONDS, self.wake)
        elif self._outbox.drained:
            self.wake()

    def _is_at_end(self) -> bool:
        """Return whether all that was published is queued, and what follows can be delivered."""
        positions = self._positions
        if self._stopped or positions.offset < self._cursors.end or positions.needs_rewind:
            return False
        return positions.is_settled

    def _deliver_batch(self, batch: Batch) -> None:
        """Queue a batch of the page, in one piece if all of it is to be delivered."""
        due = [self._due(name, batch) for name in batch.topics]
        if len(due) == 1 and batch.rows is None:
            if due[0] is not None:
                self._enqueue_run(batch, due[0])
            return
        whole = [one for one in due if one and self._positions.is_whole(one, batch)]
        if len(whole) == len(due) and receives_all(self._outbox, whole, batch):
            self._enqueue_mixed(batch, tuple(whole))
            return
        for index, run in batch.runs():
            topic = due[index]
            if topic is not None and self.position(topic) < run.offset + run.count:
                self._enqueue_run(run, topic)

    def _due(self, name: str, batch: Batch) -> Topic | None:
        """Return the topic of this name if some of its messages in ``batch`` may be delivered."""
        topic = self._cursors.topics.get(name)
        if topic is None or self._positions.is_rewound(topic) or self._encoding(topic) is None:
            return None
        return topic if self.position(topic) < batch.stop else None

    def _enqueue_run(self, batch: Batch, topic: Topic) -> None:
        """Queue the messages of a batch of one topic."""
        left = self._positions.left(topic, batch)
        if left is not None and self._outbox.receives(topic, left):
            self._enqueue(left, self._encoder((topic,)), topic)

    def _enqueue_mixed(self, batch: Batch, topics: tuple[Topic, ...]) -> None:
        for index, number, _ in batch.columns.totals():
            self._positions.of(topics[index]).pending -= number
        indexes = batch.columns.words(of_indexes=True)
        share = Share(topics, indexes, frozenset(range(len(topics))))
        self._enqueue(batch, self._encoder(topics), share)

    def _encoding(self, topic: Topic) -> Encoding | None:
        return self.behind.get(topic) or self._outbox.subscriptions.get(topic)

    def _encoder(self, topics: tuple[Topic, ...]) -> BatchEncoder:
        encoder = self._encoders.get(topics)
        if encoder is None:
            encoder = self._encoders[topics] = make_encoder(list(map(self._encoding, topics)))
        return encoder

    def _enqueue(self, batch: Batch, encoder: BatchEncoder, source: DeliverySource) -> None:
        counters, outbox = self._cursors.router.counters, self._outbox
        data, count = encode_joined(encoder, batch)
        if count < batch.count:
            lost = too_large(encoder, batch)
            for index, number in lost.items():
                self._drop(batch.topics[index], "too-large", number)
            source = source.without(lost) if isinstance(source, Share) else source
        if count:
            outbox.enqueue(data, count, source, batch.offset)
            counters.delivered += count

    def _failed(self, failure: Failure) -> None:
        if self._stopped:
            return
        log.failure(
            "{client!r} cannot catch up and is disconnected",
            failure,
            client=self._outbox.label,
            connection=log_fields(self._outbox.connection),
        )
        self._outbox.evict("the history cannot be read")

    # Losses

    def _note_expired(self) -> None:
        """Skip messages that have expired before they could be delivered."""
        positions, first = self._positions, self._cursors.store.first_offset
        start = positions.offset
        if start >= first:
            return
        positions.offset = first
        self._outbox.missed(start, first, "expired")
        lost = first - max(start, self._gone)
        if not self._exact and lost:
            self._drop("*", "expired", lost)
        elif self._exact and not self._overtaken:
            self._overtaken = True
            log.warn(
                "retention has overtaken {client!r}, which is behind: it continues at offset {at}",
                client=self._outbox.label,
                at=positions.offset,
                connection=log_fields(self._outbox.connection),
            )

    def _drop(self, topic: str, reason: str, count: int) -> None:
        counters, outbox = self._cursors.router.counters, self._outbox
        counters.drop(outbox.label, topic, reason, count, outbox.connection, outbox.traffic)

    def pending(self) -> Iterable[tuple[Topic, int]]:
        """Return how many messages of each topic were not delivered; nothing if unknown."""
        return self._positions.untaken() if self._exact else ()

    # The end

    def _finish(self) -> None:
        """The end of the log is reached: deliver live."""
        self._end("expired")
        self._cursors.router.go_live(self._outbox, self.behind)
        self._outbox.caught_up()

    def stop(self, reason: str | None) -> None:
        """The outbox is shut: read no more.

        Messages that were not delivered are counted with ``reason``, if there is one.
        """
        self._end(reason)
        for topic in self.behind:
            self._cursors.router.leave_behind(self._outbox, topic)

    def _end(self, reason: str | None) -> None:
        if reason is not None:
            for topic, count in self.pending():
                self._drop(topic.name, reason, count)
        if not self._stopped:
            self._cursors.outboxes.discard(self._outbox)
            self._cursors.places -= self._place
        self._stopped = True
        for timer in (self._limit, self._later):
            if timer is not None and timer.active():
                timer.cancel()
        page, self._page = self._page, None
        if page is not None:
            page.cancel()
