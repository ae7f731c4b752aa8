"""Ranges of a shared history between shared positions, and the positions themselves.

A range has the same messages at every broker, in the order of each. See
``pubsub/backplane/positions/shared_position.py``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pubsub.backplane.positions.shared_position import (
    MAX_TEXT,
    Extent,
    MalformedPosition,
    SharedPosition,
    UnknownPosition,
    decode,
)
from pubsub.backplane.positions.shared_positions import SharedPositions
from pubsub.broker.delivery.history_reads import written
from pubsub.http_api.reading.follow_start import check_epoch
from pubsub.http_api.requests.api_error import (
    CONFLICT,
    GONE,
    NOT_SATISFIABLE,
    UNAVAILABLE,
    ApiError,
)
from pubsub.http_api.requests.parameters import Parameters, invalid
from pubsub.store.records.block import Block, decode_block, encode_block
from pubsub.store.records.block_columns import HAS_HEADERS, RUN
from pubsub.store.records.stored_runs import record_of
from pubsub.store.shared_store import SharedStore

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.interfaces import IStore
    from pubsub.store.records.parcel import Parcel

FROM, TO = "from", "to"
# Seconds that a request waits for messages of other brokers.
_TIMEOUT = 3.0


class Between:
    """The messages from one position to before another one. It is used by several threads."""

    def __init__(self, low: Extent, high: Extent | None) -> None:
        self._low = low
        self._high = high

    def of(self, parcel: Parcel) -> Parcel:
        """Return ``parcel`` with only these messages."""
        kept = []
        for block, names in parcel.blocks:
            found = self._part(block) if block.runs else None
            if found is not None:
                kept.append((found, names))
        return replace(parcel, blocks=tuple(kept))

    def _part(self, block: Block) -> Block | None:
        begin = self._low.following(block.run)
        end = 2**63 if self._high is None else self._high.following(block.run)
        words = memoryview(block.runs)
        first, last = RUN.unpack_from(words), RUN.unpack_from(words, len(words) - RUN.size)
        stop = last[7] + (last[1] & ~HAS_HEADERS)
        if begin <= first[7] and stop <= end:
            return block
        if stop <= begin or end <= first[7]:
            return None
        records = []
        for run in decode_block(block):
            batch = run.batch()
            low = min(max(begin - batch.sequence, 0), batch.count)
            high = min(max(end - batch.sequence, low), batch.count)
            if low < high:
                records.append(record_of(batch.slice(low, high)))
        return encode_block(records, block.run, block.base, block.stop) if records else None


class SharedRanges:
    """Finds positions for the requests of ``listener``."""

    def __init__(self, listener: Listener) -> None:
        self._store = listener.store

    @property
    def positions(self) -> SharedPositions | None:
        """The positions of a shared history; None without one."""
        return shared_positions(self._store)

    async def latest(self, parameters: Parameters) -> dict[str, object]:
        """Return the position for a request for bounds, as a member of the answer.

        It is that of the offset ``at``, or the end of the messages that other brokers can have.
        Everything before the position ``from`` is before it.
        """
        positions = self.positions
        # Checked also where it has no effect.
        parameters.flag("skip_expired")
        if positions is None:
            if "at" in parameters or FROM in parameters:
                raise _not_shared()
            return {}
        settled = positions.settled
        at = parameters.number("at", settled)
        if at > settled:
            message = f"other brokers have the messages up to offset {settled}"
            raise ApiError(NOT_SATISFIABLE, "beyond-end", message, next=settled)
        answer: dict[str, object] = {}
        found = await positions.at(at)
        if FROM in parameters:
            begin = await self._reached(positions, parameters, FROM)
            try:
                place = await positions.find(begin)
                _check_whole(positions, parameters, begin, None)
                found = positions.joined(begin, found)
            except UnknownPosition as error:
                raise _unknown(error) from None
            answer = {"low": place.start, "high": place.stop}
        return {
            "position": found.encode(),
            "at": at,
            **answer,
            "whole": min(positions.missing.offset, settled),
            "shared": positions.identity,
        }

    async def find(self, parameters: Parameters, skip_expired: bool) -> tuple[int, int, Between]:
        """Return the offsets of the range between the positions ``from`` and ``to``.

        Some of the messages between these offsets may not be in the range. None lies before the
        offset ``start``, if it is given. Raises ApiError.
        """
        positions = self.positions
        if positions is None:
            raise _not_shared()
        if "stop" in parameters:
            raise invalid("expected either stop or to")
        least = parameters.number("start", 0)
        check_epoch(self._store, parameters.text("epoch", self._store.epoch), least)
        low = await self._reached(positions, parameters, FROM)
        high = None
        if TO in parameters:
            high = await self._reached(positions, parameters, TO)
        try:
            begin = await positions.find(low)
            end = None if high is None else await positions.find(high)
            _check_whole(positions, parameters, low, high)
        except UnknownPosition as error:
            raise _unknown(error) from None
        stop = self._store.committed if end is None else end.stop
        if stop > self._store.committed:
            await self._written()
        first = self._store.first_offset
        begun = max(begin.start, least)
        if begun < first and not skip_expired:
            raise ApiError(GONE, "expired", f"the history begins at offset {first}", first=first)
        start = min(max(begun, first), stop)
        return start, stop, Between(begin.extent, None if end is None else end.extent)

    async def _reached(
        self, positions: SharedPositions, parameters: Parameters, name: str
    ) -> SharedPosition:
        try:
            position = decode(parameters.text(name, most=MAX_TEXT))
        except MalformedPosition as error:
            raise invalid(f"{name}: {error}") from None
        if not await positions.when_reached(position, _TIMEOUT):
            message = "this broker does not have the messages before the position; ask another one"
            raise ApiError(UNAVAILABLE, "not-reached", message)
        return position

    async def _written(self) -> None:
        """Wait until the imported messages are committed, because only committed ones are read."""
        if not await written(self._store):
            message = "the messages before the position are not on disk yet"
            raise ApiError(UNAVAILABLE, "history-unavailable", message)


def shared_positions(store: IStore) -> SharedPositions | None:
    """Return the positions of a shared history; None without one."""
    if isinstance(store, SharedStore):
        positions = store.positions
        return positions if isinstance(positions, SharedPositions) else None
    return None


def _check_whole(
    positions: SharedPositions,
    parameters: Parameters,
    low: SharedPosition,
    high: SharedPosition | None,
) -> None:
    if not parameters.flag("skip_expired") and positions.lacks(low, high):
        message = "this broker may never have got some of the messages; ask another one"
        raise ApiError(CONFLICT, "position-unknown", message)


def _not_shared() -> ApiError:
    message = "this broker has no shared history; give offsets"
    return ApiError(CONFLICT, "not-shared", message)


def _unknown(error: UnknownPosition) -> ApiError:
    return ApiError(CONFLICT, "position-unknown", f"{error}; ask another one")
