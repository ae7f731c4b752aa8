"""``HeldRequest``: a request that waits for backpressure without a connection of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred

if TYPE_CHECKING:
    from pubsub.interfaces import Holdable, PublisherGate


class HeldRequest:
    """A ``Holdable`` that reports when nothing holds it any more."""

    def __init__(self) -> None:
        self._holds: set[object] = set()
        self._released: Deferred[None] | None = None

    def hold(self, reason: object) -> None:
        """See ``Holdable``."""
        self._holds.add(reason)

    def release(self, reason: object) -> None:
        """See ``Holdable``."""
        self._holds.discard(reason)
        if not self._holds and self._released is not None and not self._released.called:
            self._released.callback(None)

    def released(self) -> Deferred[None]:
        """Fire when nothing holds this. If it is cancelled, what holds this forgets it."""
        self._released = Deferred(lambda _: self._give_up())
        if not self._holds:
            self._released.callback(None)
        return self._released

    def _give_up(self) -> None:
        leave_all(self, self._holds)


def opened(gate: PublisherGate) -> Deferred[None]:
    """Fire when ``gate`` is open, within the call that opens it; may be cancelled."""
    request = HeldRequest()
    if gate.shut:
        gate.wait(request)
    return request.released()


def leave_all(publisher: Holdable, reasons: Iterable[object]) -> None:
    """Have what holds ``publisher``, which ends, forget it: among ``reasons`` that is what can.

    A disk that hangs may hold publishers for hours, and clients try again meanwhile.
    """
    for reason in reasons:
        leave = getattr(reason, "leave", None)
        if leave is not None:
            leave(publisher)
