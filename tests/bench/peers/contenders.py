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
    """Another broker. ``{port}`` in ``files`` stands for a free port.

    The program comes from Debian, or is ``bundled`` with the environment: Debian's nats-server is
    several years old, and PyPI has a current one.
    """

    program: str
    wire: str
    arguments: Sequence[str]
    ready: str
    version: str = "--version"
    files: Mapping[str, str] = field(default_factory=dict)
    bundled: bool = False


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
        bundled=True,
    ),
)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.create_server((HOST, 0)) as sock:
        return int(sock.getsockname()[1])


def server_named(program: str) -> Server:
    """Return one of ``SERVERS``."""
    return next(server for server in SERVERS if server.program == program)


def path_of(server: Server) -> str:
    """Return the path of its program. Raises BenchError with instructions to install it."""
    name = server.program
    if server.bundled:
        found = shutil.which(name, path=str(Path(sys.executable).parent))
    else:
        found = shutil.which(name) or shutil.which(name, path=":".join(_PATHS))
    if found is None:
        raise BenchError(f"{name} is not installed; run: scripts/setup dev")
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
        [path_of(server), *server.arguments, *arguments],
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
    command = [path_of(server), server.version]
    output = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    found = re.search(r"\d+\.\d+\.\d+", output.stdout + output.stderr)
    return found[0] if found else ""


def peers() -> tuple[list[Contender], list[str]]:
    """Return the other brokers that are installed, and a line for each that is not."""
    found, missing = [], []
    for server in SERVERS:
        try:
            name = f"{server.program} {version(server)}"
        except BenchError as error:
            missing.append(str(error))
            continue
        start = partial(start_server, server)
        found.append(Contender(name, PEER_WIRES[server.wire], start))
    return [*found, libzmq()], missing


def libzmq() -> Contender:
    """Return libzmq, which is always present, as the tests require it."""
    name = f"libzmq {zmq.zmq_version()} XPUB/XSUB proxy"
    return Contender(name, PEER_WIRES["zmq"], start_proxy)


def ours(
    twistd: Path,
    wires: Sequence[str],
    suffix: str = "",
    options: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> list[Contender]:
    """Return this broker over each of ``wires``, in the environment of ``twistd``."""
    return [
        Contender(
            name + suffix,
            WIRES[name],
            partial(twistd_broker, twistd, WIRES[name], options, BROKER_CORE, variables),
            ours=True,
        )
        for name in wires
    ]
