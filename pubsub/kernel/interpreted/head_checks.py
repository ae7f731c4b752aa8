"""Rules that ``HeadTable`` and ``FrameEncoder`` have in common."""

from __future__ import annotations

from pubsub.kernel.layout import Head

MAX_LENGTHS = 4096
"""Heads with the length of their payload included, of one table or one encoder."""


def check_head(head: Head) -> None:
    """Raise ValueError for a head whose fields do not fit it."""
    before = 0
    if not 1 <= len(head.fields) <= 2:
        raise ValueError(f"a head has 1 or 2 length fields, not {len(head.fields)}")
    for field in head.fields:
        if field.at < before or not 1 <= field.width <= 8:
            raise ValueError("length fields are in ascending order, of 1 to 8 bytes")
        before = field.at + field.width
    if before > len(head.data):
        raise ValueError("a length field is outside its head")
    if head.least < 0:
        raise ValueError("the least length of a payload is negative")
