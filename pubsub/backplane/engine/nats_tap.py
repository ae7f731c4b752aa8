"""A tap between nats-py and its connection: live messages bypass nats-py.

nats-py connects, subscribes, answers pings and speaks with JetStream. It copies each message
several times and wakes a task or two for it, which costs more than the rest of the path of a
record. So the messages of topics are taken out of the received bytes before nats-py reads them, and
are written beside those of nats-py, which always writes whole commands.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from twisted.internet.interfaces import IReadDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer

from pubsub.backplane.engine.reactor_loop import ReactorLoop
from pubsub.backplane.messages.subjects import ROOT

# Bytes that are read at a time.
_READ = 1024**2
# Parts that are written at a time; the least that systems allow is 16, and Linux has 1024.
_PARTS = min(os.sysconf("SC_IOV_MAX"), 1024)
# Digits of the largest size that is understood.
_DIGITS = 12
# With the subject, and the size of the bytes after the line.
_OURS = re.compile(
    rb"MSG (%s\.\S+) \S+ (?:\S+ )?(\d{1,%d})\r\n" % (re.escape(ROOT.encode()), _DIGITS)
)
_MESSAGES = (b"MSG ", b"HMSG ")
_END = b"\r\n"
# Seconds after which the next address of a name is tried too.
_NEXT_ADDRESS = 0.3

Receive = Callable[[str, bytes], object]


class Splitter:
    """Takes the messages of topics out of the bytes of a server; returns the rest. Sans-IO.

    The beginning of a message stays where it was read, and the next bytes are read behind it, so
    that each message is copied once. ``size`` are the bytes that are read at a time.
    """

    def __init__(self, receive: Receive, size: int = _READ) -> None:
        self._receive = receive
        self._buffer = bytearray(size)
        self._view = memoryview(self._buffer)
        # The part of the buffer that was read and not taken.
        self._at = self._filled = 0
        # Of a message that is passed on as it arrives, or that is larger than the buffer: the bytes
        # that have not arrived, with its end of line, and the beginning of the latter kind.
        self._missing = 0
        self._begun = bytearray()
        # None for a message that is not of a topic.
        self._subject: str | None = None

    def room(self) -> memoryview:
        """Return where to read; it has room for a byte at least."""
        return self._view[self._filled :]

    def take(self, count: int) -> bytes:
        """Take the ``count`` bytes that were read; return those that are not of topics."""
        rest: list[bytes] = []
        self._filled = filled = self._filled + count
        at = self._at
        while at < filled:
            if self._missing:
                end = min(at + self._missing, filled)
                self._take_payload(at, end, rest)
            else:
                end = self._take_command(at, filled, rest)
                if end == at:
                    break
            at = end
        if at == filled:
            at = self._filled = 0
        elif filled == len(self._buffer):
            self._filled -= at
            self._view[: self._filled] = self._view[at:]
            at = 0
        self._at = at
        return b"".join(rest)

    def _take_command(self, at: int, filled: int, rest: list[bytes]) -> int:
        """Return the end of the command at ``at``: ``at`` if more has to arrive."""
        found = _OURS.match(self._buffer, at, filled)
        if found is not None:
            payload, size = found.end(), int(found[2])
            end = payload + size + len(_END)
            # Of these the server has checked that they are UTF-8.
            subject = found[1].decode(errors="replace")
            if end <= filled:
                self._receive(subject, bytes(self._view[payload : payload + size]))
                return end
            if end - at <= len(self._buffer):
                return at
            self._subject, self._missing = subject, size + len(_END)
            return payload
        end = self._buffer.find(b"\n", at, filled) + 1
        if not end:
            if at or filled < len(self._buffer):
                return at
            # No server sends such a line.
            end = filled
        line = bytes(self._view[at:end])
        rest.append(line)
        if line.startswith(_MESSAGES):
            size_word = line.split()[-1]
            if size_word.isdigit() and len(size_word) <= _DIGITS:
                self._subject, self._missing = None, int(size_word) + len(_END)
        return end

    def _take_payload(self, at: int, end: int, rest: list[bytes]) -> None:
        self._missing -= end - at
        if self._subject is None:
            rest.append(bytes(self._view[at:end]))
            return
        self._begun += self._view[at:end]
        if not self._missing:
            whole, self._begun = self._begun, bytearray()
            del whole[-len(_END) :]
            self._receive(self._subject, bytes(whole))


@implementer(IReadDescriptor)
class Tap(asyncio.BufferedProtocol):
    """Reads for ``inner``, the protocol of nats-py, and writes beside it.

    While a server sends nothing but messages of topics, the reactor reads them, without a pass of
    the loop (see ``ReactorLoop``); that costs less. All else is read by asyncio's transport, which
    ``inner`` can pause, and which observes the end of the connection.
    """

    def __init__(self, inner: Any, receive: Receive, loop: TappedLoop) -> None:
        self._inner = inner
        self._loop = loop
        self._splitter = Splitter(receive)
        # Until it is known.
        self._is_tls = True
        # Whether the reactor reads.
        self._direct = False
        self._descriptor = -1
        self.transport: Any = None
        self.heard = loop.reactor.seconds()
        """When the server has sent something for the last time, by the reactor's clock."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.BaseProtocol``."""
        self.begin(transport)
        self._inner.connection_made(transport)

    def begin(self, transport: Any) -> None:
        """Read and write by ``transport``."""
        self.transport = transport
        self._is_tls = transport.get_extra_info("sslcontext") is not None
        self._descriptor = transport.get_extra_info("socket").fileno()

    def connection_lost(self, error: Exception | None) -> None:
        """See ``asyncio.BaseProtocol``."""
        self.leave()
        self._inner.connection_lost(error)

    def pause_writing(self) -> None:
        """See ``asyncio.BaseProtocol``."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """See ``asyncio.BaseProtocol``."""
        self._inner.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:
        """See ``asyncio.BufferedProtocol``."""
        return self._splitter.room()

    def buffer_updated(self, nbytes: int) -> None:
        """See ``asyncio.BufferedProtocol``."""
        self.heard = self._loop.reactor.seconds()
        rest = self._splitter.take(nbytes)
        if rest:
            self._inner.data_received(rest)
        elif self._loop.is_inside and not self._is_tls and self.transport.is_reading():
            self.transport.pause_reading()
            self._loop.reactor.addReader(self)
            self._direct = True

    def eof_received(self) -> bool | None:
        """See ``asyncio.BufferedProtocol``."""
        keeps_open: bool | None = self._inner.eof_received()
        # TLS has no half-closed connections, and asyncio warns of protocols that request one.
        return None if self._is_tls else keeps_open

    # IReadDescriptor

    def doRead(self) -> None:
        """See ``IReadDescriptor``."""
        try:
            count = os.readv(self._descriptor, [self._splitter.room()])
        except BlockingIOError:
            return
        except OSError:
            count = 0
        self.heard = self._loop.reactor.seconds()
        rest = self._splitter.take(count)
        if count and not rest:
            self._loop.after_pass()
            return
        # The next bytes, or the end, are for the loop to read.
        self.leave()
        self.transport.resume_reading()
        if rest:
            self._loop.run_pass(partial(self._inner.data_received, rest))

    def fileno(self) -> int:
        """See ``IFileDescriptor``."""
        return self._descriptor

    def logPrefix(self) -> str:
        """See ``ILoggingContext``."""
        return "backplane"

    def connectionLost(self, reason: Failure) -> None:
        """See ``IFileDescriptor``: ``doRead`` has failed, or the reactor ends."""
        if self._direct:
            self._direct = False
            self.transport.abort()

    def leave(self) -> None:
        """Have the reactor read no more."""
        if self._direct:
            self._direct = False
            self._loop.reactor.removeReader(self)

    # Messages of topics

    def publish(self, groups: Sequence[tuple[str, Sequence[bytes], int]]) -> int:
        """Send messages: for each its subject, and its bytes in parts, with their number.

        Return the bytes of all messages.
        """
        parts: list[bytes] = []
        total = whole = 0
        for subject, own, nbytes in groups:
            line = b"PUB %s %d\r\n" % (subject.encode(), nbytes)
            parts += (line, *own, _END)
            total += nbytes
            whole += len(line) + nbytes + len(_END)
        sent = 0
        if not self._is_tls and len(parts) <= _PARTS and not self.transport.get_write_buffer_size():
            # The transport would join them first. It observes the error, if there is one.
            with suppress(OSError):
                sent = os.writev(self._descriptor, parts)
        if sent < whole:
            self.transport.write(b"".join(parts)[sent:])
        return total


class TappedLoop(ReactorLoop):
    """The loop for nats-py; ``tap`` stands at its last connection."""

    tap: Tap | None = None

    def __init__(self, reactor: Any, after_pass: Callable[[], object], receive: Receive) -> None:
        super().__init__(reactor, after_pass)
        self._receive = receive

    @property
    def silence(self) -> float:
        """Seconds since the server of the last connection has sent anything; 0 without one."""
        return 0.0 if self.tap is None else self.reactor.seconds() - self.tap.heard

    def end(self) -> None:
        """See ``ReactorLoop``."""
        if self.tap is not None:
            self.tap.leave()
        super().end()

    async def create_connection(self, protocol_factory: Any, *args: Any, **kwargs: Any) -> Any:
        """See ``AbstractEventLoop``."""
        tap = self.tap = Tap(protocol_factory(), self._receive, self)
        kwargs.setdefault("happy_eyeballs_delay", _NEXT_ADDRESS)
        return await super().create_connection(lambda: tap, *args, **kwargs)

    async def start_tls(self, transport: Any, protocol: Any, *args: Any, **kwargs: Any) -> Any:
        """See ``AbstractEventLoop``."""
        tap = self.tap = Tap(protocol, self._receive, self)
        transport = await super().start_tls(transport, tap, *args, **kwargs)
        tap.begin(transport)
        return transport
