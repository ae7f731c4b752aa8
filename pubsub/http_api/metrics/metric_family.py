"""A metric family: a name, its labels, and how its samples are taken from the figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pubsub.broker.figures.statistics import Statistics

COUNTER, GAUGE, HISTOGRAM, INFO = "counter", "gauge", "histogram", "info"
# Values of a label, beyond which they are added up under OTHERS.
_MAX_VALUES = 100
OTHERS = "other"
# Reasons that have a sample from the start. An alert about an increase in a counter does not see
# the first event if the counter begins with it.
_EVICTIONS = (
    "slow-consumer",
    "memory-bound",
    "the-history-cannot-be-read",
    "did-not-answer-a-ping",
)
_DROPS = (
    "slow-consumer",
    "too-large",
    "damaged",
    "expired",
    "disconnected",
    "revoked",
    "token-expired",
    "history-unavailable",
    "memory",
    "backplane-away",
    "backplane-overflow",
    "backplane-size",
    "not-copied",
    "unconfirmed",
    "unsendable",
)

Figures = Mapping[str, Any]
Samples = Iterable[tuple[Sequence[str], float]]
"""Values with those of their labels."""


@dataclass(frozen=True, slots=True)
class Reading:
    """All figures at one time.

    ``figures`` is as from ``Statistics.snapshot``; ``times`` has the counts of the buckets and the
    sum of each histogram; ``lag`` and ``pauses`` are a number and the sum of their seconds.
    """

    figures: Figures
    times: Mapping[str, tuple[Sequence[int], float]]
    lag: tuple[int, float]
    pauses: tuple[int, float]
    started: float
    build: Mapping[str, str]


def read(statistics: Statistics, build: Mapping[str, str]) -> Reading:
    """Return the figures as they are now."""
    lag, pauses = statistics.lag.lag, statistics.collector.pauses
    return Reading(
        statistics.snapshot(),
        {name: (tuple(one.counts), one.total) for name, one in statistics.histograms.items()},
        (lag.count, lag.total),
        (pauses.count, pauses.total),
        statistics.started / 1e6,
        build,
    )


@dataclass(frozen=True, slots=True)
class Family:
    """A metric. ``samples`` are taken from a reading; histograms are ``times[source]``.

    Names of counters are without ``_total``, which is added to them where they are shown.
    """

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    samples: Callable[[Reading], Samples] = lambda reading: ()
    source: str = ""

    @property
    def shown(self) -> str:
        """The name as in queries."""
        return self.name + {COUNTER: "_total", INFO: "_info"}.get(self.kind, "")


def value(*path: str) -> Callable[[Reading], Samples]:
    """Return a function that finds one figure; there is no sample without it."""

    def samples(reading: Reading) -> Samples:
        found: Any = reading.figures
        for name in path:
            found = found.get(name)
            if found is None:
                return ()
        return (((), float(found)),)

    return samples


def _by_protocol(figure: str) -> Callable[[Reading], Samples]:
    def samples(reading: Reading) -> Samples:
        protocols = reading.figures["protocols"]
        return [((name,), own[figure]) for name, own in protocols.items()]

    return samples


def by_key(*path: str) -> Callable[[Reading], Samples]:
    """Return a function that finds a figure for each key. The first keys keep their names."""

    def samples(reading: Reading) -> Samples:
        found: Any = reading.figures
        for name in path:
            found = found[name]
        return [((key,), number) for key, number in _bounded(found).items()]

    return samples


def of_issuers(figure: str) -> Callable[[Reading], Samples]:
    """Return a function that finds a figure for each issuer of tokens that has one."""

    def samples(reading: Reading) -> Samples:
        issuers = list(reading.figures["issuers"].items())[:_MAX_VALUES]
        return [((id,), own[figure]) for id, own in issuers if own[figure] is not None]

    return samples


def certificates(reading: Reading) -> Samples:
    """Return the ends of the certificates of TLS."""
    for one in reading.figures.get("certificates", ())[:_MAX_VALUES]:
        yield (one["protocol"], one["setting"], one["subject"]), one["expires"]


def drops(reading: Reading) -> Samples:
    """Return the messages dropped, by reason."""
    return _by_reason(_DROPS, reading.figures["drops"])


def evictions(reading: Reading) -> Samples:
    """Return the evictions, by reason."""
    return _by_reason(_EVICTIONS, reading.figures["evictions"])


def _by_reason(known: Sequence[str], counted: Mapping[str, float]) -> Samples:
    found = {**dict.fromkeys(known, 0), **counted}
    return [((reason,), number) for reason, number in _bounded(found).items()]


def refusals(reading: Reading) -> Samples:
    """Return the refusals, by protocol and reason."""
    for key, number in _bounded(reading.figures["refusals"]).items():
        protocol, _, reason = key.partition(" ")
        yield (protocol, reason or OTHERS), number


def _bounded(found: Mapping[str, float]) -> Mapping[str, float]:
    if len(found) <= _MAX_VALUES:
        return found
    names = list(found)
    kept = {name: found[name] for name in names[:_MAX_VALUES]}
    return {**kept, OTHERS: sum(found[name] for name in names[_MAX_VALUES:])}


def per_protocol(name: str, kind: str, text: str, figure: str) -> Family:
    """Return the family of a figure that each protocol has."""
    return Family(name, kind, text, ("protocol",), _by_protocol(figure))
