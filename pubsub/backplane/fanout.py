"""``Fanout``: the messages that clients publish here reach the clients of other brokers, and back.

Access rules, rates and queue keys are checked for a publisher by its own broker, for a subscriber
by the subscriber's. The messages of a topic that has a queue key carry a proof of it, and only a
broker with the same key for the topic delivers them. Exclusive topics, and those that are reserved
for the broker itself, are never shared.
"""

from __future__ import annotations

import hmac
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pubsub.backplane.messages.envelopes import Arrived, Incoming, Outgoing
from pubsub.backplane.messages.record import (
    MalformedRecord,
    TopicRecord,
    decode,
    encode_batch,
    joined,
)
from pubsub.broker.access_rules.access import RESERVED
from pubsub.broker.publishing.publisher_gates import Gates
from pubsub.errors import Refused
from pubsub.kernel import Columns

if TYPE_CHECKING:
    from pubsub.backplane.history.shared_history import SharedHistory
    from pubsub.broker.routing.batch import Batch, Headers
    from pubsub.broker.service import BrokerService
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.interfaces import Envelopes, IBackplane, PublisherGate

log = Logger()
LABEL = "backplane"
"""The client in counters of messages that are dropped or refused here."""
Figures = Mapping[str, Any]
# Links that are remembered: messages can be under way in the engine when a connection ends.
_OWN_LINKS = 16
# Bytes of payload up to which reads become one batch.
_TOGETHER = 64 * 1024


class Fanout(Service):
    """Connects ``broker`` with others by ``backplane``. It is started before the listeners."""

    def __init__(
        self,
        broker: BrokerService,
        backplane: IBackplane,
        history: SharedHistory | None = None,
    ) -> None:
        self._backplane = backplane
        self._history = history
        self._topics = broker.topics
        self._dispatcher = broker.dispatcher
        self._queue_keys = broker.queue_keys
        self._counters = broker.counters
        self._memory = broker.memory
        self._prefixes: set[bytes] = set()
        self._incoming = Incoming()
        self._outgoing = Outgoing(0, 0)
        # The links of this broker, the last one at the end.
        self._links: deque[int] = deque(maxlen=_OWN_LINKS)
        self._sent = self._received = 0
        self.gate: PublisherGate = backplane.gate
        if history is not None:
            self.gate = Gates((backplane.gate, history.gate))
        self.also: list[Callable[[], Figures]] = []
        """Return the figures of the other shared state."""
        broker.router.forwarding = self
        broker.statistics.backplane = self.figures
        broker.readiness.backplane = self._trouble
        broker.topics.watch_removal(self.unwanted)

    def set_aside(self, nbytes: int) -> None:
        """Count ``nbytes`` of the backplane's queues to the broker's memory."""
        self._charge(nbytes)

    def startService(self) -> None:
        """Connect; raises StartError."""
        super().startService()  # type: ignore[no-untyped-call]
        if self._history is not None:
            self._history.open()
        self._backplane.open(self.receive)
        log.info("backplane: {summary}", summary=self._backplane.summary)

    def stopService(self) -> Deferred[None]:
        """Disconnect."""
        super().stopService()  # type: ignore[no-untyped-call]
        if self._history is not None:
            self._history.close()
        return self._backplane.close()

    def _trouble(self) -> str | None:
        return self._backplane.trouble

    def figures(self) -> Figures:
        """Return the state and the totals; see ``Statistics.snapshot``."""
        return {
            "connected": self._backplane.trouble is None,
            "trouble": self._backplane.trouble or "",
            "complaint": self._backplane.complaint,
            "messages_out": self._sent,
            "messages_in": self._received,
            **self._backplane.figures(),
            **({} if self._history is None else self._history.figures()),
            **{name: value for figures in self.also for name, value in figures().items()},
        }

    # The subscriptions of this broker's clients

    def wanted(self, topic: Topic) -> None:
        """See ``Forwarding``."""
        if not topic.name.startswith(RESERVED):
            self._backplane.want(topic.name)

    def unwanted(self, topic: Topic) -> None:
        """See ``Forwarding``."""
        self._backplane.unwant(topic.name)

    def prefix_wanted(self, prefix: bytes) -> None:
        """See ``Forwarding``."""
        self._prefixes.add(prefix)
        self._backplane.want_prefix(prefix)

    def prefix_unwanted(self, prefix: bytes) -> None:
        """See ``Forwarding``."""
        self._prefixes.discard(prefix)
        self._backplane.unwant_prefix(prefix)

    # To the other brokers

    def published(self, topics: Sequence[Topic], batch: Batch) -> None:
        """See ``Forwarding``."""
        if self._history is not None and topics[0].durability:
            # The shared history has the messages.
            return
        link = self._backplane.link
        if not self._links or self._links[-1] != link:
            self._links.append(link)
            self._outgoing = Outgoing(link, self._backplane.limit)
        proofs = [self._proof(topic) for topic in topics]
        for index, head, columns in encode_batch(batch, self._outgoing.next_read(), proofs):
            self._send(topics[index].name, head, columns)

    def _proof(self, topic: Topic) -> bytes | None:
        if topic.name.startswith(RESERVED):
            return None
        return self._queue_keys.proof(topic.name)

    def _send(self, topic: str, head: bytes, columns: Columns) -> None:
        count, envelopes = columns.count, self._outgoing.envelopes(head, columns)
        # A backplane that is away reports so here, for each record.
        problem = "" if envelopes else "backplane-size"
        for envelope in envelopes:
            problem = self._backplane.send(topic, envelope, count)
            if problem:
                break
        if problem:
            self._counters.drop(LABEL, topic, problem, count)
        else:
            self._sent += count

    # From the other brokers

    def receive(self, envelopes: Envelopes) -> None:
        """Deliver the messages that have arrived."""
        malformed, held = self._incoming.malformed, self._incoming.held
        batch = _Together()
        for arrived, record in self._records(envelopes):
            topic = self._accept(arrived.name, record)
            if topic is None:
                continue
            if not batch.takes(topic, record, arrived.link):
                self._deliver(batch.records)
                batch = _Together()
            batch.add(topic, record, arrived.link)
        if batch.records:
            self._deliver(batch.records)
        if self._incoming.malformed > malformed:
            self._refuse("malformed", self._incoming.malformed - malformed)
        if self._incoming.held != held:
            self._charge(self._incoming.held - held)

    def _charge(self, nbytes: int) -> None:
        """Count the bytes of incomplete records."""
        self._memory.held.setdefault(LABEL, 0)
        self._memory.count(LABEL, nbytes)

    def _records(self, envelopes: Envelopes) -> Iterator[tuple[Arrived, TopicRecord]]:
        for arrived in self._incoming.take(envelopes):
            if arrived.link in self._links:
                # Sent over a connection that has ended; the engine does not know that it was ours.
                continue
            try:
                yield arrived, decode(arrived.data, arrived.at, arrived.stop)
            except MalformedRecord:
                self._incoming.malformed += 1

    def _accept(self, name: str, record: TopicRecord) -> Topic | None:
        """Return the topic if a client of this broker is to get the messages."""
        count = record.columns.count
        if name.startswith(RESERVED):
            self._refuse("reserved", count)
            return None
        own = self._queue_keys.proof(name)
        if own is None or not hmac.compare_digest(own, record.proof):
            self._refuse("wrong-queue-key", count)
            return None
        if self._memory.full:
            self._counters.drop(LABEL, name, "memory", count)
            return None
        topic = self._topics.get(name)
        if topic is None and self._is_covered(name):
            try:
                # The readers of the prefix find the topic now.
                topic = self._topics.create(name)
            except Refused as refused:
                self._refuse(refused.reason, count)
                return None
        if topic is None or not topic.has_readers:
            return None
        if self._history is not None and topic.durability:
            # This broker would share them as its own.
            self._refuse("durability", count)
            return None
        if not topic.hosted:
            # It has messages from now on, also after its readers.
            self._topics.keep(name)
        return topic

    def _is_covered(self, name: str) -> bool:
        raw = name.encode()
        return any(raw[:end] in self._prefixes for end in range(len(raw) + 1))

    def _refuse(self, reason: str, count: int) -> None:
        self._counters.refuse(LABEL, reason, "the engine", count)

    def _deliver(self, found: Sequence[tuple[Topic, TopicRecord]]) -> None:
        """Deliver records of one read, or of several reads that are one batch here."""
        if len(found) == 1:
            ((topic, first),) = found
            self._received += first.columns.count
            self._receive((topic,), first, first.columns, first.headers)
            return
        self._received += sum(record.columns.count for _, record in found)
        first = found[0][1]
        topics = list(dict.fromkeys(topic for topic, _ in found))
        if first.positions is None:
            columns = joined([record.columns for _, record in found])
            self._receive(topics, first, columns, None)
            return
        self._receive(topics, first, *_in_order(topics, found))

    def _receive(
        self,
        topics: Sequence[Topic],
        record: TopicRecord,
        columns: Columns,
        headers: Sequence[Headers] | None,
    ) -> None:
        try:
            self._dispatcher.receive(topics, columns, record.sender, record.protocol, headers)
        except Refused as refused:
            self._refuse(refused.reason, columns.count)


class _Together:
    """Records that become one batch: those of one read, or small ones of one topic.

    The second kind makes that each message costs the less, the more there are.
    """

    def __init__(self) -> None:
        self.records: list[tuple[Topic, TopicRecord]] = []
        self._link = 0
        self._room = _TOGETHER

    def takes(self, topic: Topic, record: TopicRecord, link: int) -> bool:
        """Return whether ``record`` can be added."""
        if not self.records:
            return True
        before, last = self.records[-1]
        if record.positions is not None:
            same = (last.read, last.positions is None) == (record.read, False)
            return same and link == self._link
        return (
            before is topic
            and last.positions is None
            and last.headers is record.headers is None
            and (last.sender, last.protocol) == (record.sender, record.protocol)
            and record.columns.nbytes <= self._room
        )

    def add(self, topic: Topic, record: TopicRecord, link: int) -> None:
        """Add ``record``, which came over ``link``."""
        self._link = link
        self._room -= record.columns.nbytes
        self.records.append((topic, record))


def _in_order(
    topics: Sequence[Topic], found: Sequence[tuple[Topic, TopicRecord]]
) -> tuple[Columns, list[Headers] | None]:
    """Return the messages of several records and their headers, in the order of the read."""
    index_of = {topic: index for index, topic in enumerate(topics)}
    positions: list[int] = []
    indexes: list[int] = []
    payloads: list[bytes] = []
    headers: list[Headers] = []
    for topic, record in found:
        count = record.columns.count
        positions += record.positions or range(count)
        indexes += [index_of[topic]] * count
        payloads += record.columns.payloads()
        headers += record.headers or [{}] * count
    order = sorted(range(len(positions)), key=positions.__getitem__)
    columns = Columns.of([payloads[at] for at in order], [indexes[at] for at in order])
    if all(record.headers is None for _, record in found):
        return columns, None
    return columns, [headers[at] for at in order]
