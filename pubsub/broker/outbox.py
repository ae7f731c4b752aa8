"""A subscriber's outbox: what waits to be sent to it, and what happens when it does not read.

While the transport is ready, a delivery lasts until the end of the reactor turn and leaves in
one write. While it is not, deliveries queue, and the listener's slow-consumer policy decides
how far:

- ``pause``: over the blocking mark the topics it is subscribed to hold their publishers, until
  it has caught up. Over ``nbytes``, or behind for ``seconds``, it is disconnected.
- ``drop``: what would take it over ``nbytes`` is dropped for it, and counted.
- ``disconnect``: nobody waits; over ``nbytes``, or behind for ``seconds``, it is disconnected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pubsub.broker.compact_map import EMPTY_MAP
from pubsub.broker.router import PORTION

if TYPE_CHECKING:
    from pubsub.broker.queue_keys import KeyChange
    from pubsub.broker.router import Router
    from pubsub.broker.topics import Topic
    from pubsub.interfaces import Consumer, Encoding, Subscriber

PAUSE, DROP, DISCONNECT = "pause", "drop", "disconnect"
# Where `pause` starts to hold publishers, unless a quarter of the byte limit is less.
_BLOCKING_MARK = 1024 * 1024
# What an outbox may be; one that is closed is paused for good.
_PAUSED, _HELD, _CLOSED = 1, 2, 4
# From here on an outbox counts among those that can be evicted to free memory.
_HOLDER_MARK = 64 * 1024


@dataclass(frozen=True, slots=True)
class SlowPolicy:
    """What a listener does about subscribers that do not read."""

    action: str = PAUSE
    nbytes: int = 64 * 1024 * 1024
    seconds: float = 30.0

    @property
    def mark(self) -> int:
        """Queued bytes from which on publishers are held."""
        return min(_BLOCKING_MARK, self.nbytes // 4)


class _Behind:
    """What there is to know of a subscriber only while it is behind, or somebody waits for it."""

    __slots__ = ("blocking", "charged", "drained", "evicted", "inflight", "since")

    def __init__(self) -> None:
        # Bytes that the transport holds, and those that memory is charged for.
        self.inflight = self.charged = 0
        self.since: float | None = None
        self.blocking: set[Topic] = set()
        self.drained: Callable[[], None] | None = None
        self.evicted = False


class Outbox:
    """Deliveries on their way to one subscriber.

    When the policy gives the subscriber up it is evicted, which has to end its connection.
    """

    __slots__ = (
        "_behind",
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
        # Made when first needed, as most never do; an empty deque would take 700 bytes.
        self._queue: list[tuple[bytes, int, Topic, int]] | None = None
        self._behind: _Behind | None = None
        self.queued = 0
        # What keeps it from writing, if anything.
        self._state = 0
        # Nothing is queued and nothing stands in the way: what is asked for every message.
        self._ready = True

    @property
    def label(self) -> str:
        """The client's name for counters and logs."""
        return self._subscriber.label

    def recheck(self, topic: Topic, change: KeyChange | None) -> bool:
        """See ``Subscriber``."""
        return self._subscriber.recheck(topic, change)

    # Deliveries

    def deliver(self, data: bytes, count: int, topic: Topic, offset: int) -> None:
        """Take ``count`` messages of ``topic``, encoded; the first one's offset is ``offset``."""
        if self._state:
            if self.closed:
                # Given up in the middle of what a turn gathered for its group.
                self._router.dropped(self.label, topic, "disconnected", count)
                return
            if not self._takes(len(data), count, topic):
                return
            self._charge(self.held + len(data))
        elif not self._queue:
            self._router.dirty.append(self)
        # As `enqueue`, without the call.
        self._ready = False
        if self._queue is None:
            self._queue = []
        self._queue.append((data, count, topic, offset))
        self.queued += len(data)

    def pass_on(self, data: bytes, count: int, topic: Topic, offset: int) -> None:
        """As ``deliver`` and ``flush``, for what is all there is this turn."""
        if not self._ready:
            self.deliver(data, count, topic, offset)
            return
        self._consumer.write(data)
        # The write itself may have paused this outbox: then the transport holds the data.
        if self._state:
            self._late().inflight = len(data)
            self._charge(len(data))

    def enqueue(self, data: bytes, count: int, topic: Topic, offset: int) -> None:
        """As ``deliver``, without limit: for who waits until the outbox has drained."""
        self._ready = False
        if self._queue is None:
            self._queue = []
        self._queue.append((data, count, topic, offset))
        self.queued += len(data)

    def flush(self) -> None:
        """Write what is queued, until the transport has enough."""
        while self._queue and not self._state:
            data = self._portion(self._queue)
            self._consumer.write(data)
            # The write itself may have paused this outbox: then the transport holds the data.
            if self._state:
                self._late().inflight = len(data)
        if self._behind is not None:
            self._charge(self.queued + self._behind.inflight if self._state else 0)
        if not self._queue and not self._state & _PAUSED:
            self._caught_up()

    def send(self, data: bytes) -> None:
        """Write control frames: after the deliveries before them, never behind a backlog."""
        if self._queue:
            self.flush()
        self._consumer.write(data)

    def _portion(self, queue: list[tuple[bytes, int, Topic, int]]) -> bytes:
        if len(queue) == 1:
            data = queue.pop()[0]
        elif self.queued <= PORTION:
            data = b"".join([entry[0] for entry in queue])
            queue.clear()
        else:
            parts: list[bytes] = []
            size = 0
            for entry in queue:
                parts.append(entry[0])
                size += len(entry[0])
                if size >= PORTION:
                    break
            del queue[: len(parts)]
            data = b"".join(parts)
        self.queued -= len(data)
        return data

    # Readiness

    def hold(self) -> None:
        """Queue deliveries until ``release``, for a reason of the protocol's own."""
        self._state |= _HELD
        self._ready = False

    def release(self) -> None:
        """End ``hold``."""
        self._state &= ~_HELD
        self.flush()

    def pause(self) -> None:
        """The transport has enough. Called again and again while it has."""
        if self.closed:
            return
        self._state |= _PAUSED
        self._ready = False
        behind = self._late()
        if behind.since is None:
            behind.since = self._router.seconds()
            self._router.slow.add(self)

    def resume(self) -> None:
        """The transport has sent everything it had."""
        if self.closed:
            return
        self._state &= ~_PAUSED
        if self._behind is not None:
            self._behind.inflight = 0
        self.flush()
        # Still full, but it reads and is hardly behind: it keeps up with all it can be asked.
        if self.paused and self.queued + self._late().inflight <= self.policy.mark:
            self._late().since = self._router.seconds()

    @property
    def paused(self) -> bool:
        """Has the transport more than it can send now?"""
        return bool(self._state & _PAUSED)

    @property
    def closed(self) -> bool:
        """Has it been shut?"""
        return bool(self._state & _CLOSED)

    def when_drained(self, call: Callable[[], None]) -> None:
        """Call ``call`` as soon as nothing is queued and the transport is ready, maybe now."""
        if self._queue or self._state:
            self._late().drained = call
        else:
            call()

    def _late(self) -> _Behind:
        if self._behind is None:
            self._behind = _Behind()
        return self._behind

    def _caught_up(self) -> None:
        self._ready = not self._state
        behind = self._behind
        if behind is None:
            return
        self._forgive(behind)
        if not self._state:
            self._behind = None
            if behind.drained is not None:
                behind.drained()

    def _forgive(self, behind: _Behind) -> None:
        """It is not slow any more, and nobody has to wait for it."""
        behind.since = None
        self._router.slow.discard(self)
        topics, behind.blocking = behind.blocking, set()
        for topic in topics:
            topic.unblock(self)

    # Limits

    def _takes(self, nbytes: int, count: int, topic: Topic) -> bool:
        """Apply the policy to a delivery that has to queue: is there room for it?"""
        behind = self._late()
        waiting = self.queued + behind.inflight + nbytes
        if waiting > self.policy.nbytes:
            self._router.dropped(self.label, topic, "slow-consumer", count)
            if self.policy.action != DROP:
                self.evict(f"slow consumer: over {self.policy.nbytes} bytes behind")
            return False
        if waiting > self.policy.mark and self.policy.action == PAUSE:
            behind.blocking.add(topic)
            topic.block(self)
        return True

    def overdue(self, now: float) -> bool:
        """Has the subscriber been behind for longer than its policy allows?"""
        since = None if self._behind is None else self._behind.since
        if since is None or self.policy.action == DROP:
            return False
        return now - since > self.policy.seconds

    @property
    def held(self) -> int:
        """Bytes held in memory for this subscriber while it does not read."""
        return 0 if self._behind is None else self._behind.charged

    def evict(self, reason: str) -> None:
        """Give the subscriber up; its connection is closed with ``reason``."""
        if not self.closed and not self._late().evicted:
            self._late().evicted = True
            self._subscriber.evict(reason)

    def _charge(self, nbytes: int) -> None:
        before = self.held
        if nbytes != before:
            self._late().charged = nbytes
            self._router.memory.charge(self, before, nbytes, _HOLDER_MARK)

    # The end

    def shut(self, reason: str | None) -> dict[Topic, int]:
        """Take no more deliveries and let go of everything.

        What is still queued is counted as dropped for ``reason``, or not at all if that is None
        because a session will ask for it again. Returns the offset of the first message that
        was not written, for each topic that has one.
        """
        self._router.forget(self)
        self._state |= _CLOSED | _PAUSED
        self._ready = False
        unsent: dict[Topic, int] = {}
        queue, self._queue = self._queue or (), None
        for _data, _count, topic, offset in queue:
            unsent[topic] = min(offset, unsent.get(topic, offset))
        if reason is not None:
            for _data, count, topic, _offset in queue:
                self._router.dropped(self.label, topic, reason, count)
        self.queued = 0
        behind = self._behind
        if behind is not None:
            behind.inflight = 0
            self._charge(0)
            self._forgive(behind)
            self._behind = None
            if behind.drained is not None:
                # Not now: who waits may act on the connection, which is in the middle of ending.
                self._router.at_tick_end(behind.drained)
        return unsent
