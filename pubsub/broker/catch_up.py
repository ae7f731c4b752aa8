"""Catching up: missed messages are read from the history, then live delivery begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import Logger

from pubsub.broker.audience import Share
from pubsub.broker.encoders import make_encoder, too_large

if TYPE_CHECKING:
    from pubsub.broker.batch import Batch
    from pubsub.broker.outbox import Outbox
    from pubsub.broker.router import Router
    from pubsub.broker.topic_registry import TopicRegistry
    from pubsub.broker.topics import Source, Topic
    from pubsub.interfaces import Encoding, IStore

log = Logger()
PAGE_BYTES = 256 * 1024


def shut_and_get_offsets(
    outbox: Outbox, positions: Mapping[Topic, int], end: int
) -> dict[Topic, int]:
    """Shut the outbox of a client that may resume; return the offset to resume at for each topic.

    ``positions`` are those of a CatchUp that has not finished, ``end`` is the end of the log. What
    was written is not sent again.
    """
    offsets = dict.fromkeys(outbox.subscriptions, end) | dict(positions)
    for topic, offset in outbox.shut(None).items():
        if topic in offsets:
            offsets[topic] = min(offset, offsets[topic])
    return offsets


class CatchUp:
    """Delivers the history of topics to ``outbox``, then subscribes it to them.

    ``positions`` has the offset to start from for each topic, ``encodings`` its encoding. Pages of
    the history are sent as fast as the outbox drains. The page that reaches the end of the log
    and the subscription are one step, so that no message is delivered twice or lost in between.
    """

    def __init__(
        self,
        store: IStore,
        router: Router,
        topics: TopicRegistry,
        outbox: Outbox,
        positions: Mapping[Topic, int],
        encodings: Mapping[Topic, Encoding],
    ) -> None:
        self._store = store
        self._router = router
        self._counters = router.counters
        self._topics = topics
        self._outbox = outbox
        self._positions = dict(positions)
        self._encodings = encodings
        self._offset = min(self._positions.values())

    @property
    def positions(self) -> Mapping[Topic, int]:
        """The topics that are not live yet, and the offset that each has reached."""
        return {topic: max(at, self._offset) for topic, at in self._positions.items()}

    def __contains__(self, topic: Topic) -> bool:
        """Return whether ``topic`` is not live yet."""
        return topic in self._positions

    def discard(self, topic: Topic) -> None:
        """Deliver nothing more of ``topic``."""
        self._positions.pop(topic, None)

    def start(self) -> Deferred[None]:
        """Begin; the Deferred fires when the subscriptions are live or the outbox is shut."""
        return ensureDeferred(self._run()).addErrback(
            lambda failure: log.failure(
                "catching up failed for {client!r}", failure, client=self._outbox.label
            )
        )

    async def _run(self) -> None:
        while not self._outbox.closed:
            self._count_expired()
            topics = self._live_topics()
            # Uncommitted messages are read too: this reader sees no offsets and does not outlive
            # the process, and could not reach the end of a busy log without them.
            page = await self._store.read(self._offset, frozenset(topics), PAGE_BYTES, fresh=True)
            for start, stop in page.damaged:
                self._counters.drop(self._outbox.label, "*", "damaged", stop - start)
            for batch in page.batches:
                self._deliver(topics, batch)
            self._offset = page.next_offset
            if self._offset >= self._store.next_offset:
                break
            await self._drained()
        if self._outbox.closed:
            return
        for topic in self._live_topics().values():
            if self._outbox.recheck(topic, None):
                self._router.subscribe(self._outbox, topic, self._encodings[topic])
        self._positions.clear()
        # Without this the last page would wait for the next message.
        self._outbox.flush()

    def _live_topics(self) -> dict[str, Topic]:
        """Return the topics that have not ended, by name; another topic may have an ended one's."""
        topics = self._topics
        return {
            t.name: t for t in self._positions if t.name in topics and topics.named(t.name) is t
        }

    def _deliver(self, topics: Mapping[str, Topic], batch: Batch) -> None:
        """Queue a batch of the page, in one piece if all of it is to be delivered."""
        if self._outbox.closed:
            return
        wanted = [topics[name] for name in batch.topics]
        ready = [self._is_due(topic, batch.offset + batch.count) for topic in wanted]
        if len(wanted) > 1 and not all(
            due and self._positions[topic] <= batch.offset
            for topic, due in zip(wanted, ready, strict=True)
        ):
            for index, run in batch.runs():
                if ready[index]:
                    self._enqueue(run, [wanted[index]])
        elif ready[0]:
            self._enqueue(batch, wanted)

    def _is_due(self, topic: Topic, stop: int) -> bool:
        """Return whether messages of ``topic`` before ``stop`` are to be delivered."""
        start = self._positions.get(topic)
        if start is None or start >= stop:
            return False
        if not self._outbox.recheck(topic, None):
            self.discard(topic)
            return False
        return True

    def _enqueue(self, batch: Batch, topics: Sequence[Topic]) -> None:
        """Queue the messages of a batch whose topics are ``topics``."""
        start = self._positions[topics[0]]
        if start >= batch.offset + batch.count:
            return
        if len(topics) == 1 and start > batch.offset:
            batch = batch.slice(start - batch.offset, batch.count)
        encoder = make_encoder([self._encodings[topic] for topic in topics])
        data, count = encoder.encode(batch)
        lost = too_large(encoder, batch) if count < batch.count else {}
        for index, number in lost.items():
            self._counters.drop(self._outbox.label, batch.topics[index], "too-large", number)
        if count:
            source: Source = topics[0]
            if len(topics) > 1:
                share = Share(topics, batch.columns.totals(), frozenset(range(len(topics))))
                source = share.without(lost)
            self._outbox.enqueue(data, count, source, batch.offset)
            self._counters.delivered += count

    def _drained(self) -> Deferred[None]:
        self._outbox.flush()
        done: Deferred[None] = Deferred()

        def drained() -> None:
            self._router.at_tick_end(lambda: done.callback(None))

        self._outbox.when_drained(drained)
        return done

    def _count_expired(self) -> None:
        """Skip and count the messages that expired before they could be delivered."""
        lost = self._store.first_offset - self._offset
        if lost > 0:
            self._counters.drop(self._outbox.label, "*", "expired", lost)
            self._offset = self._store.first_offset
