"""The progress of a query: one updated line on a terminal, else a JSON line for each batch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TextIO


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """One batch: rows read, rows a second, seconds it took, and messages not yet read.

    ``watermark`` is in ISO 8601, and ``late`` counts the messages that arrived after it. None
    stands for an unknown value.
    """

    batch: int
    rows: int
    rate: float
    seconds: float
    lag: int | None
    watermark: str | None
    late: int = 0


def batch_progress(progress: Mapping[str, Any], late: int = 0) -> BatchProgress:
    """Return the figures in the progress of a query."""
    watermark = progress.get("eventTime", {}).get("watermark")
    if watermark is not None and watermark.startswith("1970-01-01T00:00:00"):
        watermark = None
    seconds = progress.get("batchDuration", 0) / 1000
    rows = int(progress.get("numInputRows", 0))
    return BatchProgress(
        batch=int(progress["batchId"]),
        rows=rows,
        rate=round(rows / seconds, 1) if seconds else 0.0,
        seconds=seconds,
        lag=lag(progress.get("sources", [])),
        watermark=watermark,
        late=late,
    )


def lag(sources: list[Mapping[str, Any]]) -> int | None:
    """Return the number of messages that are not read yet, in all partitions of all sources.

    It is that of offsets where a source does not report messages. Returns None if no source reports
    either.
    """
    total = None
    for source in sources:
        behind = _messages(source.get("latestOffset"))
        if behind is None:
            end = _next_offsets(source.get("endOffset"))
            latest = _next_offsets(source.get("latestOffset"))
            if end is None or latest is None:
                continue
            behind = sum(max(latest[key] - end.get(key, 0), 0) for key in latest)
        # A job that reads one stream twice does not have twice its lag.
        total = behind if total is None else max(total, behind)
    return total


def _messages(value: object) -> int | None:
    """Return the messages in the lag that the source pubsub reports with its latest offsets."""
    total = None
    for each in (_mapping(value) or {}).values():
        lag = each.get("lag") if isinstance(each, Mapping) else None
        if lag is None:
            return None
        total = (total or 0) + int(lag["messages"])
    return total


def _mapping(value: object) -> Mapping[str, Any] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, Mapping) else None


def _next_offsets(given: object) -> dict[str, int] | None:
    value = _mapping(given)
    if value is None:
        return None
    # The source pubsub has a mapping for each partition; others, such as Kafka, have a number.
    numbers = {
        key: offset["next"] if isinstance(offset, Mapping) else offset
        for key, offset in value.items()
    }
    return {key: int(number) for key, number in numbers.items()}


class Display:
    """Writes the progress of batches to ``stream``; ``live`` if it is a terminal."""

    def __init__(self, stream: TextIO, live: bool) -> None:
        self._stream = stream
        self._live = live
        self._width = 0
        self.rows = 0
        self.batches = 0

    def show(self, progress: BatchProgress) -> None:
        """Write the progress of a batch."""
        self.rows += progress.rows
        self.batches += 1
        if not self._live:
            self._stream.write(json.dumps(asdict(progress)) + "\n")
        else:
            line = self._line(progress)
            self._stream.write("\r" + line.ljust(self._width))
            self._width = len(line)
        self._stream.flush()

    def _line(self, progress: BatchProgress) -> str:
        parts = [f"batch {progress.batch}", f"{self.rows:,} rows", f"{progress.rate:,.0f} rows/s"]
        if progress.lag is not None:
            parts.append(f"lag {progress.lag:,}")
        if progress.watermark is not None:
            parts.append(f"watermark {progress.watermark}")
        if progress.late:
            parts.append(f"{progress.late:,} late")
        return ", ".join(parts)

    def end(self) -> None:
        """End the line on a terminal."""
        if self._live and self._width:
            self._stream.write("\n")
            self._stream.flush()
        self._width = 0
