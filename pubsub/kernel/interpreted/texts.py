"""Payloads of text that need no escapes in JSON."""

from __future__ import annotations

from collections.abc import Sequence

from pubsub.kernel.interpreted.columns import Columns

_ESCAPED = bytes(range(0x20)) + b'"\\'


def is_plain(payloads: Sequence[bytes]) -> bool:
    """Return whether all are UTF-8 without characters that JSON escapes."""
    # No character spans a space, so that all parts of the joined text are UTF-8 if it is.
    joined = b" ".join(payloads)
    if len(joined.translate(None, _ESCAPED)) != len(joined):
        return False
    if joined.isascii():
        return True
    try:
        joined.decode()
    except UnicodeDecodeError:
        return False
    return True


def encode_numbered(
    columns: Columns, number: int, before: bytes, between: bytes, after: bytes
) -> bytes | None:
    """Return the messages as texts that follow one another.

    A text is ``before``, the number of its message, ``between``, the payload and ``after``. The
    first message has ``number``, which is not negative and at most 2**63 - 1, and so is that of
    the last. None if a payload is not plain: UTF-8 without characters that JSON escapes.
    """
    if not 0 <= number <= 2**63 - max(columns.count, 1):
        raise ValueError("the numbers are negative or too large")
    payloads = columns.payloads()
    if not is_plain(payloads):
        return None
    pieces: list[bytes] = []
    head = after + before
    for own, payload in enumerate(payloads, number):
        pieces += (b"%b%d%b" % (head, own, between), payload)
    if not pieces:
        return b""
    pieces[0] = pieces[0].removeprefix(after)
    pieces.append(after)
    return b"".join(pieces)
