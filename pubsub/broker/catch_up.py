"""Catching up: what a resumed subscriber missed, read from the history, then the live topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import Logger

if TYPE_CHECKING:
    from pubsub.broker.batch import Batch
    from pubsub.broker.outbox import Outbox
    from pubsub.broker.service import BrokerService
    from pubsub.broker.topics import Topic
    from pubsub.interfaces import Encoding

log = Logger()
PAGE_BYTES = 256 * 1024


def leave(outbox: Outbox, positions: Mapping[Topic, int], end: int) -> dict[Topic, int]:
    """Shut the outbox of a client that may come back; returns where to go on, for each topic.

    ``positions`` are those of a replay that is not done, ``end`` is where the log ends. What was
    written already is not sent again.
    """
    found = dict.fromkeys(outbox.subscriptions, end) | dict(positions)
    for topic, offset in outbox.shut(None).items():
        if topic in found:
            found[topic] = min(offset, found[topic])
    return found


class Replay:
    """Delivers topics from an offset of the history on to ``outbox``, then subscribes it.

    ``positions`` has the offset to start from for each topic, ``encodings`` how it is sent. Pages
    of the history follow one another as the outbox drains. The page that reaches the end of the
    log and the subscription to what comes next happen in one step, so that nothing is delivered
    twice and nothing falls between.
    """

    def __init__(
        self,
        broker: BrokerService,
        outbox: Outbox,
        positions: Mapping[Topic, int],
        encodings: Mapping[Topic, Encoding],
    ) -> None:
        self._broker = broker
        self._outbox = outbox
        self._positions = dict(positions)
        self._encodings = encodings
        self._offset = min(self._positions.values())

    @property
    def positions(self) -> Mapping[Topic, int]:
        """The topics that are not live yet, and how far each has been delivered."""
        return {topic: max(at, self._offset) for topic, at in self._positions.items()}

    def discard(self, topic: Topic) -> None:
        """Leave ``topic`` out from now on."""
        self._positions.pop(topic, None)

    def start(self) -> Deferred[None]:
        """Begin; the Deferred fires when the subscriptions are live or the outbox is shut."""
        return ensureDeferred(self._run()).addErrback(
            lambda failure: log.failure("replay to {client!r}", failure, client=self._outbox.label)
        )

    async def _run(self) -> None:
        store = self._broker.store
        while not self._outbox.closed:
            self._count_expired()
            topics = self._live_topics()
            # Whoever replays ends with the process and is shown no offsets: it may have what is
            # not committed yet, and has to, or it would never catch up.
            page = await store.read(self._offset, frozenset(topics), PAGE_BYTES, fresh=True)
            for start, stop in page.damaged:
                self._broker.counters.drop(self._outbox.label, "*", "damaged", stop - start)
            for batch in page.batches:
                self._deliver(topics[batch.topic], batch)
            self._offset = page.next_offset
            if self._offset >= store.next_offset:
                break
            await self._drained()
        if self._outbox.closed:
            return
        for topic in self._live_topics().values():
            if self._outbox.recheck(topic, None):
                self._broker.router.subscribe(self._outbox, topic, self._encodings[topic])
        self._positions.clear()
        # Nothing else would send the last page before the next message is published.
        self._outbox.flush()

    def _live_topics(self) -> dict[str, Topic]:
        """Those that have not ended meanwhile, by name; another may have an ended one's."""
        registry = self._broker.topics
        return {
            t.name: t for t in self._positions if t.name in registry and registry.named(t.name) is t
        }

    def _deliver(self, topic: Topic, batch: Batch) -> None:
        start = self._positions.get(topic)
        end = batch.offset + len(batch.payloads)
        if start is None or start >= end or self._outbox.closed:
            return
        if not self._outbox.recheck(topic, None):
            self.discard(topic)
            return
        if start > batch.offset:
            batch = batch.part(start - batch.offset, len(batch.payloads))
        encoding = self._encodings[topic]
        counters = self._broker.counters
        fitting = batch.within(encoding.limit)
        count = 0 if fitting is None else len(fitting.payloads)
        if count < len(batch.payloads):
            lost = len(batch.payloads) - count
            counters.drop(self._outbox.label, batch.topic, "too-large", lost)
        if fitting is not None:
            self._outbox.enqueue(encoding.encode(fitting), count, topic, fitting.offset)
            counters.delivered += count

    def _drained(self) -> Deferred[None]:
        self._outbox.flush()
        done: Deferred[None] = Deferred()

        def drained() -> None:
            self._broker.at_tick_end(lambda: done.callback(None))

        self._outbox.when_drained(drained)
        return done

    def _count_expired(self) -> None:
        """What left the history before it could be replayed is lost, and said to be."""
        lost = self._broker.store.first_offset - self._offset
        if lost > 0:
            self._broker.counters.drop(self._outbox.label, "*", "expired", lost)
            self._offset = self._broker.store.first_offset
