"""Figures every kind of measurement reports: counts, CPU seconds, latency percentiles."""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from tests.bench.broker import Broker
from tests.bench.generator import Load

WARM_UP_SECONDS = 1.0


@dataclass(frozen=True)
class Latency:
    """Percentiles in microseconds."""

    p50: float
    p99: float
    p999: float

    @classmethod
    def of(cls, nanoseconds: array[int]) -> Latency | None:
        """None if there are no samples."""
        if not nanoseconds:
            return None
        percentiles = np.percentile(np.array(nanoseconds), [50, 99, 99.9]) / 1000
        return cls(*(round(float(value), 1) for value in percentiles))


@dataclass(frozen=True)
class Accounting:
    """Messages of a whole run: warm-up, measured part and drain."""

    published: int
    delivered: int
    lost: int
    duplicated: int
    out_of_order: int

    @classmethod
    def of(cls, load: Load) -> Accounting:
        """To be called when nothing is outstanding any more."""
        return cls(
            published=load.published,
            delivered=load.delivered,
            lost=sum(stream.lost for stream in load.streams),
            duplicated=sum(stream.duplicated for stream in load.streams),
            out_of_order=sum(stream.out_of_order for stream in load.streams),
        )

    @property
    def clean(self) -> bool:
        """Each message was delivered once, in its place, to every subscriber."""
        return not (self.lost or self.duplicated or self.out_of_order)


@dataclass(frozen=True)
class Usage:
    """Of the measured part alone, after the warm-up and before the drain."""

    wall_seconds: float
    broker_cpu_seconds: float
    broker_held_up_seconds: float
    """Ready to run while something else ran on its core."""
    deliveries: int
    acknowledgments: int
    """Zero where the protocol has none."""

    @property
    def broker_busy(self) -> float:
        """Share of one core."""
        return self.broker_cpu_seconds / self.wall_seconds

    @property
    def broker_held_up(self) -> float:
        """Share of the time. Much of it means that the machine was too busy to measure on."""
        return self.broker_held_up_seconds / self.wall_seconds

    @property
    def broker_idle(self) -> float:
        """Share of the time. Much of it means that the generator was the bottleneck."""
        return max(0.0, 1 - self.broker_busy - self.broker_held_up)

    @property
    def per_cpu_second(self) -> float:
        """Deliveries per CPU-second of the broker."""
        return self.deliveries / self.broker_cpu_seconds

    @property
    def acknowledged_per_cpu_second(self) -> float:
        """Acknowledged messages per CPU-second of the broker."""
        return self.acknowledgments / self.broker_cpu_seconds


class Meter:
    """Takes the figures of the block it is entered for, see `metering`."""

    def __init__(self, broker: Broker, load: Load) -> None:
        self._broker = broker
        self._load = load
        load.samples[:] = array("q")
        self._start = self._now()

    def _now(self) -> Usage:
        broker = self._broker
        return Usage(
            wall_seconds=time.perf_counter(),
            broker_cpu_seconds=broker.cpu_seconds(),
            broker_held_up_seconds=broker.held_up_seconds(),
            deliveries=self._load.delivered,
            acknowledgments=self._load.acknowledged,
        )

    def stop(self) -> Usage:
        """What was used since the meter was made."""
        start, end = self._start, self._now()
        return Usage(
            wall_seconds=end.wall_seconds - start.wall_seconds,
            broker_cpu_seconds=end.broker_cpu_seconds - start.broker_cpu_seconds,
            broker_held_up_seconds=end.broker_held_up_seconds - start.broker_held_up_seconds,
            deliveries=end.deliveries - start.deliveries,
            acknowledgments=end.acknowledgments - start.acknowledgments,
        )


@contextmanager
def no_collection() -> Iterator[None]:
    """Keeps this process's garbage collector from pausing the load."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
