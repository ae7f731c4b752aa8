"""What comes in on a stream, until it is whole frames.

The bytes of an unfinished frame are kept as they came and joined once, those of a large message's
payload by themselves; from a few KiB on they are charged to the memory budget.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, cast

from twisted.internet.protocol import Protocol

from pubsub.wire.direct_transport import READ_BYTES, StreamTransport

if TYPE_CHECKING:
    from twisted.internet.interfaces import ITransport

    from pubsub.broker.listener import Listener

# From here on a partial frame is accounted for; below it is part of what a connection costs.
_ACCOUNTED = 4096
# From here on it pays to ask whether an unfinished frame is a message.
_LARGE = 16 * 1024
# Of an unfinished frame kept apart; its bytes are copied once for every so many that come.
_PIECES = 256
# From here on a read is of a client that sends all it can.
_BUSY = 32 * 1024


class ReadBuffer(Protocol):
    """The base of ``Connection`` that hands whole frames to ``consume``.

    The attributes start as class attributes, so that an idle connection costs little.
    """

    delimiter: ClassVar[bytes | None] = None
    """Where set, input is parsed only when this byte has come, or as much as can be kept."""

    read_bytes: ClassVar[int] = READ_BYTES
    """Of one read at the most."""

    closing = False
    _leaving: Callable[[], None] | None = None
    # What is there of an unfinished frame, as it came, to be joined once; and its bytes.
    _rest: list[bytes] | None = None
    _there = 0
    _need = 0
    _charged = 0
    _quiet = 0
    # The length of the frames that reads are to end with.
    _frame = 0

    def __init__(self, listener: Listener) -> None:
        self.listener = listener

    def makeConnection(self, transport: ITransport) -> None:
        """See IProtocol: as Twisted's, but for an attribute that nothing asks for."""
        self.transport = transport
        self.connectionMade()  # type: ignore[no-untyped-call]

    @property
    def stream(self) -> StreamTransport:
        """The transport, as what it is."""
        return cast(StreamTransport, self.transport)

    def consume(self, data: bytes) -> tuple[int, int]:
        """Handle the whole frames at the start of ``data``.

        Returns how many bytes were handled, and how many from there on there must be before it
        is worth calling again.
        """
        raise NotImplementedError

    def large(self, head: bytes, need: int) -> tuple[int, Callable[[bytes], None]] | None:
        """What becomes of the frame of ``need`` bytes that begins with ``head``.

        For a message whose payload ends the frame: where that begins, and what takes it. None
        leaves the frame to ``consume``, as does what is not to be handled now.
        """
        return None

    def dataReceived(self, data: bytes) -> None:
        """Buffer and parse."""
        if self._quiet:
            self._quiet = 0
        if self.closing or self._leaving:
            return
        rest = self._rest
        if rest is not None:
            rest.append(data)
            self._there += len(data)
            delimiter = self.delimiter
            if self._there < self._need and (delimiter is None or delimiter not in data):
                if len(rest) > _PIECES:
                    # Many small ones would cost more memory than what is in them.
                    rest[:] = [b"".join(rest)]
                self._account(self._there)
                return
            self._rest = None
            data = b"".join(rest) if self._need < _LARGE else self._take_large(rest)
        self._parse(data)

    def _take_large(self, rest: list[bytes]) -> bytes:
        """Hand on the large message that has become whole; returns what is left to be parsed."""
        found = self.large(rest[0], self._need)
        if found is None:
            return b"".join(rest)
        before, take = found
        last = rest[-1]
        stop = len(last) - (self._there - self._need)
        rest[0], rest[-1] = rest[0][before:], last[:stop]
        take(b"".join(rest))
        return last[stop:]

    def parse_rest(self) -> None:
        """Go on with what was left in the buffer, after ``consume`` had stopped early."""
        rest, self._rest = self._rest, None
        if rest and not (self.closing or self._leaving):
            self._parse(b"".join(rest))

    def _parse(self, data: bytes) -> None:
        done, need = self.consume(data)
        left = len(data) - done
        if left and not self.closing:
            self._rest = [data[done:]]
            self._there = left
            self._need = need
            if left < need < _BUSY <= len(data):
                self._frame = need
                self._read(need - left)
        elif self._frame:
            self._read(0)
            self._frame = 0
        if self._rest is not None or self._charged:
            self._account(0 if self._rest is None else self._there)

    def _read(self, first: int) -> None:
        """Have the next read be of ``first`` bytes and as many frames as may be.

        A frame that it ends in the middle of would be copied with all that is read next.
        """
        rows = (self.read_bytes - first) // self._frame
        self.stream.bufferSize = first + rows * self._frame

    def _account(self, nbytes: int) -> None:
        """Charge the memory budget for the bytes of an unfinished frame."""
        if nbytes < _ACCOUNTED:
            nbytes = 0
        if nbytes != self._charged:
            before, self._charged = self._charged, nbytes
            self.listener.memory.charge(self, before, nbytes, 0)

    def _forget_rest(self) -> None:
        self._rest = None
        self._account(0)

    @property
    def held(self) -> int:
        """Bytes of an unfinished frame (see ``Holder``)."""
        return self._charged

    def evict(self, reason: str) -> None:
        """Give the connection up for the sake of the others (see ``Holder``)."""
        raise NotImplementedError
