"""The log as it is shown."""

from __future__ import annotations

from pubsub.store.catalog.catalog import Catalog
from pubsub.store.reading.log_reader import read_page

Shown = tuple[list[bytes], list[tuple[int, int]]]


def shown(catalog: Catalog) -> Shown:
    """Return all messages and the damaged ranges."""
    found: list[bytes] = []
    damaged: list[tuple[int, int]] = []
    offset = catalog.first
    while offset < catalog.stop:
        page = read_page(catalog, offset, None, 2**20)
        for batch in page.batches:
            found += batch.payloads()
        damaged += page.damaged
        offset = page.next_offset
    return found, damaged


def numbers(*ranges: range) -> list[bytes]:
    return [b"%d" % number for each in ranges for number in each]
