"""Subscriptions to prefixes over the HTTP API, in every shell and with the command."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from pubsub.client import Disconnected, Gap, NotExpressible, Reconnected
from tests.integration.broker import HOST, Broker, Start, listen
from tests.integration.client_shells import SHELLS, Connect, collect, run
from tests.integration.command import PUBSUB, output, settings, url
from tests.integration.nats_server import NatsServer
from tests.waiting import until


@pytest.mark.parametrize("shell", SHELLS)
def test_topics_with_a_prefix(served: Broker, shell: str) -> None:
    async def scenario(connect: Connect) -> None:
        async with connect(url(served, "http")) as client:
            await client.publish("game:0", b"before", confirm=True)
            async with (
                client.subscribe("news", prefixes=["game:", "g"]) as games,
                client.subscribe("game:1") as one,
            ):
                for topic in ("game:1", "other", "news", "game:2"):
                    await client.publish_many(topic, [topic.encode()] * 30, confirm=True)
                found = [(m.topic, m.payload) for m in await collect(games, 90)]
                assert found == [
                    (topic, topic.encode())
                    for topic in ("game:1", "news", "game:2")
                    for _ in range(30)
                ]
                assert [m.topic for m in await collect(one, 30)] == ["game:1"] * 30
            with pytest.raises(NotExpressible, match="a prefix begins with new messages"):
                async with client.subscribe(prefixes=["game:"], start=0):
                    pass

    run(shell, scenario)


def test_a_connection_that_is_lost(start: Start, tmp_path: Path) -> None:
    options = (*listen("http"), f"--store=log:{tmp_path / 'store'}")
    broker = start(*options)
    port = broker.port("http")

    async def scenario(connect: Connect) -> None:
        async with (
            connect(url(broker, "http")) as client,
            client.subscribe(prefixes=["game:"], events=True) as games,
        ):
            await client.publish("game:1", b"1", confirm=True)
            assert [m.payload for m in await collect(games, 1)] == [b"1"]
            broker.stop()
            start(f"--listen=http=tcp:{port}:interface={HOST}", *options[1:])
            notices = [type(one) for one in await collect(games, 3)]
            assert notices == [Disconnected, Gap, Reconnected]
            await client.publish("game:2", b"2", confirm=True)
            assert [m.payload for m in await collect(games, 1)] == [b"2"]

    run("asyncio", scenario)


def test_topics_of_another_broker(start: Start, server: NatsServer) -> None:
    options = (*listen("http"), f"--backplane={server.url}")
    here, there = start(*options), start(*options)
    for broker in (here, there):
        broker.wait_line(r"backplane: connected to")

    async def scenario(connect: Connect) -> None:
        async with (
            connect(url(here, "http")) as client,
            connect(url(there, "http")) as other,
            client.subscribe(prefixes=["game:"]) as games,
        ):
            # A subscription takes effect at the other brokers a little later.
            for number in range(10_000):
                await other.publish(f"game:{number}", b"x", confirm=True)
                with suppress(TimeoutError):
                    item = await games.next_item(0.05)
                    assert item.topic.startswith("game:")
                    return
            raise AssertionError("no message")

    run("asyncio", scenario)


def test_the_command(served: Broker, tmp_path: Path) -> None:
    env = settings(url(served, "http"), tmp_path)

    def published() -> bool:
        """Publish; return whether the reader has ended."""
        output("pub", "other", "no", env=env)
        output("pub", "game:1", "yes", env=env)
        return reader.poll() is not None

    with subprocess.Popen(
        [PUBSUB, "sub", "game:*", "--verbose", "--count=1"], env=env, stdout=subprocess.PIPE
    ) as reader:
        until(published, "the reader has a message")
        assert reader.stdout is not None
        assert reader.stdout.read() == b"game:1 yes\n"
