"""Counts the messages that came too late for their window.

Spark drops them in silence and counts groups of them only. So each batch observes how many
messages it has for each end of a window; those of windows that the watermark had passed before
are late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

_NAME = "arrivals"
# Windows of a batch that are counted exactly; beyond, neighbours are counted together.
_WINDOWS = 5000

Report = Callable[[dict[int, int], str, int], None]
"""Takes the late messages by the end of their window (seconds since 1970), query and batch."""


class Late:
    """Late messages of one query; ``report`` is told of each batch that has some."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._passed: float | None = None
        self.total = 0

    def observe(self, rows: DataFrame, end: Column) -> DataFrame:
        """``rows`` with what is needed to count; ``end`` is the end of a row's window."""
        return rows.observe(
            _NAME, F.histogram_numeric(F.unix_micros(end) / 1e6, F.lit(_WINDOWS)).alias("ends")
        )

    def take(self, progress: Mapping[str, Any], query: str) -> int:
        """How many of this batch were late."""
        passed, self._passed = self._passed, _watermark(progress)
        ends = progress.get("observedMetrics", {}).get(_NAME, {}).get("ends") or []
        if passed is None:
            return 0
        late = {int(each["x"]): int(each["y"]) for each in ends if each["x"] <= passed}
        count = sum(late.values())
        if count:
            self.total += count
            self._report(late, query, int(progress["batchId"]))
        return count


def _watermark(progress: Mapping[str, Any]) -> float | None:
    text = progress.get("eventTime", {}).get("watermark")
    return None if text is None else datetime.fromisoformat(text).timestamp()
