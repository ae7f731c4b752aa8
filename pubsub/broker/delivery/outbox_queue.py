"""The queue of an outbox: bytes that are written at once, bytes that wait, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pubsub.broker.compact_map import EMPTY_MAP
from pubsub.broker.delivery.backlog import Backlog, QueueEntry
from pubsub.broker.delivery.slow_policy import HOLDER_MARK
from pubsub.broker.memory_budget import SUBSCRIBERS
from pubsub.broker.routing.audience import WRITE_BYTES
from pubsub.kernel import Tally, add_to_each

if TYPE_CHECKING:
    from pubsub.broker.delivery.cursors import Cursors
    from pubsub.broker.delivery.slow_policy import SlowPolicy
    from pubsub.broker.figures.traffic import Traffic
    from pubsub.broker.topic_space.topics import DeliverySource, Subscriber, Topic
    from pubsub.interfaces import Consumer, Encoding

# Bits of the state. A closed outbox stays paused permanently.
PAUSED, HELD, CLOSED, BEHIND = 1, 2, 4, 8
STOPPED = PAUSED | HELD | CLOSED
"""The bits of the state that prevent writing."""


class OutboxQueue(Tally):
    """The base of ``Outbox``: queueing and writing.

    ``messages`` and ``nbytes`` are ``written``, without those that are not settled. The queue is a
    base class and not a part that the outbox holds, because each delivery would cost one more call,
    and each subscriber one more object.
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
        "traffic",
    )

    def __init__(
        self,
        cursors: Cursors,
        consumer: Consumer,
        policy: SlowPolicy,
        subscriber: Subscriber,
        traffic: Traffic,
    ) -> None:
        super().__init__()
        self._router = cursors.router
        self._cursors = cursors
        self._consumer = consumer
        self._subscriber = subscriber
        self.policy = policy
        self.traffic = traffic
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
    def written(self) -> tuple[int, int]:
        """Messages that were written to the transport, and their bytes as frames."""
        self.traffic.settle()
        return self.messages, self.nbytes

    def enqueue(self, data: bytes, count: int, source: DeliverySource, offset: int) -> None:
        """Queue as ``deliver`` does, but without limit, for a caller that waits for the drain."""
        self._ready = False
        if self._queue is None:
            self._queue = []
        self._queue.append((data, count, source, offset))
        self.queued += len(data)

    def flush(self) -> None:
        """Write the queued messages, until the transport is full."""
        while self._queue and not self._state & STOPPED:
            entries = self._next_write(self._queue)
            data = entries[0][0] if len(entries) == 1 else b"".join([one[0] for one in entries])
            self.queued -= len(data)
            self._consumer.write(data)
            self._count_written(entries, len(data))
            # The write itself may have paused this outbox: then the transport holds the data.
            if self._state & PAUSED:
                backlog = self._get_backlog()
                backlog.inflight = len(data)
                for piece, count, source, _offset in entries:
                    backlog.last_writes.add(len(piece), count, source)
            elif self._backlog is not None:
                self._backlog.count_taken(len(data))
        if self._backlog is not None:
            self._charge(self.queued + self._backlog.inflight if self._state else 0)
        if not self._queue and not self._state & PAUSED:
            self._queue_sent()

    def _count_written(self, entries: list[QueueEntry], nbytes: int) -> None:
        number = entries[0][1] if len(entries) == 1 else sum([one[1] for one in entries])
        # There is none in requests to the host of a topic, which are queued among the messages.
        if number:
            add_to_each((self,), number, nbytes, self.traffic.queued)

    def send(self, data: bytes) -> None:
        """Write control frames after earlier deliveries, but not behind a backlog."""
        if self._queue:
            self.flush()
        self._consumer.write(data)

    def count_unsent(self, nbytes: int) -> None:
        """The transport, which is full, holds ``nbytes`` bytes, control frames among them."""
        if self._state & PAUSED and not self.closed:
            backlog = self._get_backlog()
            backlog.inflight = max(backlog.inflight, nbytes)
            self._charge(self.queued + backlog.inflight)

    def _next_write(self, queue: list[QueueEntry]) -> list[QueueEntry]:
        """Remove and return the entries to write next."""
        last = len(queue)
        if self.queued > WRITE_BYTES:
            size = last = 0
            while size < WRITE_BYTES:
                size += len(queue[last][0])
                last += 1
        entries = queue[:last]
        del queue[:last]
        return entries

    # Readiness

    def hold(self) -> None:
        """Queue deliveries until ``release``; used by protocols.

        The policy for slow subscribers does not apply to them, unless the memory is full.
        """
        self._state |= HELD
        self._ready = False

    def release(self) -> None:
        """End ``hold``."""
        self._state &= ~HELD
        self.flush()

    def pause(self) -> None:
        """The transport is full; may be called repeatedly."""
        if self.closed:
            return
        self._state |= PAUSED
        self._ready = False
        backlog = self._get_backlog()
        if backlog.since is None:
            self._begin_slow_period(backlog)

    def resume(self) -> None:
        """The transport has sent everything."""
        if self.closed:
            return
        self._state &= ~PAUSED
        if self._backlog is not None:
            self._backlog.count_taken(self._backlog.inflight)
            self._backlog.inflight = 0
        self.flush()
        # Full again, but with little queued: the subscriber reads and is not slow.
        if self.paused:
            backlog = self._get_backlog()
            slow = self.queued + backlog.inflight - backlog.held_back
            if slow <= self.policy.high_water_mark:
                backlog.since = self._router.seconds()

    @property
    def paused(self) -> bool:
        """True if the transport is full."""
        return bool(self._state & PAUSED)

    @property
    def closed(self) -> bool:
        """True after ``shut``."""
        return bool(self._state & CLOSED)

    def when_drained(self, call: Callable[[], None]) -> None:
        """Call ``call`` once nothing is queued and the transport is ready, perhaps at once.

        Several calls can wait; they are made in the order in which they were given.
        """
        if self._queue or self._state & STOPPED:
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
        if self._state & STOPPED:
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
        return not self._queue and not self._state & STOPPED

    def _begin_slow_period(self, backlog: Backlog) -> None:
        """Begin the time as a slow subscriber."""
        raise NotImplementedError

    def _end_slow_period(self, backlog: Backlog) -> None:
        """End the time as a slow subscriber and release the publishers that it blocked."""
        backlog.since = None
        self._router.slow.discard(self)
        topics, backlog.blocking = backlog.blocking, set()
        for topic in topics:
            topic.unblock(self)

    # Memory

    @property
    def held(self) -> int:
        """Bytes held in memory for this subscriber while it does not read."""
        return 0 if self._backlog is None else self._backlog.charged

    def _charge(self, nbytes: int) -> None:
        before = self.held
        if nbytes != before:
            self._get_backlog().charged = nbytes
            self._router.memory.charge(self, before, nbytes, HOLDER_MARK, SUBSCRIBERS)

    def evict(self, reason: str) -> None:
        """Evict the subscriber: its connection is closed with ``reason``. Happens once."""
        if not self.closed and not self._get_backlog().evicted:
            self._get_backlog().evicted = True
            self._subscriber.evict(reason)
