"""The end of a command whose time is over, while the reader of its output is slow."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from unittest.mock import patch

from pubsub.commands import output
from pubsub.commands.output import Output

# More than a pipe holds.
DATA = bytes(600_000)


async def written(to: int) -> bool:
    """Write DATA and end; return whether everything was written."""
    async with Output(to) as found:
        found.hurried = True
        with suppress(TimeoutError):
            await asyncio.wait_for(found.write(DATA), 0.1)
    return found._done.is_set()


def test_a_reader_that_does_not_read() -> None:
    reader, writer = os.pipe()
    with patch.object(output, "_INTERRUPTED_SECONDS", 0.05):
        assert not asyncio.run(asyncio.wait_for(written(writer), 60))
    # The thread that writes ends too.
    os.close(reader)


def test_a_slow_reader_gets_everything() -> None:
    reader, writer = os.pipe()
    found: list[bytes] = []
    pause = threading.Event()

    def read() -> None:
        while data := os.read(reader, 10_000):
            found.append(data)
            pause.wait(0.01)

    thread = threading.Thread(target=read)
    thread.start()
    with patch.object(output, "_INTERRUPTED_SECONDS", 0.5):
        assert asyncio.run(written(writer))
    os.close(writer)
    thread.join(60)
    os.close(reader)
    assert b"".join(found) == DATA
