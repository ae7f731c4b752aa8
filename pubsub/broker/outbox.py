"""A subscriber's outbox: the encoded messages that wait for it, and the slow-consumer policies.

While the transport is ready, deliveries are collected until the end of the reactor tick and sent in
one write. While it is not, they are queued, and the listener's policy sets the limit:

- ``pause``: above the high-water mark the subscriber's topics hold their publishers until the
  queue is sent. Above ``nbytes``, or after ``seconds`` as a slow subscriber, it is evicted.
- ``drop``: messages that would exceed ``nbytes`` are dropped for this subscriber, and counted.
- ``disconnect``: no publisher is held; above ``nbytes``, or after ``seconds`` as a slow
  subscriber, it is evicted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pubsub.broker.audience import WRITE_BYTES
from pubsub.broker.compact_map import EMPTY_MAP

if TYPE_CHECKING:
    from pubsub.broker.router import Router
    from pubsub.broker.topics import KeyChange, Source, Subscriber, Topic
    from pubsub.interfaces import Consumer, Encoding

PAUSE, DROP, DISCONNECT = "pause", "drop", "disconnect"
# The high-water mark of `pause`, unless a quarter of the byte limit is less.
_HIGH_WATER_MARK = 1024 * 1024
# Bits of the state. A closed outbox stays paused permanently.
_PAUSED, _HELD, _CLOSED = 1, 2, 4
# Outboxes with more bytes than this can be evicted to free memory.
_HOLDER_MARK = 64 * 1024


@dataclass(frozen=True, slots=True)
class SlowPolicy:
    """A listener's policy for slow subscribers: an action, and limits in bytes and seconds."""

    action: str = PAUSE
    nbytes: int = 64 * 1024 * 1024
    seconds: float = 30.0

    @property
    def high_water_mark(self) -> int:
        """Queued bytes above which publishers are held."""
        return min(_HIGH_WATER_MARK, self.nbytes // 4)


class _Backlog:
    """The state that an outbox needs only while its subscriber is slow or is waited for."""

    __slots__ = ("blocking", "charged", "drained", "evicted", "inflight", "since")

    def __init__(self) -> None:
        # Bytes that the transport holds, and bytes charged to the memory budget.
        self.inflight = self.charged = 0
        self.since: float | None = None
        self.blocking: set[Topic] = set()
        # Called once when everything has been sent, in this order.
        self.drained: list[Callable[[], None]] = []
        self.evicted = False


class Outbox:
    """The deliveries of one subscriber.

    ``Subscriber.evict`` is called when the policy's limits are exceeded; it must close the
    connection.
    """

    __slots__ = (
        "_backlog",
        "_consumer",
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
        self, router: Router, consumer: Consumer, policy: SlowPolicy, subscriber: Subscriber
    ) -> None:
        self._router = router
        self._consumer = consumer
        self._subscriber = subscriber
        self.policy = policy
        self.subscriptions: Mapping[Topic, Encoding] = EMPTY_MAP
        # Created when first needed: most are not, and an empty deque would take 700 bytes.
        self._queue: list[tuple[bytes, int, Source, int]] | None = None
        self._backlog: _Backlog | None = None
        self.queued = 0
        # The conditions that prevent writing; 0 if there is none.
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

    # Deliveries

    def deliver(self, data: bytes, count: int, source: Source, offset: int) -> None:
        """Queue ``count`` encoded messages of ``source`` within the policy's limits.

        ``offset`` is that of the first message.
        """
        if self._state:
            if self.closed:
                # Evicted between two deliveries of one tick.
                self._router.undeliverable(self, source, count)
                return
            if not self._has_room(len(data), count, source):
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
        while self._queue and not self._state:
            data = self._next_write(self._queue)
            self._consumer.write(data)
            # The write itself may have paused this outbox: then the transport holds the data.
            if self._state:
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

    def _next_write(self, queue: list[tuple[bytes, int, Source, int]]) -> bytes:
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
        if self._queue or self._state:
            self._get_backlog().drained.append(call)
        else:
            call()

    def _get_backlog(self) -> _Backlog:
        if self._backlog is None:
            self._backlog = _Backlog()
        return self._backlog

    def _queue_sent(self) -> None:
        self._ready = not self._state
        backlog = self._backlog
        if backlog is None:
            return
        self._end_slow_period(backlog)
        if not self._state:
            self._backlog = None
            for call in backlog.drained:
                # Again: a call before this one may have filled the transport.
                self.when_drained(call)

    def _end_slow_period(self, backlog: _Backlog) -> None:
        """End the time as a slow subscriber and release the publishers that it blocked."""
        backlog.since = None
        self._router.slow.discard(self)
        topics, backlog.blocking = backlog.blocking, set()
        for topic in topics:
            topic.unblock(self)

    # Limits

    def _has_room(self, nbytes: int, count: int, source: Source) -> bool:
        """Apply the policy to a delivery that must be queued; return whether it fits."""
        backlog = self._get_backlog()
        waiting = self.queued + backlog.inflight + nbytes
        if waiting > self.policy.nbytes:
            self._router.dropped(self.label, source, "slow-consumer", count)
            if self.policy.action != DROP:
                self.evict(f"slow consumer: over {self.policy.nbytes} bytes behind")
            return False
        if waiting > self.policy.high_water_mark and self.policy.action == PAUSE:
            backlog.blocking.update(source.topics)
            for topic in source.topics:
                topic.block(self)
        return True

    def overdue(self, now: float) -> bool:
        """Return whether the subscriber has been slow for longer than its policy allows."""
        since = None if self._backlog is None else self._backlog.since
        if since is None or self.policy.action == DROP:
            return False
        return now - since > self.policy.seconds

    def evict_overdue(self) -> None:
        """Evict a subscriber that is overdue."""
        self.evict(f"slow consumer: behind for {self.policy.seconds:g} s")

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

        Messages that are still queued are counted as dropped with ``reason``. With None they are
        not counted, because a session will read them again. Returns the offset of the first
        message that was not written, for each topic that has one.
        """
        self._router.forget(self)
        self._state |= _CLOSED | _PAUSED
        self._ready = False
        unsent: dict[Topic, int] = {}
        queue, self._queue = self._queue or (), None
        for _data, _count, source, offset in queue:
            for topic in source.topics:
                unsent[topic] = min(offset, unsent.get(topic, offset))
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
        return unsent
