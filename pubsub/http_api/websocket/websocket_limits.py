"""The bounds of what a WebSocket reads and owes."""

from __future__ import annotations

from pubsub.wire.read_buffer import arrival_seconds

# Confirmations that a client may be owed before no more is read from it.
MAX_CONFIRMING = 256
NO_ROOM = "no-room"
"""The reason for which a client is not read from before there is memory for its message."""
# Bytes of a read: one of tiny frames takes milliseconds. A longer frame is read in larger pieces.
READ_BYTES, _LONG_READ = 4 * 1024, 16 * 1024
# Bytes of a message that may have arrived while there is no connect: a token, and a read behind it.
CONNECT_BYTES = 32 * 1024
# Frames that a request counts as (see ``FrameTurns``).
REQUEST_FRAMES = 4


def read_size(of_frame: int) -> int:
    """Return the bytes of the next read, if so many of a frame have arrived."""
    return READ_BYTES if of_frame <= READ_BYTES else _LONG_READ


def is_overdue(since: float | None, now: float, seconds: float, held: int) -> bool:
    """Return whether a message of which ``held`` bytes have arrived ``since`` then takes too long.

    ``seconds`` are those of a frame; 0 is no limit.
    """
    return since is not None and seconds > 0 and now - since > arrival_seconds(seconds, held)
