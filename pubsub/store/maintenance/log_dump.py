"""The records of a log as JSON objects, to be looked at."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from typing import Any

from pubsub.errors import NewerVersion
from pubsub.store.maintenance.log_check import read_records
from pubsub.store.reading.log_view import LogView
from pubsub.store.records.block import decode_block
from pubsub.store.records.record import (
    CLOSED,
    COMPRESSED,
    LOST,
    SEALED,
    Begin,
    End,
    Found,
    Operation,
)
from pubsub.store.segments.segment_scan import topics_of_record

_FLAGS = {LOST: "lost", CLOSED: "closed", SEALED: "sealed", COMPRESSED: "compressed"}


def dump(view: LogView, payloads: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the head of each record, and the ranges of offsets that are damaged.

    With ``payloads`` also the messages, and the keys and values of the metadata.
    """
    for segment in view.refresh().segments:
        for item in read_records(view.directory, segment):
            if isinstance(item, Found):
                yield {"segment": segment.name, **_record(item, payloads)}
            else:
                yield {"segment": segment.name, "damaged": list(item)}


def _record(found: Found, payloads: bool) -> dict[str, Any]:
    head = found.head
    record: dict[str, Any] = {
        "position": found.position,
        "length": head.length,
        "offset": head.base,
        "count": head.count,
        "first": head.first,
        "last": head.last,
        "epoch": head.epoch,
        "run": head.run,
        "ceiling": head.ceiling,
        "flags": [name for flag, name in _FLAGS.items() if head.flags & flag],
    }
    if not head.flags & LOST:
        topics = topics_of_record(found)
        record["topics"] = {
            name: {"messages": n, "bytes": size} for name, (n, size) in topics.items()
        }
    if head.sizes[6]:
        try:
            record["operations"] = [_operation(one, payloads) for one in found.operations()]
        except NewerVersion as error:
            record["unreadable"] = str(error)
    if payloads and head.sizes[1]:
        record["messages"] = list(_messages(found))
    return record


def _operation(one: Operation, payloads: bool) -> dict[str, Any]:
    if isinstance(one, Begin):
        return {"begin": f"{one.number}-{one.mark:08x}", "opened": one.opened}
    if isinstance(one, End):
        return {"end": one.topic, "offset": one.offset}
    shown: dict[str, Any] = {"delete" if one.value is None else "put": one.table}
    if payloads:
        # A key or a value can be a secret, such as a queue key.
        shown["key"] = one.key
        if isinstance(one.value, bytes):
            shown["value"] = _text(one.value)
    return shown


def _messages(found: Found) -> Iterator[dict[str, Any]]:
    for run in decode_block(found.block()):
        for _, batch in run.batch().runs():
            for number, payload in enumerate(batch.payloads()):
                headers = {} if batch.headers is None else batch.headers[number]
                message: dict[str, Any] = {
                    "offset": batch.offset + number,
                    "timestamp": batch.timestamp,
                    "topic": batch.topic,
                    "protocol": batch.protocol,
                    "sender": _text(batch.sender),
                    "payload": _text(payload),
                }
                if headers:
                    message["headers"] = {key: _text(value) for key, value in headers.items()}
                yield message


def _text(data: bytes) -> str:
    """Return bytes as base64."""
    return b64encode(data).decode()
