"""Counts the messages that arrive too late for their window.

Spark drops them without a notice and counts their groups only. Therefore each batch observes its
messages by the end of their window. Those in windows that end at or before the previous watermark
are late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

_OBSERVATION = "arrivals"
# Above this number of windows in a batch, adjacent windows are counted together.
_MAX_WINDOWS = 5000

ReportLate = Callable[[dict[int, int], str, int], None]
"""Receives the late messages by the end of their window (seconds since 1970), query and batch."""


class LateMessageCounter:
    """Counts the late messages of one query and passes them to ``report``, batch by batch."""

    def __init__(self, report: ReportLate) -> None:
        self._report = report
        self._previous_watermark: float | None = None
        self.total = 0

    def observe(self, rows: DataFrame, window_end: Column) -> DataFrame:
        """Return ``rows`` with the observation; ``window_end`` is the end of a row's window."""
        return rows.observe(
            _OBSERVATION,
            F.histogram_numeric(F.unix_micros(window_end) / 1e6, F.lit(_MAX_WINDOWS)).alias("ends"),
        )

    def count(self, progress: Mapping[str, Any], query: str) -> int:
        """Return the number of late messages in the batch of ``progress``."""
        watermark, self._previous_watermark = self._previous_watermark, _watermark(progress)
        ends = progress.get("observedMetrics", {}).get(_OBSERVATION, {}).get("ends") or []
        if watermark is None:
            return 0
        late = {int(end["x"]): int(end["y"]) for end in ends if end["x"] <= watermark}
        count = sum(late.values())
        if count:
            self.total += count
            self._report(late, query, int(progress["batchId"]))
        return count


def _watermark(progress: Mapping[str, Any]) -> float | None:
    text = progress.get("eventTime", {}).get("watermark")
    return None if text is None else datetime.fromisoformat(text).timestamp()
