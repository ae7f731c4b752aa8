"""The interface through which ``CommitStateMachine`` writes, syncs and waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from twisted.internet.interfaces import IDelayedCall

from pubsub.store.commits.write_group import WriteGroup


class Effects(Protocol):
    """The outside of ``CommitStateMachine``. ``write`` and ``sync`` end with a call of it."""

    def write(self, group: WriteGroup | None, sync: bool) -> None:
        """Write a group, then sync if asked to; then call ``wrote`` or ``write_failed``.

        That may be before ``write`` returns.
        """

    def sync(self) -> None:
        """Sync; then call ``synced`` or ``sync_failed``."""

    def call_later(self, seconds: float, call: Callable[[], None]) -> IDelayedCall:
        """As ``IReactorTime.callLater``."""

    def at_tick_end(self, call: Callable[[], None]) -> object:
        """Run ``call`` at the end of the tick."""

    def seconds(self) -> float:
        """As ``IReactorTime.seconds``."""

    def failed(self, reason: Any) -> str:
        """Report that writing has failed; return the reason as text."""

    def recovered(self) -> None:
        """Report that writing works again."""
