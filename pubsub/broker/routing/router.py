"""Fan-out: from a batch to the outboxes of the subscribers of its topics.

A batch is encoded once for each audience: subscribers of the same topics with the same encodings
(see ``audience.py``). The messages that an audience collects in one reactor tick are joined into
one bytes object, which every outbox of the audience receives at the end of the tick. Then each of
these outboxes is flushed once; if they are many, some of them in each of the next ticks, and
publishers are held meanwhile. An outbox that belongs to several audiences of a tick receives their
messages one by one, in the order in which they were published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from pubsub.broker.access_rules.rechecking import Rechecking
from pubsub.broker.delivery.subscribing import Subscribing
from pubsub.broker.figures.counters import Counters
from pubsub.broker.figures.histogram import Histogram
from pubsub.broker.memory_budget import MemoryBudget
from pubsub.broker.publishing.publisher_gates import Gate
from pubsub.broker.routing.audience import (
    WRITE_BYTES,
    Audience,
    Receivers,
    apart,
    deliver_pending,
    without_too_large,
    write_pending,
)
from pubsub.broker.routing.combination_cache import CombinationCache
from pubsub.broker.routing.mixed_routing import SharedFrames, collect_mixed
from pubsub.broker.routing.sliced_routing import SlicedRouting
from pubsub.broker.routing.topic_mix import TopicMix
from pubsub.broker.topic_space.interest import TopicInterest

if TYPE_CHECKING:
    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.routing.forwarding import Forwarding
    from pubsub.broker.slices import Slices
    from pubsub.broker.topic_space.topics import DeliverySource, Recipient, Topic

# Audiences for which a batch is always encoded at once.
_FEW_AUDIENCES = 16
# Outboxes that are written to in a tick, at some 10 µs each; fewer if they have more bytes.
_WRITES, _WRITTEN = 300, 32 * 1024 * 1024
# Reads of publishers that are held, and bytes of their frames, that may come while outboxes wait.
_READS, _READ_BYTES = 8, 2 * WRITE_BYTES
# Flushes that are timed after each call of `time_flushes`.
_TIMED = 10


class Router:
    """Routes batches and flushes once a reactor tick.

    ``at_tick_end`` runs a call after the events of the current tick; ``seconds`` is the reactor's
    clock. ``pending`` has the receivers of what was routed in this tick, ``dirty`` the outboxes to
    flush at its end, ``slow`` those whose subscribers are slow. ``behind`` has the topics that have
    subscribers behind.

    ``flush_times`` has the time from the first message of a tick to the flush at its end: of the
    first _TIMED ticks after each call of ``time_flushes``.
    """

    # A dictionary of this many attributes would be slower.
    __slots__ = (
        "_late_bytes", "_order", "_schedule", "_scheduled", "_since", "_sliced",
        "_subscribing", "_timed", "_unsettled", "at_tick_end", "behind", "counters",
        "delivering", "dirty", "end", "excluding", "fall_behind", "flush_times", "forget",
        "forwarding", "gate", "gathered", "gathers", "go_live", "leave_behind", "leave_history",
        "leave_prefix", "memory", "mixes", "pending", "read_history", "read_prefix", "recheck",
        "recheck_all", "recheck_each", "recheck_subscriber", "seconds", "slow", "subscribe",
        "unsubscribe", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        counters: Counters,
        memory: MemoryBudget,
        seconds: Callable[[], float],
        at_tick_end: Callable[[Callable[[], None]], object],
        slices: Slices,
    ) -> None:
        self.counters = counters
        self.memory = memory
        self.seconds = seconds
        self.at_tick_end = at_tick_end
        self.flush_times = Histogram()
        # Flushes that are left to time. While there are none, no tick pays for it.
        self._timed = 0
        self._schedule = at_tick_end
        self._since = 0.0
        self._unsettled = counters.traffic.unsettled
        self._scheduled = self.delivering = False
        self.pending: list[Receivers] = []
        # The number of the last delivery; bytes that came for an audience while the gate was shut.
        self._order = self._late_bytes = 0
        self.mixes: CombinationCache[TopicMix] = CombinationCache(memory)
        self._sliced = SlicedRouting(self)
        self.waiting = self._sliced.waiting
        """Routing in slices; messages that are published meanwhile wait there as well."""
        self.gathers = False
        """True after messages that further ones are probable to follow in their tick."""
        self.gathered: Callable[[], None] | None = None
        """Publishes messages that were gathered in this tick (see ``Gathering``)."""
        self.dirty: list[Recipient] = []
        self.gate = Gate()
        """Shut while outboxes have messages of earlier ticks that could be written."""
        self.slow: set[Recipient] = set()
        self.forwarding: Forwarding | None = None
        """Set if messages are shared with other brokers."""
        interest = TopicInterest(self)
        self._subscribing = subscribing = Subscribing(self, interest, slices)
        self.behind = subscribing.behind
        rechecking = Rechecking(self, subscribing)
        # Other objects use the methods of these as those of the router.
        self.read_history, self.leave_history = interest.read_history, interest.leave_history
        self.read_prefix, self.leave_prefix = interest.read_prefix, interest.leave_prefix
        self.subscribe, self.unsubscribe = subscribing.subscribe, subscribing.unsubscribe
        self.fall_behind, self.leave_behind = subscribing.fall_behind, subscribing.leave_behind
        self.go_live, self.forget = subscribing.go_live, subscribing.forget
        self.excluding, self.end = subscribing.excluding, subscribing.end
        self.recheck, self.recheck_each = rechecking.recheck, rechecking.recheck_each
        self.recheck_all = rechecking.recheck_all
        self.recheck_subscriber = rechecking.recheck_subscriber

    @property
    def subscriptions(self) -> int:
        """Subscriptions of outboxes, live or behind."""
        return self._subscribing.account.number

    def mix(self, topics: Iterable[Topic], lasts: bool = True) -> TopicMix:
        """Return the mix of distinct ``topics``, in an order of its own; kept if it ``lasts``."""
        mix = self.mixes.get(key := tuple(sorted(topics, key=id)))
        if mix is None:
            mix = TopicMix(key, self.mixes.weigh)
            if lasts:
                self.mixes.put(key, mix)
        return mix

    def route(self, topic: Topic, batch: Batch) -> None:
        """Encode ``batch`` for the groups of its only topic; it is sent at the end of the tick."""
        if self.waiting:
            self._sliced.put(batch, topic)
        else:
            for group in topic.groups.values():
                self.collect(group, batch, topic)
        if topic.behind:
            topic.passed += batch.count
        if self.pending and not self._scheduled:
            self.flush_soon()

    def route_mixed(self, mix: TopicMix, batch: Batch) -> None:
        """Encode ``batch`` for the audiences of the topics of ``mix``."""
        audiences, frames = mix.current, SharedFrames.of(mix, batch)
        if self.waiting or (
            (audiences is None or len(audiences) > _FEW_AUDIENCES)
            and self._sliced.is_long(mix, batch, frames)
        ):
            self._sliced.put(batch, mix=mix)
            audiences = ()
        if audiences is None:
            audiences = mix.audiences()
        if audiences:
            collect_mixed(self, mix, audiences, batch, frames)
        behind, topics = self.behind, mix.topics
        if behind and (len(topics) > batch.count or not behind.isdisjoint(topics)):
            for index, count, _ in batch.columns.totals():
                if topics[index].behind:
                    topics[index].passed += count
        if self.pending:
            self.flush_soon()

    def collect(self, audience: Audience, batch: Batch, source: DeliverySource) -> None:
        """Encode ``batch`` for ``audience``, which receives it at the end of the tick."""
        encoder = audience.encoder
        data, count = encoder.encode(batch)
        if batch.columns.largest > encoder.limit:
            source = without_too_large(audience, batch, source, self.counters)
        if not count:
            return
        pending = audience.pending
        if not pending:
            self.pending.append(audience)
        self._order = order = self._order + 1
        pending.append((order, data, count, batch.offset, source))

    def add(
        self, receivers: Receivers, data: bytes, count: int, offset: int, source: DeliverySource
    ) -> None:
        """Have ``receivers`` get ``count`` messages, which are encoded, at the end of the tick."""
        if not receivers.pending:
            self.pending.append(receivers)
        self._order += 1
        receivers.pending.append((self._order, data, count, offset, source))
        self.flush_soon()

    def flush_soon(self) -> None:
        """Flush at the end of the reactor tick."""
        if not self._scheduled:
            self._scheduled = True
            self._schedule(self.flush)

    def flush(self) -> None:
        """Send everything that was routed in this tick."""
        self.gathers = False
        try:
            if self.gathered is not None:
                self.gathered()
        finally:
            # What was gathered is sent below: it needs no flush of its own in the next tick.
            self._scheduled = False
        if self.pending:
            self.delivering = True
        outboxes = apart(self.pending, _WRITES)
        if outboxes:
            self._count_late(self.pending)
            audiences, self.pending = self.pending, []
            write_pending(audiences, outboxes, self._unsettled)
        else:
            self.hand_over()
        self.delivering = False
        self._write()

    def _write(self) -> None:
        """Write to outboxes that have messages: to some of them if they are many.

        A publisher that the gate cannot hold, such as another broker, may send more meanwhile. Then
        all are written to, as outboxes that wait for their turn may take no more than slow ones.
        """
        dirty, self.dirty = self.dirty, []
        late = WRITE_BYTES + min(self.gate.held, _READS) * _READ_BYTES
        if len(dirty) > _WRITES and self._late_bytes <= late:
            # Those of a topic wait for the same messages.
            writes = min(_WRITES, 1 + _WRITTEN // (1 + dirty[0].queued))
            self.dirty = dirty[writes:]
            del dirty[writes:]
        for outbox in dirty:
            outbox.flush()
        if self.dirty:
            self.gate.close()
            self.flush_soon()
        elif self.gate.shut and not self.waiting:
            self._late_bytes = 0
            self.gate.open()

    def _count_late(self, audiences: Sequence[Receivers]) -> None:
        if self.gate.shut and audiences and not self.waiting:
            self._late_bytes += max(
                sum([len(delivery[1]) for delivery in audience.pending]) for audience in audiences
            )

    def time_flushes(self) -> None:
        """Time the next flushes, for ``flush_times``; called several times a second."""
        self._timed = _TIMED
        self._schedule = self._schedule_timed

    def _schedule_timed(self, _flush: Callable[[], None]) -> None:
        self._since = self.seconds()
        self.at_tick_end(self._timed_flush)

    def _timed_flush(self) -> None:
        self.flush()
        self.flush_times.observe(self.seconds() - self._since)
        self._timed -= 1
        if self._timed <= 0:
            self._schedule = self.at_tick_end

    def mark_second(self) -> None:
        """A second has passed, for ``flush_times``."""
        self.flush_times.second_passed()
        # Its outboxes may have been shut since.
        self._unsettled.settle()

    def hand_over(self) -> None:
        """Deliver the messages of the audiences to the outboxes, in the order of publishing."""
        if self.gathered is not None:
            self.gathered()
        audiences, self.pending = self.pending, []
        if not audiences:
            return
        self._count_late(audiences)
        self.delivering = True
        delivered = deliver_pending(audiences)
        self.counters.delivered += delivered
        self.delivering = False

    def complete(self, outbox: Recipient, with_changes: bool = True) -> None:
        """Deliver to ``outbox`` all that was published before; other outboxes may wait.

        The changes of ``change_all`` that wait are made for it, except without ``with_changes``.
        """
        if self.waiting:
            self._sliced.complete(outbox, with_changes)
        self.hand_over()

    def exclude(self, outbox: Recipient) -> None:
        """Do not deliver messages that wait to be routed to ``outbox``."""
        self._sliced.exclude(outbox)

    def change_all(
        self,
        outboxes: Sequence[Recipient],
        change: Callable[[Recipient], None],
        then: Callable[[], None],
    ) -> None:
        """Call ``change`` for each of ``outboxes``, then ``then``; in slices if they are many.

        Later messages are for the outboxes that are subscribed after the change.
        """
        self.flush()
        self._sliced.change_all(outboxes, change, then)

    def finish(self) -> None:
        """Deliver to every outbox all that was published before, and write it."""
        self._sliced.finish()
        self.flush()
        self._sliced.report()

    def dropped(self, outbox: Recipient, source: DeliverySource, reason: str, count: int) -> None:
        """Count ``count`` messages as dropped that were counted as delivered before."""
        label, connection = outbox.label, outbox.connection
        self.counters.delivered -= count
        for topic, number in source.counts(count):
            self.counters.drop(label, topic.name, reason, number, connection, outbox.traffic)

    def undeliverable(self, outbox: Recipient, source: DeliverySource, count: int) -> None:
        """Count ``count`` messages for ``outbox``, which is shut.

        They are dropped if they were published before it was shut, and not for it otherwise.
        """
        if outbox in self._subscribing.gone:
            self.counters.delivered -= count
        else:
            self.dropped(outbox, source, "disconnected", count)

    def sweep(self) -> None:
        """Act on the subscribers that have been slow for longer than their policy allows."""
        now = self.seconds()
        for outbox in [outbox for outbox in self.slow if outbox.overdue(now)]:
            outbox.give_up_overdue()
