"""A range of the history, sent to one client.

A stream reads one parcel after another from the store and encodes each in a thread. One encoded
parcel waits while the one before it is sent, so a client that does not read costs at most two
parcels of memory, until it is disconnected as too slow. An encoded parcel can have many megabytes:
it is given to the transport in pieces, as copying it at once would delay other clients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IPushProducer
from twisted.internet.task import deferLater
from twisted.logger import Logger
from zope.interface import implementer

from pubsub.broker.access_rules.access import RESERVED
from pubsub.broker.delivery.history_reads import read_history
from pubsub.http_api.reading.stream_formats import Format
from pubsub.http_api.reading.stream_places import STREAM_BYTES
from pubsub.http_api.requests.request_access import RequestAccess

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.http_api.reading.shared_ranges import Between
    from pubsub.http_api.requests.api_request import ApiRequest
    from pubsub.store.records.parcel import Parcel

log = Logger()
RunInThread = Callable[[Callable[[], Any]], "Deferred[Any]"]
"""Runs a call in a thread; the Deferred fires with its result."""
_PARCEL_BYTES = 1024**2
# Bytes of payloads that are encoded at a time. The arrays of a block are made for each part of it,
# so that smaller ones would take longer, unless its messages are few.
_PART_BYTES, _FEW_PART_BYTES = 4 * 1024**2, 1024**2
_FEW = 1000
# Bytes that are given to the transport in one tick.
_PIECE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class HistoryRange:
    """A range of offsets; ``topics`` is None for all topics that the client may read."""

    start: int
    stop: int
    topics: frozenset[str] | None
    skip_expired: bool
    between: Between | None = None
    """Returns which of these messages are in the range, if not all of them are."""


@implementer(IPushProducer)
class HistoryResponse:
    """One range that is being sent to one client."""

    def __init__(
        self,
        listener: Listener,
        run_in_thread: RunInThread,
        request: ApiRequest,
        access: RequestAccess,
        requested: HistoryRange,
        format: Format,
    ) -> None:
        self._listener = listener
        self._run_in_thread = run_in_thread
        self._request = request
        self._channel = request.channel
        self._access = access
        self._range = requested
        self._format = format
        self.stalled_since: float | None = None
        """When the transport had more than it could send; None while the client reads."""
        # Bytes of the parcel, of what waits encoded, and of what the transport has not sent; and
        # those of them that are charged beside the stream's place.
        self._parcel_bytes = self._encoded = self._unsent = self._charged = 0
        # The encoded bytes that are being sent, and the first that the transport does not have.
        self._sending, self._at = b"", 0
        self._next_piece: IDelayedCall | None = None
        self._ended = False
        self._waiting: Deferred[None] | None = None
        self._timeout: IDelayedCall | None = None

    async def run(self) -> None:
        """Send the whole range, or cut the connection so that the client notices."""
        self._channel.cut = self._cut
        self._request.notifyFinish().addErrback(lambda _: self._end())
        self._request.registerProducer(self, True)
        try:
            await self._send()
        except Exception:
            if not self._ended:
                log.failure(
                    "http: a stream of the history failed", connection=self._channel.log_fields()
                )
                self._cut("internal error")
        finally:
            self._stop_sending()
            self._charge()
        if not self._ended:
            self._channel.cut = None
            self._request.unregisterProducer()
            self._request.finish()

    async def _send(self) -> None:
        at, stop = self._range.start, self._range.stop
        while at < stop and not self._ended:
            topics = self._range.topics
            parcel = await read_history(
                self._listener.clock,
                self._request,
                partial(self._listener.store.read_parcel, at, stop, topics, _PARCEL_BYTES),
            )
            if self._ended or not self._may_continue(parcel, at):
                return
            at = parcel.stop
            parcel = parcel.of(self._is_requested)
            if parcel.blocks or parcel.damaged:
                await self._write_parcel(parcel)
            else:
                # Reads of messages in memory are done at once, and there may be many.
                await deferLater(self._listener.clock, 0)
        if not self._ended:
            await self._write(self._format.end)

    async def _write_parcel(self, parcel: Parcel) -> None:
        self._parcel_bytes = parcel.nbytes
        self._charge()
        try:
            if self._range.between is not None:
                parcel = await self._run_in_thread(partial(self._range.between.of, parcel))
            are_few = sum([block.stop - block.base for block, _ in parcel.blocks]) <= _FEW
            for part in parcel.divided(_FEW_PART_BYTES if are_few else _PART_BYTES):
                if self._ended:
                    return
                await self._write(partial(self._format.encode, part))
        finally:
            self._parcel_bytes = 0
            self._charge()

    def _charge(self) -> None:
        """Charge what the stream holds beyond the bytes of its place.

        Encoded messages may be several times as large as their payloads.
        """
        before = self._charged
        left = len(self._sending) - self._at
        held = self._parcel_bytes + self._encoded + left + self._unsent
        self._charged = max(held - STREAM_BYTES, 0)
        memory = self._listener.memory
        if self._charged > before:
            memory.add(self._charged - before)
        elif self._charged < before:
            memory.free(before - self._charged)

    async def _write(self, make: Callable[[], bytes]) -> None:
        # Encoded while the parcel before it is being sent.
        data = await self._run_in_thread(make)
        self._encoded = len(data)
        self._charge()
        await self._until_given()
        self._encoded = 0
        if not self._ended:
            self._sending, self._at = data, 0
            self._send_piece()
        self._charge()

    async def _until_given(self) -> None:
        """Wait until the transport has all that is being sent, and may have more."""
        if not self._ended and (self._at < len(self._sending) or self.stalled_since is not None):
            self._waiting = Deferred()
            await self._waiting

    def _send_piece(self) -> None:
        """Give the transport the next piece, and the others as soon as it has sent that."""
        self._next_piece = None
        data, at = self._sending, self._at
        if at < len(data):
            # A part of the whole is copied, the whole is not.
            piece = data[at : at + _PIECE_BYTES]
            self._at = at + len(piece)
            self._request.write(piece)
            self._unsent = len(piece) if self.stalled_since is not None else 0
        if self._at >= len(data):
            self._sending, self._at = b"", 0
        self._charge()
        if self.stalled_since is None and not self._ended:
            if self._sending:
                self._next_piece = self._listener.clock.callLater(0, self._send_piece)
            else:
                self._wake()

    def _stop_sending(self) -> None:
        """Forget what has not been given to the transport."""
        self._cancel_timeout()
        if self._next_piece is not None:
            self._next_piece.cancel()
            self._next_piece = None
        self._sending, self._at = b"", 0
        self._encoded = self._unsent = 0

    def _is_requested(self, name: str) -> bool:
        """Return whether this topic is read; reserved topics must be requested by name."""
        if self._range.topics is None and name.startswith(RESERVED):
            return False
        return self._access.may_read(name)

    def _may_continue(self, parcel: Parcel, at: int) -> bool:
        """Return whether the next messages exist and may be read; cut the stream if not."""
        if parcel.first > at and not self._range.skip_expired:
            self._cut("the next messages have expired")
        elif not self._access.token_is_valid:
            self._cut("the token has expired")
        elif self._range.topics and not self._access.may_still_read(self._range.topics):
            self._cut("permission to read a topic was withdrawn")
        return not self._ended

    # The client

    def pauseProducing(self) -> None:
        """See IPushProducer."""
        if self.stalled_since is None and not self._ended:
            self.stalled_since = self._listener.clock.seconds()
            seconds = self._listener.slow.seconds
            self._timeout = self._listener.clock.callLater(seconds, self._cut_slow)

    def resumeProducing(self) -> None:
        """See IPushProducer."""
        self.stalled_since = None
        self._unsent = 0
        self._cancel_timeout()
        if self._next_piece is None:
            self._send_piece()

    def stopProducing(self) -> None:
        """See IPushProducer."""
        self._end()

    def displace(self) -> None:
        """See ``Displaceable``."""
        self._cut("the client does not read, and another stream needs the place")

    def _cut_slow(self) -> None:
        self._cut(f"the client has not read for {self._listener.slow.seconds:g} s")

    def _cancel_timeout(self) -> None:
        if self._timeout is not None and self._timeout.active():
            self._timeout.cancel()
        self._timeout = None

    def _cut(self, reason: str) -> None:
        """Abort the connection, so that the client does not take the stream for complete."""
        if self._ended:
            return
        label = self._request.label
        self._channel.count_refusal("stream-cut")
        log.info(
            "http: stream to {client} cut: {reason}",
            client=label,
            reason=reason,
            connection=self._channel.log_fields(),
        )
        self._end()
        self._channel.abort(reason)

    def _end(self) -> None:
        self._ended = True
        self._stop_sending()
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.callback(None)
