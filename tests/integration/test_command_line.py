"""Starting the broker: it serves the listeners of the command line and the file."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from itertools import chain, permutations
from pathlib import Path

import pytest

from tests.integration.broker import HOST, TIMEOUT, TWISTD, Start, listen, run
from tests.integration.clients import Cafe, Client, Nsd, handshake_sub, message
from tests.integration.needs import missing, not_allowed

PAIRS = [
    ["--proto=cafe", "--port=0"],
    ["--proto", "nsd", "--port", "0"],
    ["--proto=cafe", f"--port=tcp:0:interface={HOST}"],
]
EVERYTHING = """
interface = "127.0.0.1"
history = "50,1M"
resume-window = 0
slow-consumer = "drop"
max-connections = 1

[cafe]
max-connections = 2
channels = "1-3,7:orders"

[nsd]
max-body = 5

[[listen]]
protocol = "cafe"
port = 0
udp = true

[[listen]]
protocol = "cafe"
endpoint = "tcp:0:interface=127.0.0.1"
channels = "9"

[[listen]]
protocol = "nsd"
port = 0
"""
# Passes a socket like systemd: as descriptor 3, with a name.
ACTIVATE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()), LISTEN_FDNAMES="cafe.socket")
os.execv(sys.argv[2], sys.argv[2:])
"""


@pytest.mark.parametrize(
    "order", list(permutations(PAIRS)), ids=lambda o: "".join(p[1][-3] for p in o)
)
def test_options_of_pairs_may_come_in_any_order(start: Start, order: tuple[list[str], ...]) -> None:
    broker = start(*chain.from_iterable(order))
    assert len(broker.ports("cafe")) == 2
    assert len(broker.ports("nsd")) == 1
    for port in broker.ports("cafe"):
        with Cafe(port) as client:
            client.shake(handshake_sub())
    with Nsd.to(broker) as nsd:
        nsd.do("Open", "a")


def test_protocols_and_ports_are_paired_in_order(start: Start) -> None:
    broker = start("--proto=cafe", "--proto=nsd", "--port=0", f"--port=tcp:0:interface={HOST}")
    with Cafe.subscriber(broker), Nsd.to(broker) as nsd:
        nsd.do("Open", "a")


def test_listen_takes_protocol_and_endpoint_in_one(start: Start) -> None:
    broker = start("--listen", f"cafe=tcp:0:interface={HOST}")
    assert len(broker.ports("cafe")) == 1
    assert not broker.ports("nsd")
    with Cafe.subscriber(broker):
        pass


def test_udp_is_opened_only_on_request(start: Start) -> None:
    assert not start(*listen("cafe")).ports("cafe", "udp")
    broker = start(*listen("cafe"), "--udp")
    assert broker.ports("cafe", "udp") == broker.ports("cafe", "tcp")


def test_the_start_logs_each_listener_and_the_history(start: Start) -> None:
    broker = start(*listen("cafe", "nsd"), "--udp", "--history=10,2K")
    lines = [line.split(": ", 1)[-1] for line in broker.output.splitlines()]
    listening = [line for line in lines if " on tcp " in line or " on udp " in line]
    tcp, nsd = broker.port("cafe"), broker.port("nsd")
    assert listening == [
        f"cafe on tcp {HOST}:{tcp}",
        f"cafe on udp {HOST}:{tcp}",
        f"nsd on tcp {HOST}:{nsd}",
    ]
    history = "history: in memory, the last 10 messages within 2048 bytes"
    assert [line.split(";")[0] for line in lines if "history" in line] == [history]


@pytest.mark.modes
def test_unix_endpoints(start: Start, tmp_path: Path) -> None:
    path = str(tmp_path / "cafe.sock")
    broker = start(f"--listen=cafe=unix:{path}", f"--listen=nsd=unix:{tmp_path / 'nsd.sock'}")
    assert f"cafe on unix {path}" in broker.output
    with Cafe(path) as client, Nsd(str(tmp_path / "nsd.sock")) as nsd:
        client.shake(handshake_sub(b"\x05"))
        nsd.do("Subscribe", "a", channel="cafe/5")
        client.sync()
    broker.stop()
    assert not Path(path).exists()


def test_a_file_can_have_every_setting(start: Start, tmp_path: Path) -> None:
    config = tmp_path / "pubsub.toml"
    config.write_text(EVERYTHING)
    broker = start(f"--config={config}")
    first, second = broker.ports("cafe")
    assert broker.ports("cafe", "udp") == [first]
    assert "the last 50 messages within 1048576 bytes" in broker.output
    with Cafe(first) as one, Cafe(first) as two, Cafe(first) as three:
        one.shake(handshake_sub(b"\x07"))
        two.shake(handshake_sub(b"\x01\x02\x03"))
        # The protocol's table overrides the top level: two connections, not one.
        assert three.receive() == (0xFF, b"\x04")
    with Cafe(second) as refused:
        refused.send(handshake_sub(b"\x07"))
        assert refused.receive() == (0x03, b"\x02" + bytes(8))
    with Nsd.to(broker) as nsd:
        nsd.do("Open", "orders")
        assert nsd.refused("Publish", "orders", message=message("123456")).startswith("MESSAGE TOO")
        with Nsd.to(broker) as refused_nsd:
            assert refused_nsd.answer()["error"] == "TOO MANY CONNECTIONS"


def test_the_command_line_overrides_the_file(start: Start, tmp_path: Path) -> None:
    config = tmp_path / "pubsub.toml"
    config.write_text(EVERYTHING)
    broker = start(
        f"--config={config}", *listen("nsd"), "--history=7", "--nsd-max-body=6",
        "--max-connections=2",
    )  # fmt: skip
    assert not broker.ports("cafe")
    assert "the last 7 messages" in broker.output
    with Nsd.to(broker) as nsd, Nsd.to(broker) as second, Nsd.to(broker) as third:
        nsd.do("Open", "a")
        nsd.do("Publish", "a", message=message("123456"))
        second.do("Open", "b")
        assert third.answer()["error"] == "TOO MANY CONNECTIONS"


@pytest.mark.modes
def test_without_options_every_protocol_is_on_its_default_port(start: Start) -> None:
    """In a separate network namespace, as the default ports may be in use."""
    unshare, ip = shutil.which("unshare"), shutil.which("ip")
    alone = [str(unshare), "-rn", "sh", "-c", f'{ip} link set lo up && exec "$@"', "sh"]
    if not unshare or not ip:
        missing("unshare(1) and ip(8)")
    if subprocess.run([*alone, "true"], check=False).returncode:
        not_allowed("a network namespace")
    broker = start(before=alone)
    assert broker.ports("cafe") == [7070]
    assert broker.ports("nsd") == [7071]
    assert not broker.ports("cafe", "udp")


def test_help(tmp_path: Path) -> None:
    result = run(["--help"], tmp_path)
    assert result.returncode == 0
    assert not result.stderr
    for word in ("--proto ", "--port ", "--listen ", "--config ", "--slow-consumer ", "--udp "):
        assert f"  {word}" in result.stdout
    for word in ("--cafe-channels ", "--nsd-max-body "):
        assert f"  {word}" in result.stdout
    assert re.search(r"(?m)^cafe \(.*default port 7070\):$", result.stdout)
    assert re.search(r"(?m)^nsd \(.*default port 7071\):$", result.stdout)


def test_help_whose_reader_ends(tmp_path: Path) -> None:
    """As of `twistd pubsub --help | head -1`."""
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "w") as closed:
        result = subprocess.run(
            [TWISTD, "pubsub", "--help"],
            cwd=tmp_path,
            stdout=closed,
            stderr=subprocess.PIPE,
            timeout=TIMEOUT,
            check=False,
        )
    assert result.stderr == b""


def test_version(tmp_path: Path) -> None:
    result = run(["--version"], tmp_path)
    assert result.returncode == 0
    assert result.stdout.startswith("pubsub 0.")
    assert result.stdout.count("\n") == 1


@pytest.mark.parametrize(
    "endpoint", ["systemd:name=cafe.socket", "systemd:domain=INET:name=cafe.socket"]
)
def test_socket_activation(start: Start, endpoint: str) -> None:
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        os.set_inheritable(server.fileno(), True)
        broker = start(
            f"--listen=cafe={endpoint}",
            before=[sys.executable, "-c", ACTIVATE, str(server.fileno())],
            pass_fds=[server.fileno()],
        )
        assert broker.ports("cafe") == [port]
        with Cafe.subscriber(broker) as client:
            client.sync()


def test_two_brokers_are_independent(start: Start) -> None:
    first, second = start(*listen("cafe")), start(*listen("cafe"))
    with (
        Cafe.subscriber(first) as one,
        Cafe.subscriber(second) as two,
        Cafe.publisher(first) as to_first,
        Cafe.publisher(second) as to_second,
    ):
        to_first.send(b"".join(_publish(b"first %d" % n) for n in range(10)))
        to_second.send(b"".join(_publish(b"second %d" % n) for n in range(10)))
        assert one.receive_texts(10) == [b"first %d" % n for n in range(10)]
        assert two.receive_texts(10) == [b"second %d" % n for n in range(10)]
        assert one.sync() == two.sync() == []


def _publish(payload: bytes) -> bytes:
    return b"\xfe\xca\x10" + (len(payload) + 1).to_bytes(4, "little") + b"\x01" + payload


def test_a_port_scan_leaves_no_trace(start: Start) -> None:
    """Connections that send nothing have no events."""
    broker = start(*listen("cafe", "nsd"))
    for port in (broker.port("cafe"), broker.port("nsd")) * 20:
        Client(port).close()
    with Cafe.subscriber(broker) as client:
        client.sync()


def test_a_max_memory_beyond_a_limit_of_the_system(start: Start, tmp_path: Path) -> None:
    config = tmp_path / "pubsub.toml"
    listener = '[[listen]]\nprotocol = "cafe"\nport = 0\n'
    config.write_text(listener)
    broker = start(f"--config={config}", before=("prlimit", f"--data={600 * 1024**2}"))
    broker.wait_line(
        r"max-memory: with 1G the broker may exceed RLIMIT_DATA \(600M\), .*; set 472M or less, "
    )
    for number, size in enumerate(("472M", "473M"), 1):
        config.write_text(f'max-memory = "{size}"\n{listener}')
        broker.signal(signal.SIGHUP)
        broker.wait_line("reloaded: ", number)
    assert "max-memory: with 472M" not in broker.output
    assert "max-memory: with 473M" in broker.output
