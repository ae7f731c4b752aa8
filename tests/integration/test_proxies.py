"""The files in ``docs/deploy/proxies``: a broker behind nginx, and one behind HAProxy."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from getpass import getuser
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol

from pubsub.http_api.requests.api_error import PROBLEM
from pubsub.http_api.websocket.websocket_frames import SUBPROTOCOL
from tests.integration.broker import HOST, TIMEOUT, Broker, Start
from tests.integration.certificates import NAME, Authority
from tests.integration.clients import Cafe, handshake_pub, publish
from tests.integration.cluster import free_port
from tests.integration.fast_client import make_secret, make_token
from tests.integration.needs import missing
from tests.waiting import until

FILES = Path(__file__).parents[2] / "docs/deploy/proxies"
MESSAGES = "/v1/topics/cafe%2F7/messages"
# The rest of the configuration of nginx, in the foreground and without root, with another site.
NGINX = """
# The directory is not open to others.
user {user};
daemon off;
worker_processes 1;
pid {here}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {here}/body;
    proxy_temp_path {here}/proxy;
    fastcgi_temp_path {here}/fastcgi;
    uwsgi_temp_path {here}/uwsgi;
    scgi_temp_path {here}/scgi;
    include {here}/pubsub.conf;
    server {{
        listen {host}:{other};
        location / {{ return 204; }}
    }}
}}
"""


def program(name: str) -> str:
    """Return the path of a server."""
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    return missing(name) if found is None else found


def is_listening(port: int) -> bool:
    """Return whether a connection to this port is accepted."""
    with socket.socket() as sock:
        return sock.connect_ex((HOST, port)) == 0


class Proxy:
    """A proxy that has been started; ``ports`` are those of its listeners, by those in its file."""

    def __init__(self, command: list[str], ports: dict[int, int], authority: Authority) -> None:
        self.ports = ports
        self.authority = authority
        self._process = subprocess.Popen(command)
        until(lambda: all(map(is_listening, ports.values())), "the proxy listens")

    def stop(self) -> None:
        """Stop it."""
        self._process.terminate()
        self._process.wait(TIMEOUT)

    @property
    def context(self) -> ssl.SSLContext:
        """The context of its clients."""
        return self.authority.client()

    def ask(
        self, method: str, path: str, body: bytes | None = None, token: bytes = b"", host: str = ""
    ) -> HTTPResponse:
        """Return the response to a request, of which only the head has been read."""
        link = HTTPSConnection(NAME, self.ports[443], timeout=TIMEOUT, context=self.context)
        headers = {"Authorization": f"Bearer {token.decode()}"} if token else {}
        link.request(method, path, body, {**headers, **({"Host": host} if host else {})})
        return link.getresponse()

    def web_socket(self, token: bytes, host: str = NAME, path: str = "") -> dict[str, Any]:
        """Return the reply to the first request of a WebSocket of a page."""
        port, protocol = self.ports[443], Subprotocol(SUBPROTOCOL)
        origin = Origin(f"https://{host}:{port}")
        raw = socket.create_connection((HOST, port), TIMEOUT)
        with connect(
            f"wss://{host}:{port}{path}/v1/ws", sock=raw, ssl=self.context, server_hostname=NAME,
            subprotocols=[protocol], origin=origin, proxy=None,
        ) as client:  # fmt: skip
            client.send(json.dumps({"id": 1, "op": "connect", "token": token.decode()}))
            reply: dict[str, Any] = json.loads(client.recv(TIMEOUT))
            return reply


def adapted(name: str, places: dict[str, object]) -> str:
    """Return a file of the documentation for this test: each text in it, and its replacement."""
    text = (FILES / name).read_text()
    for old, new in places.items():
        assert old in text, old
        text = text.replace(old, str(new))
    return text


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    return make_secret(tmp_path / "pubsub.key")


@pytest.fixture
def nginx(start: Start, tmp_path: Path, secret: Path) -> Iterator[Proxy]:
    broker = start(
        f"--admin-port=tcp:0:interface={HOST}", f"--secret-file={secret}",
        "--http-hosts=broker.example.org,www.example.org", "--proto=cafe", "--port=0",
    )  # fmt: skip
    authority, port, other = Authority(tmp_path), free_port(), free_port()
    certificate = authority.issue("server", NAME)
    content = adapted(
        "nginx.conf",
        {
            "listen 443 ssl": f"listen {HOST}:{port} ssl",
            "127.0.0.1:7080": f"{HOST}:{broker.port('http')}",
            "/etc/nginx/broker.pem": certificate,
            "/etc/nginx/broker.key": certificate,
        },
    )
    (tmp_path / "pubsub.conf").write_text(content)
    (tmp_path / "nginx.conf").write_text(
        NGINX.format(here=tmp_path, user=getuser(), host=HOST, other=other)
    )
    command = [program("nginx"), "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]
    proxy = Proxy([*command, "-e", "stderr"], {443: port, 80: other}, authority)
    yield proxy
    proxy.stop()


def test_nginx(nginx: Proxy, secret: Path) -> None:
    token = make_token(secret)
    for host, path in (("broker.example.org", ""), ("www.example.org", "/pubsub")):
        with nginx.ask("GET", f"{path}/v1/bounds", host=host) as answer:
            assert answer.status == 401
        followed = f"{path}{MESSAGES}?follow=1"
        with nginx.ask("GET", followed, token=token, host=host) as follower:
            # The first line shows that the subscription has begun.
            assert (follower.status, follower.readline()) == (200, b"\n")
            with nginx.ask("POST", path + MESSAGES, b"hello", token, host) as answer:
                assert answer.status == 200
            assert json.loads(follower.readline())["value"] == "hello"
        assert "epoch" in nginx.web_socket(token, host, path)["ok"]
        with nginx.ask("GET", f"{path}/dashboard/app/main.js", host=host) as answer:
            assert answer.status == 200


def test_the_other_sites_of_nginx(nginx: Proxy, secret: Path) -> None:
    """They keep their own settings, such as the default of 1 MiB for bodies."""
    large, token = bytes(2**21), make_token(secret)
    with nginx.ask("POST", MESSAGES, large, token, "broker.example.org") as answer:
        # That of the broker, which takes messages of max-message.
        assert (answer.status, answer.headers["Content-Type"]) == (413, PROBLEM)
    link = HTTPConnection(HOST, nginx.ports[80], timeout=TIMEOUT)
    for body, status in ((b"small", 204), (large, 413)):
        link.request("POST", "/", body)
        with link.getresponse() as answer:
            assert answer.status == status
        link.close()


@pytest.fixture
def behind(start: Start, tmp_path: Path, secret: Path) -> tuple[Broker, dict[int, int]]:
    """Return a broker behind HAProxy, and its ports by those in the file."""
    places = {"/etc/pubsub/pubsub.key": secret}
    content = re.sub(r"tcp:\d+:", "tcp:0:", adapted("pubsub.toml", {**places}))
    path = tmp_path / "pubsub.toml"
    path.write_text(content)
    broker = start("--config", str(path))
    protocols = {7170: "cafe", 7171: "nsd", 7180: "http"}
    return broker, {port: broker.port(name) for port, name in protocols.items()}


@pytest.fixture
def haproxy(tmp_path: Path, behind: tuple[Broker, dict[int, int]]) -> Iterator[Proxy]:
    authority, clients = Authority(tmp_path), Authority(tmp_path, "clients")
    clients.issue("client", common_name="ada")
    ports = {number: free_port() for number in (443, 7070, 7071)}
    places: dict[str, object] = {
        "/etc/haproxy/broker.pem": authority.issue("server", NAME),
        "/etc/haproxy/clients.pem": clients.file,
    }
    places |= {f"bind :{number}": f"bind {HOST}:{port}" for number, port in ports.items()}
    places |= {f"{HOST}:{number}": f"{HOST}:{port}" for number, port in behind[1].items()}
    places["port 7180"] = f"port {behind[1][7180]}"
    path = tmp_path / "haproxy.cfg"
    path.write_text(adapted("haproxy.cfg", places))
    proxy = Proxy([program("haproxy"), "-db", "-f", str(path)], ports, authority)
    yield proxy
    proxy.stop()


def test_haproxy(haproxy: Proxy, behind: tuple[Broker, dict[int, int]], secret: Path) -> None:
    broker, _ = behind
    token, admin = make_token(secret), make_token(secret, permission="admin")
    until(lambda: haproxy.ask("GET", "/readyz").status == 200, "the check has succeeded")
    with haproxy.ask("GET", "/v1/bounds") as answer:
        assert answer.status == 401
    with haproxy.ask("GET", f"{MESSAGES}?follow=1", token=token) as follower:
        assert (follower.status, follower.readline()) == (200, b"\n")
        publisher = Cafe(haproxy.ports[7070])
        publisher.shake(handshake_pub(7))
        publisher.send(publish(7, b"hello"))
        row = json.loads(follower.readline())
        publisher.close()
        assert (row["value"], row["protocol"]) == ("hello", "cafe")
    assert "epoch" in haproxy.web_socket(token)["ok"]
    context = haproxy.authority.client(str(Path(haproxy.authority.file).with_name("client.pem")))
    raw = socket.create_connection((HOST, haproxy.ports[7071]), TIMEOUT)
    with context.wrap_socket(raw, server_hostname=NAME) as client:
        local = client.getsockname()[1]
        client.sendall(b'{"_class":"OpenRequest","identity":"bob"}\n')
        assert client.recv(100) == b'{"_class":"SuccessResponse"}\n'
        with haproxy.ask("GET", "/v1/sessions?protocol=nsd", token=admin) as answer:
            session = json.loads(answer.read())["items"][0]
        assert (session["identity"], session["address"]) == ("ada", f"{HOST}:{local}")
    assert not re.search("refused: .* on (cafe|nsd)", broker.output)
