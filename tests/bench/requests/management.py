"""The processor time of the management endpoints in a broker with many sessions and topics.

``python -m tests.bench.requests.management`` connects the sessions, of real protocols, through
transports in memory, sends every management request, and prints the longest tick of each as a row
of a table, in milliseconds of the thread's processor time. The garbage collector does not run
while a request is measured. The exit code is 1 if a tick took longer than ``LIMIT``.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import thread_time

from tests.bench import BenchError
from tests.bench.requests.catalogue import command, name_of, rheos_id
from tests.bench.requests.counted import CountedSite, MemoryPeer
from tests.bench.requests.web import http
from tests.unit import cafe_wire as cafe
from tests.unit import nsd_lines as nsd
from tests.unit import rheos_wire as rheos
from tests.unit.brokers import ready
from tests.unit.brokers import subscribe as spot_subscribe
from tests.unit.tokens import KEY

LIMIT = 10.0
"""The longest tick that is allowed, in milliseconds."""
_TOGETHER = 500
_ROUNDS = 3
_SUBSCRIBED = 2000
_LISTS = (
    "topics", "topics?limit=1000", "topics?match=*99999", "topics?match=none*",
    "sessions", "sessions?limit=1000", "sessions?match=client-*9", "sessions?match=none*",
    "sessions?protocol=spot", "sessions?protocol=http", "sessions?client=client-4*",
    "sessions?client=none", "sessions?state=live", "sessions?state=paused",
    "subscriptions", "subscriptions?limit=1000", "subscriptions?topic=t/000005",
    "subscriptions?topic=none", "subscriptions?match=none*", "slow", "status", "store",
    "listeners", "peers", "refusals", "audit", "audit?limit=1000", "readers", "configuration",
    "openapi.json",
)  # fmt: skip


class ProcessorTime:
    """Takes the processor time of calls, in milliseconds, without the garbage collector."""

    def run(self, call: Callable[[], object]) -> float:
        """Return the time of ``call``."""
        gc.disable()
        try:
            began = thread_time()
            call()
            return (thread_time() - began) * 1000
        finally:
            gc.enable()


class Management:
    """A broker with ``sessions`` and ``topics``; ``report`` gets the longest tick of requests."""

    def __init__(
        self, sessions: int, topics: int, followers: int, report: Callable[[str, float], None]
    ) -> None:
        every: dict[str, object] = {"max-connections": 0, "allow-anonymous": "on"}
        with tempfile.TemporaryDirectory(prefix="bench-management-") as directory:
            secret = Path(directory, "secret")
            secret.touch(mode=0o600)
            secret.write_bytes(KEY)
            keys: dict[str, object] = {"main": {"secret-file": str(secret)}}
            self._site = CountedSite(keys, every, ProcessorTime)
        self._sessions, self._topics, self._followers = sessions, topics, followers
        self._report = report
        self._peers: list[MemoryPeer] = []

    def run(self) -> None:
        """Put everything in place and send every request."""
        self._create()
        self._connect()
        gc.collect()
        gc.freeze()
        self._measure("one second without requests", lambda: self._site.pass_time(1.0))
        self._requests()
        self._follow()

    def _create(self) -> None:
        peer = self._site.connect("rheos")
        for first in range(0, self._topics, _TOGETHER):
            last = min(first + _TOGETHER, self._topics)
            names = (name_of(number).encode() for number in range(first, last))
            peer.send(b"".join(rheos.create(rheos_id(0), name) for name in names))
            self._site.settle()
            peer.take()
        peer.lose()

    def _connect(self) -> None:
        for number in range(self._sessions):
            kind = number % 4
            if kind < 2:
                peer = self._site.connect("spot")
                name = name_of(number % self._topics).encode()
                peer.send(ready(b"DEALER", b"client-%d" % number))
                peer.send(spot_subscribe(name))
            elif kind == 2:
                peer = self._site.connect("cafe")
                peer.send(cafe.hs_sub(bytes([number % 100]), b"client-%d" % number))
            else:
                peer = self._site.connect("nsd")
                peer.send(nsd.open_(name_of(number % self._topics)))
            self._peers.append(peer)
            if not number % _TOGETHER:
                self._site.settle()
        sub = self._site.connect("spot")
        sub.send(ready(b"SUB"))
        for number in range(min(_SUBSCRIBED, self._topics)):
            sub.send(command(b"SUBSCRIBE", name_of(number).encode()))
        self._peers.append(sub)
        self._site.settle()

    def _requests(self) -> None:
        peer = self._site.connect("http")
        for path in _LISTS:
            self._measure(f"GET /v1/{path}", lambda path=path: self._ask(peer, f"/v1/{path}"))  # type: ignore[misc]
        self._measure("GET /metrics", lambda: self._ask(peer, "/metrics"))
        self._measure("GET /v1/topics/NAME", lambda: self._ask(peer, "/v1/topics/t%2F000007"))
        marks = self._marks(peer)
        last = marks[-1]
        self._measure("GET /v1/sessions/MARK", lambda: self._ask(peer, f"/v1/sessions/{last}"))
        for label, mark in (("one topic", marks[0]), ("2,000 topics", self._last_mark(peer))):
            path = f"/v1/subscriptions?mark={mark}"
            self._measure(
                f"GET /v1/subscriptions?mark=MARK, {label}",
                lambda path=path: self._ask(peer, path),  # type: ignore[misc]
            )
        self._measure(
            "DELETE /v1/sessions/MARK",
            lambda: self._ask(peer, f"/v1/sessions/{marks.pop(0)}", "DELETE"),
        )

    def _marks(self, peer: MemoryPeer) -> list[str]:
        items = self._json(peer, "/v1/sessions?protocol=spot&limit=20")["items"]
        return [row["mark"] for row in items]

    def _last_mark(self, peer: MemoryPeer) -> str:
        """Return the mark of the session with the most subscriptions."""
        row = self._json(peer, f"/v1/subscriptions?topic={name_of(1)}&limit=1000")["items"][-1]
        return str(row["mark"])

    def _json(self, peer: MemoryPeer, path: str) -> dict[str, list[dict[str, str]]]:
        found: dict[str, list[dict[str, str]]] = json.loads(
            self._ask(peer, path).partition(b"\r\n\r\n")[2]
        )
        return found

    def _follow(self) -> None:
        followers = [self._site.connect("http") for _ in range(self._followers)]
        for follower in followers:
            follower.send(http("GET", "/v1/status?follow=1"))
        self._site.settle()
        for follower in followers:
            follower.take()
        label = f"one second, {self._followers:,} followers of /v1/status"
        self._measure(label, lambda: self._site.pass_time(1.0))
        if not all(follower.take().count(b"data:") == _ROUNDS for follower in followers):
            raise BenchError("a follower has not got the status each second")

    def _ask(self, peer: MemoryPeer, path: str, method: str = "GET") -> bytes:
        peer.take()
        peer.send(http(method, path))
        self._site.settle()
        answer = peer.take()
        if not answer.startswith(b"HTTP/1.1 20"):
            raise BenchError(f"{method} {path} was answered {answer[:200]!r}")
        return answer

    def _measure(self, label: str, action: Callable[[], object]) -> None:
        """Report the median of the longest ticks of some rounds."""
        rounds = sorted(self._site.longest(action).held for _ in range(_ROUNDS))
        self._report(label, rounds[_ROUNDS // 2])


def main(arguments: list[str] | None = None) -> int:
    """Measure, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--followers", type=int, default=1000)
    options = parser.parse_args(arguments)
    longest = 0.0

    def report(label: str, held: float) -> None:
        nonlocal longest
        longest = max(longest, held)
        print(f"| {label} | {held:.2f} |", flush=True)

    Management(options.sessions, options.topics, options.followers, report).run()
    return int(longest > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
