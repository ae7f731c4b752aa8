"""The client library over every wire and on every shell, with a real broker."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from pubsub.client import (
    ConnectFailed,
    Gap,
    Level,
    Message,
    MessageBatch,
    NotExpressible,
    Notice,
    NotPublished,
    OutcomeUnknown,
    Reconnected,
    SubscriptionRefused,
)
from tests.integration import fast_client
from tests.integration.broker import HOST, Broker, Start
from tests.integration.client_shells import SHELLS, Connect, run
from tests.integration.cluster import free_port
from tests.integration.fast_client import Fast, make_secret, make_token

STORES = ("nsd", "rheos", "http")
"""The wires that confirm that a message is stored."""
SURVIVES = ("nsd", "http")
"""The wires over which a subscription misses nothing, even if the broker is restarted."""
LARGEST = {
    "cafe": 1_048_567, "nsd": 1_000_000, "rheos": 65_535, "spot": 1 << 20, "fast": 1 << 20,
    "http": 1_044_480,
}  # fmt: skip
TOO_LARGE = {**LARGEST, "nsd": 1 << 24}
WIRES = tuple(LARGEST)
TOPIC = "cafe/7"
shells = pytest.mark.parametrize("shell", SHELLS)


@dataclass(frozen=True)
class House:
    """A broker with a listener of each wire, which can be killed and started again.

    The topic ``TOPIC`` has the queue key of ``token``, and is open to the other wires.
    """

    start: Start
    secret: Path
    token: bytes
    ports: Mapping[str, int]
    store: Path

    def begin(self, *options: str) -> Broker:
        """Start the broker, again if it was killed."""
        listen = [
            f"--listen={name}=tcp:{port}:interface={HOST}"
            for name, port in self.ports.items()
            if name != "http"
        ]
        listen.append(f"--admin-port=tcp:{self.ports['http']}:interface={HOST}")
        broker = self.start(
            *listen, f"--secret-file={self.secret}", "--grant=*", f"--store=log:{self.store}",
            "--nsd-max-body=2000000", *options,
        )  # fmt: skip
        with Fast.to(broker, fast_client.create(self.token, TOPIC)) as client:
            client.sync(self.token)
        return broker

    def connect(self, connect: Connect, wire: str, **options: Any) -> Any:
        """Return a client over this wire."""
        if wire == "fast":
            options = {"token": self.token.decode(), **options}
        return connect(f"{wire}://{HOST}:{self.ports[wire]}", **options)


@pytest.fixture
def house(start: Start, tmp_path: Path) -> House:
    secret = make_secret(tmp_path / "secret")
    ports = {name: free_port() for name in WIRES}
    return House(start, secret, make_token(secret), ports, tmp_path / "history")


async def take(subscription: Any, count: int) -> list[Message]:
    """Return the next messages; notices are passed over."""
    found: list[Message] = []
    while len(found) < count:
        item = await subscription.next_item()
        assert item is not None
        if isinstance(item, MessageBatch):
            found += item
    assert len(found) == count, found[count:]
    return found


async def take_notice(subscription: Any, kind: type[Notice]) -> Notice:
    """Return the next notice of this kind; other items are passed over."""
    while not isinstance(item := await subscription.next_item(), kind):
        assert item is not None
    return item


async def raises(kind: type[BaseException], awaitable: Awaitable[object]) -> str:
    """Return the text of the error that ``awaitable`` raises, which must be of this kind."""
    with pytest.raises(kind) as caught:
        await awaitable
    return str(caught.value)


async def subscribing(client: Any, topic: str) -> None:
    """Subscribe and end that."""
    async with client.subscribe(topic):
        pass


def payloads(messages: Sequence[Message]) -> list[bytes]:
    return [message.payload for message in messages]


@shells
def test_publish_confirm_subscribe_unsubscribe(house: House, shell: str) -> None:
    house.begin()
    many = [b"%d" % number for number in range(5000)]

    async def over(connect: Connect, wire: str) -> None:
        async with (
            house.connect(connect, wire, client_id="writer") as writer,
            house.connect(connect, wire, client_id="reader") as reader,
        ):
            async with reader.subscribe(TOPIC) as subscription:
                level = await writer.publish(TOPIC, b"one", confirm=True)
                assert level is (Level.STORED if wire in STORES else Level.HANDLED), wire
                await writer.publish(TOPIC, "")
                await writer.publish_many(TOPIC, many)
                await writer.publish(TOPIC, b"x" * LARGEST[wire])
                await writer.flush()
                messages = await take(subscription, 5003)
            assert payloads(messages) == [b"one", b"", *many, b"x" * LARGEST[wire]], wire
            assert {message.topic for message in messages} == {TOPIC}, wire
            await writer.publish(TOPIC, b"not received", confirm=True)
            async with reader.subscribe(TOPIC) as subscription:
                await writer.publish(TOPIC, b"two", confirm=True)
                assert payloads(await take(subscription, 1)) == [b"two"], wire

    async def body(connect: Connect) -> None:
        for wire in WIRES:
            await over(connect, wire)

    run(shell, body)


@shells
def test_a_message_that_only_the_settings_allow(shell: str, house: House) -> None:
    house.begin("--spot-max-message=4M", "--admin-max-message=4M")
    large = bytes(range(256)) * 14_000

    async def body(connect: Connect) -> None:
        for wire in ("spot", "http"):
            options = {"max-message": "4M"}
            async with (
                house.connect(connect, wire, **options) as writer,
                house.connect(connect, wire, **options) as reader,
                reader.subscribe(TOPIC) as subscription,
            ):
                await writer.publish(TOPIC, large, confirm=True)
                assert payloads(await take(subscription, 1)) == [large], wire

    run(shell, body)


@shells
def test_topics_are_created_and_publishers_hear_themselves(house: House, shell: str) -> None:
    house.begin()

    async def body(connect: Connect) -> None:
        for wire in WIRES:
            topic = TOPIC if wire == "cafe" else f"new over {wire}"
            async with (
                house.connect(connect, wire) as client,
                client.subscribe(topic) as subscription,
            ):
                await client.publish(topic, b"one")
                assert payloads(await take(subscription, 1)) == [b"one"], wire

    run(shell, body)


async def publish(client: Any, payload: bytes) -> None:
    """Publish until it is confirmed: messages on their way may or may not be published."""
    while True:
        try:
            await client.publish(TOPIC, payload, confirm=True)
        except OutcomeUnknown:
            continue
        return


@shells
def test_a_broker_that_was_killed_and_restarted(house: House, shell: str) -> None:
    broker = house.begin()

    async def body(connect: Connect) -> None:
        async with AsyncExitStack() as stack:
            await restarted(connect, stack)

    async def restarted(connect: Connect, stack: AsyncExitStack) -> None:
        clients, subscriptions = {}, {}
        for wire in WIRES:
            client = await stack.enter_async_context(house.connect(connect, wire))
            made = client.subscribe(TOPIC, events=True)
            clients[wire], subscriptions[wire] = client, await stack.enter_async_context(made)
        for wire, client in clients.items():
            await publish(client, wire.encode())
        before = [wire.encode() for wire in WIRES]
        for wire, subscription in subscriptions.items():
            assert payloads(await take(subscription, len(WIRES))) == before, wire
        broker.kill()
        house.begin()
        for wire, subscription in subscriptions.items():
            if wire not in SURVIVES:
                await take_notice(subscription, Gap)
            notice = await take_notice(subscription, Reconnected)
            assert isinstance(notice, Reconnected)
            assert notice.resumed is (wire in SURVIVES), wire
        for wire, client in clients.items():
            await publish(client, b"after " + wire.encode())
        after = {b"after " + wire.encode() for wire in WIRES}
        for wire, subscription in subscriptions.items():
            assert set(payloads(await take(subscription, len(WIRES)))) == after, wire

    run(shell, body)


@shells
def test_a_topic_that_is_not_permitted(house: House, shell: str) -> None:
    house.begin("--allow-publish=allowed", "--allow-subscribe=allowed")

    async def body(connect: Connect) -> None:
        for wire in WIRES:
            async with house.connect(connect, wire) as client:
                # cafe refuses the handshake, which names the channel.
                refused = ConnectFailed if wire == "cafe" else NotPublished
                assert wire in await raises(refused, client.publish(TOPIC, b"x", confirm=True))
                await raises(SubscriptionRefused, subscribing(client, TOPIC))

    run(shell, body)


@shells
def test_a_message_that_is_too_large(house: House, shell: str) -> None:
    house.begin()

    async def body(connect: Connect) -> None:
        for wire in WIRES:
            async with house.connect(connect, wire) as client:
                large = b"x" * (TOO_LARGE[wire] + 1)
                text = await raises(NotExpressible, client.publish(TOPIC, large, confirm=True))
                assert f"{wire} cannot carry the message" in text
                assert "bytes are" in text
                await client.publish(TOPIC, b"x", confirm=True)

    run(shell, body)


@shells
def test_a_token_that_is_wrong(house: House, shell: str) -> None:
    house.begin()
    other = make_token(house.secret, key="k2").decode()

    async def body(connect: Connect) -> None:
        async with house.connect(connect, "fast", token="not.a.token") as client:
            text = await raises(ConnectFailed, client.publish(TOPIC, b"x", confirm=True))
            assert "BAD_TOKEN" in text
            assert "not.a.token" not in text + repr(client)
        async with house.connect(connect, "fast", token=other) as client:
            text = await raises(NotPublished, client.publish(TOPIC, b"x", confirm=True))
            assert "WRONG_QUEUE_KEY" in text
            await raises(SubscriptionRefused, subscribing(client, TOPIC))

    run(shell, body)


def test_a_program_that_takes_no_messages_loses_none(house: House) -> None:
    """The client stops reading, and the broker lets it read on from the history."""
    house.begin()
    sent = [b"%06d" % number + b"x" * 4090 for number in range(4000)]

    async def over(connect: Connect, wire: str) -> None:
        async with (
            house.connect(connect, wire, feed_bytes=256 * 1024) as slow,
            house.connect(connect, wire) as writer,
            slow.subscribe(TOPIC) as subscription,
        ):
            for at in range(0, len(sent), 100):
                await writer.publish_many(TOPIC, sent[at : at + 100])
            await writer.flush()
            assert payloads(await take(subscription, len(sent))) == sent, wire

    async def body(connect: Connect) -> None:
        for wire in WIRES:
            await over(connect, wire)

    run("asyncio", body)


def test_every_pair_of_wires(house: House) -> None:
    house.begin()
    sent = [b"", b"x" * 10_000, *[b"%d" % number for number in range(2000)]]

    async def over(connect: Connect, source: str, target: str) -> None:
        async with (
            house.connect(connect, source, client_id="writer") as writer,
            house.connect(connect, target, client_id="reader") as reader,
            reader.subscribe(TOPIC) as subscription,
        ):
            await writer.publish_many(TOPIC, sent, confirm=True)
            assert payloads(await take(subscription, len(sent))) == sent, (source, target)

    async def body(connect: Connect) -> None:
        for source, target in permutations(WIRES, 2):
            await over(connect, source, target)

    run("asyncio", body)
