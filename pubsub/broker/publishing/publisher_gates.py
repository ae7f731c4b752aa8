"""Gates: what holds publishers while it is shut."""

from __future__ import annotations

from collections.abc import Sequence

from pubsub.interfaces import Holdable, PublisherGate


class Gate:
    """Holds publishers while it is shut."""

    def __init__(self) -> None:
        self.shut = False
        self._waiting: set[Holdable] = set()

    @property
    def held(self) -> int:
        """The number of publishers that wait."""
        return len(self._waiting)

    def wait(self, publisher: Holdable) -> None:
        """Hold ``publisher`` until the gate opens."""
        self._waiting.add(publisher)
        publisher.hold(self)

    def leave(self, publisher: Holdable) -> None:
        """``publisher`` does not wait any more."""
        self._waiting.discard(publisher)

    def close(self) -> None:
        """Hold publishers from now on."""
        self.shut = True

    def open(self) -> None:
        """Release the publishers that wait."""
        self.shut = False
        waiting, self._waiting = self._waiting, set()
        for publisher in waiting:
            publisher.release(self)


class Gates:
    """Several gates that are passed one after the other."""

    def __init__(self, gates: Sequence[PublisherGate]) -> None:
        self._gates = gates

    @property
    def shut(self) -> bool:
        """Whether one of them is shut."""
        return any(gate.shut for gate in self._gates)

    def wait(self, publisher: Holdable) -> None:
        """Hold ``publisher`` until those that are shut have opened."""
        for gate in self._gates:
            if gate.shut:
                gate.wait(publisher)
