"""The figures of every kind of measurement: counts, CPU seconds, latency percentiles."""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

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
        """Return the percentiles, or None without samples."""
        if not nanoseconds:
            return None
        percentiles = np.percentile(np.array(nanoseconds), [50, 99, 99.9]) / 1000
        return cls(*(round(float(value), 1) for value in percentiles))


@dataclass(frozen=True)
class Accounting:
    """Messages of a whole run: warm-up, measured period and drain."""

    published: int
    delivered: int
    lost: int
    duplicated: int
    out_of_order: int

    @classmethod
    def of(cls, load: Load) -> Accounting:
        """Return the counts; call this when nothing is outstanding."""
        return cls(
            published=load.published,
            delivered=load.delivered,
            lost=sum(stream.lost for stream in load.streams),
            duplicated=sum(stream.duplicated for stream in load.streams),
            out_of_order=sum(stream.out_of_order for stream in load.streams),
        )

    @property
    def clean(self) -> bool:
        """True if every subscriber received each message once and in order."""
        return not (self.lost or self.duplicated or self.out_of_order)


@dataclass(frozen=True)
class Usage:
    """The measured period alone, after the warm-up and before the drain."""

    wall_seconds: float
    broker_cpu_seconds: float
    broker_held_up_seconds: float
    """Time during which the broker was ready to run, but its core was busy."""
    deliveries: int
    acknowledgments: int
    """Zero for a protocol without acknowledgments."""

    @property
    def broker_busy(self) -> float:
        """Share of one core."""
        return self.broker_cpu_seconds / self.wall_seconds

    @property
    def broker_held_up(self) -> float:
        """Share of the time. A large share means that the machine was too busy to measure on."""
        return self.broker_held_up_seconds / self.wall_seconds

    @property
    def broker_idle(self) -> float:
        """Share of the time. A large share means that the generator was the bottleneck."""
        return max(0.0, 1 - self.broker_busy - self.broker_held_up)

    @property
    def per_cpu_second(self) -> float:
        """Deliveries per CPU second of the broker."""
        return self.deliveries / self.broker_cpu_seconds

    @property
    def acknowledged_per_cpu_second(self) -> float:
        """Acknowledged messages per CPU second of the broker."""
        return self.acknowledgments / self.broker_cpu_seconds


class Counted(Protocol):
    """The counts of a load so far."""

    @property
    def delivered(self) -> int:
        """Messages that subscribers received."""

    @property
    def acknowledged(self) -> int:
        """Messages that were acknowledged."""


class Meter:
    """Takes the figures from its creation to `stop`."""

    def __init__(self, broker: Broker, load: Counted) -> None:
        self._broker = broker
        self._load = load
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
        """Return the usage since the meter was created."""
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
    """Keep the garbage collector of this process from pausing the load."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
