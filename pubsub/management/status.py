"""The status of a broker: its figures, whether it serves, and problems that need attention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pubsub.broker.clients.peers import LOST
from pubsub.broker.quantity_text import quantity
from pubsub.build_info import build_kind, version

if TYPE_CHECKING:
    from pubsub.broker.figures.statistics import Statistics
    from pubsub.broker.readiness import Readiness

WARNING, CRITICAL = "warning", "critical"
# Parts of max-memory in use, bytes left on the disk, seconds in which the reactor was blocked,
# and messages that subscribers are behind, from which on there is a warning.
_MEMORY = 0.9
_DISK = 1024**3
_LAG = 0.25
_BEHIND = 10_000


def status_of(statistics: Statistics, readiness: Readiness) -> dict[str, Any]:
    """Return the status; takes about a millisecond."""
    stats = statistics.snapshot()
    obstacles = [one.text for one in readiness.obstacles()]
    return {
        "version": version(),
        "kernel": build_kind(),
        "name": statistics.name,
        "started": statistics.started,
        "ready": not obstacles,
        "attention": [*_obstacles(obstacles), *_warnings(stats)],
        "stats": stats,
    }


def _obstacles(obstacles: list[str]) -> Iterator[Mapping[str, str]]:
    for text in obstacles:
        yield _notice(CRITICAL, text, "see the log of the broker; clients are refused meanwhile")


def _warnings(stats: Mapping[str, Any]) -> Iterator[Mapping[str, str]]:
    """Yield the present problems, the worst first."""
    yield from _memory(stats["memory"])
    yield from _disk(stats["store"])
    if stats["reactor"]["lag"] >= _LAG:
        yield _notice(
            WARNING,
            f"the broker did not answer for {stats['reactor']['lag']:.2f} s",
            "look for other work on its processor, and for very large requests",
        )
    yield from _issuers(stats["issuers"])
    yield from _backplane(stats.get("backplane", {}))
    yield from _twice_hosted(stats["twice_hosted"])
    lost = stats.get("peers", {}).get(LOST)
    if lost:
        yield _notice(
            WARNING,
            f"{lost} of {quantity(sum(stats['peers'].values()), 'peer')} cannot be reached",
            "publishes to their topics are refused; see /v1/peers and the log for their addresses",
        )
    yield from _slow(stats["slow"])


def _backplane(backplane: Mapping[str, Any]) -> Iterator[Mapping[str, str]]:
    if backplane.get("history_full"):
        yield _notice(
            CRITICAL,
            "the messages that wait for the shared history have reached backplane-spool-bytes",
            "publishes to stored topics are refused; raise the setting, or see why NATS takes none",
        )
    if backplane.get("trouble"):
        yield _notice(
            WARNING,
            f"the backplane is away: {backplane['trouble']}",
            "messages do not reach the clients of other brokers meanwhile: they are counted as "
            "dropped, or wait in a shared history; see the log of the engine",
        )
    elif backplane.get("history_trouble"):
        yield _notice(
            WARNING,
            f"the history is not shared: {backplane['history_trouble']}",
            "messages wait at this broker, and publishes to sync topics fail; check the stream "
            "pubsub_history and the limits of the engine",
        )
    if backplane.get("cut_off"):
        yield _notice(
            WARNING,
            "most servers of the backplane's cluster are away, or cut off from this broker's",
            "live messages reach only the brokers at the same server, and new topics wait; look "
            "at the servers of NATS and the network between them",
        )
    if backplane.get("complaint"):
        yield _notice(
            WARNING,
            f"the backplane reports: {backplane['complaint']}",
            "docs/scaling.md has the permissions and the settings that all brokers need; restart "
            "the broker after the change",
        )
    if backplane.get("other_secrets"):
        yield _notice(
            WARNING,
            f"other master secrets than here are at {', '.join(backplane['other_secrets'])}",
            "brokers refuse tokens of each other's clients: give all of them the same secret-file "
            "and [keys], and reload them",
        )
    if backplane.get("namesake"):
        yield _notice(
            WARNING,
            "another broker of the backplane has the name of this one",
            "metrics, status and messages about brokers cannot tell them apart: give each its own "
            "with the setting name, and restart it",
        )


def _twice_hosted(found: Mapping[str, Any]) -> Iterator[Mapping[str, str]]:
    if found["topics"]:
        name, endpoint = found["example"]
        yield _notice(
            WARNING,
            f"{quantity(found['topics'], 'topic', ',')} with two hosts, such as {name!r}, which "
            f"{endpoint} hosts too: each has the messages of its own clients only",
            "delete each of these topics, with its messages, at one of the two brokers; see "
            "docs/operating.md, Several brokers",
        )


def _memory(memory: Mapping[str, Any]) -> Iterator[Mapping[str, str]]:
    used, limit = memory["used"], memory["limit"]
    if limit and used >= _MEMORY * limit:
        full = used >= limit
        yield _notice(
            CRITICAL if full else WARNING,
            f"{used / limit:.0%} of max-memory is in use",
            "see memory by account; raise max-memory, or lower what clients may hold",
        )


def _disk(store: Mapping[str, Any]) -> Iterator[Mapping[str, str]]:
    free = store.get("disk_free")
    if free is not None and free < _DISK:
        yield _notice(
            WARNING,
            f"{free / 1024**2:,.0f} MiB are left on the disk of the history",
            "make room, or lower retention",
        )
    if store.get("metadata_failing"):
        yield _notice(
            WARNING,
            "the metadata of the history cannot be written: segments are kept until it can",
            "see the log of the broker for the reason; make room, or end the program that has "
            "locked the file",
        )
    unreadable = store.get("unreadable_segments")
    if unreadable:
        yield _notice(
            CRITICAL,
            f"{quantity(int(unreadable), 'segment', ',')} of the history cannot be read",
            "see the log of the broker for the reason; check the permissions of the files and the "
            "disk. The notice ends with a read that succeeds, or ten minutes after the last one",
        )
    damaged = store.get("damaged_offsets")
    if damaged:
        yield _notice(
            CRITICAL,
            f"the history has {quantity(int(damaged), 'damaged or missing offset', ',')}",
            "see damaged in /v1/store; check the disk, run pubsub history check --store log:DIR "
            "with the directory in summary there, restore a backup",
        )


def _issuers(issuers: Mapping[str, Mapping[str, Any]]) -> Iterator[Mapping[str, str]]:
    for id, one in issuers.items():
        if not one["keys"] and one["failures"]:
            yield _notice(
                WARNING,
                f"the keys of the issuer {id} could not be fetched: its tokens are refused",
                "see the log; check jwks-url, jwks-ca and the issuer's server",
            )


def _slow(slow: Mapping[str, Any]) -> Iterator[Mapping[str, str]]:
    if slow["behind"] >= _BEHIND:
        count = slow["catching_up"]
        who = f"{quantity(count, 'subscriber')} {'is' if count == 1 else 'are'}"
        yield _notice(
            WARNING,
            f"{who} {slow['behind']:,} messages behind",
            "see the slow subscribers; if it lasts, they need more connections or fewer topics",
        )


def _notice(level: str, what: str, do: str) -> Mapping[str, str]:
    return {"level": level, "what": what, "do": do}
