"""The brokers of the comparison: the start of each, and its wire."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import zmq

from tests.bench import BenchError
from tests.bench.broker import HOST, Broker, twistd_broker
from tests.bench.peers import proxy
from tests.bench.wires import PEER_WIRES, WIRES, Wire

BROKER_CORE, GENERATOR_CORE = 0, 1
# Debian installs servers where only root's path has them.
_PATHS = ("/usr/sbin", "/usr/bin", "/usr/local/bin")


@dataclass(frozen=True)
class Contender:
    """One row of the tables."""

    name: str
    wire: Wire
    start: Callable[[], Broker]
    """Return a broker whose context has not been entered."""
    ours: bool = False


@dataclass(frozen=True)
class Server:
    """A program from Debian. ``port`` in ``arguments`` and ``files`` stands for a free port."""

    package: str
    wire: str
    arguments: Sequence[str]
    ready: str
    version: str = "--version"
    files: Mapping[str, str] = field(default_factory=dict)


_NATS = """\
host: 127.0.0.1
port: {port}
ping_interval: "1h"
max_payload: 2MB
"""
_MOSQUITTO = """\
listener {port} 127.0.0.1
allow_anonymous true
set_tcp_nodelay true
max_queued_messages 0
max_inflight_messages 0
"""
_REDIS = """\
bind 127.0.0.1
port {port}
save ""
appendonly no
maxclients 15000
client-output-buffer-limit pubsub 0 0 0
"""

SERVERS = (
    Server(
        "mosquitto",
        "mqtt",
        ["-v", "-c", "conf"],
        r"listen socket on port (\d+)\.(?s:.*) running",
        "-h",
        {"conf": _MOSQUITTO.replace("allow", "log_type notice\nallow")},
    ),
    Server(
        "redis-server",
        "resp",
        ["conf"],
        r"port=(\d+)\.(?s:.*)Ready to accept",
        files={"conf": _REDIS},
    ),
    Server(
        "nats-server",
        "nats",
        ["-c", "conf"],
        rf"connections on {re.escape(HOST)}:(\d+)(?s:.*)is ready",
        files={"conf": _NATS},
    ),
)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.create_server((HOST, 0)) as sock:
        return int(sock.getsockname()[1])


def program(name: str) -> str:
    """Return the path of a program. Raises BenchError with instructions to install it."""
    found = shutil.which(name) or shutil.which(name, path=":".join(_PATHS))
    if found is None:
        raise BenchError(f"{name} is not installed; run: scripts/setup bench")
    return found


def start_server(
    server: Server, files: Mapping[str, str] | None = None, arguments: Sequence[str] = ()
) -> Broker:
    """Return a server on a free port, with ``files`` of its own."""
    port = str(free_port())
    contents = {
        name: text.replace("{port}", port) for name, text in (files or server.files).items()
    }
    return Broker(
        [program(server.package), *server.arguments, *arguments],
        re.compile(server.ready),
        BROKER_CORE,
        {name: text.encode() for name, text in contents.items()},
    )


def start_proxy() -> Broker:
    """Return libzmq between publishers and subscribers."""
    ready = re.compile(r"subscribe at (\d+), publish at (\d+)")
    return Broker([sys.executable, str(Path(proxy.__file__))], ready, BROKER_CORE)


def version(server: Server) -> str:
    """Return the version that the program prints."""
    command = [program(server.package), server.version]
    output = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    found = re.search(r"\d+\.\d+\.\d+", output.stdout + output.stderr)
    return found[0] if found else ""


def peers() -> list[Contender]:
    """Return all other brokers. Raises BenchError if one is missing."""
    found = [
        Contender(
            f"{server.package} {version(server)}",
            PEER_WIRES[server.wire],
            partial(start_server, server),
        )
        for server in SERVERS
    ]
    return [*found, libzmq()]


def libzmq() -> Contender:
    """Return libzmq, which is always present, as the tests require it."""
    name = f"libzmq {zmq.zmq_version()} XPUB/XSUB proxy"
    return Contender(name, PEER_WIRES["zmq"], start_proxy)


def ours(
    twistd: Path, wires: Sequence[str], suffix: str = "", options: Sequence[str] = ()
) -> list[Contender]:
    """Return this broker over each of ``wires``, in the environment of ``twistd``."""
    return [
        Contender(
            name + suffix,
            WIRES[name],
            partial(twistd_broker, twistd, WIRES[name], options, BROKER_CORE),
            ours=True,
        )
        for name in wires
    ]
