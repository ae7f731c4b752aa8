"""Messages of the history, read over the HTTP API."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from pubsub.commands.api_client import Api, CutOff

_NO_HEADERS: Mapping[str, bytes] = {}


class StoredMessage(NamedTuple):
    """A message of the history. ``timestamp`` is in µs since the Unix epoch."""

    topic: str
    payload: bytes
    sender: bytes
    timestamp: int
    offset: int
    headers: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class DamagedOffsets:
    """Offsets from ``start`` to before ``stop`` that cannot be read."""

    start: int
    stop: int

    def __str__(self) -> str:
        return f"offsets {self.start} to {self.stop - 1} are damaged and left out"


def read(
    api: Api, start: int, stop: int, topics: Sequence[str]
) -> Iterator[StoredMessage | DamagedOffsets]:
    """Yield the messages of ``topics``, of all if there are none. Raises RequestFailed.

    Messages that retention removes meanwhile are left out. The broker ends a stream that is not
    read for some time, as during a slow replay; the next one continues where it ended.
    """
    # Of an empty range, too: topics that may not be read are refused, and not shown as empty.
    is_first = bool(topics)
    while is_first or start < stop:
        is_first = False
        began = start
        try:
            for item in _stream(api, start, stop, topics):
                start = item.stop if isinstance(item, DamagedOffsets) else item.offset + 1
                yield item
            return
        except CutOff:
            if start == began:
                raise


def _stream(
    api: Api, start: int, stop: int, topics: Sequence[str]
) -> Iterator[StoredMessage | DamagedOffsets]:
    query: dict[str, object] = {
        "start": start, "stop": stop, "format": "jsonl", "headers": 1, "skip_expired": 1,
    }  # fmt: skip
    if topics:
        query["topic"] = list(topics)
    return map(_item, api.lines("/v1/history", query))


def _item(row: Mapping[str, Any]) -> StoredMessage | DamagedOffsets:
    if "damaged" in row:
        return DamagedOffsets(*row["damaged"])
    headers = row.get("headers")
    return StoredMessage(
        row["topic"],
        _value(row),
        _sender(row["key"]),
        row["timestamp"],
        row["offset"],
        {one["key"]: _value(one) for one in headers} if headers else _NO_HEADERS,
    )


@lru_cache(maxsize=1024)
def _sender(encoded: str) -> bytes:
    return base64.b64decode(encoded)


def _value(row: Mapping[str, Any]) -> bytes:
    text = row.get("value")
    if text is not None:
        return text.encode()  # type: ignore[no-any-return]
    return base64.b64decode(row["value_base64"])


class RangeTotals(NamedTuple):
    """The number of messages of some topics in a range, and their bytes."""

    messages: int
    nbytes: int


def totals(api: Api, start: int, stop: int, topics: Sequence[str]) -> RangeTotals:
    """Return the totals of ``topics`` in a range. Raises RequestFailed."""
    rows = api.get("/v1/topics", {"start": start, "stop": stop})["topics"]
    wanted = [row for row in rows if not topics or row["name"] in topics]
    return RangeTotals(
        sum([row["messages"] for row in wanted]), sum([row["bytes"] for row in wanted])
    )


def start_of_last(
    number: int,
    first: int,
    stop: int,
    count: Callable[[int, int], int],
    most_more: int,
) -> int:
    """Return an offset from which on there are ``number`` messages, up to ``most_more`` more.

    ``count`` returns the messages in a range. The result is ``first`` if there are fewer.
    """
    start, found, span = stop, 0, max(number, 16)
    while found < number:
        if start == first:
            return first
        start = max(first, stop - span)
        found = count(start, stop)
        span *= 8
    too_late = stop
    while found > number + most_more and too_late - start > 1:
        middle = (start + too_late) // 2
        fewer = count(middle, stop)
        if fewer >= number:
            start, found = middle, fewer
        else:
            too_late = middle
    return start
