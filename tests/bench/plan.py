"""The load of a run: topologies, batch sizes and windows."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.bench import BenchError
from tests.bench.wires import Wire

KIB = 1 << 10
MIB = 1 << 20

# The broker reads about this much at a time, so larger batches would gain nothing.
BATCH_BYTES = 64 * KIB
WINDOW_BYTES = 256 * KIB
# For all publishers together, and for each subscriber again. A larger window makes the queues in
# the kernel longer than the processor's cache, which costs any broker a third of its speed.
TOTAL_WINDOW_BYTES = 2 * MIB
# For all publishers together. With fewer batches the broker has nothing to do while the generator
# still reads the deliveries to the slowest subscriber.
MIN_BATCHES_UNDER_WAY = 4


# As many digits for each of a thousand topics, so that the frames of a subscriber are as long.
_FIRST_OWN_TOPIC = 100


@dataclass(frozen=True)
class Topology:
    """Publisher and subscriber number i use topic i modulo `topics`.

    With `own_topics` each publisher has a topic of its own instead, and each subscriber all of
    them.
    """

    publishers: int
    subscribers: int
    topics: int = 1
    own_topics: bool = False

    def topic(self, publisher: int) -> int:
        """Return the topic of a publisher."""
        return _FIRST_OWN_TOPIC + publisher if self.own_topics else publisher % self.topics

    def sources(self, subscriber: int) -> range:
        """Return the publishers from which a subscriber receives messages."""
        if self.own_topics:
            return range(self.publishers)
        return range(subscriber % self.topics, self.publishers, self.topics)

    def topics_of(self, subscriber: int) -> list[int]:
        """Return the topics of a subscriber."""
        if self.own_topics:
            return [self.topic(publisher) for publisher in self.sources(subscriber)]
        return [subscriber % self.topics]

    def __str__(self) -> str:
        if self.own_topics:
            return f"{self.publishers}-devices"
        if self.topics > 1:
            return f"{self.topics}-pairs"
        return f"{self.publishers}-{self.subscribers}"

    @property
    def fanout(self) -> int:
        """Deliveries per published message."""
        return self.subscribers if self.own_topics else self.subscribers // self.topics

    @classmethod
    def parse(cls, text: str) -> Topology:
        """Parse ``<publishers>-<subscribers>`` on one topic, or ``<n>-pairs`` on n topics.

        ``<n>-devices`` are n publishers, each with a topic of its own, and a subscriber of all.
        Raises ValueError.
        """
        match = re.fullmatch(r"([1-9]\d{0,4})-(pairs|devices|[1-9]\d{0,4})", text)
        if match is None:
            raise ValueError(f"{text!r} is not like 1-100, 10-pairs or 50-devices")
        left = int(match[1])
        if match[2] == "devices":
            return cls(left, 1, left, own_topics=True)
        if match[2] == "pairs":
            return cls(left, left, left)
        return cls(left, int(match[2]))


@dataclass(frozen=True)
class RunPlan:
    """The load of one run."""

    topology: Topology
    payload: int
    """Bytes in a message."""
    per_batch: int
    """Messages in one send."""
    window: int
    """Batches that a publisher may have in flight to its slowest subscriber."""
    least_cycle: int = 0
    """Least number of batches in a cycle of sequence numbers."""

    @property
    def cycle(self) -> int:
        """Batches until sequence numbers start again.

        The cycle is more than twice the window, so that an arriving message is nearer to its own
        place in the sequence than to the same number one cycle before or after.
        """
        return max(2 * self.window + 1, self.least_cycle)


def make_plan(
    wire: Wire,
    topology: Topology,
    payload: int,
    batch_bytes: int = BATCH_BYTES,
    window_bytes: int | None = None,
) -> RunPlan:
    """Choose the sizes of a run. A batch and a window have at least one message.

    A payload beyond the limit of the wire is reduced to that limit. Raises BenchError if the
    protocol has too few topics.
    """
    if topology.topic(topology.topics - 1) >= wire.topics:
        raise BenchError(f"{wire.name} has {wire.topics} topics, {topology} needs more")
    payload = min(payload, wire.max_payload)
    message = wire.publication(0, payload).size
    per_batch = max(1, batch_bytes // message)
    batch = per_batch * message
    if window_bytes is None:
        share = TOTAL_WINDOW_BYTES // max(topology.publishers, topology.subscribers)
        least = -(-MIN_BATCHES_UNDER_WAY // topology.publishers)
        window = max(least, min(WINDOW_BYTES, share) // batch)
    else:
        window = max(1, window_bytes // batch)
    return RunPlan(topology, payload, per_batch, window)
