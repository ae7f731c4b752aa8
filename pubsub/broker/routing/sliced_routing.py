"""Routing in slices: batches whose audiences are too many for one tick.

Making an audience takes some 20 µs and encoding for it some 5 µs, so a read that brings messages of
many topics to a thousand subscribers, each with topics of its own, takes several ticks. Such a
batch waits here, and so does everything that is published after it, in that order; publishers are
held meanwhile. Only delivery is spread: messages are stored and acknowledged before.

A subscription that changes meanwhile changes for messages that are published later. So before a
change the subscriber receives the messages that wait for it (see ``complete``), and none from these
batches after that. All other subscribers are subscribed as they were when the batch was published.

A change of very many subscribers, such as a new queue key, waits in the same way: messages that are
published after it are for the outboxes that are subscribed after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from sys import maxsize
from typing import TYPE_CHECKING

from pubsub.broker.routing.audience import WRITE_BYTES, Audience, Share
from pubsub.broker.routing.mixed_routing import SharedFrames
from pubsub.broker.routing.targets import Targets

if TYPE_CHECKING:
    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.routing.encoders import BatchEncoder
    from pubsub.broker.routing.message_router import MessageRouter
    from pubsub.broker.routing.mixed_audience import MixedAudience
    from pubsub.broker.routing.topic_mix import TopicMix
    from pubsub.broker.topic_space.topics import DeliverySource, QueuedDelivery, Recipient, Topic

# Units of work in a tick. A unit takes some 5 µs.
_UNITS = 300
# Units to change a subscriber, and subscribers that are changed at once.
_CHANGING, _FEW = 6, 64
# Estimated memory that a waiting change takes for a subscriber, and a waiting message beside its
# payload: its place and its head, as the batch keeps the whole read.
_CHANGE_BYTES, _MESSAGE_BYTES = 80, 24
# Messages that are encoded for an audience in one unit: as frames by the kernel, by copying frames
# that audiences share, and otherwise.
_MESSAGES, _COPIED, _OTHERS = 256, 1024, 16
# Audiences for which shared frames are made at a time.
_SHARING = 16
# Bytes of messages that may come while publishers are held, as some cannot be, such as other
# brokers; and the bytes of the read of each publisher that is held, of which there are no more.
_LATE_BYTES, _READ_BYTES = 16 * WRITE_BYTES, WRITE_BYTES


class _Rest(Targets["Recipient"]):
    """An audience without some of its outboxes."""

    __slots__ = ("encoder", "pending")

    def __init__(self, encoder: BatchEncoder, targets: Iterable[Recipient]) -> None:
        super().__init__(targets)
        self.encoder = encoder
        self.pending: list[QueuedDelivery] = []


class _WaitingBatch:
    """A batch, of one topic or of a mix; ``done`` has the outboxes that need nothing more of it."""

    __slots__ = ("batch", "done", "mix", "topic")

    def __init__(self, batch: Batch, topic: Topic | None, mix: TopicMix | None) -> None:
        self.batch = batch
        self.topic = topic
        self.mix = mix
        self.done: set[Recipient] = set()

    def audience_of(self, recipient: Recipient) -> tuple[Audience, DeliverySource] | None:
        """Return an audience of ``recipient`` alone, if the batch is for it."""
        if self.topic is not None:
            encoding = recipient.subscriptions.get(self.topic)
            group = None if encoding is None else self.topic.groups.get(encoding)
            return None if group is None else (_Rest(group.encoder, (recipient,)), self.topic)
        assert self.mix is not None
        audience = self.mix.wanted_by(recipient)
        if audience is None:
            return None
        indexes = self.batch.columns.words(of_indexes=True)
        return audience, Share(self.mix.topics, indexes, audience.wanted)


class _Changing:
    """A change of ``recipients``; ``done`` has those that are changed. ``then`` is called last."""

    __slots__ = ("change", "done", "recipients", "then")

    def __init__(
        self,
        recipients: Sequence[Recipient],
        change: Callable[[Recipient], None],
        then: Callable[[], None],
    ) -> None:
        self.recipients = recipients
        self.change = change
        self.then = then
        self.done: set[Recipient] = set()


class SlicedRouting:
    """Batches and changes that wait for ``router``; ``waiting`` is true while there is one.

    No outbox is delivered to in a step, only when the fan-out hands over.
    """

    def __init__(self, router: MessageRouter) -> None:
        self._router = router
        self.waiting: deque[_WaitingBatch | _Changing] = deque()
        # Recipients that are being changed, and changes that are made but not reported.
        self._changing: set[Recipient] = set()
        self._made: list[Callable[[], None]] = []
        self._steps: Iterator[int] | None = None
        self._left = 0
        self._is_running = self._is_scheduled = False
        self._late_bytes = 0

    def is_long(self, mix: TopicMix, batch: Batch, frames: SharedFrames | None) -> bool:
        """Return whether routing ``batch`` would take too much of a tick."""
        return mix.effort(_units(batch, _MESSAGES if frames is None else _COPIED)) > _UNITS

    def put(self, batch: Batch, topic: Topic | None = None, mix: TopicMix | None = None) -> None:
        """Route ``batch`` of ``topic`` or ``mix`` after the batches that wait."""
        router = self._router
        if router.gate.shut:
            self._late_bytes += batch.nbytes
        self._append(_WaitingBatch(batch, topic, mix))
        if self._late_bytes > _LATE_BYTES + router.gate.held * _READ_BYTES:
            self.finish()

    def change_all(
        self,
        recipients: Sequence[Recipient],
        change: Callable[[Recipient], None],
        then: Callable[[], None],
    ) -> None:
        """Call ``change`` for each of ``recipients``, before messages that are published later.

        It may be called for others as well. It must not raise.
        """
        if self.waiting or len(recipients) > _FEW:
            self._append(_Changing(recipients, change, then))
            return
        for recipient in recipients:
            change(recipient)
        then()

    def _append(self, one: _WaitingBatch | _Changing) -> None:
        self._router.gate.close()
        self._router.memory.add(_nbytes(one))
        self.waiting.append(one)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._router.at_tick_end(self._go_on)

    def complete(self, recipient: Recipient, with_changes: bool) -> None:
        """Collect the messages that wait for ``recipient``: it needs no others of these batches.

        It is changed as well, except without ``with_changes``.
        """
        if recipient in self._changing:
            # Messages after this change are for the recipient in its later state.
            return
        collected: list[tuple[Audience, Batch, DeliverySource]] = []
        # A change may lead to the next one.
        for one in tuple(self.waiting):
            if recipient in one.done:
                continue
            if isinstance(one, _Changing):
                if with_changes:
                    self._collect_all(collected)
                    collected = []
                    self._change(one, recipient)
                continue
            one.done.add(recipient)
            found = one.audience_of(recipient)
            if found is not None:
                collected.append((found[0], one.batch, found[1]))
        self._collect_all(collected)

    def _collect_all(self, collected: list[tuple[Audience, Batch, DeliverySource]]) -> None:
        for audience, batch, source in collected:
            self._router.collect(audience, batch, source)

    def _change(self, one: _Changing, recipient: Recipient) -> None:
        one.done.add(recipient)
        # Messages that were published before are delivered before.
        self._router.hand_over()
        self._changing.add(recipient)
        try:
            one.change(recipient)
        finally:
            self._changing.discard(recipient)

    def exclude(self, recipient: Recipient) -> None:
        """Nothing that waits is for ``recipient``."""
        for one in self.waiting:
            one.done.add(recipient)

    def finish(self) -> None:
        """Route everything that waits at once."""
        self._run(maxsize)

    def report(self) -> None:
        """Call ``then`` of the changes that are made: not within a step, as it may do anything."""
        made, self._made = self._made, []
        for then in made:
            then()

    def _go_on(self) -> None:
        self._is_scheduled = False
        try:
            self._run(_UNITS)
            self._router.flush()
            self.report()
        finally:
            if (self.waiting or self._made) and not self._is_scheduled:
                self._is_scheduled = True
                self._router.at_tick_end(self._go_on)

    def _run(self, units: int) -> None:
        """Do the steps that ``units`` allow."""
        self._left = units
        if self._is_running:
            # Handing over has ended a client, and that has led here again.
            return
        self._is_running = True
        try:
            while self.waiting and self._left > 0:
                if self._steps is None:
                    self._steps = self._begin(self.waiting[0])
                done = next(self._steps, None)
                if done is None:
                    self._end_first()
                else:
                    self._left -= done
        finally:
            self._is_running = False

    def _end_first(self) -> None:
        self._steps = None
        one = self.waiting.popleft()
        self._router.memory.free(_nbytes(one))
        if isinstance(one, _Changing):
            self._made.append(one.then)
        if not self.waiting:
            self._late_bytes = 0

    def _begin(self, one: _WaitingBatch | _Changing) -> Iterator[int]:
        return self._route(one) if isinstance(one, _WaitingBatch) else self._change_each(one)

    def _change_each(self, one: _Changing) -> Iterator[int]:
        for recipient in one.recipients:
            if recipient not in one.done:
                self._change(one, recipient)
                yield _CHANGING

    def _route(self, one: _WaitingBatch) -> Iterator[int]:
        batch, mix = one.batch, one.mix
        if mix is None:
            assert one.topic is not None
            for group in tuple(one.topic.groups.values()):
                yield self._collect(one, group, one.topic)
            return
        if mix.current is None:
            # The messages of the audiences are not for the subscribers that join them.
            self._router.hand_over()
            yield from mix.prepare()
        frames, audiences = SharedFrames.of(mix, batch), mix.prepared()
        if frames is not None:
            for at in range(0, len(audiences), _SHARING):
                yield self._collect_shared(one, audiences[at : at + _SHARING], frames)
            return
        indexes = batch.columns.words(of_indexes=True)
        for audience in audiences:
            yield self._collect(one, audience, Share(mix.topics, indexes, audience.wanted))

    def _collect_shared(
        self, one: _WaitingBatch, audiences: Sequence[MixedAudience], frames: SharedFrames
    ) -> int:
        left = [(audience, _rest(one, audience)) for audience in audiences]
        found = [(audience, rest) for audience, rest in left if rest is not None]
        if found:
            frames.collect(self._router, found)
        return len(audiences) * _units(one.batch, _COPIED)

    def _collect(self, one: _WaitingBatch, audience: Audience, source: DeliverySource) -> int:
        """Encode the messages for ``audience``; return the units of work."""
        rest = _rest(one, audience)
        if rest is not None:
            self._router.collect(rest, one.batch, source)
        return _units(one.batch, _OTHERS if audience.encoder.writer is None else _MESSAGES)


def _rest(one: _WaitingBatch, audience: Audience) -> Audience | None:
    """Return ``audience`` without the outboxes that are done, which it is now; None if all are."""
    targets: Sequence[Recipient] = audience.targets
    if not one.done.isdisjoint(targets):
        targets = [recipient for recipient in targets if recipient not in one.done]
        audience = _Rest(audience.encoder, targets)
    one.done.update(targets)
    return audience if targets else None


def _nbytes(one: _WaitingBatch | _Changing) -> int:
    if isinstance(one, _WaitingBatch):
        return one.batch.nbytes + _MESSAGE_BYTES * one.batch.count
    return _CHANGE_BYTES * len(one.recipients)


def _units(batch: Batch, of_each: int) -> int:
    """Return the units of work to encode ``batch``, with as many messages ``of_each``."""
    return 1 + batch.count // of_each
