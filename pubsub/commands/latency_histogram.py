"""Latencies in buckets whose width grows with the latency, within 4 % of each value."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

_BITS = 6
_BARS = 14
_BLOCKS = " ▏▎▍▌▋▊▉█"


def bucket_of(value: int) -> int:
    """Return the bucket of a value in ns."""
    shift = max(value.bit_length() - _BITS, 0)
    return (shift << _BITS) + (value >> shift)


def least_of(bucket: int) -> int:
    """Return the least value of a bucket."""
    return (bucket & ((1 << _BITS) - 1)) << (bucket >> _BITS)


@dataclass(frozen=True, slots=True)
class Bar:
    """The ``count`` latencies from ``low`` to before ``high``, in ns."""

    low: int
    high: int
    count: int


class LatencyHistogram:
    """Counts latencies in ns; the extremes are exact."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.count = 0
        self.least: int | None = None
        self.most: int | None = None

    def record(self, latency: int, times: int = 1) -> None:
        """Count a latency; one below 0, of a clock that differs, counts as 0."""
        latency = max(latency, 0)
        self._counts[bucket_of(latency)] += times
        self.count += times
        self.least = latency if self.least is None else min(self.least, latency)
        self.most = latency if self.most is None else max(self.most, latency)

    def percentile(self, percent: float) -> int:
        """Return the latency in ns that ``percent`` of all do not exceed; 0 without any."""
        if self.most is None:
            return 0
        left = self.count * percent / 100
        for bucket in sorted(self._counts):
            left -= self._counts[bucket]
            if left <= 0:
                return min(least_of(bucket) + (1 << (bucket >> _BITS)), self.most)
        return self.most

    def bars(self) -> list[Bar]:
        """Return adjoining bars whose bounds are powers of two, at most 14, without empty ends."""
        powers: Counter[int] = Counter()
        for bucket, count in self._counts.items():
            powers[least_of(bucket).bit_length()] += count
        if not powers:
            return []
        last = max(powers)
        first = max(min(powers), last - _BARS + 1)
        bars = [Bar(1 << p >> 1, 1 << p, powers[p]) for p in range(first, last + 1)]
        below = sum(count for power, count in powers.items() if power < first)
        return [Bar(0, bars[0].high, bars[0].count + below), *bars[1:]] if below else bars


def draw(histogram: LatencyHistogram, width: int) -> list[str]:
    """Return lines with a bar each; ``width`` is that of the longest bar, in characters."""
    bars = histogram.bars()
    most = max((bar.count for bar in bars), default=1)
    return [
        f"{duration(bar.low):>8} - {duration(bar.high):<8} {_bar(bar.count / most, width)} "
        f"{bar.count:,}"
        for bar in bars
    ]


def _bar(share: float, width: int) -> str:
    eighths = max(round(share * width * 8), 1 if share else 0)
    return ("█" * (eighths // 8) + _BLOCKS[eighths % 8].strip()).ljust(width)


def duration(nanoseconds: float) -> str:
    """Return a latency with its unit, such as 250 µs."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds:.0f} ns"
