"""Texts for errors of the engine and of its client library."""

from __future__ import annotations


def text_of_error(error: BaseException | None) -> str:
    """Return a reason for the log; a time-out of asyncio has no text of its own."""
    described = getattr(error, "description", "") or str(error)
    if not described and isinstance(error, TimeoutError):
        return "it does not answer in time"
    return described or type(error).__name__
