"""A tap between nats-py and its connection: live messages do not pass through nats-py.

nats-py connects, subscribes, answers pings and speaks with JetStream. It copies each message
several times and wakes a task or two for it, which costs more than all else on the way of a record.
So the messages of topics are taken out of what the server sends, before nats-py reads it, and are
written beside what nats-py writes, which is always whole commands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from pubsub.backplane.reactor_loop import ReactorLoop
from pubsub.backplane.subjects import ROOT

# Bytes that are read at a time.
_READ = 1024**2
_OURS = f"MSG {ROOT}.".encode()
_MESSAGES = (b"MSG ", b"HMSG ")
_END = b"\r\n"

Receive = Callable[[str, bytes], object]


class Splitter:
    """Takes the messages of topics out of what a server sends; returns the rest. Sans-IO."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        # The beginning of a line.
        self._line = b""
        # Bytes of the current message that have not arrived, with its end of line, and the
        # beginning of it.
        self._missing = 0
        self._begun = bytearray()
        # None for a message that is not of a topic.
        self._subject: str | None = None

    def take(self, data: bytearray, size: int) -> bytes:
        """Take the first ``size`` bytes of ``data``; return those that are not of topics."""
        rest: list[bytes] = []
        at = 0
        with memoryview(data) as view:
            while at < size:
                if self._missing:
                    end = min(at + self._missing, size)
                    self._take_payload(view, at, end, rest)
                elif end := data.find(b"\n", at, size) + 1:
                    line, self._line = self._line + view[at:end], b""
                    self._take_line(line, rest)
                else:
                    self._line += view[at:size]
                    break
                at = end
        return b"".join(rest)

    def _take_payload(self, view: memoryview, at: int, end: int, rest: list[bytes]) -> None:
        self._missing -= end - at
        if self._subject is None:
            rest.append(bytes(view[at:end]))
        elif self._missing or self._begun:
            self._begun += view[at:end]
            if not self._missing:
                whole, self._begun = self._begun, bytearray()
                del whole[-len(_END) :]
                self._receive(self._subject, bytes(whole))
        else:
            # The common case: a message that has arrived as a whole is copied once.
            self._receive(self._subject, bytes(view[at : end - len(_END)]))

    def _take_line(self, line: bytes, rest: list[bytes]) -> None:
        self._subject = None
        if line.startswith(_MESSAGES):
            words = line.split()
            if words[-1].isdigit():
                self._missing = int(words[-1]) + len(_END)
                if line.startswith(_OURS):
                    # Of these the server has checked that they are UTF-8.
                    self._subject = words[1].decode(errors="replace")
                    return
        rest.append(line)


class Tap(asyncio.BufferedProtocol):
    """Reads for ``inner``, the protocol of nats-py, and writes beside it."""

    def __init__(self, inner: Any, receive: Receive, is_tls: bool = False) -> None:
        self._inner = inner
        self._is_tls = is_tls
        self._splitter = Splitter(receive)
        self._buffer = bytearray(_READ)
        # TLS reads into slices of it.
        self._view = memoryview(self._buffer)
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.BaseProtocol``."""
        self.transport = transport
        self._inner.connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        """See ``asyncio.BaseProtocol``."""
        self._inner.connection_lost(error)

    def pause_writing(self) -> None:
        """See ``asyncio.BaseProtocol``."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """See ``asyncio.BaseProtocol``."""
        self._inner.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:
        """See ``asyncio.BufferedProtocol``."""
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """See ``asyncio.BufferedProtocol``."""
        rest = self._splitter.take(self._buffer, nbytes)
        if rest:
            self._inner.data_received(rest)

    def eof_received(self) -> bool | None:
        """See ``asyncio.BufferedProtocol``."""
        keeps_open: bool | None = self._inner.eof_received()
        # TLS has no half-closed connections, and asyncio complains of what wants one.
        return None if self._is_tls else keeps_open

    def publish(self, groups: Sequence[tuple[str, Sequence[bytes]]]) -> None:
        """Send messages: for each its subject, and its bytes in parts."""
        written: list[bytes] = []
        for subject, parts in groups:
            written.append(b"PUB %s %d\r\n" % (subject.encode(), sum(map(len, parts))))
            written += parts
            written.append(_END)
        self.transport.writelines(written)


class TappedLoop(ReactorLoop):
    """The loop for nats-py; ``tap`` stands at its last connection."""

    tap: Tap

    def __init__(self, reactor: Any, after_pass: Callable[[], object], receive: Receive) -> None:
        super().__init__(reactor, after_pass)
        self._receive = receive

    async def create_connection(self, protocol_factory: Any, *args: Any, **kwargs: Any) -> Any:
        """See ``AbstractEventLoop``."""
        tap = self.tap = Tap(protocol_factory(), self._receive)
        return await super().create_connection(lambda: tap, *args, **kwargs)

    async def start_tls(self, transport: Any, protocol: Any, *args: Any, **kwargs: Any) -> Any:
        """See ``AbstractEventLoop``."""
        tap = self.tap = Tap(protocol, self._receive, is_tls=True)
        tap.transport = await super().start_tls(transport, tap, *args, **kwargs)
        return tap.transport
