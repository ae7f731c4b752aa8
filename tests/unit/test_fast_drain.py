"""fast: clients that are drained while a queue key is being written."""

from __future__ import annotations

from collections.abc import Callable

from tests.unit import fast_wire as wire
from tests.unit.fast_wire import OWNER, FastCase
from tests.unit.streams import logged


class RemovedListenerTests(FastCase):
    """A listener that a reload, or a request to drain, removes"""

    def setUp(self) -> None:
        self.fast = self.house()
        self.owner, self.reader = self.fast.owner(), self.fast.reader()
        self.waiting: list[Callable[[bool], None]] = []
        self.patch(self.fast.broker.store, "when_synced", self.waiting.append)  # type: ignore[no-untyped-call]

    def rotate_and_remove(self) -> None:
        self.owner.send(wire.rotate(OWNER, b"k2"))
        listener = self.fast.broker.listeners[0]
        self.successResultOf(self.fast.broker.remove_listener(listener))
        assert self.fast.broker.listeners == []
        self.fast.turn()
        assert self.reader.take() == b""
        assert not self.reader.closed

    def write(self, is_stored: bool) -> None:
        """The disk answers all calls that wait for it."""
        while self.waiting:
            self.waiting.pop(0)(is_stored)
        self.fast.turn()

    def test_subscribers_get_the_key_before_the_end(self) -> None:
        self.rotate_and_remove()
        self.write(True)
        assert self.reader.take() == wire.key_update(b"k2")
        assert self.reader.closed
        assert self.owner.closed

    def test_a_client_that_leaves_meanwhile(self) -> None:
        self.rotate_and_remove()
        self.owner.stream.lose()
        self.write(True)
        assert self.reader.take() == wire.key_update(b"k2")
        assert self.reader.closed

    def test_a_disk_that_does_not_answer(self) -> None:
        lines = logged(self)
        self.rotate_and_remove()
        self.fast.advance(self.fast.broker.drainage.seconds)
        assert (self.reader.take(), self.reader.closed) == (b"", True)
        assert not [line for line in lines if "could not be drained" in line]

    def test_without_a_rotation_they_are_drained_at_once(self) -> None:
        self.fast.broker.remove_listener(self.fast.broker.listeners[0])
        assert self.reader.closed
