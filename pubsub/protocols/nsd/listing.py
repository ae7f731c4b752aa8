"""nsd: Get, answered by a list of the history's messages, of any length (nsd §3.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.python.failure import Failure

from pubsub.protocols.nsd.codec import LIST_END, LIST_START, Get, LineStream
from pubsub.wire.connection import Connection

if TYPE_CHECKING:
    from pubsub.broker.listener import Listener
    from pubsub.protocols.nsd.identities import Identities
    from pubsub.protocols.nsd.templates import Rows

_PAGE_BYTES = 256 * 1024


class ListingConnection(Connection):
    """A connection that answers Get; meanwhile (``_busy``) it answers nothing else.

    ``consume`` of the subclass sets ``_parsing`` while it runs.
    """

    _busy = False
    _parsing = False
    _stopping = False
    _writable: Deferred[None] | None = None

    def __init__(self, listener: Listener, identities: Identities, rows: Rows) -> None:
        super().__init__(listener)
        self._identities = identities
        self._rows = rows

    def _get(self, request: Get, in_base64: bool) -> None:
        self._busy = True
        ensureDeferred(self._stream(request, LineStream(in_base64))).addCallbacks(
            self._finished, self._broken
        )

    async def _stream(self, request: Get, line: LineStream) -> None:
        """Send the list a page of the history at a time, as fast as the client reads it."""
        store = self.listener.store
        may_read = self.listener.access.may_subscribe
        identity = self._identities.find(request.identity)
        names = frozenset(filter(may_read, identity.channels if identity is not None else ()))
        # What is published while the list is sent is for the next Get.
        offset = max(request.after, 0)
        end = await self._stored_end() if names else offset
        pieces, comma = [LIST_START], b""
        while names and offset < end and not self.closing:
            page = await store.read(offset, names, _PAGE_BYTES)
            for start, stop in page.damaged:
                self.listener.counters.drop(self.label, "*", "damaged", stop - start)
            for batch in page.batches:
                pieces += (comma, self._rows.of(batch))
                comma = b","
            offset = page.next_offset
            if offset < end:
                self.reply(line.feed(*pieces))
                pieces.clear()
                await self._turn()
        # A list of one page leaves in one write, with its end: that is what pollers mostly get.
        if not self.closing:
            self.reply(line.finish(*pieces, LIST_END))

    async def _stored_end(self) -> int:
        """Where the history ends now, once that much of it is committed and may be shown.

        So a client finds what it has published before.
        """
        store = self.listener.store
        end: int = store.next_offset
        if end > store.committed:
            stored: Deferred[bool] = Deferred()
            store.when_stored(stored.callback)
            self.hold("get")
            await stored
        return min(end, store.committed)

    def _turn(self) -> Deferred[None]:
        """Fires when others have had their turn and the transport has room again."""
        turn: Deferred[None] = Deferred()
        if self._output_full:
            self._writable = turn
        else:
            self.listener.at_tick_end(lambda: turn.callback(None))
        self.hold("get")
        return turn

    def resumeProducing(self) -> None:
        """See ``Connection``."""
        super().resumeProducing()
        self._wake()
        self._go_on()

    def _wake(self) -> None:
        if self._writable is not None:
            writable, self._writable = self._writable, None
            writable.callback(None)

    def _finished(self, result: None) -> None:
        self._busy = False
        self.release("get")
        if self._stopping:
            self.close()
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Parse what was left waiting, unless it still has to."""
        if not (self._busy or self._parsing or self._output_full):
            self.parse_buffered()

    def _broken(self, failure: Failure) -> None:
        self.log.failure("nsd: reading the history for {client!r}", failure, client=self.label)
        self.abort("the history cannot be read")

    # The ends

    def drain(self) -> None:
        """See ``Client``: a response under way is finished first."""
        if self._busy:
            self._stopping = True
        else:
            super().drain()

    def ended(self) -> None:
        """See ``Connection``."""
        self.listener.at_tick_end(self._wake)
