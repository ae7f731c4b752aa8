"""The start of a reader of messages: an offset, a time, the position of a client, or the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pubsub.http_api.requests.api_error import CONFLICT, NOT_SATISFIABLE, ApiError
from pubsub.http_api.requests.parameters import MAX_NUMBER, Parameters, check_name, invalid

if TYPE_CHECKING:
    from pubsub.interfaces import IStore

EARLIEST = "earliest"
"""Stands for the first offset that can be read."""
LOST, REPLACED = "lost", "replaced"
"""Reasons of gaps: a crash has lost the messages; the history is another one."""


class HistoryGap(NamedTuple):
    """The offsets from ``start`` to before ``stop`` are missing, for ``reason``."""

    start: int
    stop: int
    reason: str


@dataclass(frozen=True, slots=True)
class FollowStart:
    """The first offset to read, and the gap before it.

    ``past`` is True if messages are requested that have been published before.
    """

    offset: int
    past: bool
    gap: HistoryGap | None = None


async def find_start(
    store: IStore, parameters: Parameters, position: str | None, follows: bool
) -> FollowStart:
    """Return where to begin; ``position`` is that of a client which reconnects.

    Without any of the parameters ``start`` and ``timestamp`` it is the end if the client follows,
    otherwise the beginning. Raises ApiError.
    """
    if position is not None:
        return _after(store, position)
    if "timestamp" in parameters:
        if "start" in parameters:
            raise invalid("expected either start or timestamp")
        return FollowStart(await store.offset_at(parameters.time("timestamp")), True)
    if "start" not in parameters:
        return (
            FollowStart(store.next_offset, False)
            if follows
            else FollowStart(store.first_offset, True)
        )
    if parameters.is_word("start", EARLIEST):
        return FollowStart(store.first_offset, True)
    start = parameters.number("start", word=EARLIEST)
    epoch = parameters.text("epoch", store.epoch)
    check_epoch(store, epoch, start)
    if start > store.next_offset:
        message = f"the history ends at offset {store.next_offset}"
        raise ApiError(NOT_SATISFIABLE, "beyond-end", message, next=store.next_offset)
    return FollowStart(start, True)


def check_epoch(store: IStore, epoch: str, offset: int) -> None:
    """Raise ApiError unless this position belongs to the history."""
    if not store.continues(epoch, offset):
        message = f"offset {offset} of epoch {epoch} is not part of this history"
        raise ApiError(CONFLICT, "epoch", message, epoch=store.epoch)


def _after(store: IStore, position: str) -> FollowStart:
    """Return where a client continues whose position is ``position``, as ``epoch:offset``.

    It is never refused for a position that is not valid any more, as browsers would not try again.
    """
    epoch, _, number = check_name("position", position).rpartition(":")
    if not epoch or not (number.isascii() and number.isdecimal()) or int(number) > MAX_NUMBER:
        raise invalid("the position is not one that a broker has sent")
    offset, first, end = int(number), store.first_offset, store.next_offset
    found = store.continuation(epoch, offset)
    if found is None:
        # The position of the client means nothing here, so it gets all messages.
        return FollowStart(first, True, HistoryGap(first, first, REPLACED))
    if found < offset:
        return FollowStart(found, True, HistoryGap(found, offset, LOST))
    return FollowStart(min(offset, end), True)
