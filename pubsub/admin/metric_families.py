"""The metrics of the broker: their names, and the figures that they show.

The names are an interface: dashboards and alert rules of others rest on them.
``docs/metrics.md`` has the table that is made of these declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pubsub.broker.statistics import Statistics

COUNTER, GAUGE, HISTOGRAM, INFO = "counter", "gauge", "histogram", "info"
# Values of a label, beyond which they are added up under OTHERS.
_MAX_VALUES = 100
OTHERS = "other"

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


def _value(*path: str) -> Callable[[Reading], Samples]:
    """Return what finds one figure; there is no sample without it."""

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


def _by_key(*path: str) -> Callable[[Reading], Samples]:
    """Return what finds a figure for each key. The first keys keep their names."""

    def samples(reading: Reading) -> Samples:
        found: Any = reading.figures
        for name in path:
            found = found[name]
        return [((key,), number) for key, number in _bounded(found).items()]

    return samples


def _issuers(figure: str) -> Callable[[Reading], Samples]:
    def samples(reading: Reading) -> Samples:
        issuers = list(reading.figures["issuers"].items())[:_MAX_VALUES]
        return [((id,), own[figure]) for id, own in issuers if own[figure] is not None]

    return samples


def _refusals(reading: Reading) -> Samples:
    for key, number in _bounded(reading.figures["refusals"]).items():
        protocol, _, reason = key.partition(" ")
        yield (protocol, reason or OTHERS), number


def _bounded(found: Mapping[str, float]) -> Mapping[str, float]:
    if len(found) <= _MAX_VALUES:
        return found
    names = list(found)
    kept = {name: found[name] for name in names[:_MAX_VALUES]}
    return {**kept, OTHERS: sum(found[name] for name in names[_MAX_VALUES:])}


def _protocols(name: str, kind: str, text: str, figure: str) -> Family:
    return Family(name, kind, text, ("protocol",), _by_protocol(figure))


FAMILIES: tuple[Family, ...] = (
    Family(
        "pubsub_build",
        INFO,
        "The version, the form of the kernel and Python's version; the value is 1.",
        ("version", "kernel", "python"),
        lambda reading: ((tuple(reading.build.values()), 1.0),),
    ),
    Family(
        "pubsub_start_time_seconds",
        GAUGE,
        "When the broker was started, in seconds since the Unix epoch.",
        (),
        lambda reading: (((), reading.started),),
    ),
    # Clients
    _protocols("pubsub_connections", GAUGE, "Open connections.", "connections"),
    _protocols(
        "pubsub_sessions",
        GAUGE,
        "Sessions of connections, or kept for clients that may resume them.",
        "sessions",
    ),
    Family("pubsub_topics", GAUGE, "Topics.", (), _value("topics")),
    Family("pubsub_subscriptions", GAUGE, "Subscriptions.", (), _value("subscriptions")),
    # Messages
    _protocols("pubsub_received_messages", COUNTER, "Messages that were accepted.", "messages_in"),
    _protocols(
        "pubsub_received_bytes", COUNTER, "Bytes of the payloads that were accepted.", "bytes_in"
    ),
    _protocols("pubsub_sent_messages", COUNTER, "Messages written to connections.", "messages_out"),
    _protocols(
        "pubsub_sent_bytes", COUNTER, "Bytes of messages written, with their frames.", "bytes_out"
    ),
    Family(
        "pubsub_dropped_messages",
        COUNTER,
        "Messages that a subscriber did not get, counted for each.",
        ("reason",),
        _by_key("drops"),
    ),
    Family(
        "pubsub_evictions",
        COUNTER,
        "Clients disconnected to protect the others.",
        ("reason",),
        _by_key("evictions"),
    ),
    Family(
        "pubsub_refusals",
        COUNTER,
        "Requests answered with an error, and connections not admitted.",
        ("protocol", "reason"),
        _refusals,
    ),
    # Slow subscribers
    Family(
        "pubsub_paused_subscribers",
        GAUGE,
        "Subscribers whose transport takes no more.",
        (),
        _value("slow", "paused"),
    ),
    Family(
        "pubsub_catching_up_subscribers",
        GAUGE,
        "Subscribers that read the history, as they are behind.",
        (),
        _value("slow", "catching_up"),
    ),
    Family(
        "pubsub_behind_offsets",
        GAUGE,
        "Offsets that subscribers which are behind have not read, added up.",
        (),
        _value("slow", "behind"),
    ),
    Family(
        "pubsub_queued_bytes",
        GAUGE,
        "Bytes that wait for subscribers that do not read.",
        (),
        _value("slow", "queued_bytes"),
    ),
    # Times
    Family(
        "pubsub_flush_seconds",
        HISTOGRAM,
        "Time from a publish until its messages are sent; sampled above 100 a second.",
        source="flush",
    ),
    Family(
        "pubsub_commit_seconds",
        HISTOGRAM,
        "Time from a publish until the history is written, for each commit.",
        source="commit",
    ),
    Family(
        "pubsub_sync_seconds",
        HISTOGRAM,
        "Time from a publish until the history is on disk, for each commit.",
        source="sync",
    ),
    # The history
    Family(
        "pubsub_history_first_offset",
        GAUGE,
        "Smallest offset that can be read.",
        (),
        _value("store", "first_offset"),
    ),
    Family(
        "pubsub_history_next_offset",
        GAUGE,
        "Offset of the next message.",
        (),
        _value("store", "next_offset"),
    ),
    Family(
        "pubsub_history_committed_offset",
        GAUGE,
        "Offset before which all messages are written.",
        (),
        _value("store", "committed"),
    ),
    Family(
        "pubsub_history_bytes",
        GAUGE,
        "Bytes of the segments; of the messages if the history is in memory.",
        (),
        _value("store", "bytes"),
    ),
    Family(
        "pubsub_history_segments",
        GAUGE,
        "Segments on disk.",
        (),
        _value("store", "segments"),
    ),
    Family(
        "pubsub_history_index_bytes",
        GAUGE,
        "Bytes of the indexes of the segments.",
        (),
        _value("store", "index_bytes"),
    ),
    Family(
        "pubsub_history_disk_free_bytes",
        GAUGE,
        "Bytes that the history's file system has free.",
        (),
        _value("store", "disk_free"),
    ),
    Family(
        "pubsub_history_damaged_offsets",
        GAUGE,
        "Offsets that were found damaged or missing.",
        (),
        _value("store", "damaged_offsets"),
    ),
    Family("pubsub_history_commits", COUNTER, "Commits.", (), _value("store", "commits")),
    Family(
        "pubsub_history_failures",
        COUNTER,
        "Writes and syncs that failed.",
        (),
        _value("store", "failures"),
    ),
    Family(
        "pubsub_history_last_commit_age_seconds",
        GAUGE,
        "Time since the last commit.",
        (),
        _value("store", "seconds_since_commit"),
    ),
    # Other brokers
    Family(
        "pubsub_backplane_connected",
        GAUGE,
        "1 while the engine of the backplane is there; only with a backplane.",
        (),
        _value("backplane", "connected"),
    ),
    Family(
        "pubsub_backplane_sent_messages",
        COUNTER,
        "Messages sent to other brokers.",
        (),
        _value("backplane", "messages_out"),
    ),
    Family(
        "pubsub_backplane_received_messages",
        COUNTER,
        "Messages received from other brokers.",
        (),
        _value("backplane", "messages_in"),
    ),
    Family(
        "pubsub_backplane_subscriptions",
        GAUGE,
        "Subjects that the broker subscribes to.",
        (),
        _value("backplane", "subscriptions"),
    ),
    Family(
        "pubsub_backplane_queued_bytes",
        GAUGE,
        "Bytes that wait for the engine.",
        (),
        _value("backplane", "queued_bytes"),
    ),
    Family(
        "pubsub_backplane_reconnects",
        COUNTER,
        "Connections to the engine after the first.",
        (),
        _value("backplane", "reconnects"),
    ),
    # The process
    Family(
        "pubsub_memory_bytes",
        GAUGE,
        "Memory counted to max-memory, by what it is used for.",
        ("account",),
        _by_key("memory", "accounts"),
    ),
    Family(
        "pubsub_memory_limit_bytes",
        GAUGE,
        "The bound max-memory; 0 if there is none.",
        (),
        _value("memory", "limit"),
    ),
    Family(
        "pubsub_token_checks",
        COUNTER,
        "Tokens that were known, that had to be verified, and that were rejected.",
        ("result",),
        _by_key("tokens"),
    ),
    Family(
        "pubsub_issuer_keys",
        GAUGE,
        "Public keys of an issuer with a jwks-url.",
        ("issuer",),
        _issuers("keys"),
    ),
    Family(
        "pubsub_issuer_keys_age_seconds",
        GAUGE,
        "Time since an issuer's keys were fetched; missing until they are.",
        ("issuer",),
        _issuers("age"),
    ),
    Family(
        "pubsub_issuer_fetch_failures",
        COUNTER,
        "Fetches of an issuer's keys that failed.",
        ("issuer",),
        _issuers("failures"),
    ),
    Family(
        "pubsub_clock_jumps",
        COUNTER,
        "Jumps of the system's clock.",
        (),
        _value("clock", "jumps"),
    ),
    Family(
        "pubsub_reactor_worst_lag_seconds",
        GAUGE,
        "By how much a timer was late, at most, in the last second.",
        (),
        _value("reactor", "lag"),
    ),
    Family(
        "pubsub_reactor_lag_seconds",
        COUNTER,
        "By how much timers were late, added up.",
        (),
        lambda reading: (((), reading.lag[1]),),
    ),
    Family(
        "pubsub_reactor_measurements",
        COUNTER,
        "Measurements of the reactor's lag.",
        (),
        lambda reading: (((), reading.lag[0]),),
    ),
    Family(
        "pubsub_collector_worst_pause_seconds",
        GAUGE,
        "Longest run of Python's garbage collector in the last second.",
        (),
        _value("reactor", "collector_pause"),
    ),
    Family(
        "pubsub_collector_pause_seconds",
        COUNTER,
        "Time in Python's garbage collector.",
        (),
        lambda reading: (((), reading.pauses[1]),),
    ),
    Family(
        "pubsub_collector_runs",
        COUNTER,
        "Runs of Python's garbage collector.",
        (),
        lambda reading: (((), reading.pauses[0]),),
    ),
)
