"""The plan of rows: traffic as applications have it, live and stored.

``python -m tests.bench.traffic`` and ``python -m tests.bench.peers`` measure these rows. A
publisher sends its batch again and again.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tests.bench.plan import KIB, MIB

LIVE_BATCH = 1000
# In a batch of a program that publishes as things happen.
FEW = 3
# Batches of topics in random order, so that no read has the topics of one before.
PARTS = 64
# Messages in a batch of stored messages, as a client that does not wait for each acknowledgment
# sends them, and the least: a large message is not sent alone either.
STORED_BATCH, LEAST_STORED_BATCH = 200, 4
STORED_BATCH_BYTES = 256 * KIB
# Of each of many connections.
SHARED_BATCH = 40
# In flight, together: below the 10,000 messages and the 128 MiB that JetStream lets wait.
STORED_WINDOW, STORED_WINDOW_BYTES = 4096, 4 * MIB
CONNECTIONS = 50
LARGE = 65_000

Messages = list[tuple[int, int]]
"""The topic and the size of each message of a batch."""


@dataclass(frozen=True)
class Row:
    """The batch of each publisher, and for each subscriber its publisher and its topics.

    A batch is sent in as many ``parts``, one after another. With ``lone`` messages, each batch is
    one message, which all publishers send to the first subscriber, and this many are in flight of
    each publisher. They are of one topic, or each publisher has a topic of its own.
    """

    name: str
    batches: Sequence[Messages]
    subscribers: Sequence[tuple[int, frozenset[int]]] = ()
    lone: int = 0
    parts: int = 1

    def __str__(self) -> str:
        return self.name

    def topics(self, publisher: int) -> list[int]:
        """Return the topics of a publisher."""
        return sorted({topic for topic, _ in self.batches[publisher]})


class _Chance:
    """Sizes that are the same in each call of the program."""

    def __init__(self) -> None:
        self.random = random.Random(1)

    def batch(self, count: int, topics: int, least: int, most: int) -> Messages:
        return [(n % topics, self.random.randint(least, most)) for n in range(count)]


def live_rows() -> Iterator[Row]:
    """Return the rows of messages that are delivered to subscribers."""
    chance = _Chance()

    def batch(topics: int, least: int, most: int) -> Messages:
        return chance.batch(LIVE_BATCH, topics, least, most)

    ten, all_of_200 = frozenset(range(10)), frozenset(range(200))
    yield Row("1 to 1, 64 B", [batch(1, 64, 64)], [(0, frozenset({0}))])
    yield Row("1 to 1, 16 to 256 B", [batch(1, 16, 256)], [(0, frozenset({0}))])
    pairs = [[(n, size) for _, size in batch(1, 16, 256)] for n in range(10)]
    yield Row("10 pairs, 16 to 256 B", pairs, [(n, frozenset({n})) for n in range(10)])
    yield Row("10 topics in turn, 64 B", [batch(10, 64, 64)], [(0, ten)])
    yield Row("200 topics in turn, 16 to 256 B", [batch(200, 16, 256)], [(0, all_of_200)])
    mixed = random.Random(2)
    drawn = [(mixed.randrange(200), mixed.randint(16, 256)) for _ in range(PARTS * LIVE_BATCH)]
    yield Row("200 topics at random, 16 to 256 B", [drawn], [(0, all_of_200)], parts=PARTS)
    yield Row(
        "200 subscribers of a topic each, at random, 16 to 256 B",
        [drawn],
        [(0, frozenset({n})) for n in range(200)],
        parts=PARTS,
    )
    few = [
        [(5 * n + mixed.randrange(5), mixed.randint(16, 256)) for _ in range(PARTS * FEW)]
        for n in range(20)
    ]
    yield Row(
        "20 pairs, 3 messages of 5 topics at a time, 16 to 256 B",
        few,
        [(n, frozenset(range(5 * n, 5 * n + 5))) for n in range(20)],
        parts=PARTS,
    )
    five = frozenset(range(5))
    yield Row("50 subscribers of 5 of 10 topics, 64 B", [batch(10, 64, 64)], [(0, five)] * 50)
    sets = [frozenset(chance.random.sample(range(10), 5)) for _ in range(50)]
    yield Row("the same, 50 different sets", [batch(10, 64, 64)], [(0, some) for some in sets])
    yield Row("50 to 1, two in flight each, 64 B", [[(0, 64)]] * 50, [(0, frozenset({0}))], lone=2)
    own = [[(n, 64)] for n in range(50)]
    yield Row("the same, each to a topic of its own", own, [(0, frozenset(range(50)))], lone=2)


def stored_rows() -> Iterator[Row]:
    """Return the rows of messages that are stored and acknowledged."""
    chance = _Chance()

    def batch(topics: int, least: int, most: int) -> Messages:
        fitting = max(LEAST_STORED_BATCH, STORED_BATCH_BYTES // most)
        return chance.batch(min(STORED_BATCH, fitting), topics, least, most)

    yield Row("64 B", [batch(1, 64, 64)])
    yield Row("64 B, 50 connections", [batch(1, 64, 64)[:SHARED_BATCH]] * CONNECTIONS)
    yield Row("1 KiB", [batch(1, KIB, KIB)])
    yield Row("16 to 256 B", [batch(1, 16, 256)])
    yield Row("10 topics in turn, 64 B", [batch(10, 64, 64)])
    yield Row("200 topics in turn, 16 to 256 B", [batch(200, 16, 256)])
    yield Row("65,000 B", [batch(1, LARGE, LARGE)])


def stored_window(row: Row) -> int:
    """Return how many messages of a connection may be unacknowledged, at least two batches."""
    largest = max(size for messages in row.batches for _, size in messages)
    together = min(STORED_WINDOW, STORED_WINDOW_BYTES // largest)
    return max(2 * len(row.batches[0]), together // len(row.batches))


def chosen(rows: Iterable[Row], wanted: Sequence[str]) -> list[Row]:
    """Return the rows whose names contain one of ``wanted``, or all rows for none."""
    return [row for row in rows if not wanted or any(text in row.name for text in wanted)]


def payload(publisher: int, place: int, size: int, text: bool = False) -> bytes:
    """Return bytes, or hexadecimal digits, that no other message of a row has."""
    drawn = random.Random(f"{publisher}/{place}").randbytes(size)
    return drawn.hex()[:size].encode() if text else drawn
