"""``Statistics``: the state and the totals of a broker, collected on request.

Everything is counted where it happens, for each batch, write, tick or change; nothing here costs a
message anything. One dictionary is the content of all views: ``$SYS/stats``, the HTTP API, the
dashboard and the metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from socket import gethostname
from typing import TYPE_CHECKING, Any, Protocol

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from pubsub.broker.figures.process_memory import resident_bytes
from pubsub.broker.figures.process_pauses import CollectorPauses, ReactorLag
from pubsub.broker.listeners.limits import CONNECTION_BYTES
from pubsub.broker.memory_budget import SUBSCRIBERS
from pubsub.broker.topic_space.topic_registry import TOPIC_BYTES
from pubsub.errors import BadToken

if TYPE_CHECKING:
    from pubsub.broker.clients.sessions import SessionRegistry
    from pubsub.broker.credentials.tokens import TokenVerifier
    from pubsub.broker.delivery.cursors import Cursors
    from pubsub.broker.figures.counters import Counters
    from pubsub.broker.figures.histogram import Histogram
    from pubsub.broker.listeners.limits import ConnectionQuota
    from pubsub.broker.memory_budget import MemoryBudget
    from pubsub.broker.routing.router import Router
    from pubsub.broker.topic_space.topic_registry import TopicRegistry
    from pubsub.broker.wall_clock import WallClock
    from pubsub.interfaces import IStore

log = Logger()
SECOND = 1.0
Figures = dict[str, Any]


class CountedListener(Protocol):
    """A ``Listener``, as the figures use it."""

    event_protocol: str
    quota: ConnectionQuota

    @property
    def session_count(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The objects of the broker that have the figures."""

    clock: IReactorTime
    wall: WallClock
    store: IStore
    counters: Counters
    memory: MemoryBudget
    topics: TopicRegistry
    router: Router
    cursors: Cursors
    sessions: SessionRegistry
    tokens: TokenVerifier
    issuers: Callable[[], Mapping[str, Figures]]
    listeners: Sequence[CountedListener]


class Statistics:
    """The figures of a broker with these ``sources``.

    ``each_second`` are called once a second while it runs. A snapshot has these figures, except
    those that the history or the system cannot have:

        timestamp, uptime
        protocols       by name: connections, sessions (of connections, or kept for clients),
                        messages_in, bytes_in (of payloads), messages_out, bytes_out (of
                        frames), dropped, refused
        topics, subscriptions
        slow            subscribers paused (the transport is full) and catching_up (they read
                        the history), behind (offsets that these have not read, in total),
                        queued_bytes
        memory          used, limit (0: none), process, accounts (of ``used``)
        store           durable, first_offset, next_offset, committed, bytes; with a disk
                        commits, failures, segments, index_bytes, metadata_bytes,
                        seconds_since_commit, stalled_seconds (of a write or sync that
                        has not ended), disk_free, damaged_offsets, read_errors (of the
                        disk), unreadable_segments (whose reads failed last),
                        metadata_failing (1 while the metadata cannot be written)
        latency         flush, commit, sync: p50 and p99 of the last minute (0: no message),
                        count
        reactor         lag, collector_pause: the worst of the last second
        clock           jumps of the system's clock
        backplane       connected, trouble (why it is away, or empty), complaint (what is
                        wrong with its settings), other_secrets (the names of brokers with
                        other master secrets), namesake (whether another one has this name),
                        messages_out, messages_in, subscriptions, queued_bytes, reconnects,
                        history_trouble (why a shared history is not shared), history_full
                        (whether publishes are refused meanwhile); left out without a backplane
        twice_hosted    topics that this broker and a peer host, or two peers: their number, and an
                        example with the hosts
        peers           the numbers of those connected, connecting and lost; left out without
                        peers
        certificates    of each certificate of TLS its protocol, the setting with its file, its
                        subject, and when it expires, in seconds since the Unix epoch; left out
                        without TLS
        tokens          known (in the cache), verified, rejected
        issuers         with a jwks-url, by id: keys, age (since a fetch succeeded; None if
                        none has), fetches, failures
        drops, evictions   by reason
        refusals        by protocol and reason, with a space between
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._started = sources.clock.seconds()
        self.started = int(sources.wall.system() * 1e6)
        """The time of the start, in µs since the Unix epoch."""
        self.lag = ReactorLag(sources.clock, sources.router.time_flushes)
        self.collector = CollectorPauses(sources.clock.seconds)
        self.name = gethostname()
        """The name of the broker, by which operators distinguish several."""
        self.each_second: list[Callable[[], object]] = []
        self.backplane: Callable[[], Mapping[str, Any]] | None = None
        """Returns the figures of the way to other brokers, if there is one."""
        self.peers: Callable[[], Mapping[str, int]] = dict
        """Returns the numbers of peers by state, if there are some."""
        self.certificates: Callable[[], Sequence[Figures]] = tuple
        """Returns the ends of the certificates of TLS."""
        self.twice_hosted: dict[str, str] = {}
        """Names of topics that two brokers host, with the endpoint of a peer that does."""
        self._timer = LoopingCall(self._mark)
        self._timer.clock = sources.clock

    def start(self) -> None:
        """The broker has started."""
        self.lag.start()
        self._sources.router.time_flushes()
        self.collector.start()
        self._timer.start(SECOND, now=False)

    def stop(self) -> None:
        """The broker stops; may be called before ``start``."""
        self.lag.stop()
        self.collector.stop()
        if self._timer.running:
            self._timer.stop()

    def _mark(self) -> None:
        self._sources.router.mark_second()
        self._sources.store.commit_times.second_passed()
        self._sources.store.sync_times.second_passed()
        self.lag.lag.second_passed()
        self.collector.pauses.second_passed()
        for call in self.each_second:
            try:
                call()
            except Exception:
                log.failure("reporting statistics failed")

    @property
    def histograms(self) -> Mapping[str, Histogram]:
        """Times from a publish until messages are sent, written to the history, and on disk."""
        sources = self._sources
        return {
            "flush": sources.router.flush_times,
            "commit": sources.store.commit_times,
            "sync": sources.store.sync_times,
        }

    # The snapshot

    def snapshot(self) -> Figures:
        """Return all figures; takes less than a millisecond.

        Totals are since the start of the broker. Times are in seconds, ``timestamp`` in µs since
        the Unix epoch. See ``Statistics`` for the figures.
        """
        sources = self._sources
        counters = sources.counters
        refusals = self._sources.counters.refusals
        shared = {} if self.backplane is None else {"backplane": self.backplane()}
        certificates = self.certificates()
        peers = self.peers()
        return {
            "timestamp": int(sources.wall.system() * 1e6),
            "uptime": sources.clock.seconds() - self._started,
            "protocols": self._protocols(refusals),
            "topics": len(sources.topics),
            "subscriptions": sources.router.subscriptions,
            "slow": self._slow(),
            "memory": self._memory(),
            "store": self._store(),
            "latency": {name: _times(found) for name, found in self.histograms.items()},
            "reactor": {
                "lag": self.lag.lag.worst,
                "collector_pause": self.collector.pauses.worst,
            },
            "clock": {"jumps": sources.wall.jumps},
            "tokens": {
                "known": sources.tokens.hits,
                "verified": sources.tokens.misses,
                "rejected": _sum_of_reason(refusals, BadToken.reason),
            },
            "issuers": dict(sources.issuers()),
            **shared,
            "twice_hosted": self._twice_hosted(),
            **({"peers": peers} if peers else {}),
            **({"certificates": certificates} if certificates else {}),
            "drops": dict(counters.drop_reasons),
            "evictions": dict(counters.evictions),
            "refusals": {f"{name} {reason}": n for (name, reason), n in refusals.items()},
        }

    def _twice_hosted(self) -> Figures:
        found = self.twice_hosted
        return {"topics": len(found), "example": next((list(one) for one in found.items()), None)}

    def _protocols(self, refusals: Counter[tuple[str, str]]) -> dict[str, Figures]:
        traffic = self._sources.counters.traffic
        connections: Counter[str] = Counter()
        sessions: Counter[str] = Counter()
        for listener in self._sources.listeners:
            connections[listener.event_protocol] += listener.quota.open
            sessions[listener.event_protocol] += listener.session_count
        refused: Counter[str] = Counter()
        for (protocol, _), number in refusals.items():
            refused[protocol] += number
        return {
            name: {
                "connections": connections[name],
                "sessions": sessions[name],
                "messages_in": traffic[name].accepted.messages,
                "bytes_in": traffic[name].accepted.nbytes,
                "messages_out": traffic[name].written.messages,
                "bytes_out": traffic[name].written.nbytes,
                "dropped": traffic[name].dropped,
                "refused": refused[name],
            }
            for name in sorted({*traffic, *connections})
        }

    def _slow(self) -> Figures:
        sources = self._sources
        return {
            "paused": len(sources.router.slow),
            "catching_up": sources.cursors.number,
            "behind": sources.cursors.distance,
            "queued_bytes": sources.memory.held[SUBSCRIBERS],
        }

    def _memory(self) -> Figures:
        sources = self._sources
        memory = sources.memory
        accounts = {
            "history": memory.aside,
            "connections": CONNECTION_BYTES * sources.counters.connections,
            "sessions": sources.sessions.nbytes,
            "topics": TOPIC_BYTES * (len(sources.topics) - sources.topics.own),
            "caches": memory.cached,
            **memory.held,
        }
        accounts["other"] = memory.used - sum(accounts.values())
        found: Figures = {"used": memory.used, "limit": memory.limit, "accounts": accounts}
        process = resident_bytes()
        if process is not None:
            found["process"] = process
        return found

    def _store(self) -> Figures:
        store = self._sources.store
        return {
            "durable": store.durable,
            "first_offset": store.first_offset,
            "next_offset": store.next_offset,
            "committed": store.committed,
            **store.figures(),
        }


def _times(histogram: Histogram) -> Figures:
    return {
        "p50": histogram.quantile(0.5),
        "p99": histogram.quantile(0.99),
        "count": histogram.count,
    }


def _sum_of_reason(refusals: Counter[tuple[str, str]], wanted: str) -> int:
    return sum(number for (_, reason), number in refusals.items() if reason == wanted)
