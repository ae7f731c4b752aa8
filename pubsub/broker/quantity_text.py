"""Numbers of things as text."""

from __future__ import annotations


def quantity(count: int, noun: str, style: str = "") -> str:
    """Return ``count``, formatted in ``style``, and the noun, in the plural unless it is one."""
    return f"{count:{style}} {noun}{'' if count == 1 else 's'}"
