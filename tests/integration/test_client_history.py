"""The last messages of a topic, and readers with positions, in every shell of the library."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from pubsub.client import (
    ClientClosed,
    Gap,
    HistoryNeeded,
    NotExpressible,
    ReaderHeld,
    RequestRefused,
    SubscriptionRefused,
)
from tests.integration.broker import HOST, Broker, Start, listen
from tests.integration.client_shells import SHELLS, Connect, collect, run
from tests.integration.cluster import free_port
from tests.integration.nats_server import NatsServer
from tests.integration.places import Place, settle
from tests.waiting import until

shells = pytest.mark.parametrize("shell", SHELLS)


@pytest.fixture
def places(tmp_path: Path) -> list[str]:
    """Return the options of a broker on ports that stay the same, with a history on disk."""
    return [
        f"--listen=cafe=tcp:{free_port()}:interface={HOST}",
        f"--admin-port=tcp:{free_port()}:interface={HOST}",
        f"--store=log:{tmp_path / 'history'}",
        "--durability=*=sync",
    ]


def url(broker: Broker, protocol: str = "http") -> str:
    return f"{protocol}://{HOST}:{broker.port(protocol)}"


def position(broker: Broker, reader: str) -> int:
    """Return the stored position of a reader."""
    with urllib.request.urlopen(f"{url(broker)}/v1/readers/{reader}") as response:
        return int(json.load(response)["offset"])


def values(messages: list[Any]) -> list[bytes]:
    return [one.payload for one in messages]


@shells
def test_the_last_messages(served: Broker, shell: str) -> None:
    async def scenario(connect: Connect) -> None:
        async with connect(url(served)) as client:
            assert await client.last("orders") == []
            payloads = [b"%d" % number for number in range(20)]
            await client.publish_many("orders", payloads, confirm=True)
            await client.publish(
                "other", b"\xff", confirm=True, sender="bob", headers={"unit": b"\xfe"}
            )
            assert values(await client.last("orders", count=3)) == [b"17", b"18", b"19"]
            assert len(await client.last("orders", count=100)) == 20
            (one,) = await client.last("other")
            assert (one.topic, one.payload, one.sender) == ("other", b"\xff", b"bob")
            assert (one.offset, one.headers) == (20, {"unit": b"\xfe"})
            with pytest.raises(RequestRefused, match="at most 1000") as caught:
                await client.last("orders", count=1001)
            assert (caught.value.status, caught.value.code) == (400, "invalid-request")
            with pytest.raises(NotExpressible):
                await client.last("orders", count=0)
        with pytest.raises(ClientClosed):
            await client.last("orders")

    run(shell, scenario)


@shells
def test_the_history_of_another_protocol(served: Broker, shell: str) -> None:
    async def scenario(connect: Connect) -> None:
        api = url(served)
        for own in (url(served, protocol) for protocol in ("cafe", "nsd")):
            async with connect(own) as client:
                with pytest.raises(HistoryNeeded, match="for last name"):
                    await client.last("cafe/7")
                with pytest.raises(HistoryNeeded, match="for reader= name"):
                    async with client.subscribe("cafe/7", reader="billing"):
                        pass
        async with connect(url(served, "nsd"), api=api) as client:
            assert await client.last("cafe/7") == []
            async with client.subscribe("cafe/7", reader="audit"):
                pass
        async with connect(url(served, "cafe"), api=api) as client, connect(api) as other:
            async with client.subscribe("cafe/7", reader="billing") as messages:
                await other.publish("cafe/7", b"one", confirm=True)
                (message,) = await collect(messages, 1)
                assert (message.topic, message.payload) == ("cafe/7", b"one")
                await messages.commit()
            assert values(await client.last("cafe/7")) == [b"one"]
        assert position(served, "billing") == message.offset + 1

    run(shell, scenario)


@shells
def test_a_reader_continues_behind_its_commit(served: Broker, shell: str) -> None:
    async def scenario(connect: Connect) -> None:
        async with connect(url(served)) as client:
            await client.publish("orders", b"before", confirm=True)
            async with client.subscribe("orders", reader="billing") as messages:
                await messages.commit()
                await client.publish_many("orders", [b"1", b"2", b"3"], confirm=True)
                assert values(await collect(messages, 2)) == [b"1", b"2"]
                # Not those that have arrived and were not taken.
                await messages.commit()
                await messages.commit()
                assert position(served, "billing") == 3
                assert values(await collect(messages, 1)) == [b"3"]
            with pytest.raises(ClientClosed):
                await messages.commit()
            async with client.subscribe("orders", reader="billing") as messages:
                item = await messages.next_item()
                assert item.payloads == [b"3"]
                await messages.commit()
            assert position(served, "billing") == 4
            async with client.subscribe("orders", reader="audit", start=0) as messages:
                assert values(await collect(messages, 4)) == [b"before", b"1", b"2", b"3"]
            # It has not committed, and its first position is stored.
            async with client.subscribe("orders", reader="audit") as messages:
                assert values(await collect(messages, 1)) == [b"before"]

    run(shell, scenario)


@shells
def test_mistaken_readers(served: Broker, shell: str) -> None:
    async def scenario(connect: Connect) -> None:
        async with connect(url(served)) as client:
            for topics in ((), ("a", "b")):
                with pytest.raises(NotExpressible):
                    async with client.subscribe(*topics, reader="billing"):
                        pass
            with pytest.raises(NotExpressible, match="name of a reader"):
                async with client.subscribe("a", reader="x" * 256):
                    pass
            with pytest.raises(TypeError):
                async with client.subscribe("a", reader=7):
                    pass
            with pytest.raises(SubscriptionRefused, match="the history ends at offset 0"):
                async with client.subscribe("a", reader="billing", start=9):
                    pass
            async with client.subscribe("a") as messages:
                with pytest.raises(NotExpressible, match="has no reader"):
                    await messages.commit()

    run(shell, scenario)


@shells
def test_one_program_at_a_time(served: Broker, shell: str) -> None:
    async def scenario(connect: Connect) -> None:
        async with connect(url(served)) as first, connect(url(served)) as second:
            async with first.subscribe("orders", reader="billing"):
                with pytest.raises(ReaderHeld, match="another program holds the reader 'billing'"):
                    async with second.subscribe("orders", reader="billing"):
                        pass
                async with second.subscribe("orders", reader="audit"):
                    pass
            # Released at once.
            async with second.subscribe("orders", reader="billing"):
                pass

    run(shell, scenario)


@shells
def test_a_broker_that_was_killed_and_restarted(
    start: Start, places: list[str], shell: str
) -> None:
    async def scenario(connect: Connect) -> None:
        broker = start(*places)
        async with (
            connect(url(broker)) as client,
            client.subscribe("orders", reader="billing") as messages,
        ):
            await client.publish_many("orders", [b"1", b"2"], confirm=True)
            assert values(await collect(messages, 1)) == [b"1"]
            await messages.commit()
            broker.kill()
            # The message is here, and the broker is not.
            assert values(await collect(messages, 1)) == [b"2"]
            restarted = start(*places)
            await messages.commit()
            assert position(restarted, "billing") == 2
            await client.publish("orders", b"3", confirm=True)
            assert values(await collect(messages, 1)) == [b"3"]
            await messages.commit()
        async with (
            connect(url(restarted)) as client,
            client.subscribe("orders", reader="billing") as messages,
        ):
            await client.publish("orders", b"4", confirm=True)
            assert values(await collect(messages, 1)) == [b"4"]

    run(shell, scenario)


PROGRAM = """
import asyncio, sys
from pubsub.client import connect

async def main():
    async with connect(sys.argv[1]) as client:
        async with client.subscribe("orders", reader="billing") as messages:
            print("ready", flush=True)
            async for message in messages:
                print(message.payload.decode(), flush=True)
                if message.payload == b"1":
                    await messages.commit()
                    print("committed", flush=True)

asyncio.run(main())
"""


def test_a_program_that_is_killed_gets_its_messages_again(served: Broker) -> None:
    """The second one waits for the end of the lease of the first."""

    async def publish(connect: Connect) -> None:
        async with connect(url(served)) as client:
            await client.publish_many("orders", [b"1", b"2"], confirm=True)

    def begin() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, url(served)], stdout=subprocess.PIPE, text=True
        )

    with begin() as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "ready\n"
        run("asyncio", publish)
        assert [first.stdout.readline() for _ in range(3)] == ["1\n", "committed\n", "2\n"]
        first.send_signal(signal.SIGKILL)
    with begin() as second:
        assert second.stdout is not None
        assert [second.stdout.readline() for _ in range(2)] == ["ready\n", "2\n"]
        second.send_signal(signal.SIGKILL)


@shells
def test_a_position_that_has_expired(start: Start, tmp_path: Path, shell: str) -> None:
    async def scenario(connect: Connect) -> list[Any]:
        broker = start(*listen("cafe"), f"--admin-port=tcp:0:interface={HOST}", "--history=10")
        async with connect(url(broker)) as client:
            async with client.subscribe("orders", reader="billing", start=0):
                pass
            for number in range(30):
                await client.publish("orders", b"%d" % number, confirm=True)
            async with client.subscribe("orders", reader="billing", events=True) as messages:
                return await collect(messages, 2)

    gap, message = run(shell, scenario)
    assert isinstance(gap, Gap)
    assert "expired" in gap.reason
    assert int(message.payload) > 0


def test_access(start: Start) -> None:
    broker = start(
        *listen("cafe"), f"--admin-port=tcp:0:interface={HOST}", "--allow-subscribe=open"
    )

    async def scenario(connect: Connect) -> None:
        async with connect(url(broker)) as client:
            with pytest.raises(RequestRefused) as caught:
                await client.last("secret")
            assert (caught.value.status, caught.value.code) == (403, "not-authorized")
            with pytest.raises(SubscriptionRefused, match="permission denied"):
                async with client.subscribe("secret", reader="billing"):
                    pass

    run("asyncio", scenario)


def test_a_reader_continues_at_another_broker(
    start: Start, server: NatsServer, tmp_path: Path
) -> None:
    """With a shared history, some messages may come again, and none is missing."""
    here, there = (Place(start, server.url, tmp_path / name) for name in ("here", "there"))
    settle(here, there)

    async def first(connect: Connect) -> None:
        async with (
            connect(url(here.broker)) as client,
            client.subscribe("orders", reader="billing") as messages,
        ):
            await client.publish_many("orders", [b"%d" % n for n in range(10)], confirm=True)
            await collect(messages, 5)
            await messages.commit()

    async def second(connect: Connect) -> None:
        async with connect(url(there.broker)) as client:
            assert values(await client.last("orders", count=2)) == [b"8", b"9"]
            async with client.subscribe("orders", reader="billing") as messages:
                found = [int((await anext(messages)).payload)]
                while found[-1] < 9:
                    found += [int(one.payload) for one in await collect(messages, 1)]
                await messages.commit()
        assert found == list(range(found[0], 10))
        assert found[0] <= 5

    def is_known() -> bool:
        try:
            return bool(json.loads(there.get("/v1/readers/billing"))["position"])
        except urllib.error.HTTPError:
            return False

    def has_all() -> bool:
        lines = there.get("/v1/history?last=10&topic=orders&format=jsonl").splitlines()
        return len(lines) == 10

    run("asyncio", first)
    until(is_known, "the position of the reader")
    until(has_all, "all messages")
    here.broker.kill()
    run("asyncio", second)
