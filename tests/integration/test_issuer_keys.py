"""Public keys that are fetched from an issuer over HTTPS: rotation, outages and hostile replies."""

from __future__ import annotations

import json
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from socket import socket
from typing import Any, TypeVar, cast

import pytest
import pytest_twisted  # type: ignore[import-untyped]
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ServerEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.threads import deferToThread

from pubsub.broker.credentials.master_secrets import KeySource, MasterSecret
from pubsub.server import issuer_key_fetcher
from pubsub.server.issuer_key_fetcher import MAX_BYTES, FetchFailed, IssuerKeyFetcher
from tests.integration.broker import HOST, TIMEOUT, Broker, Start, listen
from tests.integration.certificates import NAME, Authority
from tests.integration.key_server import KeyServer, key_server, sending
from tests.waiting import until

_Test = TypeVar("_Test", bound=Callable[..., Coroutine[Deferred[Any], Any, None]])


def on_reactor(test: _Test) -> _Test:
    """Run a coroutine function as a test on the reactor of the tests."""
    return cast(_Test, pytest_twisted.ensureDeferred(test))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def server(authority: Authority) -> Iterator[KeyServer]:
    with key_server(authority.issue("issuer", NAME)) as serving:
        yield serving


def url(server: KeyServer, host: str = NAME, scheme: str = "https") -> str:
    return f"{scheme}://{host}:{server.port}/keys?tenant=1"


def fetched(address: str, ca: str = "") -> Deferred[list[MasterSecret]]:
    """Fetch keys as the broker does."""
    from twisted.internet import reactor

    return IssuerKeyFetcher(reactor, deferToThread).fetch(KeySource("corp", address, ca))


async def failure(address: str, ca: str = "") -> str:
    """Return why a fetch fails."""
    with pytest.raises(FetchFailed) as caught:
        await fetched(address, ca)
    return str(caught.value)


# One fetch


@on_reactor
async def test_keys_are_fetched(server: KeyServer, authority: Authority) -> None:
    server.reply = server.send_keys("a", "b")
    keys = await fetched(url(server), authority.file)
    assert [(key.id, key.kid, key.algorithm) for key in keys] == [
        ("corp/a", "a", "ES256"),
        ("corp/b", "b", "ES256"),
    ]
    assert server.requests[0].startswith(b"GET /keys?tenant=1 HTTP/1.1\r\n")


@on_reactor
async def test_loopback_needs_no_tls() -> None:
    with key_server() as server:
        server.reply = server.send_keys("a")
        assert [key.id for key in await fetched(url(server, HOST, "http"))] == ["corp/a"]


@on_reactor
async def test_the_server_is_verified(server: KeyServer, tmp_path: Path) -> None:
    server.reply = server.send_keys("a")
    other = Authority(tmp_path, "other")
    for text in (await failure(url(server)), await failure(url(server), other.file)):
        assert re.fullmatch(
            rf"{NAME}:{server.port}: TLS: certificate verify failed: .*certificate.*; set jwks-ca "
            "to a file with the certificate of the server's authority, .*",
            text,
        ), text
    assert not server.requests


@on_reactor
async def test_a_server_without_tls() -> None:
    from twisted.internet import reactor

    class Plain(Protocol):
        def connectionMade(self) -> None:
            assert self.transport is not None
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    endpoint: Any = TCP4ServerEndpoint(reactor, 0, interface=HOST)
    port = await endpoint.listen(Factory.forProtocol(Plain))
    place = f"{HOST}:{port.getHost().port}"
    assert await failure(f"https://{place}/keys") == (
        f"{place}: the port does not speak TLS; correct the port in jwks-url"
    )
    await port.stopListening()


@on_reactor
async def test_the_name_is_verified(server: KeyServer, authority: Authority) -> None:
    server.reply = server.send_keys("a")
    assert await failure(url(server, HOST), authority.file) == (
        f"{HOST}:{server.port}: the certificate is for another name; write a name of the "
        "certificate in jwks-url"
    )
    assert not server.requests


@pytest.mark.parametrize(
    ("body", "status", "headers", "reason"),
    [
        (b"", "302 Found", "Location: /other\r\n", "status 302"),
        (b"gone", "404 Not Found", "", "status 404"),
        (b"<html>", "200 OK", "", "Expecting value"),
        (b"[" * 200_000, "200 OK", "", "nested too deeply"),
        (b"{}", "200 OK", "", "not a JSON Web Key Set"),
        (b'{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}', "200 OK", "", "no key for"),
        (b"\xff", "200 OK", "", "utf-8"),
        (b" " * (MAX_BYTES + 1), "200 OK", "", f"more than {MAX_BYTES} bytes"),
    ],
)
@on_reactor
async def test_replies_without_keys(
    server: KeyServer, authority: Authority, body: bytes, status: str, headers: str, reason: str
) -> None:
    server.reply = sending(body, status, headers)
    assert reason in await failure(url(server), authority.file)
    assert len(server.requests) == 1


@on_reactor
async def test_a_body_without_an_end(server: KeyServer, authority: Authority) -> None:
    def pour(sock: socket) -> None:
        sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while not server.stopped.is_set():
            sock.sendall(b" " * 65_536)

    server.reply = pour
    assert "more than" in await failure(url(server), authority.file)


@on_reactor
async def test_a_connection_that_ends_early(server: KeyServer, authority: Authority) -> None:
    server.reply = lambda sock: sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{")
    assert await failure(url(server), authority.file)
    server.reply = lambda sock: None
    assert await failure(url(server), authority.file)
    server.close()
    text = await failure(url(server), authority.file)
    assert text.startswith(f"{NAME}:{server.port}: ")
    assert "refused" in text


@pytest.mark.parametrize(
    "sent", [b"", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"]
)
@on_reactor
async def test_a_server_that_does_not_finish(
    monkeypatch: pytest.MonkeyPatch, server: KeyServer, authority: Authority, sent: bytes
) -> None:
    def wait(sock: socket) -> None:
        sock.sendall(sent)
        server.stopped.wait()

    server.reply = wait
    monkeypatch.setattr(issuer_key_fetcher, "SECONDS", 0.5)
    assert await failure(url(server), authority.file) == "not finished within 0.5 seconds"


# A broker


def broker_with(
    start: Start, directory: Path, server: KeyServer, authority: Authority, **more: object
) -> Broker:
    """Return a broker that trusts the issuer's tokens on its HTTP API."""
    given = {"jwks-url": url(server), "jwks-ca": authority.file, "jwks-refresh": 1, **more}
    lines = [f"{name} = {json.dumps(value)}" for name, value in given.items()]
    path = directory / "pubsub.toml"
    path.write_text("[keys.corp]\n" + "\n".join(lines) + "\n")
    return start(f"--config={path}", *listen("cafe"), f"--admin-port=tcp:0:interface={HOST}")


def get(broker: Broker, path: str, token: str = "") -> Any:
    """Return the reply to a request, or the status with which it is refused."""
    request = urllib.request.Request(f"http://{HOST}:{broker.port('http')}{path}")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:
            return reply.read().decode()
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def accepts(broker: Broker, token: str) -> bool:
    """Return whether the broker accepts a token."""
    return bool(get(broker, "/v1/topics", token) != 401)


def test_keys_rotate_and_stay_while_the_issuer_is_away(
    start: Start, tmp_path: Path, server: KeyServer, authority: Authority
) -> None:
    broker = broker_with(start, tmp_path, server, authority)
    broker.wait_line("keys of corp: fetching failed: no key for .*; its tokens are refused until")
    first, second = server.token("a", sub="ada"), server.token("b", sub="ada")
    assert get(broker, "/readyz")
    assert not accepts(broker, first)
    server.reply = server.send_keys("a")
    broker.wait_line("keys of corp that are used from now on: 1")
    assert accepts(broker, first)
    assert not accepts(broker, second)
    server.close()
    broker.wait_line("keys of corp: fetching failed: .*; the keys that were fetched before stay")
    assert accepts(broker, first)
    server.reply = server.send_keys("b")
    server.open()
    until(lambda: accepts(broker, second), "the new key is used")
    assert not accepts(broker, first)


def test_metrics_and_the_end_during_a_fetch(
    start: Start, tmp_path: Path, server: KeyServer, authority: Authority
) -> None:
    server.reply = lambda sock: server.stopped.wait()
    broker = broker_with(start, tmp_path, server, authority)
    until(lambda: server.requests, "the broker has asked")
    # The reactor is free meanwhile.
    text = get(broker, "/metrics")
    assert 'pubsub_issuer_keys{issuer="corp"} 0.0' in text
    assert "pubsub_issuer_keys_age_seconds{" not in text
    broker.stop()


def test_a_reload_removes_the_issuer(
    start: Start, tmp_path: Path, server: KeyServer, authority: Authority
) -> None:
    server.reply = server.send_keys("a")
    broker = broker_with(start, tmp_path, server, authority)
    broker.wait_line("keys of corp that are used from now on: 1")
    token = server.token("a", sub="ada", iss="https://a")
    assert accepts(broker, token)
    path = tmp_path / "pubsub.toml"
    path.write_text(path.read_text() + 'issuer = "https://b"\n')
    broker.signal(signal.SIGHUP)
    broker.wait_line("reloaded: ")
    assert not accepts(broker, token)
    path.write_text("")
    broker.signal(signal.SIGHUP)
    broker.wait_line("reloaded: ", 2)
    asked = len(server.requests)
    assert get(broker, "/v1/topics") != 401
    assert len(server.requests) - asked <= 1
