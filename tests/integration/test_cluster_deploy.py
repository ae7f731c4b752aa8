"""docs/deploy/cluster: its files, and its three nodes and three brokers as processes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.integration.backplane_options import shared
from tests.integration.broker import HOST, TIMEOUT, TWISTD, Broker, Start, listen
from tests.integration.broker import run as run_broker
from tests.integration.clients import Cafe
from tests.integration.cluster import free_port
from tests.integration.nats_server import SERVER
from tests.integration.unit_files import problems_of

CLUSTER = Path(__file__).parents[2] / "docs/deploy/cluster"
UNITS = CLUSTER / "systemd"
COMPOSE: dict[str, Any] = YAML(typ="safe").load(CLUSTER / "compose.yaml")
NODES = ("nats-1", "nats-2", "nats-3")
CONNECTED = r"backplane: connected to tls://localhost:(\d+)"


def run(*command: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


class Node:
    """A node with the configuration of the compose file; its host is this one."""

    def __init__(self, name: str, ports: Mapping[str, int], directory: Path) -> None:
        self.ports = [free_port() for _ in range(2)]
        self.routes = ports[name]
        text = (CLUSTER / "nats.conf").read_text()
        replaced = {
            "0.0.0.0:4222": f"{HOST}:{self.ports[0]}",
            "127.0.0.1:8222": f"{HOST}:{self.ports[1]}",
            "0.0.0.0:6222": f"{HOST}:{ports[name]}",
            **{f"//{one}:6222": f"//localhost:{ports[one]}" for one in NODES},
        }
        for old, new in replaced.items():
            assert text.count(old) == 1
            text = text.replace(old, new)
        path = directory / f"{name}.conf"
        path.write_text(text)
        service = COMPOSE["services"][name]
        sources = {one["target"]: one["source"] for one in service["secrets"][1:]}
        environment = dict(service["environment"])
        for variable in ("NATS_CERT", "NATS_KEY", "NATS_CA"):
            target = Path(environment[variable]).name
            environment[variable] = str(directory / "certificates" / sources.get(target, target))
        environment["NATS_STORE"] = str(directory / name)
        self.log = directory / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [SERVER, "--config", str(path)],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def information(self, port: int, tls: ssl.SSLContext | None = None) -> dict[str, Any]:
        """Return what the node says of itself to a client, or with ``tls`` to another node."""
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(socket.create_connection((HOST, port), TIMEOUT))
            if tls is not None:
                connection = tls.wrap_socket(connection, server_hostname="localhost")
                stack.enter_context(connection)
            name, _, text = stack.enter_context(connection.makefile()).readline().partition(" ")
        assert name == "INFO"
        information: dict[str, Any] = json.loads(text)
        return information

    def is_healthy(self) -> bool:
        """Ask what the container's health check asks."""
        assert self.process.poll() is None, self.log.read_text()
        check = COMPOSE["services"]["nats-1"]["healthcheck"]["test"][-1]
        with contextlib.suppress(OSError):
            urllib.request.urlopen(check.replace(":8222", f":{self.ports[1]}")).close()
            return True
        return False


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    directory = tmp_path / "certificates"
    done = run("sh", str(CLUSTER / "certificates.sh"), str(directory), *NODES)
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture
def nodes(certificates: Path, tmp_path: Path) -> Iterator[list[Node]]:
    ports = {name: free_port() for name in NODES}
    made: list[Node] = []
    try:
        made += [Node(name, ports, tmp_path) for name in NODES]
        deadline = time.monotonic() + TIMEOUT
        while not all(node.is_healthy() for node in made):
            assert time.monotonic() < deadline, made[0].log.read_text()
            time.sleep(0.05)
        yield made
    finally:
        for node in made:
            node.process.kill()
            node.process.wait()


def broker(
    start: Start, number: int, nodes: list[Node], certificates: Path, *options: str
) -> Broker:
    """Start a broker with the file and the options of the compose file."""
    config = certificates.parent / "pubsub.toml"
    config.write_text((CLUSTER / "pubsub.toml").read_text().replace('"json"', '"text"'))
    *before, url = COMPOSE["services"][f"broker-{number}"]["command"]
    assert before == ["--config", "/etc/pubsub/pubsub.toml", "--backplane"]
    for name, node in zip(NODES, nodes, strict=True):
        url = url.replace(f"{name}:4222", f"localhost:{node.ports[0]}")
    made = start(
        "--config", str(config), "--backplane", url, *options,
        f"--interface={HOST}", "--admin-port=0", *listen("cafe"),
        env={"CREDENTIALS_DIRECTORY": str(certificates)},
    )  # fmt: skip
    made.wait_line(CONNECTED)
    return made


def test_nodes_are_known_by_the_names_in_their_certificates(
    nodes: list[Node], certificates: Path
) -> None:
    """Nodes tell others and clients about each other; nobody can verify an address."""
    tls = ssl.create_default_context(cafile=certificates / "ca.pem")
    tls.load_cert_chain(certificates / "nats-1.pem", certificates / "nats-1.key")
    for name, node in zip(NODES, nodes, strict=True):
        assert node.information(node.routes, tls)["host"] == name
        known = node.information(node.ports[0])["connect_urls"]
        assert {url.partition(":")[0] for url in known} <= set(NODES)


@pytest.mark.parametrize("history", ["own", "shared"])
def test_three_brokers_at_three_nodes(
    history: str, start: Start, nodes: list[Node], certificates: Path, tmp_path: Path
) -> None:
    brokers = [
        broker(
            start, number, nodes, certificates,
            f"--backplane-history={history}", f"--store=log:{tmp_path / f'history-{number}'}",
        )
        for number in (1, 2, 3)
    ]  # fmt: skip
    for one, node in zip(brokers, nodes, strict=True):
        # Each is at the node beside it.
        assert f"localhost:{node.ports[0]}" in one.output
    publisher = Cafe.publisher(brokers[0])
    subscribers = [Cafe.subscriber(one) for one in brokers[1:]]
    for subscriber in subscribers:
        shared(publisher, subscriber)
    # A node ends; its broker continues at another one.
    nodes[1].process.kill()
    brokers[1].wait_line(CONNECTED, 2)
    shared(publisher, subscribers[0])


def test_only_the_certificates_of_brokers_are_accepted(
    start: Start, nodes: list[Node], certificates: Path, tmp_path: Path
) -> None:
    url = f"--backplane=tls://localhost:{nodes[0].ports[0]}"
    ca = f"--backplane-ca={certificates / 'ca.pem'}"
    stranger = [
        f"--backplane-{part}={certificates / NODES[0]}.{end}"
        for part, end in (("cert", "pem"), ("key", "key"))
    ]
    done = run_broker([*listen("cafe"), url, ca, *stranger], tmp_path)
    assert "it refuses the credentials" in done.stdout + done.stderr
    without = start(*listen("cafe"), url, ca)
    without.wait_line(r"backplane: the engine is away")
    assert "connected to" not in without.output


def test_the_compose_file() -> None:
    schema = str(Path(sys.executable).with_name("check-jsonschema"))
    path = str(CLUSTER / "compose.yaml")
    done = run(schema, "--builtin-schema", "vendor.compose-spec", path)
    assert done.returncode == 0, done.stdout
    services = COMPOSE["services"]
    assert len(services) == 6
    for name, service in services.items():
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        for one in (*service["secrets"], *service["configs"]):
            source = one if isinstance(one, str) else one["source"]
            assert source in {**COMPOSE["secrets"], **COMPOSE["configs"]}, name
        assert all(volume.split(":")[0] in COMPOSE["volumes"] for volume in service["volumes"])
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert len(set(ports)) == len(ports) == 15


def test_the_image_has_the_client_of_nats() -> None:
    text = (CLUSTER.parent / "docker" / "Dockerfile").read_text()
    extras = re.search(r"^ARG EXTRAS=(\S+)$", text, re.MULTILINE)
    assert extras is not None
    assert "nats" in extras[1].split(",")
    assert 'pip install --no-cache-dir --constraint constraints.txt ".[${EXTRAS}]"' in text


def test_the_certificates_are_kept(certificates: Path) -> None:
    before = {path.name: path.read_bytes() for path in certificates.iterdir()}
    done = run("sh", str(CLUSTER / "certificates.sh"), str(certificates), *NODES, "nats-4")
    assert done.returncode == 0, done.stderr
    after = {path.name: path.read_bytes() for path in certificates.iterdir()}
    assert after.items() > before.items()
    assert after.keys() - before.keys() == {"nats-4.key", "nats-4.pem"}
    assert certificates.stat().st_mode & 0o777 == 0o700
    assert (certificates / "ca.key").stat().st_mode & 0o077 == 0
    assert set(before) >= {Path(one["file"]).name for one in COMPOSE["secrets"].values()}


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """Return a directory with the units, for programs that exist."""
    if shutil.which("systemd-analyze") is None:
        assert "CI" not in os.environ, "install the package systemd"
        pytest.skip("systemd-analyze is not installed")
    for unit in (UNITS / "pubsub-nats.service", *(CLUSTER.parent / "systemd").glob("pubsub*.*")):
        text = unit.read_text().replace("/opt/pubsub/bin/twistd", TWISTD)
        (tmp_path / unit.name).write_text(text.replace("/usr/local/bin/nats-server", SERVER))
    drop_in = tmp_path / "pubsub.service.d"
    drop_in.mkdir()
    shutil.copy(UNITS / "pubsub-backplane.conf", drop_in)
    return tmp_path


def test_the_units_are_valid(units: Path) -> None:
    assert problems_of(units, ("pubsub-nats.service", "pubsub.service")) == []
    node = str(units / "pubsub-nats.service")
    done = run(
        "systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", node
    )
    assert done.returncode == 0, done.stdout


def test_the_units_have_what_the_configuration_needs(units: Path) -> None:
    service = (units / "pubsub-nats.service").read_text()
    for variable in COMPOSE["x-nats-environment"]:
        assert f"Environment={variable}=" in service
        assert f"${variable}" in (CLUSTER / "nats.conf").read_text()
    drop_in = (UNITS / "pubsub-backplane.conf").read_text()
    for name in ("ca.pem", "broker.pem", "broker.key"):
        assert f"$CREDENTIALS_DIRECTORY/{name}" in (CLUSTER / "pubsub.toml").read_text()
        assert f"LoadCredential={name}:" in drop_in
