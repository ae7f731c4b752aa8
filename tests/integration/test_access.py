"""Access rules with real processes: certificates, UNIX sockets, SIGHUP, the start."""

from __future__ import annotations

import os
import re
import signal
import socket
from pathlib import Path

import pytest

from tests.integration.broker import HOST, TIMEOUT, Broker, Start, run
from tests.integration.certificates import NAME, Authority, Stream, connect
from tests.integration.clients import frame, handshake_pub, handshake_sub, split

ACK, ERROR, MESSAGE = 0x03, 0x7F, 0x20
LISTEN = '[[listen]]\nprotocol = "{}"\nendpoint = "{}"\n'
DENIED = 0x08


def opened(stream: Stream, handshake: bytes) -> int:
    """Return the status of the acknowledgment of a handshake."""
    stream.sendall(handshake)
    received = b""
    while len(received) < 16:
        piece = stream.recv(16 - len(received))
        assert piece
        received += piece
    return split(received)[0].payload[0]


def denied(stream: Stream) -> None:
    """Wait for the error that reports an ended subscription."""
    (one,) = split(stream.recv(64))
    assert one.payload[0] == DENIED


class Rules:
    """A broker whose rules are in a file."""

    def __init__(self, path: Path, listeners: str) -> None:
        self._path = path
        self._listeners = listeners
        self.broker: Broker

    def write(self, *rules: str) -> None:
        """Write the file with these rules, which are given without their first line."""
        tables = "".join(f"[[access]]\n{rule}\n" for rule in rules)
        self._path.write_text(self._listeners + tables)

    def start(self, start: Start) -> Broker:
        self.broker = start(f"--config={self._path}")
        return self.broker

    def reload(self, *rules: str) -> None:
        """Replace the rules, and wait until they count."""
        self.write(*rules)
        self.broker.signal(signal.SIGHUP)
        self.broker.wait_line("reloaded: ")


@pytest.mark.modes
def test_users_of_a_unix_socket(start: Start, tmp_path: Path) -> None:
    place = tmp_path / "cafe.sock"
    tcp = f"tcp:0:interface={HOST}"
    rules = Rules(
        tmp_path / "pubsub.toml",
        LISTEN.format("cafe", f"unix:{place}") + LISTEN.format("nsd", tcp),
    )
    mine = f'identity = "uid:{os.getuid()}"\nproof = "socket"'
    rules.write(f'{mine}\nallow = ["publish", "subscribe"]\ntopics = "cafe/1"')
    broker = rules.start(start)
    with socket.socket(socket.AF_UNIX) as reader, socket.socket(socket.AF_UNIX) as other:
        for one in (reader, other):
            one.settimeout(TIMEOUT)
            one.connect(str(place))
        assert opened(reader, handshake_sub(b"\x01")) == 0
        assert opened(other, handshake_pub(2)) == DENIED
        rules.reload(f"{mine}\nallow = 'publish'")
        denied(reader)
    with socket.create_connection((HOST, broker.port("nsd")), TIMEOUT) as stranger:
        stranger.sendall(b'{"_class":"OpenRequest","identity":"eve"}\n')
        assert b"ErrorResponse" in stranger.recv(1000)


def test_names_in_certificates(start: Start, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate = authority.issue("broker", NAME)
    listener = LISTEN.format("cafe", f"tcp:0:interface={HOST}")
    listener += f'tls-cert = "{certificate}"\ntls-ca = "{authority.file}"\n'
    rules = Rules(tmp_path / "pubsub.toml", listener + 'tls-client = "optional"\n')
    ada = 'identity = "ada"\nproof = "certificate"\nallow = "*"'
    rules.write(ada, 'allow = "subscribe"\ntopics = "cafe/2"')
    port = rules.start(start).port("cafe")
    own = authority.issue("client", "a.example", common_name="ada")
    with (
        connect(port, authority.client(own)) as reader,
        connect(port, authority.client()) as nobody,
        connect(port, authority.client()) as outsider,
    ):
        assert opened(reader, handshake_sub(b"\x01\x02")) == 0
        assert opened(nobody, handshake_sub(b"\x02")) == 0
        assert opened(outsider, handshake_sub(b"\x01")) == DENIED
        rules.reload('allow = "subscribe"\ntopics = "cafe/2"')
        denied(reader)
        reader.sendall(frame(0x01, b"\x02"))


def test_a_listener_for_other_machines_has_to_be_decided(tmp_path: Path) -> None:
    done = run(["--listen=cafe=tcp:0:interface=0.0.0.0"], tmp_path)
    assert done.returncode == 1
    (line,) = [one for one in done.stderr.splitlines() if one.startswith("pubsub: ")]
    assert line.startswith("pubsub: cafe: tcp 0.0.0.0:")
    assert "set allow-anonymous on" in line
    assert "Traceback" not in done.stdout + done.stderr


def test_a_listener_for_other_machines_that_is_decided(start: Start, tmp_path: Path) -> None:
    broker = start("--listen=cafe=tcp:0:interface=0.0.0.0", "--allow-anonymous")
    found = re.search(r"cafe on tcp 0\.0\.0\.0:(\d+)", broker.output)
    assert found is not None
    with socket.create_connection((HOST, int(found[1])), TIMEOUT) as client:
        assert opened(client, handshake_sub(b"\x01")) == 0
