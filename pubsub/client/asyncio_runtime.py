"""The client on asyncio's event loop; Twisted is not needed."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Coroutine
from contextlib import suppress
from time import monotonic
from typing import Any, cast

from pubsub.client.client_tls import TlsOptions
from pubsub.client.runtime import Cancel, Observer, Runtime
from pubsub.wire.connect_errors import why_not
from pubsub.wire.loopback import use_reno_on_loopback

# Above this, ``writable`` is called. Bytes that the system's own buffer does not take are copied,
# with each further write to it; so it is little.
_WRITE_BUFFER = 64 * 1024
# Of one read of asyncio's.
_READ_BYTES = 256 * 1024
# Seconds after which the next address of a name is tried too, as by Twisted.
_NEXT_ADDRESS = 0.3
# SO_LINGER: on, with no seconds.
_NO_LINGER = struct.pack("ii", 1, 0)


class _AsyncioWaiter:
    __slots__ = ("awaitable",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.awaitable: asyncio.Future[None] = asyncio.Future(loop=loop)

    def wake(self) -> None:
        if not self.awaitable.done():
            self.awaitable.set_result(None)


class AsyncioRuntime(Runtime):
    """The running loop."""

    # SystemExit ends the loop, and the program.
    callback_errors: tuple[type[BaseException], ...] = (Exception,)

    def __init__(self) -> None:
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError(
                "no running event loop: connect in a coroutine, or use pubsub.client.blocking"
            ) from None
        # The loop has only weak references to tasks.
        self._tasks: set[asyncio.Task[None]] = set()
        # Until the program has freed a block of this size once, glibc maps the memory of each read
        # again, which costs more than a small read.
        bytes(_READ_BYTES)

    now = staticmethod(monotonic)

    def check_caller(self) -> None:
        """See ``Runtime``. In another thread, the loop would not notice the request."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not self._loop:
            raise RuntimeError(
                "the client belongs to the event loop in which it was connected; connect in this "
                "one too, or use pubsub.client.blocking"
            )

    def call_later(self, seconds: float, function: Callable[[], None]) -> Cancel:
        """See ``Runtime``."""
        if seconds <= 0:
            return self._loop.call_soon(function).cancel
        return self._loop.call_later(seconds, function).cancel

    def call_from_any_thread(self, function: Callable[[], None]) -> None:
        """See ``Runtime``."""
        # The loop is closed.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    def waiter(self) -> _AsyncioWaiter:
        """See ``Runtime``."""
        self.check_caller()
        return _AsyncioWaiter(self._loop)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """See ``Runtime``."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def pause(self) -> None:
        """See ``Runtime``."""
        await asyncio.sleep(0)

    def connect(self, host: str, port: int, tls: TlsOptions | None, observer: Observer) -> Cancel:
        """See ``Runtime``."""
        return self._loop.create_task(self._connect(host, port, tls, observer)).cancel

    async def _connect(
        self, host: str, port: int, tls: TlsOptions | None, observer: Observer
    ) -> None:
        try:
            context = None
            if tls is not None:
                # Reading the authorities of the system takes up to a tenth of a second.
                context = await self._loop.run_in_executor(None, tls.context)
            name = None if tls is None else host
            options: dict[str, Any] = {"ssl": context, "server_hostname": name}
            # uvloop's loop does not know the option.
            if isinstance(self._loop, asyncio.BaseEventLoop):
                options["happy_eyeballs_delay"] = _NEXT_ADDRESS
            await self._loop.create_connection(
                lambda: _AsyncioStream(observer), host, port, **options
            )
        except Exception as error:
            observer.lost(why_not(error))


class _AsyncioStream(asyncio.Protocol):
    """The transport of a link, which reports its events to the observer."""

    write: Callable[[bytes], None]
    """See ``Transport``; that of asyncio's transport."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        # For each read, without a call in between.
        self.data_received = observer.received  # type: ignore[method-assign]
        self._reading = True

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        self.write = self._transport.write
        # Asked for here, because one with TLS that has ended has none.
        self._socket: socket.socket | None = transport.get_extra_info("socket")
        address = transport.get_extra_info("peername")
        if address is not None and self._socket is not None:
            use_reno_on_loopback(self._socket, address[0])
        self._observer.made(self)

    def eof_received(self) -> None:
        """The broker has closed its half: the connection is closed."""

    def pause_writing(self) -> None:
        self._observer.writable(False)

    def resume_writing(self) -> None:
        self._observer.writable(True)

    def connection_lost(self, error: Exception | None) -> None:
        why = why_not(error) if error is not None else "the broker closed the connection"
        self._observer.lost(why)

    # Transport

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        if self._socket is not None:
            _drop_unsent(self._socket)
        self._transport.abort()

    def set_reading(self, reading: bool) -> None:
        if reading == self._reading or self._transport.is_closing():
            return
        self._reading = reading
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()


def _drop_unsent(sock: socket.socket) -> None:
    """Have the bytes dropped that the peer's system has not taken when ``sock`` is closed.

    Otherwise the system goes on sending them for minutes. Once the network is back they would
    arrive behind those of a newer connection.
    """
    # It may be closed already.
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
