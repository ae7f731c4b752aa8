"""Numbers of messages in a shared history."""

from __future__ import annotations


def numbers(start: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, stop)]
