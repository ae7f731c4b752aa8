"""A subscriber's outbox: the encoded messages that wait for it, and the limits of its policy.

While the transport is ready, deliveries are collected until the end of the reactor tick and sent in
one write. While it is not, they are queued, and the listener's ``SlowPolicy`` sets the limit.

A subscriber is live, or it is behind: then it has a ``Cursor`` that puts pages of the history into
this outbox, and no other bytes are queued.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pubsub.broker.delivery.backlog import Backlog, PendingMessages, first_offsets, message_counts
from pubsub.broker.delivery.cursor import Cursor
from pubsub.broker.delivery.outbox_queue import BEHIND, CLOSED, HELD, PAUSED, STOPPED, OutboxQueue
from pubsub.broker.delivery.slow_policy import Decision
from pubsub.broker.delivery.start_positions import Resumption, at_offset, offset_of
from pubsub.kernel import add_to_each

if TYPE_CHECKING:
    from pubsub.broker.delivery.start_positions import Position
    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.topic_space.topics import DeliverySource, KeyChange, Topic
    from pubsub.interfaces import Encoding


class Outbox(OutboxQueue):
    """The deliveries of one subscriber.

    ``Subscriber.evict`` is called when the policy's limits are exceeded; it must close the
    connection.
    """

    __slots__ = ()
    chooses_start = False
    """See ``BehindOutbox``."""

    @property
    def label(self) -> str:
        """The client's name for counters and logs."""
        return self._subscriber.label

    @property
    def connection(self) -> object:
        """The client's connection, for log lines (see ``log_fields``)."""
        return self._subscriber

    def recheck(self, topic: Topic, change: KeyChange | None) -> bool:
        """See ``Subscriber``."""
        return self._subscriber.recheck(topic, change)

    def receives(self, topic: Topic, batch: Batch) -> bool:
        """See ``Subscriber``."""
        return self._subscriber.receives(topic, batch)

    def make_changes(self) -> None:
        """See ``BehindOutbox``; a change is a new key, for example."""
        if self._router.gathered is not None:
            self._router.gathered()
        if self._router.waiting:
            self._router.complete(self)

    # Deliveries

    def deliver(self, data: bytes, count: int, source: DeliverySource, offset: int) -> None:
        """Queue ``count`` encoded messages of ``source`` within the policy's limits.

        ``offset`` is that of the first message.
        """
        if self._state:
            if not self._has_room(len(data), count, source, offset):
                return
            self._charge(self.held + len(data))
        elif not self._queue:
            self._router.dirty.append(self)
        # Same as `enqueue`, without the call.
        self._ready = False
        if self._queue is None:
            self._queue = []
        self._queue.append((data, count, source, offset))
        self.queued += len(data)

    def deliver_now(self, data: bytes, count: int, source: DeliverySource, offset: int) -> None:
        """Do as ``deliver`` and ``flush`` together, if no other messages wait in this tick."""
        if not self._ready:
            # The router has counted it for all outboxes; here only the flush knows.
            add_to_each((self,), -count, -len(data), self.traffic.queued)
            self.deliver(data, count, source, offset)
            return
        self._consumer.write(data)
        # The write itself may have paused this outbox: then the transport holds the data.
        if self._state:
            backlog = self._get_backlog()
            backlog.inflight = len(data)
            backlog.last_writes.add(len(data), count, source)
            self._charge(len(data))

    # The history

    @property
    def cursor(self) -> Cursor | None:
        """The cursor of a subscriber that is behind."""
        return None if self._backlog is None else self._backlog.cursor

    @property
    def behind(self) -> int:
        """The offsets between the cursor's place and the end of the history; 0 while live."""
        return 0 if self.cursor is None else self.cursor.distance

    @property
    def subscription_count(self) -> int:
        """Topics that are subscribed, live or behind."""
        return len(self.subscriptions) + (0 if self.cursor is None else len(self.cursor.behind))

    def topics(self) -> tuple[Topic, ...]:
        """See ``Recipient``."""
        cursor = self.cursor
        return (*self.subscriptions, *(() if cursor is None else cursor.behind))

    def is_behind(self, topic: Topic) -> bool:
        """See ``Recipient``."""
        cursor = self.cursor
        return cursor is not None and topic in cursor.behind

    def starts_behind(self, topic: Topic, encoding: Encoding, start: Position | None) -> bool:
        """See ``Recipient``."""
        cursor = self.cursor
        if (cursor is None and start is None) or not topic.durability or self.closed:
            return False
        end = self._cursors.end
        if start is None:
            start = end
        if cursor is None:
            settled = not isinstance(start, Resumption) or start.taken.is_settled
            if offset_of(start) >= end and settled:
                return False
            cursor = self._fall_behind(end)
        cursor.resume(topic, encoding, start)
        return True

    def ended(self, topic: Topic) -> None:
        """See ``Recipient``."""
        if self.cursor is not None:
            self.cursor.discard(topic)

    def _fall_behind(self, offset: int) -> Cursor:
        """Deliver all stored topics from the history, from ``offset`` on."""
        cursor = self._get_backlog().cursor = Cursor(self._cursors, self, offset)
        cursor.wake()
        self._state |= BEHIND
        self._ready = False
        return cursor

    def begin_behind(self) -> None:
        """Deliver the stored messages that are published from now on from the history.

        It is live again when it has caught up, which it does not while it is held.
        """
        if self.cursor is None and not self.closed:
            self._fall_behind(self._cursors.end)

    def caught_up(self) -> None:
        """The cursor has reached the end of the log: the subscriber is live again."""
        self._get_backlog().cursor = None
        self._state &= ~BEHIND
        # Without this the last page would wait for the next message.
        self.flush()

    def missed(self, start: int, stop: int, reason: str) -> None:
        """The messages from offset ``start`` to before ``stop`` are skipped: they cannot be read.

        ``reason`` is ``expired`` or ``damaged``. Called before later messages are queued. Most
        protocols have no message for it.
        """

    def let_go(self, offset: int) -> None:
        """Free the queue of a subscriber that is too slow.

        Stored messages are delivered from the history instead, all topics from ``offset`` on that
        are not queued; the others are dropped.
        """
        router, queue = self._router, self._queue or []
        self._queue, self.queued = None, 0
        backlog = self._get_backlog()
        backlog.held_back = 0
        self._charge(backlog.inflight)
        cursor = self._fall_behind(offset)
        first = first_offsets(queue)
        for topic, count in message_counts(queue).items():
            router.counters.delivered -= count
            if topic.durability and topic in self.subscriptions:
                cursor.let_go(topic, first[topic], count)
            else:
                router.counters.drop(
                    self.label, topic.name, "slow-consumer", count, self.connection, self.traffic
                )
        # Last, as this may hand over messages that wait, of topics in the queue as well.
        for topic in first:
            encoding = self.subscriptions.get(topic)
            if topic.durability and encoding is not None:
                cursor.suspend(topic, encoding)

    # Limits

    def _begin_slow_period(self, backlog: Backlog) -> None:
        backlog.since = self._router.seconds()
        self._router.slow.add(self)

    def _has_room(self, nbytes: int, count: int, source: DeliverySource, offset: int) -> bool:
        """Apply the policy to a delivery that must be queued; return whether it fits."""
        if self._state & CLOSED:
            # Evicted between two deliveries of one tick.
            self._router.undeliverable(self, source, count)
            return False
        backlog, policy = self._get_backlog(), self.policy
        held_back = nbytes if self._state & STOPPED == HELD else 0
        decision = Decision.FALL_BEHIND
        if backlog.cursor is None:
            decision = policy.decide(
                self.queued + backlog.inflight + nbytes,
                backlog.held_back + held_back,
                self._router.memory.full,
                lambda: any(topic.durability for topic in source.topics),
            )
        if decision is Decision.FALL_BEHIND:
            if backlog.cursor is None:
                self.let_go(offset)
            assert backlog.cursor is not None
            backlog.cursor.pass_over(source, count)
            return False
        if decision in (Decision.DROP, Decision.DISCONNECT):
            self._router.dropped(self, source, "slow-consumer", count)
            if decision is Decision.DISCONNECT:
                self.evict(f"slow consumer: over {policy.nbytes} bytes behind")
            return False
        if decision is Decision.HOLD_PUBLISHERS:
            backlog.blocking.update(source.topics)
            for topic in source.topics:
                topic.block(self)
        backlog.held_back += held_back
        return True

    def overdue(self, now: float) -> bool:
        """Return whether the subscriber has been slow for longer than its policy allows."""
        since = None if self._backlog is None else self._backlog.since
        return since is not None and self.policy.is_overdue(now - since, bool(self._queue))

    def give_up_overdue(self) -> None:
        """Free the queue of a subscriber that is overdue, or evict it."""
        if self.policy.when_overdue is Decision.DISCONNECT:
            self.evict(f"slow consumer: behind for {self.policy.seconds:g} s")
        elif self.cursor is None:
            self._router.complete(self)
            if self._queue and self.cursor is None:
                self.let_go(self._cursors.end)

    # The end

    def write_published(self) -> None:
        """Write what was published before now, unless the transport is full."""
        if not self._router.waiting:
            self._router.hand_over()
        self.flush()

    def shut(self, reason: str | None) -> dict[Topic, int]:
        """End all subscriptions and release all resources.

        Messages that were not written are counted as dropped with ``reason``. With None they are
        not: the client may resume its session (see ``pending``). Returns the offset of the first
        message that was queued, for each topic that has one.
        """
        # It is not notified of changes any more.
        self._router.complete(self, with_changes=False)
        self._router.exclude(self)
        if self.cursor is not None:
            self.cursor.stop(reason)
        self._router.forget(self)
        self._state |= CLOSED | PAUSED
        self._ready = False
        queue, self._queue = self._queue or (), None
        for _data, count, source, _offset in queue:
            if reason is None:
                self._router.counters.delivered -= count
            else:
                self._router.dropped(self, source, reason, count)
        self.queued = 0
        backlog = self._backlog
        if backlog is not None:
            backlog.inflight = 0
            self._charge(0)
            self._end_slow_period(backlog)
            self._backlog = Backlog()
            self._backlog.last_writes = backlog.last_writes
            for call in backlog.drained:
                # Deferred: the call may use the connection, which is being closed.
                self._router.at_tick_end(call)
        return first_offsets(queue)

    def count_untaken(self, nbytes: int) -> None:
        """Count the messages in the last ``nbytes`` bytes as dropped: the client did not take them.

        For an outbox that is shut; called once (see ``LastWrites``).
        """
        backlog, self._backlog = self._backlog, None
        if backlog is not None:
            for topic, count in backlog.last_writes.messages_in(nbytes).items():
                self._router.dropped(self, topic, "disconnected", count)

    def pending(self) -> PendingMessages | None:
        """Return the messages that the client has not received, if they are known; None without."""
        self._router.complete(self, with_changes=False)
        counts = message_counts(self._queue or ())
        if self.cursor is not None:
            for topic, count in self.cursor.pending():
                counts[topic] = counts.get(topic, 0) + count
        return PendingMessages(self.label, counts, self.traffic) if counts else None

    def shut_and_get_offsets(self) -> dict[Topic, Position]:
        """Shut the outbox of a client that may resume; return where each topic continues.

        Written messages are not sent again.
        """
        self._router.complete(self, with_changes=False)
        cursor = self.cursor
        offsets: dict[Topic, Position] = dict.fromkeys(self.subscriptions, self._cursors.end)
        if cursor is not None:
            offsets = {topic: cursor.continuation(topic) for topic in (*offsets, *cursor.behind)}
        for topic, offset in self.shut(None).items():
            if topic in offsets:
                offsets[topic] = _earlier(offsets[topic], offset)
        return offsets

    def unsent(self) -> dict[Topic, Position]:
        """Return where each topic continues that has messages which are not written."""
        self._router.complete(self, with_changes=False)
        cursor = self.cursor
        offsets: dict[Topic, Position] = {}
        if cursor is not None:
            offsets = {topic: cursor.continuation(topic) for topic in cursor.behind}
        for topic, offset in first_offsets(self._queue or ()).items():
            offsets[topic] = _earlier(offsets.get(topic, offset), offset)
        return offsets


def _earlier(position: Position, offset: int) -> Position:
    return at_offset(position, min(offset_of(position), offset))
