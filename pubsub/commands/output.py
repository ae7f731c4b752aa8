"""Standard output of a program that also has connections to keep.

A thread writes, so that a slow reader of a pipe does not keep the event loop from answering the
broker, and notices when the reader ends, also while there is nothing to write.
"""

from __future__ import annotations

import asyncio
import os
import select
import sys
import threading
from contextlib import suppress

from pubsub.errors import ConfigurationError

_MOST_BYTES = 256 * 1024
# At a time, so that it shows whether the reader reads.
_WRITE_BYTES = 64 * 1024
_INTERRUPTED_SECONDS = 1.0
_HUNG_UP = select.POLLERR | select.POLLHUP | select.POLLNVAL


def check_open() -> None:
    """Raise ConfigurationError if the shell has closed standard output: nobody can end the program.

    ``command.main`` has put the null device in its place.
    """
    if getattr(sys.stdout, "name", "") == os.devnull:
        raise ConfigurationError(
            f"standard output is closed; write > {os.devnull} to discard the messages"
        )


class Output:
    """Writes to the descriptor ``to`` in order.

    ``ended`` is set once the reader is gone or writing has failed; ``error`` has the reason, None
    if the reader is gone. Use it as an asynchronous context manager: its end waits until everything
    is written. If the command was interrupted, it waits for a moment only.
    """

    def __init__(self, to: int) -> None:
        self.ended = asyncio.Event()
        self.error: OSError | None = None
        self.hurried = False
        """True if the end does not wait for a reader that does not read."""
        self._written = 0
        self._loop = asyncio.get_running_loop()
        self._to = to
        self._waiting: list[bytes] = []
        self._nbytes = 0
        self._lock = threading.Lock()
        self._room = asyncio.Event()
        self._wake_read, self._wake_write = os.pipe()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)
        self._done = asyncio.Event()

    async def __aenter__(self) -> Output:
        self._thread.start()
        return self

    async def __aexit__(self, kind: object, *_error: object) -> None:
        with self._lock:
            self._closing = True
        self._wake()
        if kind is not None:
            await self._wait_for_end(_INTERRUPTED_SECONDS)
        elif not self.hurried:
            await self._wait_for_end(None)
        else:
            written = -1
            while written < self._written and not self._done.is_set():
                written = self._written
                await self._wait_for_end(_INTERRUPTED_SECONDS)
        if self._done.is_set():
            os.close(self._wake_read)
            os.close(self._wake_write)

    async def _wait_for_end(self, seconds: float | None) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._done.wait(), seconds)

    async def write(self, data: bytes) -> None:
        """Write ``data``, after waiting for room."""
        with self._lock:
            first = not self._waiting
            self._waiting.append(data)
            self._nbytes += len(data)
            full = self._nbytes > _MOST_BYTES
            if full:
                self._room.clear()
        if first:
            self._wake()
        if full and not self.ended.is_set():
            await self._room.wait()

    async def flush(self) -> None:
        """Return when everything is written, or ``ended`` is set."""
        while not self.ended.is_set():
            with self._lock:
                if not self._nbytes:
                    return
                self._room.clear()
            await self._room.wait()

    def _wake(self) -> None:
        os.write(self._wake_write, b".")

    # In the thread

    def _run(self) -> None:
        try:
            while self._wait():
                with self._lock:
                    data, self._waiting = b"".join(self._waiting), []
                    closing = self._closing
                self._write(data)
                with self._lock:
                    self._nbytes -= len(data)
                self._tell(self._room)
                if closing:
                    break
        except BrokenPipeError:
            self._tell(self.ended)
        except OSError as error:
            self.error = error
            self._tell(self.ended)
        self._tell(self._room)
        self._tell(self._done)

    def _wait(self) -> bool:
        """Wait for data or the end; return whether there is still a reader."""
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        poll.register(self._to, 0)
        for descriptor, event in poll.poll():
            if descriptor == self._to and event & _HUNG_UP:
                self._tell(self.ended)
                return False
        os.read(self._wake_read, 4096)
        return True

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                count = os.write(self._to, view[:_WRITE_BYTES])
                view = view[count:]
                self._written += count
            except BlockingIOError:
                # Another program has made the descriptor non-blocking for all that share it.
                select.select([], [self._to], [])

    def _tell(self, event: asyncio.Event) -> None:
        # The loop is closed once the command has ended.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(event.set)
