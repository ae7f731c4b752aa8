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


@dataclass(frozen=True)
class Topology:
    """Publisher and subscriber number i use topic i modulo `topics`."""

    publishers: int
    subscribers: int
    topics: int = 1

    def __str__(self) -> str:
        if self.topics > 1:
            return f"{self.topics}-pairs"
        return f"{self.publishers}-{self.subscribers}"

    @property
    def fanout(self) -> int:
        """Deliveries per published message."""
        return self.subscribers // self.topics

    @classmethod
    def parse(cls, text: str) -> Topology:
        """Parse ``<publishers>-<subscribers>`` on one topic, or ``<n>-pairs`` on n topics.

        Raises ValueError.
        """
        match = re.fullmatch(r"([1-9]\d{0,4})-(pairs|[1-9]\d{0,4})", text)
        if match is None:
            raise ValueError(f"{text!r} is neither like 1-100 nor like 10-pairs")
        left = int(match[1])
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
    if topology.topics > wire.topics:
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
