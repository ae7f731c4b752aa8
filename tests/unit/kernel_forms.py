"""The available forms of the kernel, for tests that run with each of them."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest

from pubsub.kernel import interpreted
from pubsub.kernel.layout import Head

try:
    compiled: ModuleType | None = importlib.import_module("pubsub.kernel.compiled")
except ImportError:
    compiled = None
    # CI must test the compiled kernel.
    if os.environ.get("CI") == "true":
        raise

FORMS = [form for form in (interpreted, compiled) if form is not None]
each_form = pytest.mark.parametrize("kernel", FORMS, ids=lambda form: form.__name__)
both_forms = pytest.mark.skipif(compiled is None, reason="the kernel is not compiled here")


def described(columns: Any) -> tuple[object, ...]:
    """Return every property of columns."""
    return (
        columns.payloads(), columns.indexes(), columns.sizes(), columns.addresses, columns.end,
        columns.count, columns.nbytes, columns.largest, columns.smallest, columns.totals(),
    )  # fmt: skip


def messages(columns: Any) -> list[tuple[Any, bytes]]:
    """Return the address and the payload of each message, after a check of the columns' sums."""
    payloads, indexes = columns.payloads(), columns.indexes()
    sizes = [len(payload) for payload in payloads]
    assert columns.sizes() == sizes
    assert (columns.count, columns.nbytes) == (len(sizes), sum(sizes))
    assert (columns.smallest, columns.largest) == (min(sizes, default=0), max(sizes, default=0))
    # Addresses are numbered in the order in which they are first seen.
    assert list(dict.fromkeys(indexes)) == list(range(len(set(indexes))))
    if payloads:
        assert len(columns.addresses) == len(set(indexes))
    return [(columns.addresses[i], p) for i, p in zip(indexes, payloads, strict=True)]


def encode(
    kernel: Any, heads: Sequence[Sequence[Head]], columns: Any, at: int = 0, variable: bytes = b""
) -> tuple[bytes, int]:
    """Encode with a new encoder of this form."""
    encoder = kernel.FrameEncoder([tuple(own) for own in heads], at, len(variable))
    frames: tuple[bytes, int] = encoder.encode(columns, variable)
    return frames


def scan_in_pieces(
    scan: Callable[[bytes], tuple[int, list[Any]]], data: bytes, size: int
) -> tuple[list[Any], bytes]:
    """Scan ``data`` as reads of ``size`` bytes; return what was found, and what is left.

    ``scan`` returns where it ended, and what it found. The rest precedes the next read.
    """
    found: list[Any] = []
    rest = b""
    for start in range(0, len(data), size):
        rest += data[start : start + size]
        end, some = scan(rest)
        found += some
        rest = rest[end:]
    return found, rest
