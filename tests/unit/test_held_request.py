"""Requests that wait for backpressure without a connection of their own."""

from __future__ import annotations

from twisted.internet.defer import CancelledError
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.memory_budget import MemoryBudget
from pubsub.broker.publishing.held_request import HeldRequest, opened
from pubsub.broker.publishing.publisher_gates import Gate
from pubsub.broker.topic_space.publishing_state import PublishingState


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

    def test_what_is_given_up_is_forgotten(self) -> None:
        """What holds publishers may do so for hours, while clients try again and again."""
        gate, topic, memory = Gate(), PublishingState(), MemoryBudget(1)
        gate.close()
        topic.block("somebody")
        memory.add(2)
        requests = [HeldRequest() for _ in range(2)]
        for request in requests:
            for reason in (gate, topic, memory):
                reason.wait(request)
        first, second = (request.released() for request in requests)
        first.cancel()
        self.failureResultOf(first, CancelledError)  # type: ignore[no-untyped-call]
        for waiting in (gate._waiting, topic.waiting, memory._waiting):
            assert list(waiting) == requests[1:]
        gate.open()
        topic.unblock("somebody")
        self.assertNoResult(second)  # type: ignore[no-untyped-call]
        memory.free(2)
        self.successResultOf(second)
