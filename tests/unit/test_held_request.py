"""Requests that wait for backpressure without a connection of their own."""

from __future__ import annotations

from twisted.internet.defer import CancelledError
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.held_request import HeldRequest, opened
from pubsub.broker.publisher_gates import Gate


class HeldRequestTests(SynchronousTestCase):
    """Several reasons, and gates"""

    def test_it_goes_on_when_nothing_holds_it(self) -> None:
        request = HeldRequest()
        for reason in ("slow", "full"):
            request.hold(reason)
        released = request.released()
        for reason in ("other", "slow"):
            request.release(reason)
            self.assertNoResult(released)  # type: ignore[no-untyped-call]
        request.release("full")
        self.successResultOf(released)
        self.successResultOf(request.released())

    def test_it_is_held_again(self) -> None:
        request = HeldRequest()
        for _ in range(2):
            request.hold("slow")
            released = request.released()
            self.assertNoResult(released)  # type: ignore[no-untyped-call]
            request.release("slow")
            self.successResultOf(released)

    def test_a_gate(self) -> None:
        gate = Gate()
        self.successResultOf(opened(gate))
        gate.close()
        waiting = [opened(gate), opened(gate)]
        for one in waiting:
            self.assertNoResult(one)  # type: ignore[no-untyped-call]
        # That of a client that has left meanwhile.
        waiting[0].cancel()
        gate.open()
        self.failureResultOf(waiting[0], CancelledError)  # type: ignore[no-untyped-call]
        self.successResultOf(waiting[1])
