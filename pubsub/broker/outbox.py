"""A subscriber's outbox: the encoded messages that wait for it, and the limits of its policy.

While the transport is ready, deliveries are collected until the end of the reactor tick and sent in
one write. While it is not, they are queued, and the listener's ``SlowPolicy`` sets the limit.

A subscriber is live, or it is behind: then it has a ``Cursor`` that puts pages of the history into
this outbox, and nothing else is queued.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pubsub.broker.audience import WRITE_BYTES
from pubsub.broker.backlog import Backlog, QueueEntry, first_offsets, message_counts
from pubsub.broker.compact_map import EMPTY_MAP
from pubsub.broker.slow_policy import AUTO, DROP, PAUSE, SlowPolicy

if TYPE_CHECKING:
    from pubsub.broker.batch import Batch
    from pubsub.broker.cursor import Cursor, Cursors
    from pubsub.broker.topics import KeyChange, Source, Subscriber, Topic
    from pubsub.interfaces import Consumer, Encoding

# Bits of the state. A closed outbox stays paused permanently.
_PAUSED, _HELD, _CLOSED, _BEHIND = 1, 2, 4, 8
# The bits that prevent writing.
_STOPPED = _PAUSED | _HELD | _CLOSED
# Outboxes with more bytes than this can be evicted to free memory.
_HOLDER_MARK = 64 * 1024


class Outbox:
    """The deliveries of one subscriber.

    ``Subscriber.evict`` is called when the policy's limits are exceeded; it must close the
    connection.
    """

    __slots__ = (
        "_backlog",
        "_consumer",
        "_cursors",
        "_queue",
        "_ready",
        "_router",
        "_state",
        "_subscriber",
        "policy",
        "queued",
        "subscriptions",
    )

    def __init__(
        self, cursors: Cursors, consumer: Consumer, policy: SlowPolicy, subscriber: Subscriber
    ) -> None:
        self._router = cursors.router
        self._cursors = cursors
        self._consumer = consumer
        self._subscriber = subscriber
        self.policy = policy
        self.subscriptions: Mapping[Topic, Encoding] = EMPTY_MAP
        # Created when first needed: most are not, and an empty deque would take 700 bytes.
        self._queue: list[QueueEntry] | None = None
        self._backlog: Backlog | None = None
        self.queued = 0
        # 0 if messages can be written as they are delivered.
        self._state = 0
        # True if nothing is queued and writing is possible; tested for every message.
        self._ready = True

    @property
    def label(self) -> str:
        """The client's name for counters and logs."""
        return self._subscriber.label

    def recheck(self, topic: Topic, change: KeyChange | None) -> bool:
        """See ``Subscriber``."""
        return self._subscriber.recheck(topic, change)

    def receives(self, topic: Topic, batch: Batch) -> bool:
        """See ``Subscriber``."""
        return self._subscriber.receives(topic, batch)

    # Deliveries

    def deliver(self, data: bytes, count: int, source: Source, offset: int) -> None:
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

    def deliver_now(self, data: bytes, count: int, source: Source, offset: int) -> None:
        """Do as ``deliver`` and ``flush`` together, if no other messages wait in this tick."""
        if not self._ready:
            self.deliver(data, count, source, offset)
            return
        self._consumer.write(data)
        # The write itself may have paused this outbox: then the transport holds the data.
        if self._state:
            self._get_backlog().inflight = len(data)
            self._charge(len(data))

    def enqueue(self, data: bytes, count: int, source: Source, offset: int) -> None:
        """Queue as ``deliver`` does, but without limit, for a caller that waits for the drain."""
        self._ready = False
        if self._queue is None:
            self._queue = []
        self._queue.append((data, count, source, offset))
        self.queued += len(data)

    def flush(self) -> None:
        """Write what is queued, until the transport is full."""
        while self._queue and not self._state & _STOPPED:
            data = self._next_write(self._queue)
            self._consumer.write(data)
            # The write itself may have paused this outbox: then the transport holds the data.
            if self._state & _PAUSED:
                self._get_backlog().inflight = len(data)
        if self._backlog is not None:
            self._charge(self.queued + self._backlog.inflight if self._state else 0)
        if not self._queue and not self._state & _PAUSED:
            self._queue_sent()

    def send(self, data: bytes) -> None:
        """Write control frames after earlier deliveries, but not behind a backlog."""
        if self._queue:
            self.flush()
        self._consumer.write(data)

    def _next_write(self, queue: list[QueueEntry]) -> bytes:
        if len(queue) == 1:
            data = queue.pop()[0]
        elif self.queued <= WRITE_BYTES:
            data = b"".join([entry[0] for entry in queue])
            queue.clear()
        else:
            parts: list[bytes] = []
            size = 0
            for entry in queue:
                parts.append(entry[0])
                size += len(entry[0])
                if size >= WRITE_BYTES:
                    break
            del queue[: len(parts)]
            data = b"".join(parts)
        self.queued -= len(data)
        return data

    # Readiness

    def hold(self) -> None:
        """Queue deliveries until ``release``; used by protocols."""
        self._state |= _HELD
        self._ready = False

    def release(self) -> None:
        """End ``hold``."""
        self._state &= ~_HELD
        self.flush()

    def pause(self) -> None:
        """The transport is full; may be called repeatedly."""
        if self.closed:
            return
        self._state |= _PAUSED
        self._ready = False
        backlog = self._get_backlog()
        if backlog.since is None:
            backlog.since = self._router.seconds()
            self._router.slow.add(self)

    def resume(self) -> None:
        """The transport has sent everything."""
        if self.closed:
            return
        self._state &= ~_PAUSED
        if self._backlog is not None:
            self._backlog.inflight = 0
        self.flush()
        # Full again, but with little queued: the subscriber reads and is not slow.
        if self.paused:
            backlog = self._get_backlog()
            if self.queued + backlog.inflight <= self.policy.high_water_mark:
                backlog.since = self._router.seconds()

    @property
    def paused(self) -> bool:
        """True if the transport is full."""
        return bool(self._state & _PAUSED)

    @property
    def closed(self) -> bool:
        """True after ``shut``."""
        return bool(self._state & _CLOSED)

    def when_drained(self, call: Callable[[], None]) -> None:
        """Call ``call`` once nothing is queued and the transport is ready, perhaps at once.

        Several calls can wait; they are made in the order in which they were given.
        """
        if self._queue or self._state & _STOPPED:
            self._get_backlog().drained.append(call)
        else:
            call()

    def _get_backlog(self) -> Backlog:
        if self._backlog is None:
            self._backlog = Backlog()
        return self._backlog

    def _queue_sent(self) -> None:
        self._ready = not self._state
        backlog = self._backlog
        if backlog is None:
            return
        self._end_slow_period(backlog)
        if self._state & _STOPPED:
            return
        if backlog.cursor is None:
            self._backlog = None
        calls, backlog.drained = backlog.drained, []
        for call in calls:
            # Again: a call before this one may have filled the transport.
            self.when_drained(call)
        if backlog.cursor is not None:
            backlog.cursor.wake()

    @property
    def drained(self) -> bool:
        """True if nothing is queued and the transport is ready."""
        return not self._queue and not self._state & _STOPPED

    def _end_slow_period(self, backlog: Backlog) -> None:
        """End the time as a slow subscriber and release the publishers that it blocked."""
        backlog.since = None
        self._router.slow.discard(self)
        topics, backlog.blocking = backlog.blocking, set()
        for topic in topics:
            topic.unblock(self)

    # The history

    @property
    def cursor(self) -> Cursor | None:
        """The cursor of a subscriber that is behind."""
        return None if self._backlog is None else self._backlog.cursor

    @property
    def topics(self) -> tuple[Topic, ...]:
        """The topics of all subscriptions, live or behind."""
        cursor = self.cursor
        return (*self.subscriptions, *(() if cursor is None else cursor.behind))

    def is_behind(self, topic: Topic) -> bool:
        """See ``Recipient``."""
        cursor = self.cursor
        return cursor is not None and topic in cursor.behind

    def starts_behind(self, topic: Topic, encoding: Encoding, offset: int | None) -> bool:
        """See ``Recipient``."""
        cursor = self.cursor
        if (cursor is None and offset is None) or not topic.durability or self.closed:
            return False
        end = self._cursors.end
        if offset is None:
            offset = end
        if cursor is None:
            if offset >= end:
                return False
            cursor = self._fall_behind(end)
        cursor.resume(topic, encoding, offset)
        return True

    def ended(self, topic: Topic) -> None:
        """See ``Recipient``."""
        if self.cursor is not None:
            self.cursor.discard(topic)

    def _fall_behind(self, offset: int) -> Cursor:
        """Deliver all stored topics from the history, from ``offset`` on."""
        cursor = self._get_backlog().cursor = self._cursors.begin(self, offset)
        self._state |= _BEHIND
        self._ready = False
        return cursor

    def caught_up(self) -> None:
        """The cursor has reached the end of the log: the subscriber is live again."""
        self._get_backlog().cursor = None
        self._state &= ~_BEHIND
        # Without this the last page would wait for the next message.
        self.flush()

    def let_go(self, offset: int) -> None:
        """Free the queue of a subscriber that is too slow.

        Stored messages are delivered from the history instead, all topics from ``offset`` on that
        are not queued; the others are dropped.
        """
        router, queue = self._router, self._queue or []
        self._queue, self.queued = None, 0
        self._charge(self._get_backlog().inflight)
        cursor = self._fall_behind(offset)
        first = first_offsets(queue)
        for topic, count in message_counts(queue).items():
            router.counters.delivered -= count
            if topic.durability and topic in self.subscriptions:
                cursor.let_go(topic, first[topic], count)
            else:
                router.counters.drop(self.label, topic.name, "slow-consumer", count)

    # Limits

    def _has_room(self, nbytes: int, count: int, source: Source, offset: int) -> bool:
        """Apply the policy to a delivery that must be queued; return whether it fits."""
        if self._state & _CLOSED:
            # Evicted between two deliveries of one tick.
            self._router.undeliverable(self, source, count)
            return False
        backlog, policy = self._get_backlog(), self.policy
        waiting = self.queued + backlog.inflight + nbytes
        if policy.action == AUTO and backlog.cursor is None and self._is_too_much(waiting, source):
            self.let_go(offset)
        if backlog.cursor is not None:
            backlog.cursor.pass_over(source, count)
            return False
        if waiting > policy.nbytes:
            self._router.dropped(self.label, source, "slow-consumer", count)
            if policy.action not in (AUTO, DROP):
                self.evict(f"slow consumer: over {policy.nbytes} bytes behind")
            return False
        if waiting > policy.high_water_mark and policy.action == PAUSE:
            backlog.blocking.update(source.topics)
            for topic in source.topics:
                topic.block(self)
        return True

    def _is_too_much(self, waiting: int, source: Source) -> bool:
        """Return whether to let go of the subscriber rather than queue ``waiting`` bytes."""
        if self._router.memory.full:
            return waiting > _HOLDER_MARK
        if waiting <= self.policy.high_water_mark:
            return False
        # The history does not help with the others; they may take ``nbytes``.
        return any(topic.durability for topic in source.topics)

    def overdue(self, now: float) -> bool:
        """Return whether the subscriber has been slow for longer than its policy allows."""
        since = None if self._backlog is None else self._backlog.since
        if since is None or self.policy.action == DROP:
            return False
        if self.policy.action == AUTO and not self._queue:
            return False
        return now - since > self.policy.seconds

    def give_up_overdue(self) -> None:
        """Let go of a subscriber that is overdue, or evict it."""
        if self.policy.action != AUTO:
            self.evict(f"slow consumer: behind for {self.policy.seconds:g} s")
        elif self.cursor is None:
            self._router.hand_over()
            if self._queue and self.cursor is None:
                self.let_go(self._cursors.end)

    @property
    def held(self) -> int:
        """Bytes held in memory for this subscriber while it does not read."""
        return 0 if self._backlog is None else self._backlog.charged

    def evict(self, reason: str) -> None:
        """Evict the subscriber: its connection is closed with ``reason``. Happens once."""
        if not self.closed and not self._get_backlog().evicted:
            self._get_backlog().evicted = True
            self._subscriber.evict(reason)

    def _charge(self, nbytes: int) -> None:
        before = self.held
        if nbytes != before:
            self._get_backlog().charged = nbytes
            self._router.memory.charge(self, before, nbytes, _HOLDER_MARK)

    # The end

    def shut(self, reason: str | None) -> dict[Topic, int]:
        """End all subscriptions and release all resources.

        Messages that were not written are counted as dropped with ``reason``. With None they are
        not counted, because a session will read them again. Returns the offset of the first
        message that was queued, for each topic that has one.
        """
        self._router.hand_over()
        if self.cursor is not None:
            self.cursor.stop(reason)
        self._router.forget(self)
        self._state |= _CLOSED | _PAUSED
        self._ready = False
        queue, self._queue = self._queue or (), None
        if reason is not None:
            for _data, count, source, _offset in queue:
                self._router.dropped(self.label, source, reason, count)
        self.queued = 0
        backlog = self._backlog
        if backlog is not None:
            backlog.inflight = 0
            self._charge(0)
            self._end_slow_period(backlog)
            self._backlog = None
            for call in backlog.drained:
                # Deferred: the call may use the connection, which is being closed.
                self._router.at_tick_end(call)
        return first_offsets(queue)

    def shut_and_get_offsets(self) -> dict[Topic, int]:
        """Shut the outbox of a client that may resume; return the offset to resume at, by topic.

        What was written is not sent again.
        """
        self._router.hand_over()
        cursor, end = self.cursor, self._cursors.end
        offsets = {
            topic: end if cursor is None else cursor.position(topic) for topic in self.topics
        }
        for topic, offset in self.shut(None).items():
            if topic in offsets:
                offsets[topic] = min(offset, offsets[topic])
        return offsets
