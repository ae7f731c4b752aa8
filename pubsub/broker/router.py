"""Fan-out: from a batch on a topic to the outboxes of its subscribers.

A topic's subscribers are grouped by encoding. A batch is encoded once for each group. The messages
that a group collects in one reactor tick are joined into one bytes object, which every outbox of
the group receives at the end of the tick. Then each of these outboxes is flushed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pubsub.broker.compact_map import with_item, without_item
from pubsub.broker.counters import Counters
from pubsub.broker.limits import MemoryBudget
from pubsub.broker.topics import Recipient, SubscriberGroup, Topic

if TYPE_CHECKING:
    from pubsub.broker.batch import Batch
    from pubsub.broker.topics import KeyChange
    from pubsub.interfaces import Encoding


class Router:
    """Routes batches and flushes once a reactor tick.

    ``at_tick_end`` runs a call after the events of the current tick; ``seconds`` is the reactor's
    clock. ``dirty`` has the outboxes to flush at the end of the tick, ``slow`` those whose
    subscribers are slow.
    """

    def __init__(
        self,
        counters: Counters,
        memory: MemoryBudget,
        seconds: Callable[[], float],
        at_tick_end: Callable[[Callable[[], None]], object],
    ) -> None:
        self.counters = counters
        self.memory = memory
        self.seconds = seconds
        self.at_tick_end = at_tick_end
        self._scheduled = False
        self._groups: list[SubscriberGroup] = []
        self.dirty: list[Recipient] = []
        self.slow: set[Recipient] = set()

    def route(self, topic: Topic, batch: Batch) -> None:
        """Encode ``batch`` for every group of ``topic``; it is sent at the end of the tick."""
        for group in topic.groups.values():
            encoding = group.encoding
            fitting = batch if batch.nbytes <= encoding.limit else self._fitting(group, batch)
            if fitting is None:
                continue
            if not group.pending:
                self._groups.append(group)
            encoded = (encoding.encode(fitting), len(fitting.payloads), fitting.offset)
            group.pending.append(encoded)
        if self._groups:
            self.flush_soon()

    def flush_soon(self) -> None:
        """Flush at the end of the reactor tick."""
        if not self._scheduled:
            self._scheduled = True
            self.at_tick_end(self.flush)

    def flush(self) -> None:
        """Send everything that was routed in this tick."""
        self._scheduled = False
        groups, self._groups = self._groups, []
        if len(groups) == 1:
            count = groups[0].flush(at_once=True)
            self.counters.delivered += count
        else:
            for group in groups:
                self._flush_group(group)
        dirty, self.dirty = self.dirty, []
        for outbox in dirty:
            outbox.flush()

    def subscribe(self, outbox: Recipient, topic: Topic, encoding: Encoding) -> bool:
        """Deliver ``topic`` to ``outbox`` from the next message on; False if it already is."""
        if topic in outbox.subscriptions:
            return False
        group = topic.groups.get(encoding)
        if group is None:
            group = topic.groups[encoding] = SubscriberGroup(topic, encoding)
        # Messages published earlier in this tick are not for the new subscriber.
        self._flush_group(group)
        group.add(outbox)
        outbox.subscriptions = with_item(outbox.subscriptions, group.only_subscription)
        if topic.upstream is not None:
            topic.upstream.want(topic)
        return True

    def unsubscribe(self, outbox: Recipient, topic: Topic) -> bool:
        """End a subscription; False if there was none."""
        encoding = outbox.subscriptions.get(topic)
        if encoding is None:
            return False
        outbox.subscriptions = without_item(outbox.subscriptions, topic)
        group = topic.groups.get(encoding)
        if group is not None:
            self._flush_group(group)
            group.discard(outbox)
            if not group:
                del topic.groups[encoding]
                self._reader_left(topic)
        topic.unblock(outbox)
        return True

    @contextmanager
    def excluding(self, outbox: Recipient, topic: Topic) -> Iterator[None]:
        """Return a context in which messages on ``topic`` are not delivered to ``outbox``.

        The subscription stays, and the other subscribers still share one encoding.
        """
        group = topic.groups[outbox.subscriptions[topic]]
        self._flush_group(group)
        group.discard(outbox)
        try:
            yield
        finally:
            self._flush_group(group)
            # A flush can evict the subscriber, which ends the subscription.
            if topic in outbox.subscriptions:
                topic.groups.setdefault(group.encoding, group).add(outbox)

    def read_history(self, topic: Topic) -> None:
        """Count a reader without an outbox, which reads ``topic`` from the history."""
        topic.history_readers += 1
        if topic.upstream is not None:
            topic.upstream.want(topic)

    def leave_history(self, topic: Topic) -> None:
        """End one ``read_history``."""
        topic.history_readers = max(topic.history_readers - 1, 0)
        self._reader_left(topic)

    def _reader_left(self, topic: Topic) -> None:
        if topic.upstream is not None and not topic.has_readers:
            topic.upstream.unwant(topic)

    def forget(self, outbox: Recipient) -> None:
        """End every subscription of ``outbox``."""
        for topic in tuple(outbox.subscriptions):
            self.unsubscribe(outbox, topic)

    def recheck(self, topic: Topic, change: KeyChange | None = None) -> tuple[int, int]:
        """Recheck every subscription to ``topic``; return how many stay and how many end."""
        kept = removed = 0
        # Messages published before the change are for those who were permitted then.
        self.flush()
        for group in tuple(topic.groups.values()):
            for outbox in tuple(group):
                if outbox.recheck(topic, change):
                    kept += 1
                else:
                    removed += 1
                    self.unsubscribe(outbox, topic)
        return kept, removed

    def recheck_all(self, topics: Iterable[Topic]) -> tuple[int, int]:
        """Recheck every subscription to ``topics``; return how many stay and how many end."""
        results = [self.recheck(topic) for topic in tuple(topics) if topic.groups]
        return sum(kept for kept, _ in results), sum(removed for _, removed in results)

    def end(self, topic: Topic) -> None:
        """End every subscription to ``topic`` and release its publishers."""
        self.flush()
        for group in tuple(topic.groups.values()):
            for outbox in tuple(group):
                self.unsubscribe(outbox, topic)
        for blocker in tuple(topic.blockers):
            topic.unblock(blocker)

    def dropped(self, label: str, topic: Topic, reason: str, count: int) -> None:
        """Count ``count`` messages as dropped that were counted as delivered before."""
        self.counters.delivered -= count
        self.counters.drop(label, topic.name, reason, count)

    def sweep(self) -> None:
        """Evict the subscribers that have been slow for longer than their policy allows."""
        now = self.seconds()
        for outbox in [outbox for outbox in self.slow if outbox.overdue(now)]:
            outbox.evict_overdue()

    def _flush_group(self, group: SubscriberGroup) -> None:
        # Not `delivered += flush()`, which reads the counter first and loses what flush drops.
        count = group.flush()
        self.counters.delivered += count

    def _fitting(self, group: SubscriberGroup, batch: Batch) -> Batch | None:
        """Return the messages that fit a frame of the group's encoding; count the others."""
        fitting = batch.within(group.encoding.limit)
        lost = len(batch.payloads) - (0 if fitting is None else len(fitting.payloads))
        if lost:
            for outbox in group:
                self.counters.drop(outbox.label, batch.topic, "too-large", lost)
        return fitting
