"""Compression of records with Zstandard (RFC 8878), one frame a record."""

from __future__ import annotations

import sys

from pubsub.errors import StartError

try:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
except ImportError as error:
    remedy = (
        "use a Python that was built with libzstd"
        if sys.version_info >= (3, 14)
        else "run: pip install backports.zstd"
    )
    raise StartError(f"history: Zstandard cannot be imported ({error}); {remedy}") from None

# The library's default, which compresses some hundred MB a second.
_LEVEL = 3
# A frame must be smaller than this part of the data, as reading it costs time.
_PART = 0.9


def compressed(data: bytes) -> bytes | None:
    """Return ``data`` compressed; None if that does not make it much smaller."""
    packed = zstd.compress(data, _LEVEL)
    return packed if len(packed) < _PART * len(data) else None


def decompressed(data: bytes | memoryview) -> bytes:
    """Return the argument of ``compressed``."""
    size = zstd.get_frame_info(data).decompressed_size
    if size is None:
        return zstd.decompress(data)
    # Into one buffer: without the size it joins many, which takes three times as long.
    decompressor = zstd.ZstdDecompressor()
    found = decompressor.decompress(data, size)
    # That of a frame that is cut off raises ZstdError.
    return found if decompressor.eof else zstd.decompress(data)
