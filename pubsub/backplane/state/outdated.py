"""``Outdated``: another broker has changed a key of the shared state first."""

from __future__ import annotations


class Outdated(Exception):
    """The key has ``revision``, and ``value`` unless it is missing; then the revision is 0."""

    def __init__(self, value: bytes | None, revision: int) -> None:
        super().__init__(f"the revision is {revision}")
        self.value = value
        self.revision = revision
