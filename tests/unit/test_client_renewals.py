"""Subscriptions that the broker cannot renew at present, after an interruption."""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pubsub.client import Gap, MessageBatch, Reconnected, SubscriptionRefused
from pubsub.client.base_client import Client
from pubsub.client.subscription import Subscription
from tests.unit.client_runtime import MemoryRuntime
from tests.unit.raising import raised
from tests.unit.streams import House

_WIRES = ("nsd", "rheos", "spot")
_TOPIC = "news"


class RenewalTests(SynchronousTestCase):
    """With a broker whose memory is full when it begins again."""

    def setUp(self) -> None:
        self.house = self.begun()
        self.runtime = MemoryRuntime(self.house)

    def begun(self, clock: Clock | None = None) -> House:
        house = House({name: {} for name in _WIRES}, clock=clock)
        for listener in house.listeners.values():
            # Connections are admitted in any case, but not their subscriptions.
            listener.quota.spared = 100
        return house

    def fill(self, full: bool) -> None:
        self.house.broker.memory.limit = int(full)

    def subscribed(self, client: Client, *topics: str) -> Subscription[Any]:
        subscription = client.subscribe(*topics, events=True)
        work = self.runtime.begin(subscription.accepted())
        self.runtime.advance(1)
        work.result()
        return subscription

    def restart(self) -> None:
        """Have the client return to another broker, whose memory is full."""
        self.house = self.runtime.house = self.begun(self.house.clock)
        self.fill(True)
        for stream in tuple(self.runtime.streams):
            stream.snap()
        self.runtime.advance(20)

    def relieve(self) -> None:
        """Have room in the memory again, and publish when the client had time to notice."""
        self.fill(False)
        self.runtime.advance(12)
        client = MemoryRuntime(self.house).client("rheos")
        runtime: Any = client._runtime
        runtime.run(client.publish(_TOPIC, b"after", confirm=True))
        self.runtime.advance(1)

    def items(self, subscription: Subscription[Any]) -> list[Any]:
        found: list[Any] = []
        while True:
            work = self.runtime.begin(subscription.next_item(0.5))
            self.runtime.advance(1)
            try:
                found.append(work.result())
            except TimeoutError:
                return found

    def test_one_is_renewed_when_there_is_memory_again(self) -> None:
        for protocol in _WIRES:
            client = self.runtime.client(protocol)
            subscription = self.subscribed(client, _TOPIC)
            connections = len(self.runtime.streams)
            with self.assertLogs("pubsub.client", "WARNING") as logs:
                self.restart()
            refused = [line for line in logs.output if "cannot renew the subscription" in line]
            assert len(refused) == 1, protocol
            # It is requested on the same connection: other subscriptions go on.
            assert len(self.runtime.streams) == connections + 1, protocol
            assert not any(isinstance(item, Reconnected) for item in self.items(subscription))
            self.relieve()
            kinds = [type(item) for item in self.items(subscription)]
            assert kinds == [Gap, Reconnected, MessageBatch], protocol
            self.runtime.run(client.close())

    def test_a_new_one_is_refused(self) -> None:
        for protocol in _WIRES:
            client = self.runtime.client(protocol)
            kept = self.subscribed(client, _TOPIC)
            self.restart()
            work = self.runtime.begin(client.subscribe(_TOPIC).accepted())
            self.runtime.advance(2)
            raised(SubscriptionRefused, work.result)
            self.relieve()
            assert self.items(kept)[-1].payloads == [b"after"], protocol
            self.runtime.run(client.close())

    def test_one_that_was_closed_is_not_requested_again(self) -> None:
        for protocol in _WIRES:
            client = self.runtime.client(protocol)
            kept, closed = self.subscribed(client, _TOPIC), self.subscribed(client, "sport")
            self.restart()
            closed.close()
            self.relieve()
            items = self.items(kept)
            # Nor does it delay the notice for the others.
            assert sum(isinstance(item, Reconnected) for item in items) == 1, protocol
            assert items[-1].payloads == [b"after"], protocol
            assert not [one for one in self.house.broker.topics if one.name == "sport"]
            self.runtime.run(client.close())

    def test_one_that_is_interrupted_again(self) -> None:
        for protocol in _WIRES:
            client = self.runtime.client(protocol)
            subscription = self.subscribed(client, _TOPIC)
            self.restart()
            self.restart()
            self.relieve()
            items = self.items(subscription)
            assert sum(isinstance(item, Reconnected) for item in items) == 1, protocol
            assert items[-1].payloads == [b"after"]
            self.runtime.run(client.close())
