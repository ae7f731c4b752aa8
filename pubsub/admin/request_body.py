"""Request bodies: kept in memory or in a temporary file, and counted while they exist."""

from __future__ import annotations

import tempfile

from pubsub.admin.api_error import FULL, ApiError

# Bytes of a body that are kept in memory; a longer one goes to a temporary file.
_IN_MEMORY = 64 * 1024


class ByteBudget:
    """Bytes of bodies that arrive or are staged, at most ``limit``."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def take(self, nbytes: int) -> None:
        """Count ``nbytes`` more; raises ApiError if the limit would be exceeded."""
        if self.used + nbytes > self.limit:
            message = f"{self.used} of {self.limit} bytes are staged"
            raise ApiError(FULL, "staged", message)
        self.used += nbytes

    def free(self, nbytes: int) -> None:
        """Return ``nbytes``."""
        self.used -= nbytes


class Body(tempfile.SpooledTemporaryFile[bytes]):
    """A request's body, counted in ``budget`` until it is closed."""

    def __init__(self, budget: ByteBudget) -> None:
        super().__init__(max_size=_IN_MEMORY)
        self._budget = budget
        self.nbytes = 0

    def add(self, data: bytes) -> None:
        """Append ``data``; raises ApiError if the budget or the disk has no room."""
        self._budget.take(len(data))
        self.nbytes += len(data)
        try:
            self.write(data)
        except OSError as error:
            message = f"cannot store the request body: {error.strerror}"
            raise ApiError(FULL, "staged", message) from None

    def close(self) -> None:
        """Delete the body and return its bytes to the budget."""
        if not self.closed:
            self._budget.free(self.nbytes)
        super().close()
