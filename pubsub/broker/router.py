"""Fan-out: from a batch to the outboxes of the subscribers of its topics.

A batch is encoded once for each audience: subscribers of the same topics with the same encodings
(see ``audience.py``). The messages that an audience collects in one reactor tick are joined into
one bytes object, which every outbox of the audience receives at the end of the tick. Then each of
these outboxes is flushed once; if they are many, some of them in each of the next ticks, and
publishers are held meanwhile. An outbox that belongs to several audiences of a tick receives their
messages one by one, in the order in which they were published.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING

from pubsub.broker.audience import WRITE_BYTES, Audience, Share, joined
from pubsub.broker.combination_cache import CombinationCache
from pubsub.broker.compact_map import EMPTY_MAP, with_item, without_item
from pubsub.broker.counters import Counters
from pubsub.broker.encoders import too_large
from pubsub.broker.histogram import Histogram
from pubsub.broker.limits import Gate
from pubsub.broker.memory_budget import MemoryBudget
from pubsub.broker.topic_mix import TopicMix
from pubsub.broker.topics import SubscriberGroup

if TYPE_CHECKING:
    from pubsub.broker.batch import Batch
    from pubsub.broker.forwarding import Forwarding
    from pubsub.broker.slices import Slices, Work
    from pubsub.broker.topics import Delivery, KeyChange, Recipient, Source, Topic
    from pubsub.interfaces import Encoding

# Topics whose subscriptions are looked for in one step.
_TOPICS = 32
# Subscriptions that are ended at once, rather than in slices.
_FEW = 64
# Outboxes that are written to in a tick. A write takes some 10 µs.
_WRITES = 300
# Flushes that are timed in each second, and of how many one is after that.
_TIMED, _SAMPLE = 100, 16


class Router:
    """Routes batches and flushes once a reactor tick.

    ``at_tick_end`` runs a call after the events of the current tick; ``seconds`` is the reactor's
    clock. ``dirty`` has the outboxes to flush at the end of the tick, ``slow`` those whose
    subscribers are slow. ``behind`` has the topics that have subscribers behind.

    ``flush_times`` has the time from the first message of a tick to the flush at its end: of the
    first _TIMED ticks of each second, and of one of _SAMPLE after them.
    """

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
        self._timed = self._skip = 0
        self._since: float | None = None
        self._scheduled = False
        self._pending: list[Audience] = []
        self._order = 0
        self._mixes: CombinationCache[TopicMix] = CombinationCache(memory)
        self._slices = slices
        self._delivering = False
        # Outboxes that are shut and whose subscriptions are being ended in slices.
        self._gone: set[Recipient] = set()
        self.dirty: list[Recipient] = []
        # Bytes for an audience that came while the gate was shut.
        self._late_bytes = 0
        self.gate = Gate()
        """Shut while outboxes have messages of earlier ticks that could be written."""
        self.writes_later = False
        """True while very many clients may be sent something: it is written as messages are."""
        self.subscriptions = 0
        """Subscriptions of outboxes, live or behind."""
        self.slow: set[Recipient] = set()
        self.behind: set[Topic] = set()
        self.forwarding: Forwarding | None = None
        """Set if messages are shared with other brokers."""

    def mix(self, topics: Iterable[Topic]) -> TopicMix:
        """Return the mix of distinct ``topics``, in an order of its own."""
        key = tuple(sorted(topics, key=id))
        mix = self._mixes.get(key)
        if mix is None:
            mix = TopicMix(key)
            self._mixes.put(key, mix)
        return mix

    def route(self, topic: Topic, batch: Batch) -> None:
        """Encode ``batch`` for the groups of its only topic; it is sent at the end of the tick."""
        for group in topic.groups.values():
            self._collect(group, batch, topic)
        if topic.behind:
            topic.passed += batch.count
        if self._pending:
            self.flush_soon()

    def route_mixed(self, mix: TopicMix, batch: Batch) -> None:
        """Encode ``batch`` for the audiences of the topics of ``mix``."""
        totals: Sequence[tuple[int, int, int]] | None = None
        for audience in mix.audiences():
            if totals is None:
                totals = batch.columns.totals()
            self._collect(audience, batch, Share(mix.topics, totals, audience.wanted))
        if self.behind and not self.behind.isdisjoint(mix.topics):
            for index, count, _ in totals or batch.columns.totals():
                if mix.topics[index].behind:
                    mix.topics[index].passed += count
        if self._pending:
            self.flush_soon()

    def _collect(self, audience: Audience, batch: Batch, source: Source) -> None:
        encoder = audience.encoder
        data, count = encoder.encode(batch)
        if batch.columns.largest > encoder.limit:
            source = self._count_too_large(audience, batch, source)
        if not count:
            return
        if not audience.pending:
            self._pending.append(audience)
        self._order += 1
        audience.pending.append((self._order, data, count, batch.offset, source))

    def flush_soon(self) -> None:
        """Flush at the end of the reactor tick."""
        if not self._scheduled:
            self._scheduled = True
            if self._skip:
                self._skip -= 1
            else:
                self._since = self.seconds()
            self.at_tick_end(self.flush)

    def flush(self) -> None:
        """Send everything that was routed in this tick."""
        self._scheduled = False
        if self._pending:
            self._delivering = True
        if len(self._pending) == 1 and len(self._pending[0].targets) <= _WRITES:
            # Written at once: no other audience has messages.
            (audience,) = self._pending
            self._count_late(self._pending)
            self._pending = []
            pending, audience.pending = audience.pending, []
            targets = audience.targets
            for _order, data, count, offset, source in joined(pending):
                for recipient in targets:
                    recipient.deliver_now(data, count, source, offset)
                if targets:
                    number = len(targets)
                    self.counters.delivered += count * number
                    # Of one protocol, as all have the same encoding.
                    traffic = targets[0].traffic
                    traffic.messages_out += count * number
                    traffic.bytes_out += len(data) * number
        else:
            self.hand_over()
        self._delivering = False
        self._write()
        if self._since is not None:
            self._time_flush(self._since)

    def _write(self) -> None:
        """Write to outboxes that have messages: to some of them if they are many.

        A publisher that the gate cannot hold, such as another broker, may send more meanwhile. Then
        all are written to, as outboxes that wait for their turn may take no more than slow ones.
        """
        dirty, self.dirty = self.dirty, []
        if len(dirty) > _WRITES and self._late_bytes <= WRITE_BYTES:
            self.dirty = dirty[_WRITES:]
            del dirty[_WRITES:]
        for outbox in dirty:
            outbox.flush()
        if self.dirty:
            self.gate.close()
            self.flush_soon()
        elif self.gate.shut:
            self._late_bytes = 0
            self.gate.open()

    def _count_late(self, audiences: Sequence[Audience]) -> None:
        if self.gate.shut and audiences:
            self._late_bytes += max(
                sum([len(delivery[1]) for delivery in audience.pending]) for audience in audiences
            )

    def _time_flush(self, since: float) -> None:
        self.flush_times.observe(self.seconds() - since)
        self._since = None
        self._timed += 1
        self._skip = 0 if self._timed < _TIMED else _SAMPLE - 1

    def mark_second(self) -> None:
        """A second has passed, for ``flush_times``."""
        self.flush_times.mark()
        self._timed = self._skip = 0

    def hand_over(self) -> None:
        """Deliver to the outboxes what the audiences have, in the order of publishing."""
        audiences, self._pending = self._pending, []
        if not audiences:
            return
        self._count_late(audiences)
        found = [(audience.targets, audience.pending) for audience in audiences]
        for audience in audiences:
            audience.pending = []
        self._delivering = True
        together: set[Recipient] = set().union(*[targets for targets, _ in found])
        if len(together) == sum([len(targets) for targets, _ in found]):
            for targets, pending in found:
                for delivery in joined(pending):
                    self._deliver(targets, delivery)
        else:
            merged = [(targets, delivery) for targets, pending in found for delivery in pending]
            for targets, delivery in sorted(merged, key=_order_of):
                self._deliver(targets, delivery)
        self._delivering = False

    def _deliver(self, targets: Sequence[Recipient], delivery: Delivery) -> None:
        _order, data, count, offset, source = delivery
        for recipient in targets:
            recipient.deliver(data, count, source, offset)
        self.counters.delivered += count * len(targets)

    def subscribe(
        self, outbox: Recipient, topic: Topic, encoding: Encoding, offset: int | None = None
    ) -> bool:
        """Deliver ``topic`` to ``outbox`` from the next message on; False if it already is.

        With ``offset`` the messages of the history from there on are delivered first.
        """
        if topic in outbox.subscriptions or outbox.is_behind(topic):
            return False
        # Messages published earlier in this tick are not for the new subscriber.
        self.hand_over()
        topic.idle_since = None
        if not outbox.starts_behind(topic, encoding, offset):
            self._join(outbox, topic, encoding)
        self._reader_came(topic)
        return True

    def _join(self, outbox: Recipient, topic: Topic, encoding: Encoding) -> None:
        group = topic.groups.get(encoding)
        if group is None:
            group = topic.groups[encoding] = SubscriberGroup(topic, encoding)
        group.add(outbox)
        self.subscriptions += 1
        outbox.subscriptions = with_item(outbox.subscriptions, group.only_subscription)
        topic.subscription_changed(outbox)

    def unsubscribe(self, outbox: Recipient, topic: Topic) -> bool:
        """End a subscription; False if there was none."""
        encoding = outbox.subscriptions.get(topic)
        if encoding is None and not outbox.is_behind(topic):
            return False
        outbox.ended(topic)
        if encoding is None:
            self.leave_behind(outbox, topic)
        else:
            outbox.subscriptions = without_item(outbox.subscriptions, topic)
            self._leave(outbox, topic, encoding)
        return True

    # Subscribers that are behind

    def fall_behind(self, outbox: Recipient, topic: Topic) -> None:
        """Note that ``outbox`` is subscribed to ``topic`` and reads it from the history.

        If it is live, messages are no longer delivered to it.
        """
        if topic.behind is None:
            topic.behind = set()
            self.behind.add(topic)
        if outbox not in topic.behind:
            topic.behind.add(outbox)
            self.subscriptions += 1
        encoding = outbox.subscriptions.get(topic)
        if encoding is not None:
            outbox.subscriptions = without_item(outbox.subscriptions, topic)
            self._leave(outbox, topic, encoding)

    def leave_behind(self, outbox: Recipient, topic: Topic) -> None:
        """End ``fall_behind``."""
        if topic.behind is not None and outbox in topic.behind:
            topic.behind.discard(outbox)
            self.subscriptions -= 1
            if not topic.behind:
                topic.behind = None
                self.behind.discard(topic)
                self._reader_left(topic)

    def go_live(self, outbox: Recipient, behind: Mapping[Topic, Encoding]) -> None:
        """Deliver topics that ``outbox`` was behind with from the next message on."""
        for topic, encoding in behind.items():
            self._join(outbox, topic, encoding)
            self.leave_behind(outbox, topic)

    def _leave(self, outbox: Recipient, topic: Topic, encoding: Encoding) -> None:
        """Deliver ``topic`` to ``outbox`` no more, whose subscription has ended."""
        self.subscriptions -= 1
        group = topic.groups.get(encoding)
        if group is not None:
            self.hand_over()
            group.discard(outbox)
            if not group:
                del topic.groups[encoding]
                self._reader_left(topic)
        topic.subscription_changed(outbox)
        topic.unblock(outbox)

    @contextmanager
    def excluding(self, outbox: Recipient, topic: Topic) -> Iterator[None]:
        """Return a context in which messages on ``topic`` are not delivered to ``outbox``.

        The subscription stays, and the other subscribers still share one encoding.
        """
        self.hand_over()
        encoding = outbox.subscriptions.get(topic)
        if encoding is None:
            # It is behind, and its cursor leaves out what is not for it.
            yield
            return
        group = topic.groups[encoding]
        group.discard(outbox)
        try:
            yield
        finally:
            self.hand_over()
            # A flush can evict the subscriber, which ends the subscription, or let go of it.
            if topic in outbox.subscriptions:
                topic.groups.setdefault(group.encoding, group).add(outbox)

    def read_history(self, topic: Topic) -> None:
        """Count a reader without an outbox, which reads ``topic`` from the history."""
        topic.history_readers += 1
        self._reader_came(topic)

    def leave_history(self, topic: Topic) -> None:
        """End one ``read_history``."""
        topic.history_readers = max(topic.history_readers - 1, 0)
        self._reader_left(topic)

    def _reader_came(self, topic: Topic) -> None:
        if topic.upstream is not None:
            topic.upstream.want(topic)
        elif self.forwarding is not None:
            self.forwarding.wanted(topic)

    def _reader_left(self, topic: Topic) -> None:
        if topic.has_readers:
            return
        if topic.upstream is not None:
            topic.upstream.unwant(topic)
        elif self.forwarding is not None:
            self.forwarding.unwanted(topic)

    def read_prefix(self, prefix: bytes) -> None:
        """A client begins to read every topic with ``prefix``, and no other does so yet."""
        if self.forwarding is not None:
            self.forwarding.prefix_wanted(prefix)

    def leave_prefix(self, prefix: bytes) -> None:
        """End one ``read_prefix``."""
        if self.forwarding is not None:
            self.forwarding.prefix_unwanted(prefix)

    def forget(self, outbox: Recipient) -> None:
        """End every subscription of ``outbox``, which is being shut.

        If there are many, their topics are left in slices; what is published meanwhile is not for
        the outbox.
        """
        if len(outbox.subscriptions) <= _FEW:
            for topic in tuple(outbox.subscriptions):
                self.unsubscribe(outbox, topic)
            return
        self.hand_over()
        subscriptions, outbox.subscriptions = outbox.subscriptions, EMPTY_MAP
        if not self._delivering:
            self._gone.add(outbox)
        self._slices.run_later(self._leave_all(outbox, subscriptions))

    def _leave_all(self, outbox: Recipient, subscriptions: Mapping[Topic, Encoding]) -> Work:
        self._gone.add(outbox)
        for topic, encoding in subscriptions.items():
            self._leave(outbox, topic, encoding)
            yield
        self._gone.discard(outbox)

    def recheck(self, topic: Topic, change: KeyChange | None = None) -> tuple[int, int]:
        """Recheck every subscription to ``topic``; return how many stay and how many end."""
        self.writes_later = True
        try:
            results = list(self.recheck_each(topic, change))
        finally:
            self.writes_later = False
        return results.count(True), results.count(False)

    def recheck_each(self, topic: Topic, change: KeyChange | None = None) -> Iterator[bool]:
        """Recheck a subscription to ``topic`` a step; yield whether it stays."""
        # Messages published before the change are for those who were permitted then.
        self.flush()
        for outbox in topic.subscribers:
            if topic not in outbox.subscriptions and not outbox.is_behind(topic):
                continue
            stays = outbox.recheck(topic, change)
            if not stays:
                self.unsubscribe(outbox, topic)
            yield stays

    def recheck_all(self, topics: Iterable[Topic], results: Counter[bool]) -> Work:
        """Recheck every subscription to ``topics``; ``results`` counts those that stay or end."""
        iterator = iter(topics)
        while some := list(islice(iterator, _TOPICS)):
            for topic in some:
                if topic.has_readers:
                    for stays in self.recheck_each(topic):
                        results[stays] += 1
                        yield
            yield

    def recheck_subscriber(self, outbox: Recipient) -> Work:
        """Recheck every subscription of ``outbox``, one a step: its client has other rights now."""
        # Messages published before are for the client as it was then.
        self.flush()
        for topic in outbox.topics():
            if topic not in outbox.subscriptions and not outbox.is_behind(topic):
                continue
            if not outbox.recheck(topic, None):
                self.unsubscribe(outbox, topic)
            yield

    def end(self, topic: Topic) -> None:
        """End every subscription to ``topic`` and release its publishers."""
        self.flush()
        for outbox in topic.subscribers:
            self.unsubscribe(outbox, topic)
        for blocker in tuple(topic.blockers):
            topic.unblock(blocker)

    def dropped(self, outbox: Recipient, source: Source, reason: str, count: int) -> None:
        """Count ``count`` messages as dropped that were counted as delivered before."""
        label, connection = outbox.label, outbox.connection
        self.counters.delivered -= count
        for topic, number in source.counts(count):
            self.counters.drop(label, topic.name, reason, number, connection, outbox.traffic)

    def undeliverable(self, outbox: Recipient, source: Source, count: int) -> None:
        """Count ``count`` messages for ``outbox``, which is shut.

        They are dropped if they were published before it was shut, and not for it otherwise.
        """
        if outbox in self._gone:
            self.counters.delivered -= count
        else:
            self.dropped(outbox, source, "disconnected", count)

    def sweep(self) -> None:
        """Give up the subscribers that have been slow for longer than their policy allows."""
        now = self.seconds()
        for outbox in [outbox for outbox in self.slow if outbox.overdue(now)]:
            outbox.give_up_overdue()

    def _count_too_large(self, audience: Audience, batch: Batch, source: Source) -> Source:
        """Count messages that no frame of the audience can carry; return the others' source."""
        lost = too_large(audience.encoder, batch)
        for index, count in lost.items():
            for outbox in audience.targets:
                self.counters.drop(
                    outbox.label,
                    batch.topics[index],
                    "too-large",
                    count,
                    outbox.connection,
                    outbox.traffic,
                )
        return source.without(lost) if isinstance(source, Share) else source


def _order_of(entry: tuple[Sequence[Recipient], Delivery]) -> int:
    return entry[1][0]
