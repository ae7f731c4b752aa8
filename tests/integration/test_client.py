"""The client library with a real broker, in every shell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trustme

from pubsub.client import (
    ConnectFailed,
    Disconnected,
    Gap,
    HistoryNeeded,
    InvalidUrl,
    Level,
    NotExpressible,
    NotPublished,
    OutcomeUnknown,
    Reconnected,
    SubscriptionRefused,
    TopicNotAddressable,
    Unconfirmable,
)
from tests.integration.broker import HOST, Broker, Start, listen, run_python
from tests.integration.client_shells import SHELLS, Connect, collect, run
from tests.integration.cluster import free_port

shells = pytest.mark.parametrize("shell", SHELLS)


def url(broker: Broker, protocol: str = "cafe") -> str:
    return f"{protocol}://{HOST}:{broker.port(protocol)}"


@shells
def test_messages_arrive_in_order_and_are_confirmed(broker: Broker, shell: str) -> None:
    async def scenario(connect: Connect) -> list[Any]:
        async with (
            connect(url(broker), client_id="bob") as client,
            client.subscribe("cafe/7", "cafe/8") as messages,
        ):
            assert await client.publish("cafe/7", b"one", confirm=True) is Level.HANDLED
            assert await client.publish("cafe/8", "two") is None
            await client.publish_many("cafe/7", [b"%d" % number for number in range(5000)])
            await client.flush()
            return await collect(messages, 5002)

    found = run(shell, scenario)
    assert [(one.topic, one.payload) for one in found[:2]] == [
        ("cafe/7", b"one"),
        ("cafe/8", b"two"),
    ]
    assert [one.payload for one in found[2:]] == [b"%d" % number for number in range(5000)]
    assert all(one.timestamp > 1_600_000_000_000_000 for one in found)


@shells
def test_a_broker_that_cannot_be_reached(shell: str) -> None:
    async def scenario(connect: Connect) -> None:
        async with connect(f"cafe://{HOST}:{free_port()}") as client:
            with pytest.raises(ConnectFailed, match="cannot connect to cafe://"):
                await client.publish("cafe/7", b"")
            with pytest.raises(ConnectFailed):
                await client.publish("cafe/7", b"", confirm=True)
            with pytest.raises(ConnectFailed):
                async with client.subscribe("cafe/7"):
                    pass

    run(shell, scenario)


@shells
def test_another_protocol_on_the_port(broker: Broker, shell: str) -> None:
    async def scenario(connect: Connect) -> None:
        # nsd replies to the first line.
        there = f"cafe://{HOST}:{broker.port('nsd')}"
        async with connect(there, client_id="a\nb") as client:
            with pytest.raises(ConnectFailed, match="the port speaks nsd, not cafe"):
                await client.publish("cafe/7", b"", confirm=True)

    run(shell, scenario)


@shells
def test_refusals_name_the_reason(start: Start, shell: str) -> None:
    broker = start(*listen("cafe"), "--allow-publish=cafe/1", "--allow-subscribe=cafe/1")

    async def scenario(connect: Connect) -> None:
        async with connect(url(broker)) as client:
            await client.publish("cafe/1", b"", confirm=True)
            with pytest.raises(NotPublished, match="UNAUTHORIZED") as caught:
                await client.publish_many("cafe/2", [b"", b""], confirm=True)
            assert (caught.value.refused, caught.value.published) == (2, 2)
            with pytest.raises(SubscriptionRefused, match="UNAUTHORIZED"):
                async with client.subscribe("cafe/2"):
                    pass

    run(shell, scenario)


@shells
def test_a_request_that_the_wire_cannot_do_is_an_error_before_it_is_sent(
    broker: Broker, shell: str
) -> None:
    async def scenario(connect: Connect) -> None:
        async with connect(url(broker)) as client:
            with pytest.raises(TopicNotAddressable) as caught:
                await client.publish("orders", b"")
            assert "rheos" in caught.value.wires
            assert "rheos" in str(caught.value)
            with pytest.raises(NotExpressible, match="1048568 bytes"):
                await client.publish("cafe/7", bytes(1_048_568))
            with pytest.raises(NotExpressible, match="sender"):
                await client.publish("cafe/7", b"", sender=b"x")
            with pytest.raises(NotExpressible, match="headers"):
                await client.publish("cafe/7", b"", headers={"a": b""})
            with pytest.raises(Unconfirmable):
                await client.publish("cafe/7", b"", confirm=Level.STORED)
            with pytest.raises(HistoryNeeded, match="PUBSUB_API"):
                client.subscribe("cafe/7", start=0)
            with pytest.raises(NotExpressible, match="prefixes"):
                client.subscribe(prefixes=["cafe/"])

    run(shell, scenario)


@shells
def test_a_broker_that_is_killed_and_started_again(start: Start, shell: str) -> None:
    port = free_port()
    options = (f"--listen=cafe=tcp:{port}:interface={HOST}",)
    first = start(*options)

    async def scenario(connect: Connect) -> list[Any]:
        async with (
            connect(f"cafe://{HOST}:{port}", client_id="bob") as client,
            client.subscribe("cafe/7", events=True) as messages,
        ):
            await client.publish("cafe/7", b"before", confirm=True)
            found = await collect(messages, 1)
            first.kill()
            # Disconnected, then, when the broker is back, the Gap and Reconnected.
            found += await collect(messages, 1)
            start(*options)
            found += await collect(messages, 2)
            await client.publish("cafe/7", b"after", confirm=True)
            return found + await collect(messages, 1)

    before, lost, gap, back, after = run(shell, scenario)
    assert (before.payload, after.payload) == (b"before", b"after")
    assert type(lost).__name__ == "Disconnected"
    assert not back.resumed
    assert isinstance(gap, Gap)
    assert gap.topics == ("cafe/7",)
    assert gap.timestamp == before.timestamp


@shells
def test_a_slow_program_bounds_the_received_messages(broker: Broker, shell: str) -> None:
    limit = 256 * 1024
    count, payload = 4000, bytes(4096)

    async def scenario(connect: Connect) -> int:
        async with (
            connect(url(broker), feed_bytes=limit) as slow,
            connect(url(broker)) as fast,
            slow.subscribe("cafe/7") as messages,
            fast.subscribe("cafe/7") as others,
        ):
            for _ in range(count // 100):
                await fast.publish_many("cafe/7", [payload] * 100)
            await collect(others, count)
            feed = getattr(messages, "_inner", messages)
            feed = getattr(feed, "_inner", feed)
            held: int = feed._feed.nbytes
            assert len(await collect(messages, count)) == count
            return held

    # The bound, and the bytes of one read.
    assert limit <= run(shell, scenario) <= limit + 512 * 1024


def test_urls_and_options_that_cannot_be_used() -> None:
    wrong = {
        "nats://host": "there is no client for 'nats'",
        "host:7070": "the URL has no protocol",
        "cafe://": "no host",
        "cafe://host/x": "no path",
        "rheos://bob:secret@host": "no credentials",
        "cafe://host:99999": "not a number from 1 to 65535",
        "cafe://host?channels=9:x:y,9": "listed twice",
        "cafe://host?layout=spec": "no parameter 'layout'; it has channels",
    }
    for text, words in wrong.items():
        with pytest.raises(InvalidUrl, match=words) as caught:
            run("asyncio", _connecting(text))
        assert "secret" not in str(caught.value)


def _connecting(text: str) -> Any:
    async def scenario(connect: Connect) -> None:
        async with connect(text):
            pass

    return scenario


def test_asyncio_and_blocking_import_no_reactor(broker: Broker) -> None:
    code = """
import sys
from pubsub.client import blocking, connect
with blocking.connect(sys.argv[1]) as client:
    client.publish("cafe/7", b"x", confirm=True)
print(sorted(m for m in sys.modules if m.split(".")[0] in ("twisted", "zope")))
"""
    assert run_python(code, url(broker), env={}) == "[]\n"


def test_the_token_is_never_shown() -> None:
    async def scenario(connect: Connect) -> str:
        async with connect(f"cafe://{HOST}", token="very-secret") as client:
            return repr(client) + repr(client._options) + repr(vars(client))

    assert "very-secret" not in run("asyncio", scenario)


@shells
@pytest.mark.parametrize("protocol", ["nsd", "http"])
def test_a_wire_with_history_misses_nothing_over_a_restart(
    start: Start, shell: str, protocol: str, tmp_path: Path
) -> None:
    """Messages published while the client had no connection arrive in order, once."""
    port, other = free_port(), free_port()
    listener = (
        f"--admin-port=tcp:{port}:interface={HOST}"
        if protocol == "http"
        else f"--listen={protocol}=tcp:{port}:interface={HOST}"
    )
    options = (
        f"--listen=rheos=tcp:{other}:interface={HOST}",
        f"--store=log:{tmp_path / 'history'}",
    )
    first = start(*options, listener)

    async def scenario(connect: Connect) -> list[Any]:
        async with (
            connect(f"{protocol}://{HOST}:{port}", client_id="bob") as client,
            connect(f"rheos://{HOST}:{other}") as publisher,
            client.subscribe("orders", events=True) as messages,
        ):
            await client.publish("orders", b"before", confirm=Level.STORED)
            found = await collect(messages, 1)
            first.kill()
            found += await collect(messages, 1)
            without = start(*options)
            # The publisher may not know yet that its broker has gone.
            while True:
                try:
                    await publisher.publish("orders", b"meanwhile", confirm=True)
                    break
                except OutcomeUnknown:
                    pass
            without.kill()
            start(*options, listener)
            found += await collect(messages, 2)
            await client.publish("orders", b"after", confirm=True)
            return found + await collect(messages, 1)

    before, lost, back, meanwhile, after = run(shell, scenario)
    assert isinstance(lost, Disconnected)
    assert isinstance(back, Reconnected)
    assert back.resumed
    payloads = [one.payload for one in (before, meanwhile, after)]
    assert payloads == [b"before", b"meanwhile", b"after"]
    assert [one.offset for one in (before, meanwhile, after)] == [0, 1, 2]


@shells
def test_a_start_on_a_wire_without_history_reads_over_the_http_api(
    start: Start, shell: str
) -> None:
    broker = start(*listen("cafe"), f"--admin-port=tcp:0:interface={HOST}")
    api = f"http://{HOST}:{broker.port('http')}"

    async def scenario(connect: Connect) -> list[Any]:
        async with connect(url(broker), api=api) as client:
            await client.publish_many("cafe/7", [b"0", b"1", b"2"], confirm=True)
            async with client.subscribe("cafe/7", start=1) as messages:
                found = await collect(messages, 2)
                await client.publish("cafe/7", b"3")
                return found + await collect(messages, 1)

    found = run(shell, scenario)
    assert [(one.offset, one.payload) for one in found] == [(1, b"1"), (2, b"2"), (3, b"3")]


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """Return a directory with an authority's certificate, and a broker's for localhost."""
    own = trustme.CA()
    own.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    certificate = own.issue_cert("localhost")
    certificate.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "broker.pem"))
    return tmp_path


@shells
def test_tls_is_verified(start: Start, shell: str, authority: Path) -> None:
    pem = authority / "broker.pem"
    port = free_port()
    broker = start(
        f"--listen=cafe=ssl:{port}:interface={HOST}:privateKey={pem}:certKey={pem}",
    )
    assert broker.alive

    async def scenario(connect: Connect) -> None:
        own, other = str(authority / "ca.pem"), str(authority / "other.pem")
        async with (
            connect(f"cafe+tls://localhost:{port}", tls_ca=own) as client,
            client.subscribe("cafe/7") as messages,
        ):
            await client.publish("cafe/7", b"secret", confirm=True)
            (found,) = await collect(messages, 1)
            assert found.payload == b"secret"
        wrong = [(f"cafe+tls://{HOST}:{port}", own), (f"cafe+tls://localhost:{port}", other)]
        for there, ca in wrong:
            async with connect(there, tls_ca=ca) as client:
                with pytest.raises(ConnectFailed, match="cannot connect"):
                    await client.publish("cafe/7", b"", confirm=True)

    run(shell, scenario)
