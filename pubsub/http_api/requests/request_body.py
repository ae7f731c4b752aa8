"""Request bodies: kept in memory or in a temporary file, and counted while they exist."""

from __future__ import annotations

import tempfile
from collections.abc import Hashable
from contextlib import suppress
from typing import TYPE_CHECKING

from pubsub.errors import MemoryExhausted
from pubsub.http_api.requests.api_error import FULL, UNAVAILABLE, ApiError

if TYPE_CHECKING:
    from pubsub.broker.memory_budget import MemoryBudget
    from pubsub.http_api.requests.shares import Shares

IN_MEMORY = 64 * 1024
"""Bytes of a body that are kept in memory; a longer one goes to a temporary file."""


class Body(tempfile.SpooledTemporaryFile[bytes]):
    """The body of a request of ``client``, counted in ``shares`` until it is closed.

    As long as it is in memory it is charged to ``memory`` too.
    """

    def __init__(self, shares: Shares, client: Hashable, memory: MemoryBudget) -> None:
        super().__init__(max_size=IN_MEMORY)
        self._shares = shares
        self._client = client
        self._memory = memory
        self._charged = 0
        self.nbytes = 0

    def add(self, data: bytes) -> None:
        """Append ``data``; raises ApiError without room in the share, in memory or on disk."""
        nbytes = self.nbytes + len(data)
        if nbytes <= IN_MEMORY and self._memory.full:
            message = "the memory bound is reached; send the request again later"
            raise ApiError(UNAVAILABLE, MemoryExhausted.reason, message)
        if not self._shares.take(self._client, len(data)):
            own, limit = self._shares.held(self._client), self._shares.limit
            message = (
                f"{self._shares.used} of {limit} bytes are staged, {own} of them by this client"
            )
            raise ApiError(FULL, "staged", message)
        self.nbytes = nbytes
        self._charge(nbytes if nbytes <= IN_MEMORY else 0)
        try:
            self.write(data)
            # Now, as the request is not refused when it is handled.
            self.flush()
        except OSError as error:
            message = f"cannot store the request body: {error.strerror}"
            raise ApiError(FULL, "staged", message) from None

    def _charge(self, nbytes: int) -> None:
        before, self._charged = self._charged, nbytes
        if nbytes >= before:
            self._memory.add(nbytes - before)
        else:
            self._memory.free(before - nbytes)

    def close(self) -> None:
        """Delete the body and return its bytes to the share."""
        if not self.closed:
            self._shares.free(self._client, self.nbytes)
            self._charge(0)
        # Closed all the same. It writes again what the disk has not taken.
        with suppress(OSError):
            super().close()
