"""Brokers that share messages through a nats-server: processes, sockets and failures."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import urllib.request
from pathlib import Path
from urllib.parse import quote

import nkeys  # type: ignore[import-untyped]
import pytest

from tests.integration.backplane_options import shared
from tests.integration.broker import HOST, TIMEOUT, Broker, Start, listen, run
from tests.integration.certificates import Authority
from tests.integration.clients import Cafe, publish
from tests.integration.nats_server import NatsServer, nats_server
from tests.integration.wire import wire_to
from tests.waiting import until

AWAY = r"the engine is away"
PASSWORD = "horse-staple"


def get(broker: Broker, path: str) -> str:
    with urllib.request.urlopen(f"http://{HOST}:{broker.port('http')}{path}") as answer:
        found: str = answer.read().decode()
        return found


def join(start: Start, server: NatsServer, *options: str, url: str = "") -> Broker:
    """Start a broker at ``server``."""
    own = listen("cafe", "http", "spot")
    broker = start(*own, f"--backplane={url or server.url}", *options)
    broker.wait_line(r"backplane: connected to")
    return broker


@pytest.mark.modes
def test_messages_and_their_order(start: Start, server: NatsServer) -> None:
    here, there = join(start, server), join(start, server)
    publisher, local, remote = Cafe.publisher(here), Cafe.subscriber(here), Cafe.subscriber(there)
    shared(publisher, remote)
    local.sync()
    sent = [b"%d" % number for number in range(20_000)]
    publisher.send(*[publish(1, one) for one in sent])
    assert remote.receive_texts(len(sent)) == sent
    # A record larger than one message of the engine.
    large = bytes(range(256)) * 4095
    publisher.send(publish(1, large), publish(1, b"end"))
    assert remote.receive_texts(2) == [large, b"end"]
    # Each message once, at the publisher's broker too.
    texts = [one.payload[9:] for one in local.sync()]
    while texts[-1] != b"end":
        texts += local.receive_texts(1)
    assert [one for one in texts if not one.startswith(b"probe")] == [*sent, large, b"end"]
    status = json.loads(get(there, "/v1/status"))["stats"]["backplane"]
    assert status["connected"]
    assert status["messages_in"] >= len(sent)
    # Nothing goes in circles.
    assert status["messages_out"] == 0
    assert "pubsub_backplane_connected 1.0" in get(there, "/metrics")


def test_the_server_is_killed_and_comes_back(start: Start, server: NatsServer) -> None:
    here, there = join(start, server), join(start, server)
    publisher, local, remote = Cafe.publisher(here), Cafe.subscriber(here), Cafe.subscriber(there)
    shared(publisher, remote)
    server.kill()
    for broker in (here, there):
        broker.wait_line(AWAY)
        assert get(broker, "/readyz") == "ready\nthe backplane is away\n"
        assert "pubsub_backplane_connected 0.0" in get(broker, "/metrics")
        attention = json.loads(get(broker, "/v1/status"))["attention"]
        assert [one["what"] for one in attention if "backplane" in one["what"]]
    local.sync()
    publisher.send(publish(1, b"here only"))
    assert local.receive_texts(1) == [b"here only"]
    drops = json.loads(get(here, "/v1/status"))["stats"]["drops"]
    assert drops["backplane-away"] == 1
    server.start()
    for broker in (here, there):
        broker.wait_line(r"backplane: connected to", 2)
    shared(publisher, remote)
    assert get(here, "/readyz") == "ready\n"


def test_a_server_that_hangs_delays_clients_briefly(start: Start, server: NatsServer) -> None:
    here = join(start, server, "--backplane-bytes=64K")
    publisher, local = Cafe.publisher(here), Cafe.subscriber(here)
    local.sync()
    server.signal(signal.SIGSTOP)
    try:
        sent = [b"%06d" % number * 1000 for number in range(4000)]
        sender = threading.Thread(
            target=lambda: publisher.send(*[publish(1, one) for one in sent]), daemon=True
        )
        sender.start()
        assert local.receive_texts(len(sent)) == sent
        sender.join(TIMEOUT)
        here.wait_line("has been too slow|" + AWAY)
        drops = json.loads(get(here, "/v1/status"))["stats"]["drops"]
        assert any(reason.startswith("backplane-") for reason in drops)
    finally:
        server.signal(signal.SIGCONT)
    here.wait_line(r"backplane: connected to")


def test_a_partition_between_a_broker_and_the_server(start: Start, server: NatsServer) -> None:
    with wire_to(server.port) as wire:
        here = join(start, server)
        there = join(start, server, url=f"nats://{HOST}:{wire.port}")
        publisher, remote = Cafe.publisher(here), Cafe.subscriber(there)
        shared(publisher, remote)
        wire.cut()
        there.wait_line(AWAY)
        near = Cafe.publisher(there)
        near.send(publish(1, b"behind the partition"))
        assert remote.receive_texts(1) == [b"behind the partition"]
        assert json.loads(get(here, "/v1/status"))["stats"]["backplane"]["connected"]
        wire.mend()
        there.wait_line(r"backplane: connected to", 2)
        shared(publisher, remote)
        there.stop()


def test_a_foreign_publisher(start: Start, server: NatsServer) -> None:
    here, there = join(start, server), join(start, server)
    publisher, remote = Cafe.publisher(here), Cafe.subscriber(there)
    shared(publisher, remote)
    with socket.create_connection((HOST, server.port)) as sock:
        sock.sendall(b'CONNECT {"verbose":false}\r\n')
        for data in (b"", b"garbage", b"PB\x01\0" + b"\xff" * 60, bytes(10_000)):
            for subject in (b"pubsub.v1.t.cafe.1", b"pubsub.v1.t.=", b"pubsub.v1.t.cafe.1.x"):
                sock.sendall(b"PUB %s %d\r\n%s\r\n" % (subject, len(data), data))
        sock.sendall(b"PING\r\n")
        sock.settimeout(TIMEOUT)
        received = b""
        while b"PONG" not in received:
            received += sock.recv(4096)

    def refused() -> int:
        refusals = json.loads(get(there, "/v1/status"))["stats"]["refusals"]
        return int(refusals.get("backplane malformed", 0))

    until(lambda: refused() == 4, "four refusals")
    shared(publisher, remote)


def test_servers_that_cannot_be_used(tmp_path: Path) -> None:
    def failure(url: str, *options: str) -> str:
        result = run([*listen("cafe"), f"--backplane={url}", *options], tmp_path)
        assert result.returncode != 0
        assert PASSWORD not in result.stdout + result.stderr
        return result.stdout + result.stderr

    with nats_server(tmp_path, jetstream=False) as server:
        assert "it has no JetStream for this account" in failure(server.url)
    with nats_server(tmp_path, "--user", "broker", "--pass", PASSWORD) as server:
        assert "it refuses the credentials" in failure(server.url)
        wrong = f"nats://broker:{PASSWORD}2@{HOST}:{server.port}"
        assert re.search(
            rf"backplane nats://{HOST}:{server.port}: it refuses the credentials", failure(wrong)
        )
    missing = failure("nats://localhost", "--backplane-creds=missing")
    assert "backplane-creds: missing: No such file or directory" in missing


def test_credentials_and_tls(start: Start, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    file = authority.issue("server", "localhost")
    options = ["--tls", "--tlscert", file, "--tlskey", file, "--user", "broker", "--pass", PASSWORD]
    with nats_server(tmp_path, *options) as server:
        url = f"tls://broker:{PASSWORD}@localhost:{server.port}"
        brokers = [
            join(start, server, f"--backplane-ca={authority.file}", url=url) for _ in range(2)
        ]
        shared(Cafe.publisher(brokers[0]), Cafe.subscriber(brokers[1]))
        for broker in brokers:
            assert PASSWORD not in broker.output
            assert PASSWORD not in get(broker, "/v1/configuration")
            broker.stop()
        untrusted = start(*listen("cafe"), f"--backplane={url}")
        untrusted.wait_line(AWAY + r": .*certificate verify failed")
        untrusted.stop()


def account(directory: Path, permissions: str) -> list[str]:
    """Return options of a server whose user lacks ``permissions``."""
    config = directory / "nats.conf"
    user = f"{{user: a, password: b, permissions: {{{permissions}}}}}"
    config.write_text(f"authorization {{ users: [{user}] }}")
    return ["-c", str(config)]


@pytest.mark.parametrize(
    ("denied", "history"),
    [
        ("publish: {deny: ['$JS.API.INFO']}", "own"),
        ("publish: {deny: ['$JS.API.STREAM.CREATE.pubsub_history']}", "shared"),
        ("subscribe: {deny: ['_INBOX.>']}", "own"),
    ],
)
def test_permissions_that_the_start_needs(denied: str, history: str, tmp_path: Path) -> None:
    with nats_server(tmp_path, *account(tmp_path, denied), user="a:b@") as server:
        options = f"--backplane-history={history}", f"--store=log:{tmp_path / 'history'}"
        result = run([*listen("cafe"), f"--backplane={server.url}", *options], tmp_path)
    assert re.search(
        r"its account lacks permissions: .*; docs/scaling.md has them",
        result.stdout + result.stderr,
    )
    assert result.returncode != 0


def test_permissions_that_messages_need(start: Start, tmp_path: Path) -> None:
    denied = "publish: {deny: ['pubsub.v1.t.>']}"
    with nats_server(tmp_path, *account(tmp_path, denied), user="a:b@") as server:
        here = join(start, server)
        Cafe.publisher(here).send(publish(1, b"x"))
        here.wait_line(r"the engine reports: .*permissions violation .*pubsub\.v1\.t\.cafe\.1")
        (found,) = json.loads(get(here, "/v1/status"))["attention"]
        assert found["what"].startswith("the backplane reports: nats: permissions violation")


def test_escapes_in_the_url(start: Start, tmp_path: Path) -> None:
    password = "a,b@c/d%"
    with nats_server(tmp_path, "--user", "broker", "--pass", password) as server:
        url = f"nats://broker:{quote(password, safe='')}@{HOST}:{server.port}"
        assert quote(password, safe="") not in join(start, server, url=url).output


def test_a_seed_that_is_replaced(start: Start, tmp_path: Path) -> None:
    seed = bytes(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER))
    config, file = tmp_path / "nats.conf", tmp_path / "broker.nk"
    public = nkeys.from_seed(bytearray(seed)).public_key.decode()
    config.write_text(f"authorization {{ users: [{{nkey: {public}}}] }}")
    file.write_bytes(seed)
    with nats_server(tmp_path, "-c", str(config)) as server:
        here = join(start, server, f"--backplane-creds={file}")
        # It is damaged when the broker reads it, for its next connection.
        file.write_bytes(seed[:20])
        server.kill()
        server.start()
        here.wait_line(rf"the engine cannot be used: backplane-creds: {file} has no JWT")
        file.write_bytes(seed)
        here.wait_line(r"backplane: connected to", 2)
        assert seed[:20].decode() not in here.output


def test_certificates_that_are_replaced(start: Start, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    file, own = authority.issue("server", "localhost"), authority.issue("broker", "broker")
    options = ["--tls", "--tlscert", file, "--tlskey", file, "--tlscacert", authority.file]
    with nats_server(tmp_path, *options, "--tlsverify") as server:
        url = f"tls://localhost:{server.port}"
        files = f"--backplane-ca={authority.file}", f"--backplane-cert={own}"
        here = join(start, server, *files, url=url)
        content = Path(own).read_bytes()
        for number, damage in enumerate((b"junk", content[:400], None), 2):
            Path(own).unlink() if damage is None else Path(own).write_bytes(damage)
            server.kill()
            server.start()
            here.wait_line(r"the engine cannot be used: backplane-c", number - 1)
            Path(own).write_bytes(content)
            here.wait_line(r"backplane: connected to", number)


def test_tls_is_demanded(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    received = []
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]

        def serve() -> None:
            with listener.accept()[0] as sock:
                # As that of somebody between the broker and a server with TLS.
                sock.sendall(b'INFO {"version": "2.12.0", "max_payload": 1048576}\r\n')
                received.append(sock.recv(4096))

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"--backplane=tls://broker:{PASSWORD}@{HOST}:{port}"
        result = run([*listen("cafe"), url, f"--backplane-ca={authority.file}"], tmp_path)
        thread.join(TIMEOUT)
    assert received == [b""]
    assert f"backplane tls://{HOST}:{port}: it has no TLS" in result.stdout + result.stderr


def test_a_broker_starts_without_the_server(start: Start, server: NatsServer) -> None:
    server.kill()
    here = start(*listen("cafe", "http"), f"--backplane={server.url}")
    here.wait_line(AWAY)
    publisher, local = Cafe.publisher(here), Cafe.subscriber(here)
    local.sync()
    publisher.send(publish(1, b"alone"))
    assert local.receive_texts(1) == [b"alone"]
    server.start()
    here.wait_line(r"backplane: connected to")
