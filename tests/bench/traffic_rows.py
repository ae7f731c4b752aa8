"""A row of traffic for tests of the benchmarks."""

from __future__ import annotations

from tests.bench.rows import Row

IN_TURN = Row("in turn", [[(0, 20), (1, 300), (0, 16), (12, 17)]], [(0, frozenset({0, 1, 12}))] * 2)
