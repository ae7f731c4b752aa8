"""The rows and figures of a broker that does not exist."""

from __future__ import annotations

import math
import random
import time
from typing import Any

PROTOCOLS = ("cafe", "nsd", "rheos", "spot", "fast", "http")
STARTED = time.time() - 273_840
ROWS = 10_000
Row = dict[str, Any]


def micros(seconds: float) -> int:
    return int(seconds * 1e6)


def wave(at: float, number: int) -> float:
    """Return a load that rises and falls, another one for each number."""
    slow = math.sin(at / (31 + 5 * number) + number)
    return max(0.02, 1 + 0.5 * slow + 0.12 * math.sin(at / 3.1 + number * 2))


def protocols(up: float) -> dict[str, Row]:
    """Return the figures of each protocol after ``up`` seconds."""
    found = {}
    for number, name in enumerate(PROTOCOLS):
        base = (48_000, 21_000, 12_500, 7_200, 3_100, 380)[number]
        total = int(base * (up + 20 * math.cos(up / (31 + 5 * number) + number)))
        found[name] = {
            "connections": 40 * (6 - number),
            "sessions": 44 * (6 - number),
            "messages_in": total,
            "bytes_in": total * 96,
            "messages_out": total * 3,
            "bytes_out": total * 290,
            "dropped": 12 * number,
            "refused": 31 * number,
        }
    return found


def stats(now: float) -> Row:
    """Return the statistics at the time ``now``."""
    up = now - STARTED
    lag = 0.002 + 0.001 * random.random()
    return {
        "timestamp": micros(now),
        "uptime": up,
        "protocols": protocols(up),
        "topics": ROWS,
        "subscriptions": 24_310,
        "slow": {"paused": 1, "catching_up": 2, "behind": 48_211, "queued_bytes": 2**21},
        "memory": {
            "used": int(2**27 * wave(up, 2)),
            "limit": 2**29,
            "process": int(2**28 + 2**26 * wave(up, 1)),
            "accounts": {"outboxes": 2**26, "sessions": 2**22},
        },
        "store": {
            "durable": True,
            "first_offset": 1200,
            "next_offset": 91_222_101,
            "committed": int(92_000 * up),
            "commits": int(180 * up + 200 * math.sin(up / 20)),
            "bytes": 31 * 2**30,
            "segments": 248,
            "index_bytes": 2**27,
            "seconds_since_commit": 0.004,
            "stalled_seconds": 0.0,
            "disk_free": 182 * 2**30,
        },
        "latency": {
            "flush": {"p50": 0.00021 * wave(up, 3), "p99": 0.0014 * wave(up, 4), "count": 1},
            "commit": {"p50": 0.0031 * wave(up, 5), "p99": 0.0092 * wave(up, 6), "count": 1},
        },
        "reactor": {"lag": lag, "collector_pause": lag / 3},
        "tokens": {"known": 12, "verified": 40, "rejected": 2},
        "drops": {},
        "evictions": {},
        "refusals": {},
    }


def status() -> Row:
    """Return the answer of /v1/status."""
    now = time.time()
    attention = [
        {
            "level": "warning",
            "what": "2 subscribers catch up from the history, 48,211 messages behind",
            "do": "See the slow subscribers; if it lasts, split their topics over connections.",
        },
    ]
    return {
        "version": "0.1.0",
        "kernel": "compiled",
        "name": "broker-a",
        "started": micros(STARTED),
        "ready": True,
        "attention": attention,
        "stats": stats(now),
    }


def topics() -> list[Row]:
    names = [f"sensors/hall-{n // 100:02}/device-{n:05}" for n in range(ROWS - 6)]
    names += ["orders/2026", "cafe/7", "billing", "<script>alert(1)</script>", "deploys", "traces"]
    return [
        {
            "name": name,
            "durability": ("async", "sync", "none")[n % 3],
            "subscribers": n * 7 % 41,
            "messages": n * 7919 % 1_000_003,
            "bytes": n * 104_729 % 2**31,
            "last_timestamp": micros(time.time() - n * 13 % 90_000),
            "keyed": n % 17 == 0,
            "exclusive": n % 41 == 0,
        }
        for n, name in enumerate(sorted(names))
    ]


def sessions() -> list[Row]:
    states = ("live",) * 40 + ("catching_up", "paused", "leaving")
    return [
        {
            "mark": str(n + 1),
            "protocol": PROTOCOLS[n % 6],
            "client": f"device-{n:05}",
            "identity": f"tenant-{n % 9}",
            "address": f"10.{n // 250 % 250}.{n % 250}.7:{20_000 + n}",
            "connected": micros(STARTED + n),
            "subscriptions": n % 12,
            "messages_in": n * 311 % 99_991,
            "bytes_in": n * 3011,
            "messages_out": n * 53 % 7919,
            "bytes_out": n * 911,
            "queued_bytes": n * 131 % 4096 if n % 43 > 39 else 0,
            "state": states[n % len(states)],
            "behind": n * 37 % 50_000 if n % 43 > 39 else 0,
        }
        for n in range(ROWS)
    ]


def refusals(now: float) -> list[Row]:
    """Return the rows of /v1/refusals."""
    return [
        {
            "protocol": PROTOCOLS[n % 6],
            "reason": reason,
            "count": 3 * n + 1,
            "last_timestamp": micros(now - 90 * n),
            "last_client": f"device-{n:05}",
        }
        for n, reason in enumerate(
            ("bad-token", "not-authorized", "rate-limited", "too-large", "handshake-timeout")
        )
    ]


def listeners() -> list[Row]:
    """Return the rows of /v1/listeners."""
    return [
        {
            "protocol": name,
            "endpoint": f"tcp:{7070 + n}:interface=0.0.0.0",
            "address": f"0.0.0.0:{7070 + n}",
            "connections": 40 * n,
            "tls": n % 2 == 0,
            "anonymous": n != 4,
            "max_connections": 10_000,
        }
        for n, name in enumerate(PROTOCOLS)
    ]


def lists() -> dict[str, list[Row]]:
    now = time.time()
    people = sessions()
    return {
        "topics": topics(),
        "sessions": people,
        "slow": [row for row in people if row["state"] in ("catching_up", "paused")][:3],
        "readers": [
            {
                "name": f"reports/{n}",
                "owner": "billing",
                "offset": 91_000_000 + n,
                "lag": 222_101 - n,
                "epoch": "1",
                "updated": micros(now - n),
            }
            for n in range(4)
        ],
        "subscriptions": [
            {
                "topic": f"sensors/hall-0{n}/#",
                "mark": str(n + 1),
                "client": f"device-{n:05}",
                "protocol": "cafe",
                "state": "live",
                "behind": 0,
            }
            for n in range(9)
        ],
        "refusals": refusals(now),
        "listeners": listeners(),
        "audit": [
            {
                "timestamp": micros(now - 60 * n),
                "event": "topic deleted",
                "identity": "alice",
                "topic": f"orders/{n}",
            }
            for n in range(40)
        ],
    }
