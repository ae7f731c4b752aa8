"""Calls of the functions that wait for a commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from twisted.logger import Logger

log = Logger()


def call_all(waiting: Iterable[Callable[[bool], None]], done: bool) -> None:
    """Call each function. An error in one is logged: the others must not wait forever."""
    for call in waiting:
        try:
            call(done)
        except Exception:
            log.failure("history: a client could not be answered after a commit")
