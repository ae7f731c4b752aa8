"""The shells of the client library with a broker in this process, over loopback connections.

The client on Twisted runs in the reactor beside the broker; the others run in a thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import islice
from pathlib import Path
from time import time
from typing import Any, assert_type
from unittest.mock import patch

import pytest
import trustme
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.threads import deferToThread
from twisted.logger import LogEvent, formatEvent, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase, TestCase

from pubsub import client as asyncio_client
from pubsub.client import (
    ClientClosed,
    ClientError,
    ConnectFailed,
    Disconnected,
    HistoryNeeded,
    InvalidTopic,
    Level,
    MessageBatch,
    NotExpressible,
    SubscriptionRefused,
    TopicNotAddressable,
    Unconfirmable,
    blocking,
    loop_thread,
)
from pubsub.client import twisted as twisted_client
from pubsub.client.client_tls import TlsOptions
from pubsub.protocols.cafe.codec import MAX_MESSAGE
from pubsub.testing import LocalBroker, start_broker
from tests.unit.fakes import scratch
from tests.unit.raising import raised

Scenario = Callable[[Callable[..., Any]], Coroutine[Any, Any, Any]]
SECONDS = 60.0
# More than a transport and a feed hold at once.
LARGE = [bytes([65 + number % 26]) * 60_000 for number in range(60)]


async def in_reactor(scenario: Scenario) -> Any:
    """Return the result of ``scenario`` with the client on Twisted."""
    return await ensureDeferred(scenario(twisted_client.connect))


async def in_loop(scenario: Scenario) -> Any:
    """Return the result of ``scenario`` with the client on asyncio."""

    def run() -> Any:
        return asyncio.run(asyncio.wait_for(scenario(asyncio_client.connect), SECONDS))

    return await deferToThread(run)


async def in_both(scenario: Scenario) -> list[Any]:
    """Return the results of ``scenario`` in both shells that have coroutines."""
    return [await in_reactor(scenario), await in_loop(scenario)]


def unused(broker: LocalBroker) -> Deferred[Any]:
    """Stop ``broker``, so that its ports refuse connections."""
    return broker.stop()


class CoroutineTests(TestCase):
    """The client on Twisted and on asyncio"""

    timeout = SECONDS

    async def test_messages_arrive_and_are_confirmed(self) -> None:
        broker = start_broker(self)

        async def scenario(connect: Callable[..., Any]) -> list[Any]:
            async with (
                connect(broker.url("cafe"), client_id="bob") as client,
                client.subscribe("cafe/7", "cafe/8") as messages,
            ):
                assert await client.publish_many("cafe/7", []) is None
                assert await client.publish("cafe/7", "one", confirm=True) is Level.HANDLED
                assert await client.publish("cafe/8", b"two") is None
                await client.flush()
                return [await anext(messages) for _ in range(2)]

        for found in await in_both(scenario):
            assert [(one.topic, one.payload) for one in found] == [
                ("cafe/7", b"one"),
                ("cafe/8", b"two"),
            ]

    async def test_more_than_a_feed_and_a_queue_hold(self) -> None:
        broker = start_broker(self)

        async def scenario(connect: Callable[..., Any]) -> list[bytes]:
            limits = {"queue_bytes": 200_000, "feed_bytes": 100_000}
            async with (
                connect(broker.url("spot"), client_id="bob", **limits) as client,
                client.subscribe("large") as messages,
            ):
                for payload in LARGE:
                    await client.publish("large", payload)
                await client.flush()
                found: list[bytes] = []
                async for batch in messages.batches():
                    assert batch.topic == "large"
                    assert batch.nbytes == sum(map(len, batch.payloads))
                    found += batch.payloads
                    if len(found) == len(LARGE):
                        return found
            return []

        assert await in_both(scenario) == [LARGE, LARGE]

    async def test_a_loop_that_was_left_does_not_stop_other_subscriptions(self) -> None:
        """Nothing references its subscription any more."""
        broker = start_broker(self)

        async def scenario(connect: Callable[..., Any]) -> list[bytes]:
            async with (
                connect(broker.url("spot"), feed_bytes=100_000) as client,
                client.subscribe("small") as messages,
            ):
                large = client.subscribe("large")
                await large.accepted()
                await client.publish("large", b"x")
                async for _ in large:
                    break
                del large
                await client.publish_many("large", LARGE)
                await client.publish("small", b"y")
                found = await messages.next_item(SECONDS)
                payloads: list[bytes] = found.payloads
                return payloads

        assert await in_both(scenario) == [[b"y"], [b"y"]]

    async def test_the_wait_for_a_message_ends(self) -> None:
        broker = start_broker(self)

        async def scenario(connect: Callable[..., Any]) -> None:
            async with connect(broker.url("spot"), client_id="bob") as client:
                messages = client.subscribe(prefixes=["a"])
                await messages.accepted()
                with pytest.raises(TimeoutError, match=r"no message within 0\.01 s"):
                    await messages.next_item(0.01)
                await client.publish("abc", "x", confirm=True)
                found = await messages.next_item(SECONDS)
                assert isinstance(found, MessageBatch)
                assert (found.topic, found.columns.payloads()) == ("abc", [b"x"])
                messages.close()
                assert [one async for one in messages] == []
            with pytest.raises(ClientClosed):
                await client.publish("abc", "x")
            await client.close()

        await in_both(scenario)

    async def test_the_history_is_read_from_an_offset(self) -> None:
        broker = start_broker(self)

        async def scenario(connect: Callable[..., Any]) -> list[Any]:
            api = broker.url("http")
            async with connect(broker.url("nsd"), client_id="bob", api=api) as client:
                await client.publish_many("past", [b"a", b"b"], confirm=Level.STORED)
                async with client.subscribe("past", start=0) as messages:
                    return [await anext(messages) for _ in range(2)]

        for found in await in_both(scenario):
            assert [one.payload for one in found] == [b"a", b"b"]
            assert found[1].offset == found[0].offset + 1

    async def test_a_connection_is_not_in_the_log_of_the_program(self) -> None:
        broker = start_broker(self)
        events: list[LogEvent] = []
        observer: Any = events.append
        globalLogPublisher.addObserver(observer)
        self.addCleanup(globalLogPublisher.removeObserver, observer)

        async def scenario(connect: Callable[..., Any]) -> None:
            async with connect(broker.url("cafe")) as client:
                await client.publish("cafe/7", b"x", confirm=True)

        await in_reactor(scenario)
        texts = [formatEvent(one) for one in events]
        assert not [text for text in texts if "factory" in text.lower()]

    async def test_a_broker_that_cannot_be_reached(self) -> None:
        broker = start_broker(self)
        url = broker.url("nsd")
        await unused(broker)

        async def scenario(connect: Callable[..., Any]) -> None:
            client = connect(url, client_id="bob")
            with pytest.raises(ConnectFailed, match=r"connection refused"):
                await client.publish("t", b"x", confirm=True)
            with pytest.raises(ConnectFailed):
                async with client.subscribe("t"):
                    pass
            await client.close(flush=False)

        await in_both(scenario)

    async def test_requests_that_cannot_be_made(self) -> None:
        broker = start_broker(self)

        async def scenario(connect: Callable[..., Any]) -> None:
            async with connect(broker.url("cafe"), client_id="bob") as cafe:
                with pytest.raises(TopicNotAddressable, match="nsd"):
                    await cafe.publish("orders", b"")
                with pytest.raises(NotExpressible, match="bytes are more than"):
                    await cafe.publish("cafe/7", bytes(MAX_MESSAGE + 1))
                with pytest.raises(Unconfirmable):
                    await cafe.publish("cafe/7", b"", confirm=Level.STORED)
                with pytest.raises(NotExpressible, match="sender"):
                    await cafe.publish("cafe/7", b"", sender="bob")
                with pytest.raises(NotExpressible, match="headers"):
                    await cafe.publish("cafe/7", b"", headers={"a": b"b"})
                for topic in ("", "x" * 256, "\ud800"):
                    with pytest.raises(InvalidTopic):
                        await cafe.publish(topic, b"")
                with pytest.raises(HistoryNeeded, match="PUBSUB_API"):
                    cafe.subscribe("cafe/7", start=0)
                with pytest.raises(NotExpressible, match="offset"):
                    cafe.subscribe("cafe/7", start=-1)
                with pytest.raises(NotExpressible, match="prefixes"):
                    cafe.subscribe(prefixes=["cafe/"])
                with pytest.raises(NotExpressible, match="at least one"):
                    cafe.subscribe()
                assert repr(cafe) == f"<Client of {broker.url('cafe')}>"

        await in_reactor(scenario)

    async def test_the_durability_of_a_topic_is_asked_for(self) -> None:
        store = f"log:{scratch(self)}"
        broker = start_broker(self, store=store, durability=["cafe/8=sync"])

        async def scenario(connect: Callable[..., Any]) -> None:
            async with connect(broker.url("cafe"), api=broker.url("http")) as client:
                assert await client.publish("cafe/8", b"", confirm=Level.HANDLED) is Level.HANDLED
                for _ in range(2):
                    with pytest.raises(Unconfirmable, match="nsd, rheos or http"):
                        await client.publish("cafe/8", b"", confirm=True)
                assert await client.publish("cafe/7", b"", confirm=True) is Level.HANDLED
                await client.publish("cafe/8", b"")
            async with connect(broker.url("cafe"), api=broker.url("nsd")) as client:
                assert await client.publish("cafe/8", b"", confirm=True) is Level.HANDLED

        await in_both(scenario)

    async def test_a_subscription_that_is_refused(self) -> None:
        broker = start_broker(self)
        token = broker.token("publish")

        async def scenario(connect: Callable[..., Any]) -> None:
            async with connect(broker.url("fast"), token=token) as client:
                with pytest.raises(SubscriptionRefused, match="'secret' was refused"):
                    async with client.subscribe("secret"):
                        pass

        await in_both(scenario)

    async def test_a_cancelled_attempt(self) -> None:
        broker = start_broker(self)

        async def scenario(connect: Callable[..., Any]) -> None:
            client = connect(broker.url("nsd"), client_id="bob")
            client.subscribe("t")
            await client.close(flush=False)
            with pytest.raises(ClientClosed):
                await client.publish("t", b"x")

        await in_both(scenario)


class TokenTests(TestCase):
    """Tokens that expire while the client is connected"""

    timeout = SECONDS

    async def in_both(self, renew: bool) -> None:
        broker = start_broker(self)
        file = scratch(self) / "token"

        async def scenario(connect: Callable[..., Any]) -> None:
            # It has to be valid until the client is connected, but only if there is another.
            file.write_text(broker.token(expires=4 if renew else 2))
            ends = time() + 4
            async with (
                connect(broker.url("http"), token_file=file) as client,
                client.subscribe("news", events=True) as messages,
            ):
                if not renew:
                    assert type(await messages.next_item(SECONDS)) is Disconnected
                    await messages.next_item(SECONDS)
                file.write_text(broker.token())
                # The broker looks for tokens that have ended once a second.
                while time() < ends + 2:
                    await client.publish("news", b"x", confirm=True)
                    assert type(await messages.next_item(SECONDS)) is MessageBatch

        await in_both(scenario)

    async def test_the_file_has_another_one_by_then(self) -> None:
        """No message is refused, and no connection ends."""
        await self.in_both(True)

    async def test_the_file_has_the_same(self) -> None:
        with pytest.raises(ConnectFailed) as caught:
            await self.in_both(False)
        assert caught.value.refused


class TlsTests(TestCase):
    """TLS in all shells"""

    timeout = SECONDS

    def setUp(self) -> None:
        directory = scratch(self)
        authority = trustme.CA()
        self.ca = self.write(directory / "ca.pem", authority.cert_pem.bytes())
        self.other = self.write(directory / "other.pem", trustme.CA().cert_pem.bytes())
        served = authority.issue_cert("localhost").private_key_and_cert_chain_pem.bytes()
        self.own = self.write(directory / "own.pem", served)
        between = authority.create_child_ca()
        self.between = self.write(directory / "between.pem", between.cert_pem.bytes())
        issued = between.issue_cert("localhost").private_key_and_cert_chain_pem.bytes()
        self.issued = self.write(directory / "issued.pem", issued)
        endpoint = f"ssl:0:interface=127.0.0.1:privateKey={self.own}:certKey={self.own}"
        self.broker = start_broker(self, listen=[{"protocol": "nsd", "endpoint": endpoint}])
        self.port = self.broker.address("nsd")[1]

    def write(self, path: Path, content: bytes) -> str:
        path.write_bytes(content)
        return str(path)

    async def test_names_and_chains_are_verified(self) -> None:
        async def publish(connect: Callable[..., Any], host: str, **files: str) -> Any:
            async with connect(f"nsd+tls://{host}:{self.port}", client_id="bob", **files) as client:
                return await client.publish("t", b"x", confirm=True)

        async def scenario(connect: Callable[..., Any]) -> None:
            assert await publish(connect, "localhost", tls_ca=self.ca) is Level.STORED
            own = {"tls_ca": self.ca, "tls_cert": self.own}
            assert await publish(connect, "localhost", **own) is Level.STORED
            with pytest.raises(ConnectFailed, match=r"TLS(: | failed: ).*certificate"):
                await publish(connect, "localhost", tls_ca=self.other)
            with pytest.raises(ConnectFailed, match=r"certificate is (not valid|for another name)"):
                await publish(connect, "127.0.0.1", tls_ca=self.ca)

        await in_both(scenario)

    async def test_an_intermediate_authority_is_trusted_without_its_root(self) -> None:
        """Neither are others of the root; a certificate of none is trusted alone."""
        for trusted, good, bad in (
            (self.between, self.issued, self.own),
            (self.own, self.own, self.issued),
        ):
            port = self.verifying(good, trusted)

            async def scenario(
                connect: Callable[..., Any], port: int, trusted: str, good: str, bad: str
            ) -> None:
                url = f"nsd+tls://localhost:{port}"
                async with connect(url, tls_ca=trusted, tls_cert=good) as client:
                    assert await client.publish("t", b"x", confirm=True) is Level.STORED
                for files in (
                    {"tls_ca": trusted, "tls_cert": bad},
                    {"tls_ca": self.other, "tls_cert": good},
                ):
                    with pytest.raises(ClientError):
                        async with connect(url, **files) as client:
                            await client.publish("t", b"x", confirm=True)

            await in_both(partial(scenario, port=port, trusted=trusted, good=good, bad=bad))

    def verifying(self, own: str, authorities: str) -> int:
        """Return the port of a broker that requires certificates of clients."""
        files = {"tls-cert": own, "tls-ca": authorities, "tls-client": "required"}
        broker = start_broker(self, listen=[{"protocol": "nsd", "port": 0, **files}])
        return broker.address("nsd")[1]

    async def test_the_authorities_are_not_read_in_the_loop(self) -> None:
        """There, the program would stand still at each connection."""
        threads: list[threading.Thread] = []
        context = TlsOptions.context

        def read(options: TlsOptions) -> Any:
            threads.append(threading.current_thread())
            return context(options)

        async def scenario(connect: Callable[..., Any]) -> None:
            url = f"nsd+tls://localhost:{self.port}"
            async with connect(url, client_id="bob", tls_ca=self.ca) as client:
                await client.publish("t", b"x", confirm=True)
            assert threads
            assert threading.current_thread() not in threads

        with patch.object(TlsOptions, "context", read):
            await in_loop(scenario)

    async def test_files_that_cannot_be_used(self) -> None:
        empty = self.write(scratch(self) / "empty.pem", b"")
        url = f"nsd+tls://localhost:{self.port}"

        async def scenario(connect: Callable[..., Any]) -> None:
            for name, files in (
                ("cert", {"tls_ca": self.ca, "tls_cert": empty}),
                ("cert", {"tls_ca": self.ca, "tls_cert": self.ca, "tls_key": self.own}),
                ("ca", {"tls_ca": empty}),
            ):
                with pytest.raises(ConnectFailed, match=rf"tls.({name}|key):? .*\.pem"):
                    async with connect(url, client_id="bob", **files) as client:
                        await client.publish("t", b"x", confirm=True)

        await in_both(scenario)

    async def test_a_port_without_tls(self) -> None:
        plain = start_broker(self, listen=[{"protocol": "nsd", "port": 0}])
        url = plain.url("nsd").replace("nsd://", "nsd+tls://")

        async def scenario(connect: Callable[..., Any]) -> None:
            with pytest.raises(ConnectFailed, match="the port does not speak TLS"):
                async with connect(url, client_id="bob", tls_ca=self.ca) as client:
                    await client.publish("t", b"x", confirm=True)

        await in_both(scenario)


class OtherLoopTests(TestCase):
    """A client on asyncio that is used outside of its loop"""

    timeout = SECONDS

    async def test_each_request_is_an_error_and_changes_nothing(self) -> None:
        broker = start_broker(self)

        async def elsewhere(work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
            with pytest.raises(RuntimeError, match="belongs to the event loop in which"):
                await work()

        async def scenario(connect: Callable[..., Any]) -> Any:
            client = connect(broker.url("cafe"))
            async with client, client.subscribe("cafe/7") as messages:
                for work in (
                    lambda: client.publish("cafe/7", b"x"),
                    lambda: client.publish("cafe/7", b"x", confirm=True),
                    lambda: client.publish_many("cafe/8", [b"x" * 1000] * 1000),
                    client.flush,
                    client.close,
                    messages.next_item,
                ):
                    # Used once, so that there is a short way for publish_many.
                    await client.publish("cafe/8", b"", confirm=True)
                    await asyncio.to_thread(asyncio.run, elsewhere(work))
                await client.publish("cafe/7", b"last")
                return (await anext(messages)).payload

        assert await in_loop(scenario) == b"last"


class BlockingTests(TestCase):
    """The client without an event loop"""

    timeout = SECONDS

    async def test_it_publishes_and_subscribes(self) -> None:
        broker = start_broker(self)

        def work() -> None:
            with blocking.connect(broker.url("nsd"), client_id="bob") as client:
                assert repr(client) == f"<Client of {broker.url('nsd')}>"
                with client.subscribe("orders", events=True) as messages:
                    level = client.publish("orders", "one", confirm=True)
                    assert assert_type(level, Level) is Level.STORED
                    first = messages.next(SECONDS)
                    assert first is not None
                    assert first.payload == b"one"  # type: ignore[union-attr]
                    client.publish_many("orders", [b"two", b"three", b"four"])
                    client.flush()
                    found: list[bytes] = []
                    for batch in messages.batches():
                        found += batch.payloads  # type: ignore[union-attr]
                        if len(found) == 3:
                            break
                    assert found == [b"two", b"three", b"four"]
                    client.publish_many("orders", [b"five", b"six"])
                    iterator = iter(messages)
                    assert [next(iterator).payload for _ in range(2)] == [b"five", b"six"]  # type: ignore[union-attr]
                    with pytest.raises(TimeoutError):
                        messages.next(0.01)
                assert messages.next() is None
                assert list(messages) == []

        await deferToThread(work)

    async def test_a_batch_is_taken_one_by_one(self) -> None:
        broker = start_broker(self)

        def work() -> None:
            with blocking.connect(broker.url("nsd"), client_id="bob") as client:
                client.publish_many("t", [b"%d" % number for number in range(50)], confirm=True)
                with blocking.connect(broker.url("http")) as reader:
                    messages = reader.subscribe("t", start=0)
                    found = [messages.next(SECONDS) for _ in range(50)]
                assert [one.payload for one in found] == [b"%d" % n for n in range(50)]  # type: ignore[union-attr]

        await deferToThread(work)

    async def test_a_loop_that_was_left_does_not_stop_other_subscriptions(self) -> None:
        """Nothing references its subscription any more."""
        broker = start_broker(self)

        def work() -> None:
            with (
                blocking.connect(broker.url("spot"), feed_bytes=100_000) as client,
                client.subscribe("small") as messages,
            ):
                large = client.subscribe("large")
                client.publish("large", b"x")
                for _ in large:
                    break
                del large
                client.publish_many("large", LARGE)
                client.publish("small", b"y")
                found = messages.next(SECONDS)
                assert found is not None
                assert found.payload == b"y"

        await deferToThread(work)

    async def test_a_loop_that_ends_early_leaves_the_rest_of_its_batch(self) -> None:
        broker = start_broker(self)

        def work() -> None:
            with blocking.connect(broker.url("nsd"), client_id="bob") as client:
                client.publish_many("t", [b"%d" % number for number in range(5)], confirm=True)
                with blocking.connect(broker.url("http")) as reader:
                    messages = reader.subscribe("t", start=0)
                    found = [next(iter(messages)), messages.next(SECONDS)]
                    found += islice(messages, 3)
                assert [one.payload for one in found] == [b"%d" % n for n in range(5)]  # type: ignore[union-attr]

        await deferToThread(work)

    async def test_many_requests_in_one_call(self) -> None:
        broker = start_broker(self)

        async def both(client: asyncio_client.Client) -> list[Level | None]:
            return [await client.publish("t", text, confirm=True) for text in ("a", "b")]

        def work() -> list[Level | None]:
            with blocking.connect(broker.url("nsd"), client_id="bob") as client:
                return client.call(both)

        assert await deferToThread(work) == [Level.STORED, Level.STORED]

    async def test_errors_reach_the_caller(self) -> None:
        broker = start_broker(self)
        url = broker.url("nsd")
        await unused(broker)

        def work() -> None:
            client = blocking.connect(url, client_id="bob")
            with pytest.raises(ConnectFailed):
                client.subscribe("t")
            with pytest.raises(ConnectFailed):
                client.publish("t", b"x", confirm=True)
            client.close(flush=False)
            with pytest.raises(ClientClosed):
                client.publish("t", b"x")

        await deferToThread(work)


class NoLoopTests(SynchronousTestCase):
    """connect outside of asyncio"""

    def test_the_error_names_the_client_without_a_loop(self) -> None:
        with pytest.raises(RuntimeError, match=r"use pubsub\.client\.blocking"):
            asyncio_client.connect("cafe://127.0.0.1:1")


class LoopThreadTests(TestCase):
    """loop_thread"""

    def test_all_clients_of_a_process_share_one(self) -> None:
        own = loop_thread.loop_thread()
        assert loop_thread.loop_thread() is own
        assert own.pid == os.getpid()

    def test_a_forked_process_starts_its_own(self) -> None:
        own = loop_thread.loop_thread()
        self.addCleanup(setattr, loop_thread, "_current", own)
        patched = patch.object(own, "pid", -1)
        patched.start()
        self.addCleanup(patched.stop)
        # As in a child that was forked while another thread had the lock.
        loop_thread._lock.acquire()
        loop_thread._forget_lock()
        other = loop_thread.loop_thread()
        assert other is not own

        async def where() -> str:
            return threading.current_thread().name

        assert other.run(where()) == "pubsub-client"

    async def test_a_client_does_not_survive_a_fork(self) -> None:
        broker = start_broker(self)

        def work() -> None:
            with blocking.connect(broker.url("cafe")) as client, client.subscribe("cafe/7") as feed:
                with patch.object(client._thread, "pid", -1):
                    for use in (lambda: client.publish("cafe/7", b"x"), feed.next, client.flush):
                        assert "forked" in str(raised(ClientClosed, use))
                    # The connections are those of the parent.
                    feed.close()
                    client.close()
                client.publish("cafe/7", b"x")
                assert feed.next(SECONDS) is not None

        await deferToThread(work)

    def test_a_blocking_client_in_the_thread_of_the_loop(self) -> None:
        client = blocking.connect("cafe://127.0.0.1:9")

        async def publish() -> None:
            client.publish("cafe/7", b"x")

        error = raised(RuntimeError, client.call, lambda _: publish())
        assert str(error) == "a blocking client cannot be used in on_event and call"

    def test_errors_of_the_work(self) -> None:
        async def fail() -> None:
            raise KeyError("a")

        assert raised(KeyError, loop_thread.loop_thread().run, fail()).args == ("a",)
