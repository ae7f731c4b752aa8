"""A broker embedded in a test process: built, used and stopped here.

    broker = make_broker(config, reactor)
    broker.startService()
    ...
    await broker.stopService()

pytest-twisted runs each test as a coroutine in the reactor.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar, cast

import pytest
import pytest_twisted  # type: ignore[import-untyped]
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, connectProtocol
from twisted.internet.interfaces import IReactorTime
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.tcp import Port
from twisted.python.failure import Failure

from pubsub.broker.service import BrokerService
from pubsub.errors import StartError
from pubsub.plugin import installed_protocols
from pubsub.server.configuration import CommandLine, merge
from pubsub.server.tap import make_broker
from tests.integration.broker import HOST
from tests.integration.clients import handshake_pub, handshake_sub, publish, split, text

_Test = TypeVar("_Test", bound=Callable[..., Awaitable[None]])
ACK_BYTES = 16
SECONDS = 30.0


def in_reactor(test: _Test) -> _Test:
    """Run a coroutine test in the reactor (pytest-twisted has no types)."""
    return cast(_Test, pytest_twisted.ensureDeferred(test))


class Client(Protocol):
    """Collects received bytes; ``wait`` fires when there are enough."""

    def __init__(self) -> None:
        self.data = b""
        self.lost: Deferred[None] = Deferred()
        self._waiting: tuple[int, Deferred[None]] | None = None

    def dataReceived(self, data: bytes) -> None:
        self.data += data
        if self._waiting is not None and len(self.data) >= self._waiting[0]:
            (_, enough), self._waiting = self._waiting, None
            enough.callback(None)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.lost.callback(None)

    async def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes."""
        if len(self.data) < count:
            enough: Deferred[None] = Deferred()
            self._waiting = count, enough
            await enough.addTimeout(SECONDS, cast(IReactorTime, reactor))
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def send(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)


def build(*listeners: tuple[str, str], **settings: object) -> BrokerService:
    """Return a broker with these listeners, ``(protocol, port or endpoint)``, not started."""
    given = {"store": "memory", **settings}
    line = CommandLine({k.replace("_", "-"): v for k, v in given.items()}, listeners)
    return make_broker(merge(installed_protocols(), line, {}), cast(Any, reactor))


def ports(broker: BrokerService) -> list[int]:
    """Return the ports of the broker's listeners in order, such as those assigned for 0."""
    readers = cast(Any, reactor).getReaders()
    opened = [r for r in readers if isinstance(r, Port)]
    found = {cast(Any, r.factory).listener: r.getHost().port for r in opened}
    return [port for listener, port in found.items() if listener in broker.listeners]


async def connect(port: int) -> Client:
    """Connect a client to the broker."""
    endpoint = TCP4ClientEndpoint(reactor, HOST, port, timeout=int(SECONDS))
    client: Client = await connectProtocol(endpoint, Client())
    return client


@pytest_twisted.async_yield_fixture  # type: ignore[untyped-decorator]
async def broker() -> AsyncIterator[BrokerService]:
    """Yield a broker with one cafe listener, stopped after the test."""
    made = build(("cafe", "0"), stop_timeout="5")
    made.startService()
    yield made
    if made.running:
        await made.stopService()
    assert not made.clients
    assert not ports(made)


@in_reactor
async def test_publish_and_receive(broker: BrokerService) -> None:
    (port,) = ports(broker)
    subscriber, publisher = await connect(port), await connect(port)
    subscriber.send(handshake_sub())
    await subscriber.take(ACK_BYTES)
    publisher.send(handshake_pub() + publish(1, b"embedded"))
    await publisher.take(ACK_BYTES)
    (received,) = split(await subscriber.take(7 + 9 + len(b"embedded")))
    assert text(received) == b"embedded"
    assert broker.counters.published == broker.counters.delivered == 1


@in_reactor
async def test_stopping_sends_the_goodbye_and_ends_connections(broker: BrokerService) -> None:
    (port,) = ports(broker)
    client = await connect(port)
    client.send(handshake_sub())
    await client.take(ACK_BYTES)
    await broker.stopService().addTimeout(SECONDS, cast(IReactorTime, reactor))
    await client.lost
    assert client.data == bytes.fromhex("feca0400000000")
    assert not broker.running


@in_reactor
async def test_two_brokers_in_one_process(broker: BrokerService) -> None:
    other = build(("cafe", "0"))
    other.startService()
    try:
        (first,), (second,) = ports(broker), ports(other)
        assert first != second
        publisher = await connect(second)
        publisher.send(handshake_pub() + publish(1, b"x") + bytes.fromhex("feca2000000000"))
        await publisher.take(ACK_BYTES + 7)
        assert (broker.counters.published, other.counters.published) == (0, 1)
    finally:
        await other.stopService()


@in_reactor
async def test_a_port_in_use_fails_the_start(broker: BrokerService) -> None:
    (port,) = ports(broker)
    second = build(("cafe", f"tcp:{port}:interface={HOST}"))
    with pytest.raises(StartError, match="cannot listen"):
        second.startService()
    await second.stopService()


@in_reactor
async def test_it_can_be_started_repeatedly() -> None:
    for _ in range(3):
        made = build(("cafe", "0"), ("nsd", "0"))
        made.startService()
        assert len(ports(made)) == 2
        await made.stopService()
