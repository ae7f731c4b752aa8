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

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pubsub.broker.router import PORTION

if TYPE_CHECKING:
    from pubsub.broker.queue_keys import Recheck
    from pubsub.broker.router import Router
    from pubsub.broker.topics import Topic
    from pubsub.interfaces import Consumer, Encoding

PAUSE, DROP, DISCONNECT = "pause", "drop", "disconnect"
# Where `pause` starts to hold publishers, unless a quarter of the byte limit is less.
_BLOCKING_MARK = 1024 * 1024
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


class Outbox:
    """Deliveries on their way to one subscriber.

    ``close`` is called with a reason when the policy gives the subscriber up; it has to end the
    connection. ``label`` names the client in counters and logs. ``recheck`` says whether a
    subscription may go on.
    """

    __slots__ = (
        "_blocking",
        "_charged",
        "_close",
        "_consumer",
        "_drained",
        "_evicted",
        "_held",
        "_inflight",
        "_paused",
        "_queue",
        "_ready",
        "_router",
        "closed",
        "label",
        "policy",
        "queued",
        "recheck",
        "slow_since",
        "subscriptions",
    )

    def __init__(
        self,
        router: Router,
        consumer: Consumer,
        policy: SlowPolicy,
        close: Callable[[str], None],
        label: str,
        recheck: Recheck = lambda topic, change: True,
    ) -> None:
        self.recheck = recheck
        self._router = router
        self._consumer = consumer
        self._close = close
        self.policy = policy
        self.label = label
        self.subscriptions: dict[Topic, Encoding] = {}
        # An empty deque would take 700 bytes more of each idle connection.
        self._queue: list[tuple[bytes, int, Topic, int]] = []
        self.queued = 0
        # Nothing is queued and nothing stands in the way: what is asked for every message.
        self._ready = True
        self._paused = False
        self._held = False
        self.closed = False
        self._evicted = False
        self._inflight = 0
        self._charged = 0
        self._blocking: set[Topic] | None = None
        self._drained: Callable[[], None] | None = None
        self.slow_since: float | None = None

    # Deliveries

    def deliver(self, data: bytes, count: int, topic: Topic, offset: int) -> None:
        """Take ``count`` messages of ``topic``, encoded; the first one's offset is ``offset``."""
        if self._paused or self._held:
            if self.closed:
                # Given up in the middle of what a turn gathered for its group.
                self._router.dropped(self.label, topic, "disconnected", count)
                return
            if not self._takes(len(data), count, topic):
                return
            self._charge(self._charged + len(data))
        elif not self._queue:
            self._router.dirty.append(self)
        self._ready = False
        self._queue.append((data, count, topic, offset))
        self.queued += len(data)

    def pass_on(self, data: bytes, count: int, topic: Topic, offset: int) -> None:
        """As ``deliver`` and ``flush``, for what is all there is this turn."""
        if not self._ready:
            self.deliver(data, count, topic, offset)
            return
        self._consumer.write(data)
        # The write itself may have paused this outbox: then the transport holds the data.
        if self._paused:
            self._inflight = len(data)
            self._charge(self._inflight)

    def enqueue(self, data: bytes, count: int, topic: Topic, offset: int) -> None:
        """As ``deliver``, without limit: for who waits until the outbox has drained."""
        self._ready = False
        self._queue.append((data, count, topic, offset))
        self.queued += len(data)

    def flush(self) -> None:
        """Write what is queued, until the transport has enough."""
        while self._queue and not (self._paused or self._held):
            data = self._portion()
            self._consumer.write(data)
            # The write itself may have paused this outbox: then the transport holds the data.
            if self._paused:
                self._inflight = len(data)
        self._charge(self.queued + self._inflight if self._paused or self._held else 0)
        if not self._queue and not self._paused:
            self._caught_up()

    def send(self, data: bytes) -> None:
        """Write control frames: after the deliveries before them, never behind a backlog."""
        if self._queue:
            self.flush()
        self._consumer.write(data)

    def _portion(self) -> bytes:
        queue = self._queue
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
        self._held = True
        self._ready = False

    def release(self) -> None:
        """End ``hold``."""
        self._held = False
        self.flush()

    def pause(self) -> None:
        """The transport has enough. Called again and again while it has."""
        if self.closed:
            return
        self._paused = True
        self._ready = False
        if self.slow_since is None:
            self.slow_since = self._router.seconds()
            self._router.slow.add(self)

    def resume(self) -> None:
        """The transport has sent everything it had."""
        if self.closed:
            return
        self._paused = False
        self._inflight = 0
        self.flush()
        # Still full, but it reads and is hardly behind: it keeps up with all it can be asked.
        if self._paused and self.queued + self._inflight <= self.policy.mark:
            self.slow_since = self._router.seconds()

    @property
    def paused(self) -> bool:
        """Has the transport more than it can send now?"""
        return self._paused

    def when_drained(self, call: Callable[[], None]) -> None:
        """Call ``call`` as soon as nothing is queued and the transport is ready, maybe now."""
        if self._queue or self._paused or self._held:
            self._drained = call
        else:
            call()

    def _caught_up(self) -> None:
        self._ready = not self._held
        if self.slow_since is not None:
            self.slow_since = None
            self._router.slow.discard(self)
        self._unblock()
        if self._drained is not None and not self._held:
            call, self._drained = self._drained, None
            call()

    def _unblock(self) -> None:
        if self._blocking:
            topics, self._blocking = self._blocking, None
            for topic in topics:
                topic.unblock(self)

    # Limits

    def _takes(self, nbytes: int, count: int, topic: Topic) -> bool:
        """Apply the policy to a delivery that has to queue: is there room for it?"""
        waiting = self.queued + self._inflight + nbytes
        if waiting > self.policy.nbytes:
            self._router.dropped(self.label, topic, "slow-consumer", count)
            if self.policy.action != DROP:
                self.evict(f"slow consumer: over {self.policy.nbytes} bytes behind")
            return False
        if waiting > self.policy.mark and self.policy.action == PAUSE:
            if self._blocking is None:
                self._blocking = set()
            self._blocking.add(topic)
            topic.block(self)
        return True

    def overdue(self, now: float) -> bool:
        """Has the subscriber been behind for longer than its policy allows?"""
        if self.slow_since is None or self.policy.action == DROP:
            return False
        return now - self.slow_since > self.policy.seconds

    @property
    def held(self) -> int:
        """Bytes held in memory for this subscriber while it does not read."""
        return self._charged

    def evict(self, reason: str) -> None:
        """Give the subscriber up; its connection is closed with ``reason``."""
        if not self.closed and not self._evicted:
            self._evicted = True
            self._close(reason)

    def _charge(self, nbytes: int) -> None:
        if nbytes != self._charged:
            before, self._charged = self._charged, nbytes
            self._router.memory.charge(self, before, nbytes, _HOLDER_MARK)

    # The end

    def shut(self, reason: str | None) -> dict[Topic, int]:
        """Take no more deliveries and let go of everything.

        What is still queued is counted as dropped for ``reason``, or not at all if that is None
        because a session will ask for it again. Returns the offset of the first message that
        was not written, for each topic that has one.
        """
        self._router.forget(self)
        self.closed = self._paused = True
        self._ready = False
        unsent: dict[Topic, int] = {}
        for _data, _count, topic, offset in self._queue:
            unsent[topic] = min(offset, unsent.get(topic, offset))
        if reason is not None:
            for _data, count, topic, _offset in self._queue:
                self._router.dropped(self.label, topic, reason, count)
        self._queue.clear()
        self.queued = self._inflight = 0
        self._charge(0)
        self._router.slow.discard(self)
        self._unblock()
        if self._drained is not None:
            call, self._drained = self._drained, None
            # Not now: who waits may act on the connection, which is in the middle of ending.
            self._router.at_turn_end(call)
        return unsent
