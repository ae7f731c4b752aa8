"""``pubsub.testing.start_broker`` and ``pubsub.embed`` in a TestCase of trial."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import cast
from urllib.parse import urlsplit

import jwt
import trustme
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, connectProtocol
from twisted.internet.interfaces import IPushProducer, ITCPTransport
from twisted.internet.protocol import Protocol
from twisted.internet.threads import deferToThread
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

import pubsub.client.twisted
from pubsub.embed import NotServed, embed
from pubsub.errors import ConfigurationError, StartError
from pubsub.testing import LocalBroker, start_broker
from tests.unit.fakes import scratch
from tests.unit.raising import raised
from tests.unit.streams import logged
from tests.unit.tokens import KEY


class Answer(Protocol):
    """A client that keeps the first answer."""

    def __init__(self) -> None:
        self.answer: Deferred[bytes] = Deferred()
        self.lost: Deferred[None] = Deferred()

    def dataReceived(self, data: bytes) -> None:
        if not self.answer.called:
            self.answer.callback(data)

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        self.lost.callback(None)


async def connect(broker: LocalBroker, protocol: str) -> Answer:
    """Connect to the listener of ``protocol``."""
    host, port = broker.address(protocol)
    endpoint = clientFromString(reactor, f"tcp:{host}:{port}")
    made: Answer = await connectProtocol(endpoint, Answer())
    return made


class StartBrokerTests(TestCase):
    """Brokers on free ports"""

    async def test_another_thread_cannot_stop_one(self) -> None:
        broker = start_broker(self)
        problem = await deferToThread(lambda: str(raised(RuntimeError, broker.stop)))
        assert "leave the block" in problem
        assert broker.service.running

    async def test_the_urls_of_listeners_with_tls(self) -> None:
        authority = trustme.CA()
        directory = scratch(self)
        ca, own = directory / "ca.pem", directory / "own.pem"
        ca.write_bytes(authority.cert_pem.bytes())
        own.write_bytes(authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.bytes())
        own.chmod(0o600)
        broker = start_broker(self, tls_cert=str(own))
        assert broker.urls["http"].startswith("https://127.0.0.1:")
        for protocol in ("cafe", "nsd", "rheos", "spot"):
            assert broker.url(protocol).startswith(f"{protocol}+tls://127.0.0.1:")
            async with pubsub.client.twisted.connect(broker.url(protocol), tls_ca=ca) as client:
                assert await client.publish("cafe/7", b"x", confirm=True) is not None

    async def test_it_serves_nsd(self) -> None:
        client = await connect(start_broker(self), "nsd")
        assert client.transport is not None
        client.transport.write(b"{}\n")
        assert b"Error" in await client.answer
        client.transport.loseConnection()
        await client.lost

    async def test_clients_that_could_resume_keep_no_timers(self) -> None:
        """Trial reports timers that are left."""
        broker = start_broker(self)
        for protocol in ("cafe", "nsd", "rheos", "spot"):
            async with (
                pubsub.client.twisted.connect(broker.url(protocol), client_id="bob") as client,
                client.subscribe("cafe/7"),
            ):
                pass

    async def test_its_threads_end_with_it(self) -> None:
        before = set(threading.enumerate())
        broker = start_broker(self)
        client = await connect(broker, "http")
        assert client.transport is not None
        # The end of the response is made in a thread, even that of an empty history.
        client.transport.write(
            b"GET /v1/history?start=0&format=jsonl HTTP/1.1\r\n"
            b"Host: 127.0.0.1\r\nConnection: close\r\n\r\n"
        )
        await client.lost
        own = set(threading.enumerate()) - before
        assert own
        await broker.stop()
        for thread in own:
            thread.join(10)
        assert not any(thread.is_alive() for thread in own)

    async def test_connections_that_stay_open_are_reported(self) -> None:
        broker = start_broker(self)
        client = await connect(broker, "nsd")
        assert client.transport is not None
        client.transport.write(b"{}\n")
        await client.answer
        transport = cast(ITCPTransport, client.transport)
        cast(IPushProducer, transport).pauseProducing()
        assert await broker.stop() == 1
        transport.abortConnection()
        await client.lost

    def test_urls(self) -> None:
        broker = start_broker(self, listen=[{"protocol": "spot", "port": 0}])
        host, port = broker.address("spot")
        assert broker.urls["spot"] == broker.url("spot") == f"spot://{host}:{port}"
        assert repr(broker) == f"<LocalBroker {broker.url('spot')} {broker.url('http')}>"
        error = raised(NotServed, broker.url, "cafe")
        assert str(error) == "cafe is not served; served: spot, http"

    def test_settings_have_hyphens_or_underscores(self) -> None:
        broker = start_broker(self, max_topics=700, nsd={"max_body": 9})
        settings = {one.protocol: one.settings for one in broker.service.broker.listeners}
        assert settings["nsd"]["max-body"] == 9
        assert "no such setting" in str(raised(ConfigurationError, start_broker, self, a_b=1))

    def test_names_keep_their_underscores(self) -> None:
        key = Path(self.enterContext(TemporaryDirectory())) / "key"
        key.write_bytes(KEY)
        key.chmod(0o600)
        broker = start_broker(
            self,
            listen=({"protocol": "nsd", "port": 0, "idle_timeout": 77},),
            keys=MappingProxyType({"my_key": {"secret_file": key}}),
            groups={"team_a": ["ada"]},
            access=[{"allow": "*", "group": "team_a", "without_key": True}],
        )
        (nsd,) = [one for one in broker.service.broker.listeners if one.protocol == "nsd"]
        assert nsd.settings["idle-timeout"] == 77
        assert "my_key" in [secret.id for secret in broker.service.broker.tokens.ring]

    def test_tokens(self) -> None:
        broker = start_broker(self)
        ring = broker.service.broker.tokens
        one = ring.check(broker.token("publish", queue_key="k", subject="ada").encode(), 0)
        assert (one.subject, one.queue_key) == ("ada", b"k")
        assert one.permissions == frozenset({"publish"})
        every = jwt.decode(
            broker.token("a", "b", expires=None, note="x"), options={"verify_signature": False}
        )
        assert every == {"queue_key": "test", "permissions": ["a", "b"], "note": "x"}
        assert "at most 255" in str(raised(ValueError, broker.token, subject="x" * 200))

    def test_a_failed_start_holds_nothing_open(self) -> None:
        taken = start_broker(self).address("cafe")[1]
        listen = [{"protocol": "nsd", "port": 0}, {"protocol": "cafe", "port": taken}]
        error = raised(StartError, start_broker, self, listen=listen)
        assert "cafe: cannot listen" in str(error)


class EmbedTests(TestCase):
    """The service"""

    async def test_it_starts_again(self) -> None:
        made = embed({"store": "memory", "listen": [{"protocol": "nsd", "port": 0}]})
        for _ in range(2):
            assert not made.running
            made.privilegedStartService()
            made.startService()
            made.startService()
            assert made.url("nsd").startswith("nsd://127.0.0.1:")
            assert len(made.addresses("nsd")) == 1
            first, second = made.stopService(), made.stopService()
            await second
            await first
        await made.stopService()

    async def test_a_failed_start_closes_all_files(self) -> None:
        path = self.enterContext(TemporaryDirectory())
        other = start_broker(self, store=f"log:{path}/history")
        settings = {"audit-log": f"{path}/audit"}
        taken = {"protocol": "nsd", "port": other.address("nsd")[1]}
        for store, listen, reason in (
            (f"log:{path}/history", {"protocol": "nsd", "port": 0}, "in use by another broker"),
            (f"log:{path}/other", taken, "nsd: cannot listen on"),
        ):
            made = embed({"store": store, "listen": [listen], **settings})
            lines = logged(self)
            assert reason in str(raised(StartError, made.startService))
            await made.stopService()
            assert any(line.startswith("stopped: 0 published") for line in lines)
            opened = [
                os.path.realpath(f"/proc/self/fd/{one}") for one in os.listdir("/proc/self/fd")
            ]
            assert f"{path}/audit" not in opened

    async def test_it_starts_again_while_it_stops(self) -> None:
        broker = embed({"store": "memory", "listen": [{"protocol": "nsd", "port": 0}]})
        broker.startService()
        host, port = urlsplit(broker.url("nsd")).netloc.split(":")
        endpoint = clientFromString(reactor, f"tcp:{host}:{port}")
        client = await connectProtocol(endpoint, Protocol())
        first = broker.stopService()
        assert not first.called
        broker.startService()
        second = broker.stopService()
        assert not broker.running
        # Both are waited for.
        third = broker.stopService()
        assert not second.called
        client.transport.loseConnection()
        for done in (first, second, third):
            await done
        await broker.stopService()

    async def test_a_reload(self) -> None:
        broker = start_broker(self).service
        counts = await broker.reload({"store": "memory"}, secrets={"new": KEY})
        assert counts == (0, 0)
        assert [secret.id for secret in broker.broker.tokens.ring] == ["new"]

    def test_short_secrets_are_refused(self) -> None:
        error = raised(ConfigurationError, embed, {"store": "memory"}, secrets={"a": b"short"})
        assert str(error) == "secret 'a': it has 5 bytes; give at least 32 random ones"
