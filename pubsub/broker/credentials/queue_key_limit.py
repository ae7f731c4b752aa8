"""The length of queue keys."""

from __future__ import annotations

MAX_KEY = 108
"""Bytes of the longest queue key that fits in a token of fast, which has 255, with a permission."""
