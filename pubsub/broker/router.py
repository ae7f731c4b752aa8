"""Fan-out: from a batch on a topic to the outboxes of its subscribers.

A topic's subscribers are grouped by encoding. A batch is encoded once a group; what a group
gathered in one reactor turn is joined into one bytes object that every outbox of the group is
given at the end of the turn, and then every outbox that got something is flushed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pubsub.broker.compact_map import SingleItemMap, with_item, without_item
from pubsub.broker.counters import Counters
from pubsub.broker.limits import MemoryBudget
from pubsub.broker.topics import Topic

if TYPE_CHECKING:
    from pubsub.broker.batch import Batch
    from pubsub.broker.outbox import Outbox
    from pubsub.broker.queue_keys import KeyChange
    from pubsub.interfaces import Encoding


# What a group gathered in a turn is handed out in pieces of about this size: they stay in the
# processor's cache, and a subscriber that is full is known to be before the rest comes.
PORTION = 256 * 1024

Part = tuple[bytes, int, int]
"""Encoded messages, their number, and the offset of the first."""


class Group:
    """The subscribers of one topic that share an encoding, and what they are to get this turn."""

    __slots__ = ("_outboxes", "_targets", "alone", "encoding", "parts", "topic")

    def __init__(self, topic: Topic, encoding: Encoding) -> None:
        self.topic = topic
        self.encoding = encoding
        # The subscriptions of all who have no other.
        self.alone = SingleItemMap(topic, encoding)
        self.parts: list[Part] = []
        self._outboxes: dict[Outbox, None] = {}
        self._targets: tuple[Outbox, ...] = ()

    def __len__(self) -> int:
        return len(self._outboxes)

    def __iter__(self) -> Iterator[Outbox]:
        return iter(self._outboxes)

    def add(self, outbox: Outbox) -> None:
        """From now on ``outbox`` gets what the group gathers."""
        self._outboxes[outbox] = None
        self._targets = ()

    def discard(self, outbox: Outbox) -> None:
        """``outbox`` gets nothing more."""
        self._outboxes.pop(outbox, None)
        self._targets = ()

    def flush(self, alone: bool = False) -> int:
        """Hand what was gathered to every outbox; returns the number of deliveries.

        ``alone`` says that nothing else goes to these outboxes this turn: it is written at once.
        """
        parts, self.parts = self.parts, []
        # Rebuilt only after a change; the loop runs over a copy, as a delivery over a
        # subscriber's limit takes that subscriber out.
        targets = self._targets = self._targets or tuple(self._outboxes)
        topic = self.topic
        delivered = 0
        for data, count, offset in parts if len(parts) < 2 else _joined(parts):
            if alone:
                for outbox in targets:
                    outbox.pass_on(data, count, topic, offset)
            else:
                for outbox in targets:
                    outbox.deliver(data, count, topic, offset)
            delivered += count * len(targets)
        return delivered


def _joined(parts: list[Part]) -> Iterator[Part]:
    """Neighbouring parts joined, up to about PORTION bytes each."""
    start = size = 0
    for index, (data, _count, _offset) in enumerate(parts):
        size += len(data)
        if size >= PORTION or index == len(parts) - 1:
            run = parts[start : index + 1]
            joined = b"".join([part[0] for part in run]) if len(run) > 1 else data
            yield joined, sum(part[1] for part in run), run[0][2]
            start, size = index + 1, 0


class Router:
    """Routes batches and flushes once a reactor turn.

    ``at_tick_end`` runs a call after the events of the current turn; ``seconds`` is the
    reactor's clock.
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
        self._groups: list[Group] = []
        self.dirty: list[Outbox] = []
        self.slow: set[Outbox] = set()

    def route(self, topic: Topic, batch: Batch) -> None:
        """Encode ``batch`` for every group of ``topic``; it leaves when the turn ends."""
        for group in topic.groups.values():
            encoding = group.encoding
            fitting = batch if batch.nbytes <= encoding.limit else self._fitting(group, batch)
            if fitting is None:
                continue
            if not group.parts:
                self._groups.append(group)
            part = (encoding.encode(fitting), len(fitting.payloads), fitting.offset)
            group.parts.append(part)
        if self._groups:
            self.flush_soon()

    def flush_soon(self) -> None:
        """Send what is gathered when the reactor's turn ends."""
        if not self._scheduled:
            self._scheduled = True
            self.at_tick_end(self.flush)

    def flush(self) -> None:
        """Send what this turn gathered."""
        self._scheduled = False
        groups, self._groups = self._groups, []
        if len(groups) == 1:
            count = groups[0].flush(alone=True)
            self.counters.delivered += count
        else:
            for group in groups:
                self._hand_out(group)
        dirty, self.dirty = self.dirty, []
        for outbox in dirty:
            outbox.flush()

    def subscribe(self, outbox: Outbox, topic: Topic, encoding: Encoding) -> bool:
        """Deliver ``topic`` to ``outbox`` from the next message on; False if it was so already."""
        if topic in outbox.subscriptions:
            return False
        group = topic.groups.get(encoding)
        if group is None:
            group = topic.groups[encoding] = Group(topic, encoding)
        # What was published before the subscription is not for it, though the turn goes on.
        self._hand_out(group)
        group.add(outbox)
        outbox.subscriptions = with_item(outbox.subscriptions, group.alone)
        if topic.upstream is not None:
            topic.upstream.want(topic)
        return True

    def unsubscribe(self, outbox: Outbox, topic: Topic) -> bool:
        """End a subscription; False if there was none."""
        encoding = outbox.subscriptions.get(topic)
        if encoding is None:
            return False
        outbox.subscriptions = without_item(outbox.subscriptions, topic)
        group = topic.groups.get(encoding)
        if group is not None:
            self._hand_out(group)
            group.discard(outbox)
            if not group:
                del topic.groups[encoding]
                self._left(topic)
        topic.unblock(outbox)
        return True

    @contextmanager
    def withheld(self, outbox: Outbox, topic: Topic) -> Iterator[None]:
        """What is published on ``topic`` meanwhile is not for ``outbox``; it stays subscribed.

        For the others nothing changes: they go on sharing one encoding.
        """
        group = topic.groups[outbox.subscriptions[topic]]
        self._hand_out(group)
        group.discard(outbox)
        try:
            yield
        finally:
            self._hand_out(group)
            # What was handed out may have been too much for it, and ended the subscription.
            if topic in outbox.subscriptions:
                topic.groups.setdefault(group.encoding, group).add(outbox)

    def read_history(self, topic: Topic) -> None:
        """Somebody without an outbox reads ``topic`` from the history from now on."""
        topic.standing += 1
        if topic.upstream is not None:
            topic.upstream.want(topic)

    def leave_history(self, topic: Topic) -> None:
        """End one ``read_history``."""
        topic.standing = max(topic.standing - 1, 0)
        self._left(topic)

    def _left(self, topic: Topic) -> None:
        if topic.upstream is not None and not topic.wanted:
            topic.upstream.unwant(topic)

    def forget(self, outbox: Outbox) -> None:
        """End every subscription of ``outbox``."""
        for topic in tuple(outbox.subscriptions):
            self.unsubscribe(outbox, topic)

    def recheck(self, topic: Topic, change: KeyChange | None = None) -> tuple[int, int]:
        """Ask every subscriber of ``topic`` whether it may stay; returns kept and removed."""
        kept = removed = 0
        # What was published before the change went to those who were allowed then.
        self.flush()
        for group in tuple(topic.groups.values()):
            for outbox in tuple(group):
                if outbox.recheck(topic, change):
                    kept += 1
                else:
                    removed += 1
                    self.unsubscribe(outbox, topic)
        return kept, removed

    def end(self, topic: Topic) -> None:
        """End every subscription to ``topic`` and let its publishers go."""
        self.flush()
        for group in tuple(topic.groups.values()):
            for outbox in tuple(group):
                self.unsubscribe(outbox, topic)
        for blocker in tuple(topic.blockers):
            topic.unblock(blocker)

    def dropped(self, label: str, topic: Topic, reason: str, count: int) -> None:
        """``count`` deliveries that had been counted do not happen."""
        self.counters.delivered -= count
        self.counters.drop(label, topic.name, reason, count)

    def sweep(self) -> None:
        """Give up the subscribers that have been slow for longer than their policy allows."""
        now = self.seconds()
        for outbox in [box for box in self.slow if box.overdue(now)]:
            outbox.evict(f"slow consumer: behind for {outbox.policy.seconds:g} s")

    def _hand_out(self, group: Group) -> None:
        # Not `delivered += flush()`: that reads the counter first, and loses what flush drops.
        count = group.flush()
        self.counters.delivered += count

    def _fitting(self, group: Group, batch: Batch) -> Batch | None:
        """The messages that a frame of the group's encoding can carry; the others are counted."""
        fitting = batch.within(group.encoding.limit)
        lost = len(batch.payloads) - (0 if fitting is None else len(fitting.payloads))
        if lost:
            for outbox in group:
                self.counters.drop(outbox.label, batch.topic, "too-large", lost)
        return fitting
