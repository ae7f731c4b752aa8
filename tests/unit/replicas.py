"""Brokers in one process that share their histories through a stream in memory."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from pubsub.backplane.history import shared_history
from pubsub.backplane.history.shared_history import SharedHistory
from pubsub.backplane.history.spool import SharedLimits
from pubsub.backplane.memory_engine.memory_stream import MemoryLog, MemoryStream
from pubsub.broker.routing.batch import Batch, message_number
from pubsub.errors import HistoryUnavailable
from pubsub.kernel import Columns
from pubsub.store.shared_store import SharedStore
from tests.unit.fakes import copy_still, scratch
from tests.unit.logs import keep_everything
from tests.unit.streams import House

LIMITS = SharedLimits(spool=10**6, held=10**5)
Seen = list[tuple[str, bytes, int]]


class Node:
    """A broker with a history in the directory ``path``."""

    listen: ClassVar[Mapping[str, Mapping[str, object]]] = {"spot": {}}
    top: ClassVar[Mapping[str, object]] = {}

    def __init__(self, log: MemoryLog, path: Path, limits: SharedLimits = LIMITS) -> None:
        self.path = path
        self.store = SharedStore(path, reactor, keep_everything())
        self.house = House(self.listen, store=self.store, draw=secrets.randbits, top=self.top)
        self.broker = self.house.broker
        self.stream = MemoryStream(log, at_tick_end)
        self.history = SharedHistory(
            self.broker, self.store, self.stream, reactor, limits, at_tick_end
        )
        self.prepare()
        self.broker.startService()
        self.history.open()
        self.stream.open()
        self.is_open = True

    def prepare(self) -> None:
        """Add what else is shared, before the broker starts."""

    def publish(self, topic: str, *payloads: bytes) -> Batch:
        """Publish as a client does."""
        return self.broker.dispatcher.publish(
            self.broker.topics.create(topic), Columns.of(list(payloads)), b"me", "spot"
        )

    async def messages(self) -> Seen:
        """Return topic, payload and id of all messages in order, except of the broker's topics."""
        found: Seen = []
        at = 0
        while at < self.store.next_offset:
            page = await self.store.read(at, None, 10**6, fresh=True)
            at = page.next_offset
            for batch in page.batches:
                run = batch.run or self.broker.dispatcher.run_id
                for _, one in batch.runs():
                    for place, payload in enumerate(one.payloads()):
                        number = message_number(run, one.sequence + place)
                        found.append((one.topic, payload, number))
        return [one for one in found if not one[0].startswith("$SYS")]

    async def payloads(self) -> list[bytes]:
        """Return the payloads of all messages."""
        return [payload for _, payload, _ in await self.messages()]

    def figure(self, name: str) -> float:
        """Return one figure of the history."""
        return float(self.history.figures()[f"history_{name}"])

    def refuses(self, topic: str) -> bool:
        """Return whether a publish is refused because of the spool."""
        try:
            self.publish(topic, b"refused")
        except HistoryUnavailable:
            return True
        return False

    def stop(self) -> Deferred[None]:
        """End in order."""
        self.is_open = False
        self.history.close()
        self.stream.close()
        ended = self.broker.stopService()
        # Its clients are closed at the deadline.
        self.house.advance(60)
        return ended

    def crashed(self, path: Path) -> Path:
        """Copy the directory as a crash would leave it now."""
        copy_still(self.path, path)
        return path


def at_tick_end(call: Callable[[], None]) -> object:
    """Run ``call`` in the next tick."""
    return reactor.callLater(0, call)


class ReplicaCase(TestCase):
    """Brokers at one engine."""

    timeout = 90

    def setUp(self) -> None:
        self.log = MemoryLog()
        self.nodes: list[Node] = []
        self.patch(shared_history, "_PAUSE", 0.01)

    def patch(self, target: object, name: str, value: object) -> None:
        """Replace an attribute until the end of the test."""
        super().patch(target, name, value)  # type: ignore[no-untyped-call]

    def node(self, path: Path | None = None, limits: SharedLimits = LIMITS) -> Node:
        """Start a broker, with an own new history unless there is a ``path``."""
        node = Node(self.log, path or scratch(self) / "history", limits)
        self.nodes.append(node)
        self.addCleanup(self.end, node)
        return node

    def end(self, node: Node) -> Deferred[None] | None:
        """Stop ``node`` unless it was."""
        return node.stop() if node.is_open else None

    async def again(self, node: Node) -> Node:
        """Stop a broker, and start it again."""
        await node.stop()
        return self.node(node.path)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` is true, at most for the time limit of the test."""
        while not condition():
            await deferLater(reactor, 0.001)

    async def two_with_a_message(self) -> tuple[Node, Node]:
        """Return two brokers that share one message, which is on the disk of the first."""
        here, there = self.node(), self.node()
        here.publish("t", b"0")
        await self.settled(here, there)
        stored: list[bool] = []
        here.store.when_stored(stored.append)
        await self.until(lambda: bool(stored))
        return here, there

    async def written(self, node: Node) -> None:
        """Wait until everything is in the file of the history."""
        done: list[bool] = []
        node.store.when_written(done.append)
        await self.until(lambda: bool(done))

    async def has(self, node: Node, payloads: Sequence[bytes]) -> None:
        """Wait until the history has as many messages, and assert that they are these."""
        while len(await node.payloads()) < len(payloads):
            await deferLater(reactor, 0.001)
        assert sorted(await node.payloads()) == sorted(payloads)

    async def settled(self, *nodes: Node) -> None:
        """Wait until everything is shared and everybody has read it, at the same time."""

        def is_settled(node: Node) -> bool:
            return (
                node.figure("connected") == 1
                and node.figure("unreplicated") == 0
                and node.history._progress.sequence == self.log.last
            )

        await self.until(lambda: all(map(is_settled, nodes)))
