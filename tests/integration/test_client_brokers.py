"""The client library with the URLs of several brokers, in every shell."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from pubsub.client import Disconnected, Gap, Level, OutcomeUnknown, Reconnected
from pubsub.client.link_timing import Timing
from tests.integration.broker import HOST, Broker, Start, listen
from tests.integration.client_shells import SHELLS, Connect, collect, run
from tests.integration.cluster import free_port
from tests.integration.command import output, settings
from tests.integration.nats_server import NatsServer
from tests.integration.places import two_places
from tests.silent_address import SILENT_HOST, name_with_addresses, silent_address
from tests.waiting import until

shells = pytest.mark.parametrize("shell", SHELLS)


def urls(protocol: str, *brokers: Broker) -> list[str]:
    return [f"{protocol}://{HOST}:{broker.port(protocol)}" for broker in brokers]


def joined(start: Start, server: NatsServer) -> Broker:
    broker = start(*listen("cafe", "http"), f"--backplane={server.url}")
    broker.wait_line(r"backplane: connected to")
    return broker


async def numbered(client: Any, done: list[int], killed: list[int]) -> list[int]:
    """Publish numbers, until many are confirmed after those at the time of ``killed``.

    Returns those whose outcome is unknown.
    """
    unknown = []
    number = 0
    while not killed or len(done) < killed[0] + 300:
        try:
            assert await client.publish("cafe/7", b"%d" % number, confirm=True) is Level.HANDLED
        except OutcomeUnknown:
            unknown.append(number)
        else:
            done.append(number)
        number += 1
    return unknown


@shells
def test_a_broker_is_killed_while_its_clients_publish_and_subscribe(
    start: Start, server: NatsServer, shell: str
) -> None:
    here, there = joined(start, server), joined(start, server)
    done: list[int] = []
    killed: list[int] = []

    def kill() -> None:
        until(lambda: len(done) >= 200, "messages are confirmed")
        here.kill()
        killed.append(len(done))

    killer = threading.Thread(target=kill, daemon=True)

    async def scenario(connect: Connect) -> None:
        both = urls("cafe", here, there)
        async with (
            connect(both, client_id="bob") as client,
            connect(urls("cafe", there), client_id="eve") as watcher,
            client.subscribe("cafe/7", events=True) as messages,
            watcher.subscribe("cafe/7") as watched,
        ):
            killer.start()
            unknown = await numbered(client, done, killed)
            # At most that one which was on its way.
            assert len(unknown) <= 1
            await client.publish("cafe/7", b"end", confirm=True)
            found: list[Any] = []
            while not found or getattr(found[-1], "payload", b"") != b"end":
                found += await collect(messages, 1)
            kinds = [type(one) for one in found if not hasattr(one, "payload")]
            assert kinds == [Disconnected, Gap, Reconnected]
            reason = next(one.reason for one in found if isinstance(one, Reconnected))
            assert reason.endswith(f"; now at {both[1]}")
            payloads = [int(one.payload) for one in found[:-1] if hasattr(one, "payload")]
            assert payloads == sorted(set(payloads))
            # The client at the other broker has everything that was published there.
            seen: list[bytes] = []
            while not seen or seen[-1] != b"end":
                seen += [one.payload for one in await collect(watched, 1)]
            # Besides one whose confirmation was on its way from the other one.
            assert set(map(int, seen[:-1])) >= set(done[killed[0] + 1 :])

    run(shell, scenario)
    killer.join()


@shells
def test_the_first_broker_is_down_and_another_never_answers(broker: Broker, shell: str) -> None:
    with socket.create_server((HOST, 0)) as silent:
        first, second = f"cafe://{HOST}:{free_port()}", f"cafe://{HOST}:{silent.getsockname()[1]}"

        async def scenario(connect: Connect) -> None:
            all_urls = [first, second, *urls("cafe", broker)]
            async with (
                connect(all_urls, timing=Timing(connect=1.0)) as client,
                client.subscribe("cafe/7") as messages,
            ):
                assert await client.publish("cafe/7", b"x", confirm=True) is Level.HANDLED
                assert [one.payload for one in await collect(messages, 1)] == [b"x"]

        run(shell, scenario)


@pytest.mark.parametrize("shell", ["asyncio", "blocking"])
def test_the_first_address_of_a_name_does_not_answer(
    broker: Broker, shell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Twisted looks names up in its own way, and tries the next address by itself.
    name_with_addresses(monkeypatch.setattr, "several", SILENT_HOST, HOST)
    port = broker.port("cafe")

    async def scenario(connect: Connect) -> None:
        async with connect(f"cafe://several:{port}") as client:
            assert await client.publish("cafe/7", b"x", confirm=True) is Level.HANDLED

    with silent_address(port):
        run(shell, scenario)


@shells
def test_a_broker_is_drained(start: Start, server: NatsServer, shell: str) -> None:
    here, there = joined(start, server), joined(start, server)

    async def scenario(connect: Connect) -> None:
        async with (
            connect(urls("http", here, there)) as client,
            client.subscribe("news", events=True) as messages,
        ):
            await client.publish("news", b"1", confirm=True)
            assert [one.payload for one in await collect(messages, 1)] == [b"1"]
            here.signal()
            found = await collect(messages, 3)
            assert [type(one) for one in found] == [Disconnected, Gap, Reconnected]
            await client.publish("news", b"2", confirm=True)
            assert [one.payload for one in await collect(messages, 1)] == [b"2"]

    run(shell, scenario)


@pytest.mark.parametrize("protocol", ["http", "nsd"])
def test_a_shared_history_goes_on_at_the_other_broker(
    start: Start, server: NatsServer, tmp_path: Path, protocol: str
) -> None:
    here, there = two_places(start, server, tmp_path)
    # nsd continues exactly, if its broker has stopped in order. Over http messages may be missing.
    gaps = {"http": [Gap], "nsd": []}[protocol]

    async def scenario(connect: Connect) -> None:
        both = urls(protocol, here.broker, there.broker)
        async with (
            connect(both, client_id="ada") as client,
            connect(both[1:], client_id="eve") as other,
            client.subscribe("news", events=True) as messages,
        ):
            await other.publish("news", b"1", confirm=True)
            assert [one.payload for one in await collect(messages, 1)] == [b"1"]
            if protocol == "http":
                here.broker.kill()
            else:
                here.broker.signal()
            # Before the client is there.
            await other.publish("news", b"2", confirm=True)
            found = await collect(messages, 3 + len(gaps))
            notices = [type(one) for one in found if not hasattr(one, "payload")]
            assert notices == [Disconnected, *gaps, Reconnected]
            assert [one.payload for one in found if hasattr(one, "payload")] == [b"2"]

    run("asyncio", scenario)
    # A second signal would be an error in its log.
    here.broker.wait()


@shells
def test_the_last_messages_come_from_a_broker_that_answers(start: Start, shell: str) -> None:
    broker = start(*listen("http"))
    both = [f"http://{HOST}:{free_port()}", *urls("http", broker)]

    async def scenario(connect: Connect) -> None:
        async with connect(both[1]) as client:
            await client.publish_many("news", ["1", "2"], confirm=True)
        async with connect(both) as client:
            assert [one.payload for one in await client.last("news", count=5)] == [b"1", b"2"]

    run(shell, scenario)


def test_commands(start: Start, server: NatsServer, tmp_path: Path) -> None:
    here, there = joined(start, server), joined(start, server)
    down = f"cafe://{HOST}:{free_port()}"
    both = ",".join([down, *urls("cafe", here, there)])
    env = settings(both, tmp_path, PUBSUB_API=",".join(urls("http", here, there)))
    assert output("pub", "cafe/7", "hello", "--confirm", env=env) == b""
    found = output("sub", "cafe/7", "--from", "earliest", "--count", "1", env=env)
    assert found == b"hello\n"
