"""The metrics as text: Prometheus's format and OpenMetrics, by prometheus_client.

Imported with the first request of metrics: it takes a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from pubsub.broker.figures.histogram import BOUNDS
from pubsub.http_api.metrics.metric_families import FAMILIES
from pubsub.http_api.metrics.metric_family import COUNTER, HISTOGRAM, INFO, Family, Reading

_BUCKETS = (*map(floatToGoString, BOUNDS), "+Inf")


class ReadingCollector(Collector):
    """Collects the families of one reading."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def collect(self) -> Iterator[Metric]:
        """See ``Collector``."""
        for family in FAMILIES:
            yield _metric(family, self._reading)


def _metric(family: Family, reading: Reading) -> Metric:
    if family.kind == HISTOGRAM:
        histogram = HistogramMetricFamily(family.name, family.help)
        counts, total = reading.times[family.source]
        histogram.add_metric((), list(zip(_BUCKETS, accumulate(counts), strict=True)), total)
        return histogram
    if family.kind == INFO:
        info = InfoMetricFamily(family.name, family.help, labels=())
        for values, _ in family.samples(reading):
            info.add_metric((), dict(zip(family.labels, values, strict=True)))
        return info
    kind = CounterMetricFamily if family.kind == COUNTER else GaugeMetricFamily
    found = kind(family.name, family.help, labels=family.labels)
    for values, value in family.samples(reading):
        found.add_metric(values, value)
    return found


def render(reading: Reading, accept: str) -> tuple[bytes, str]:
    """Return the metrics of ``reading`` and of the process, and their content type.

    ``accept`` is the header of the request. May take long with many open files: not for the
    reactor's thread.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ReadingCollector(reading))
    ProcessCollector(registry=registry)
    encode, kind = choose_encoder(accept)
    return encode(registry), kind


def names(metrics: Iterable[Metric]) -> set[str]:
    """Return the names of all samples of ``metrics``, as in queries."""
    return {sample.name for metric in metrics for sample in metric.samples}
