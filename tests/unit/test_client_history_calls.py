"""Last messages and readers, with a broker in this process, over loopback connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import closing
from socket import socket
from typing import Any
from unittest.mock import patch

import pytest
from twisted.internet.defer import ensureDeferred
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import TestCase

from pubsub import client as asyncio_client
from pubsub.client import (
    ClientClosed,
    ConnectFailed,
    HistoryNeeded,
    Message,
    MessageBatch,
    NotExpressible,
    ReaderHeld,
    RequestRefused,
    SubscriptionRefused,
    api_requests,
    blocking,
)
from pubsub.client import twisted as twisted_client
from pubsub.testing import start_broker

Scenario = Callable[[Callable[..., Any]], Coroutine[Any, Any, Any]]
SECONDS = 60.0


async def in_both(scenario: Scenario) -> None:
    """Run ``scenario`` with the client on Twisted and with that on asyncio."""
    await ensureDeferred(scenario(twisted_client.connect))

    def run() -> None:
        asyncio.run(asyncio.wait_for(scenario(asyncio_client.connect), SECONDS))

    await deferToThread(run)


class LastMessageTests(TestCase):
    """Client.last"""

    async def test_the_last_messages(self) -> None:
        broker = start_broker(self)

        async def scenario(connect: Callable[..., Any]) -> None:
            async with connect(broker.url("nsd"), api=broker.url("http")) as client:
                await client.publish_many("t", ["a", "b", "c"], confirm=True)
                assert [one.payload for one in await client.last("t", count=2)] == [b"b", b"c"]
                assert await client.last("empty") == []
                with pytest.raises(RequestRefused, match="at most 1000"):
                    await client.last("t", count=2000)
                with pytest.raises(TypeError):
                    await client.last("t", count=True)
                with pytest.raises(NotExpressible):
                    await client.last("t", count=0)

        await in_both(scenario)

    async def test_several_brokers(self) -> None:
        """The one that has answered is asked first from then on."""
        broker = start_broker(self)

        async def scenario(connect: Callable[..., Any]) -> None:
            with closing(socket()) as other:
                other.bind(("127.0.0.1", 0))
                down = f"http://127.0.0.1:{other.getsockname()[1]}"
                async with connect([down, broker.url("http")]) as client:
                    await client.last("t")
                    other.listen()
                    other.setblocking(False)
                    await client.last("t")
                    with pytest.raises(BlockingIOError):
                        other.accept()

        await in_both(scenario)

    async def test_no_broker_answers(self) -> None:
        async def scenario(connect: Callable[..., Any]) -> None:
            with closing(socket()) as one, closing(socket()) as two:
                urls = []
                for down in (one, two):
                    down.bind(("127.0.0.1", 0))
                    urls.append(f"http://127.0.0.1:{down.getsockname()[1]}")
                async with connect(urls) as client:
                    with pytest.raises(ConnectFailed) as caught:
                        await client.last("t")
                text = "; ".join(f"{url}: connection refused" for url in urls)
                assert str(caught.value) == text

        await in_both(scenario)

    async def test_the_client_is_closed_meanwhile(self) -> None:
        async def scenario(connect: Callable[..., Any]) -> None:
            with closing(socket()) as silent:
                silent.bind(("127.0.0.1", 0))
                silent.listen()
                client = connect(f"http://127.0.0.1:{silent.getsockname()[1]}")
                on_twisted = connect is twisted_client.connect
                start: Any = ensureDeferred if on_twisted else asyncio.ensure_future
                last = start(client.last("t"))
                # It waits for the reply then.
                await client._runtime.pause()
                await client.close()
                with pytest.raises(ClientClosed, match="the client was closed"):
                    await last

        await in_both(scenario)

    async def test_a_reply_that_is_too_long(self) -> None:
        broker = start_broker(self)
        limit = patch.object(api_requests, "_MOST_BYTES", 3000)
        limit.start()
        self.addCleanup(limit.stop)

        async def scenario(connect: Callable[..., Any]) -> None:
            async with connect(broker.url("http")) as client:
                await client.publish_many("t", ["x" * 1000] * 3, confirm=True)
                with pytest.raises(ConnectFailed, match="more than 3000 bytes; ask for fewer"):
                    await client.last("t", 3)
                assert len(await client.last("t")) == 1

        await in_both(scenario)

    async def test_another_api(self) -> None:
        broker = start_broker(self)

        async def scenario(connect: Callable[..., Any]) -> None:
            async with connect(broker.url("cafe"), api=broker.url("nsd")) as client:
                with pytest.raises(HistoryNeeded, match="last is not for nsd"):
                    await client.last("cafe/7")
            async with connect(broker.url("cafe"), api="") as client:
                with pytest.raises(HistoryNeeded, match="for last name"):
                    await client.last("cafe/7")

        await in_both(scenario)


class ReaderTests(TestCase):
    """Client.subscribe with reader="""

    async def test_a_reader_continues_behind_its_commit(self) -> None:
        broker = start_broker(self)

        async def scenario(connect: Callable[..., Any]) -> None:
            name = connect.__module__
            async with connect(broker.url("http")) as client:
                async with client.subscribe("t", reader=name) as messages:
                    await client.publish_many("t", ["a", "b", "c", "d"], confirm=True)
                    async for message in messages:
                        if message.payload == b"a":
                            break
                    await messages.commit()
                async with client.subscribe("t", reader=name) as messages:
                    assert (await anext(messages)).payload == b"b"
                    await messages.commit()
                async with client.subscribe("t", reader=name) as messages:
                    async for batch in messages.batches():
                        assert batch.payloads == [b"c", b"d"]
                        break
                    await messages.commit()
                with pytest.raises(ClientClosed):
                    await messages.commit()
                async with client.subscribe("t", reader=name) as messages:
                    await client.publish("t", "e", confirm=True)
                    batch = await messages.next_whole()
                    assert batch.payloads == [b"e"]

        await in_both(scenario)

    async def test_messages_between_those_of_other_topics(self) -> None:
        """The broker sends several in a frame, and leaves those of other topics out."""
        broker = start_broker(self)

        async def scenario(connect: Callable[..., Any]) -> None:
            name = connect.__module__
            async with connect(broker.url("http")) as client:
                async with client.subscribe("t", reader=name) as messages:
                    for number in range(12):
                        await client.publish("u" if number % 3 else "t", b"%d" % number)
                    await client.flush()
                    assert (await anext(messages)).payload == b"0"
                    assert (await anext(messages)).payload == b"3"
                    await messages.commit()
                async with client.subscribe("t", reader=name) as messages:
                    batch = await messages.next_item()
                    assert batch.payloads[0] == b"6"
                    while batch.payloads[-1] != b"9":
                        batch = await messages.next_item()
                    await messages.commit()
                async with client.subscribe("t", reader=name) as messages:
                    await client.publish("t", "end")
                    assert (await anext(messages)).payload == b"end"

        await in_both(scenario)

    async def test_mistakes(self) -> None:
        broker = start_broker(self)

        async def scenario(connect: Callable[..., Any]) -> None:
            async with connect(broker.url("http")) as client:
                for topics, more in ((("a", "b"), {}), (("a",), {"reader": ""})):
                    with pytest.raises(NotExpressible):
                        client.subscribe(*topics, **{"reader": "r", **more})
                with pytest.raises(TypeError):
                    client.subscribe("a", reader=7)
                with pytest.raises(SubscriptionRefused, match="the history ends at"):
                    async with client.subscribe("a", reader="r", start=10**6):
                        pass
                async with client.subscribe("a") as messages:
                    with pytest.raises(NotExpressible, match="has no reader"):
                        await messages.commit()

        await in_both(scenario)

    async def test_the_client_is_closed_before_the_beginning(self) -> None:
        """The name is held, so that the subscription waits."""
        broker = start_broker(self)

        async def scenario(connect: Callable[..., Any]) -> None:
            name = connect.__module__
            async with connect(broker.url("http")) as other, other.subscribe("t", reader=name):
                for wait in ("accepted", "__anext__"):
                    client = connect(broker.url("http"))
                    messages = client.subscribe("t", reader=name)
                    waiting = getattr(messages, wait)()
                    await client.close()
                    with pytest.raises(ClientClosed, match="the client was closed"):
                        await waiting

        await in_both(scenario)

    async def test_several_brokers(self) -> None:
        """Those that are away are passed over, and the reader stays at the one that answers."""
        broker = start_broker(self)

        async def scenario(connect: Callable[..., Any]) -> None:
            name = connect.__module__
            with closing(socket()) as other, closing(socket()) as third:
                other.bind(("127.0.0.1", 0))
                third.bind(("127.0.0.1", 0))
                down, away = (f"http://127.0.0.1:{one.getsockname()[1]}" for one in (other, third))
                async with connect([down, away]) as client:
                    with pytest.raises(ConnectFailed, match=f"{down}: .*; {away}: "):
                        await client.subscribe("t", reader=name).accepted()
                async with connect([down, broker.url("http"), away]) as client:
                    async with client.subscribe("t", reader=name) as messages:
                        other.listen()
                        other.setblocking(False)
                        await client.publish("t", "a", confirm=True)
                        assert (await anext(messages)).payload == b"a"
                        await messages.commit()
                    async with client.subscribe("t", reader=name) as messages:
                        await messages.commit()
                    with pytest.raises(BlockingIOError):
                        other.accept()

        await in_both(scenario)

    async def test_a_commit_after_an_error(self) -> None:
        """It says why the subscription has ended."""
        broker = start_broker(self)

        async def scenario(connect: Callable[..., Any]) -> None:
            async with connect(broker.url("http")) as client:
                messages = client.subscribe("t", reader=connect.__module__)
                await messages.accepted()
                await client.publish("t", "a")
                await anext(messages)
                messages._feed.end(SubscriptionRefused("the topic was deleted"))
                for call in (messages.__anext__, messages.commit, messages.commit):
                    with pytest.raises(SubscriptionRefused, match="the topic was deleted"):
                        await call()
                    messages.close()

        await in_both(scenario)

    async def test_a_name_that_is_held(self) -> None:
        broker = start_broker(self)

        def work() -> None:
            with blocking.connect(broker.url("http")) as client:
                with client.subscribe("a", reader="r"), pytest.raises(ReaderHeld):
                    client.subscribe("a", reader="r")
                client.subscribe("a", reader="r").close()

        await deferToThread(work)

    async def test_without_an_event_loop(self) -> None:
        broker = start_broker(self)

        def work() -> None:
            with blocking.connect(broker.url("http")) as client:
                client.publish_many("t", ["a", "b", "c", "d"], confirm=True)
                assert [one.payload for one in client.last("t", 2)] == [b"c", b"d"]
                with client.subscribe("t", reader="r", start=0) as messages:
                    message = messages.next(SECONDS)
                    assert isinstance(message, Message)
                    assert message.payload == b"a"
                    messages.commit()
                with client.subscribe("t", reader="r") as messages:
                    for one in messages:
                        assert one.payload == b"b"
                        break
                    messages.commit()
                with client.subscribe("t", reader="r") as messages:
                    batch = messages.next_item(SECONDS)
                    assert isinstance(batch, MessageBatch)
                    assert batch.payloads == [b"c", b"d"]

        await deferToThread(work)
