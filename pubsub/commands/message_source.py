"""The messages that ``pubsub pub`` publishes: a message, a file, or the lines of standard input."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

from pubsub.commands.waiting_input import read_some
from pubsub.errors import ConfigurationError

_READ_BYTES = 64 * 1024
_MOST_LINE = 64 * 1024 * 1024
_WAITING_READS = 4
# Of a request: a larger one might not be confirmed in time over a slow network.
MOST_MESSAGES, MOST_BYTES = 500, 1024 * 1024


async def repeated(payload: bytes, count: int) -> AsyncIterator[list[bytes]]:
    """Yield ``payload`` ``count`` times, in lists."""
    most = max(min(MOST_MESSAGES, MOST_BYTES // max(len(payload), 1)), 1)
    while count:
        size = min(count, most)
        yield [payload] * size
        count -= size


async def lines(source: int, count: int | None) -> AsyncIterator[list[bytes]]:
    """Yield the lines that the descriptor ``source`` has, as they come; at most ``count``.

    A thread reads, because a terminal, a pipe and a file cannot be waited for alike. Raises
    ConfigurationError for a line of more than 64 MiB, OSError.
    """
    reader = _LineReader(source)
    async for found in reader:
        if count is not None:
            found = found[:count]
            count -= len(found)
        if found:
            yield found
        if count == 0:
            return


class LineSplitter:
    """Splits input into lines; the last one needs no line break."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._nbytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that ``data`` completes; without ``data``, the last one."""
        if not data:
            rest, self._rest = b"".join(self._rest), []
            return [rest] if rest else []
        *whole, rest = data.split(b"\n")
        if whole:
            whole[0] = b"".join([*self._rest, whole[0]])
            self._rest, self._nbytes = [], 0
        self._rest.append(rest)
        self._nbytes += len(rest)
        if self._nbytes > _MOST_LINE:
            raise ConfigurationError(
                f"a line of standard input has more than {_MOST_LINE} bytes; give a file with "
                "--file to publish it as one message"
            )
        return whole


class _LineReader:
    """The lines of a descriptor, read in a thread that waits if they are not taken."""

    def __init__(self, source: int) -> None:
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[list[bytes] | Exception | None] = asyncio.Queue()
        self._room = threading.Semaphore(_WAITING_READS)
        # A daemon, because a read of a terminal cannot be interrupted.
        threading.Thread(target=self._run, name="input", daemon=True).start()

    async def __aiter__(self) -> AsyncIterator[list[bytes]]:
        while (found := await self._queue.get()) is not None:
            if isinstance(found, Exception):
                raise found
            yield found
            self._room.release()

    def _run(self) -> None:
        try:
            for found in self._read():
                self._room.acquire()
                self._put(found)
            self._put(None)
        except Exception as error:
            # Without it the command would wait without end.
            self._put(error)

    def _read(self) -> Iterator[list[bytes]]:
        splitter = LineSplitter()
        while data := read_some(self._source, _READ_BYTES):
            if whole := splitter.feed(data):
                yield whole
        if rest := splitter.feed(b""):
            yield rest

    def _put(self, item: list[bytes] | Exception | None) -> None:
        # The loop is closed once the command has ended.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)
