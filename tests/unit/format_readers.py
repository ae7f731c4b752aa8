"""Readers of a history: the one of the documents and the one of the broker."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from pubsub.store.reading.log_reader import read_page
from pubsub.store.reading.log_view import LogView

PAGE = Path(__file__).parents[2] / "docs" / "history-format.md"

Message = tuple[int, int, str, bytes, str, dict[str, bytes], bytes]


def fenced(kind: str) -> str:
    """Return the block of this kind in the page."""
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return cast(str, found)


def read_as_documented(directory: Path) -> list[Message]:
    """Return the messages that the reader in the page finds."""
    names: dict[str, Any] = {"__name__": "reader"}
    exec(compile(fenced("python"), "reader", "exec"), names)
    read = cast(Callable[[Path], Iterator[Message]], names["history"])
    return list(read(directory))


def read_by_the_code(directory: Path) -> list[Message]:
    view = LogView(directory)
    try:
        catalog = view.refresh()
        found: list[Message] = []
        offset = catalog.first
        while offset < catalog.stop:
            page = read_page(catalog, offset, None, 2**20)
            offset = page.next_offset
            for whole in page.batches:
                for _, batch in whole.runs():
                    headers = batch.headers or [{}] * batch.count
                    found += [
                        (
                            batch.offset + number, batch.timestamp, batch.topic, batch.sender,
                            batch.protocol, dict(headers[number]), payload,
                        )
                        for number, payload in enumerate(batch.payloads())
                    ]  # fmt: skip
    finally:
        view.close()
    return found
