"""Epochs: which positions of readers are valid in a history that was opened several times."""

from __future__ import annotations

from collections.abc import Sequence


def continues(known: Sequence[tuple[str, int]], epoch: str, offset: int) -> bool:
    """Return whether a position of ``epoch`` is valid in a history with the epochs ``known``."""
    return continuation(known, epoch, offset) == offset


def continuation(known: Sequence[tuple[str, int]], epoch: str, offset: int) -> int | None:
    """Return where a reader at this position continues; see ``IStore.continuation``."""
    for index, (name, _) in enumerate(known):
        if name == epoch:
            return offset if index + 1 == len(known) else min(offset, known[index + 1][1])
    return None
