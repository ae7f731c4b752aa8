"""The broker's events as rows."""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa

_TEXTS = ("event", "protocol", "listener", "client", "session", "topic", "reason")
_NUMBERS = ("messages", "bytes")


def decode_events(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a batch of messages of ``$SYS/events`` to events with the columns of ``schema``.

    A field that an event lacks is null. An event that cannot be parsed has nulls only.
    """
    events = [_parse_event(value) for value in batch.column("value").to_pylist()]
    columns: dict[str, Any] = {
        name: batch.column(name) for name in ("partition", "offset", "timestamp")
    }
    for name in _TEXTS:
        columns[name] = pa.array([_typed_field(event, name, str) for event in events], pa.string())
    for name in _NUMBERS:
        columns[name] = pa.array([_typed_field(event, name, int) for event in events], pa.int64())
    columns["frame"] = pa.array([_frame(event) for event in events], pa.binary())
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _parse_event(value: bytes) -> dict[str, Any]:
    try:
        event = json.loads(value)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _typed_field(event: dict[str, Any], name: str, kind: type) -> Any:
    value = event.get(name)
    return value if type(value) is kind else None


def _frame(event: dict[str, Any]) -> bytes | None:
    text = event.get("frame")
    try:
        return None if text is None else base64.b64decode(text, validate=True)
    except (ValueError, TypeError):
        return None
