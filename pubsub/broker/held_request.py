"""``HeldRequest``: a request that waits for backpressure without a connection of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred

if TYPE_CHECKING:
    from pubsub.interfaces import PublisherGate


class HeldRequest:
    """A ``Holdable`` that reports when nothing holds it any more."""

    def __init__(self) -> None:
        self._holds: set[Any] = set()
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
        """Fire when nothing holds this; may be cancelled, and is forgotten by what holds it then.

        A disk that hangs may hold publishers for hours, and clients repeat what they have given up.
        """
        self._released = Deferred(lambda _: self._give_up())
        if not self._holds:
            self._released.callback(None)
        return self._released

    def _give_up(self) -> None:
        for reason in self._holds:
            reason.leave(self)


def opened(gate: PublisherGate) -> Deferred[None]:
    """Fire when ``gate`` is open, within the call that opens it; may be cancelled."""
    request = HeldRequest()
    if gate.shut:
        gate.wait(request)
    return request.released()
