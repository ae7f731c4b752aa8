"""A broker embedded in this process by ``pubsub.embed``: started, used, reloaded and stopped.

pytest-twisted runs each test as a coroutine in the reactor.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_twisted  # type: ignore[import-untyped]
from twisted.internet import reactor
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, connectProtocol
from twisted.internet.interfaces import IReactorTime
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure

from pubsub.embed import EmbeddedBroker, NotServed, embed
from pubsub.errors import ConfigurationError, StartError
from tests.integration.broker import HOST
from tests.integration.clients import handshake_pub, handshake_sub, publish, split, text
from tests.integration.reactor_tests import in_reactor

ACK_BYTES = 16
PING = bytes.fromhex("feca2000000000")
SECONDS = 30.0


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


def service(*listeners: tuple[str, int | str], **settings: object) -> EmbeddedBroker:
    """Return a broker with these listeners, ``(protocol, port or endpoint)``, not started."""
    listen = [
        {"protocol": name, "port" if isinstance(where, int) else "endpoint": where}
        for name, where in listeners
    ]
    return embed({"store": "memory", "listen": listen, **settings})


def port_of(broker: EmbeddedBroker, protocol: str = "cafe") -> int:
    """Return the port of the broker's first listener of ``protocol``."""
    (address, *_) = broker.addresses(protocol)
    assert isinstance(address, IPv4Address)
    return address.port


async def connect(port: int) -> Client:
    """Connect a client to the broker."""
    endpoint = TCP4ClientEndpoint(reactor, HOST, port, timeout=int(SECONDS))
    client: Client = await connectProtocol(endpoint, Client())
    return client


@pytest_twisted.async_yield_fixture  # type: ignore[untyped-decorator]
async def broker() -> AsyncIterator[EmbeddedBroker]:
    """Yield a broker with one cafe listener, stopped after the test."""
    made = service(("cafe", 0), **{"stop-timeout": 5})
    made.startService()
    yield made
    await made.stopService()
    assert not made.broker.clients
    assert not made.addresses("cafe")


async def publish_one(port: int, payload: bytes) -> None:
    """Publish a message on channel 1, and wait until the broker has it."""
    publisher = await connect(port)
    publisher.send(handshake_pub() + publish(1, payload) + PING)
    await publisher.take(ACK_BYTES + len(PING))


@in_reactor
async def test_publish_and_receive(broker: EmbeddedBroker) -> None:
    subscriber = await connect(port_of(broker))
    subscriber.send(handshake_sub())
    await subscriber.take(ACK_BYTES)
    await publish_one(port_of(broker), b"embedded")
    (received,) = split(await subscriber.take(7 + 9 + len(b"embedded")))
    assert text(received) == b"embedded"
    assert broker.broker.counters.published == broker.broker.counters.delivered == 1


@in_reactor
async def test_stopping_sends_the_goodbye_and_ends_connections(broker: EmbeddedBroker) -> None:
    client = await connect(port_of(broker))
    client.send(handshake_sub())
    await client.take(ACK_BYTES)
    await broker.stopService().addTimeout(SECONDS, cast(IReactorTime, reactor))
    await client.lost
    assert client.data == bytes.fromhex("feca0400000000")
    assert not broker.running


@in_reactor
async def test_two_brokers_in_one_process(broker: EmbeddedBroker) -> None:
    other = service(("cafe", 0))
    other.startService()
    try:
        assert port_of(broker) != port_of(other)
        await publish_one(port_of(other), b"x")
        published = [one.broker.counters.published for one in (broker, other)]
        assert published == [0, 1]
    finally:
        await other.stopService()


@in_reactor
async def test_a_port_in_use_fails_the_start(broker: EmbeddedBroker) -> None:
    taken = f"tcp:{port_of(broker)}:interface={HOST}"
    second = service(("nsd", 0), ("cafe", taken))
    with pytest.raises(StartError, match="cannot listen"):
        second.startService()
    assert not second.running
    # Its files and sockets are closed, and it starts once the port is free.
    await second.stopService()
    assert not second.addresses("nsd")
    await broker.stopService()
    second.startService()
    assert port_of(second) == int(taken.split(":")[1])
    await second.stopService()


@in_reactor
async def test_it_can_be_started_repeatedly(tmp_path: Path) -> None:
    made = service(("cafe", 0), ("nsd", 0), store=f"log:{tmp_path / 'history'}")
    for run in range(3):
        made.startService()
        made.startService()
        assert made.broker.store.next_offset == run
        await publish_one(port_of(made), b"kept")
        first, second = made.stopService(), made.stopService()
        await second
        await first


@in_reactor
async def test_urls(tmp_path: Path) -> None:
    made = service(
        ("nsd", f"unix:{tmp_path / 'nsd.sock'}"),
        ("nsd", "tcp6:0:interface=\\:\\:1"),
        ("spot", f"unix:{tmp_path / 'spot.sock'}"),
        **{"admin-port": 0},
    )
    with pytest.raises(NotServed, match="is the broker started"):
        made.url("nsd")
    made.startService()
    try:
        assert made.url("nsd") == f"nsd://[::1]:{cast(Any, made.addresses('nsd')[1]).port}"
        assert made.url("http").startswith(f"http://{HOST}:")
        with pytest.raises(NotServed, match="listens on no port"):
            made.url("spot")
        with pytest.raises(NotServed, match="cafe is not served; served: http, nsd, spot"):
            made.url("cafe")
    finally:
        await made.stopService()


@in_reactor
async def test_a_reload_applies_rules_and_secrets(broker: EmbeddedBroker) -> None:
    subscriber = await connect(port_of(broker))
    subscriber.send(handshake_sub())
    await subscriber.take(ACK_BYTES)
    listen = [{"protocol": "cafe", "port": 0, "allow-subscribe": "cafe/2"}]
    counts = await broker.reload({"listen": listen}, secrets={"new": b"k" * 32})
    assert counts == (0, 1)
    assert [secret.id for secret in broker.broker.tokens.ring] == ["new"]
    with pytest.raises(ConfigurationError, match="no such setting"):
        broker.reload({"listne": []})


@in_reactor
async def test_a_configuration_file(tmp_path: Path) -> None:
    file = tmp_path / "pubsub.toml"
    file.write_text('store = "memory"\n[[listen]]\nprotocol = "cafe"\nport = 0\n')
    made = embed(file)
    made.privilegedStartService()
    opened = port_of(made)
    made.startService()
    assert port_of(made) == opened
    await made.stopService()


@pytest.mark.parametrize(
    ("config", "secrets", "message"),
    [
        ({"listen": [{"protocol": "mqtt"}]}, {}, "protocol 'mqtt' is not installed"),
        ({"listen": [{"protocol": "cafe", "endpoint": "x:y"}]}, {}, "cannot use endpoint"),
        ({"store": "memory"}, {"a": b"short"}, "secret 'a': it has 5 bytes"),
        ({"store": "memory"}, {"a": "k" * 32}, "secret 'a': it must be bytes, not str"),
        ({"nsd": {1: 2}}, {}, "1: a key of the configuration must be text"),
        ("missing.toml", {}, "No such file"),
    ],
)
def test_mistakes_are_reported_before_the_start(
    config: Mapping[str, object] | str, secrets: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        embed(config, secrets=secrets)


def test_an_id_that_is_taken(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
    config = {"store": "memory", "keys": {"a": {"secret-file": str(key)}}}
    with pytest.raises(ConfigurationError, match="has this id already"):
        embed(config, secrets={"a": b"k" * 32})
