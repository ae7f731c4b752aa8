"""``ISharedState``: the values that the brokers agree upon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from twisted.internet.defer import Deferred
from zope.interface import Interface

from pubsub.errors import BackplaneAway

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

HEADER_BYTES = 1024
"""Bytes of the largest message of the engine that are not for a value."""
ANSWER_SECONDS = 5.0
"""Seconds that an answer of the engine may take."""


class StateEntry(NamedTuple):
    """The value of a key of ``ISharedState``; its revision is larger than that of any before."""

    key: str
    value: bytes
    revision: int


class StateWatcher(Protocol):
    """Receives the values of ``ISharedState``. All methods are called in the reactor thread."""

    def state_changed(self, entries: Sequence[StateEntry]) -> None:
        """Keys have other values, in the order of the changes; those of this broker too."""

    def state_complete(self) -> None:
        """Every key has been reported since the engine was reached."""

    def state_away(self) -> None:
        """The engine is away; when it is back, every key is reported again."""


class ISharedState(Interface):
    """State that brokers share: values by key, each change on condition that no other was first.

    It has the key of ``state_format.py`` from the beginning, which is reported first.
    All methods are called in the reactor thread.
    """

    def open(watcher: StateWatcher) -> None:
        """Begin to tell ``watcher`` too; called before the engine is reached, or after.

        It is called for the keys that ``state_format.is_followed``.
        """

    def get(key: str) -> Deferred[StateEntry | None]:
        """Return the present value of ``key``, or None. Fails with BackplaneAway."""

    def put(key: str, value: bytes, expected: int, seconds: int) -> Deferred[int]:
        """Set the value of ``key`` if its revision is ``expected``; 0 is that of a missing key.

        Fires with the new revision. Fails with Outdated if the revision is another one, and with
        BackplaneAway if the engine cannot be reached; the value may have been set nevertheless.
        Unless ``seconds`` is 0, the key is removed after that time, without a report.
        """

    def max_bytes() -> int:
        """Return the bytes of the largest value that the engine takes, as far as is known."""

    def figures() -> Mapping[str, float]:
        """Return totals such as ``state_changes``."""


def in_time(
    done: Deferred[Any], clock: IReactorTime, seconds: float = ANSWER_SECONDS
) -> Deferred[Any]:
    """Return ``done``, which fails with BackplaneAway if it takes longer."""
    return done.addTimeout(seconds, clock, _too_late)


def _too_late(result: object, seconds: float) -> NoReturn:
    raise BackplaneAway(f"the engine has not answered for {seconds:g} s")
