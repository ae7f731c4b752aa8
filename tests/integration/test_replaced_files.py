"""A broker below which an upgrade has replaced the files: it goes on with the code of its start."""

from __future__ import annotations

import ast
import io
import json
import shutil
import signal
import urllib.request
from pathlib import Path

import pyarrow as pa
import pytest

from pubsub.http_api.server import LATE_MODULES
from scripts.architecture import imported
from tests.integration.broker import HOST, Broker, Start, run_python
from tests.integration.clients import Cafe, publish
from tests.integration.cluster import free_port

ROOT = Path(__file__).parents[2]
OTHER = "raise AssertionError('the code of another version is run')\n"
_AT_START = """
import sys
import pubsub.http_api.server, pubsub.server.tap
from pubsub.plugin import installed_protocols
for protocol in installed_protocols().values():
    protocol.settings, protocol.dissect
print(*sys.modules)
"""


def test_all_modules_that_are_imported_late_are_kept() -> None:
    found = set(LATE_MODULES)
    # The functions of the server import at the start.
    packages = ("backplane", "broker", "http_api", "management", "protocols", "store", "wire")
    for path in (one for name in packages for one in (ROOT / "pubsub" / name).rglob("*.py")):
        for scope in ast.walk(ast.parse(path.read_text())):
            if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
                found |= own_modules(scope)
    for name in LATE_MODULES:
        found |= own_modules(ast.parse((ROOT / f"{name.replace('.', '/')}.py").read_text()))
    assert found - set(run_python(_AT_START, env={}).split()) == set(LATE_MODULES)


def own_modules(node: ast.AST) -> set[str]:
    """Return the modules of the package that ``node`` imports."""
    names = {name for name in imported(node) if name.startswith("pubsub.")}
    places = {name: (ROOT / f"{name.replace('.', '/')}.py").exists() for name in names}
    return {name if is_one else name.rpartition(".")[0] for name, is_one in places.items()}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a directory with a copy of the package."""
    copy = tmp_path / "installed"
    for name in ("pubsub", "twisted"):
        kept = shutil.ignore_patterns("__pycache__", "dropin.cache")
        shutil.copytree(ROOT / name, copy / name, ignore=kept)
    shutil.copy(ROOT / "pubsub_broker.py", copy)
    return copy


def replace(copy: Path) -> None:
    """Replace every file, as pip does."""
    for path in copy.rglob("*"):
        if path.is_file():
            path.unlink()
            if path.suffix == ".py":
                path.write_text(OTHER)


def request(broker: Broker, path: str, body: bytes | None = None) -> bytes:
    url = f"http://{HOST}:{broker.port('http')}{path}"
    with urllib.request.urlopen(url, body, timeout=60) as response:
        found: bytes = response.read()
    return found


def test_a_running_broker_imports_nothing_of_the_new_version(
    start: Start, tmp_path: Path, copy: Path
) -> None:
    config = tmp_path / "pubsub.toml"
    cafe = f'[[listen]]\nprotocol = "cafe"\nendpoint = "tcp:{free_port()}:interface={HOST}"\n'
    config.write_text(cafe)
    broker = start(
        f"--admin-port=tcp:0:interface={HOST}",
        f"--store=log:{tmp_path / 'history'}",
        f"--config={config}",
        env={"PYTHONPATH": str(copy)},
    )
    with Cafe.publisher(broker, 7) as publisher:
        publisher.send(publish(7, b"hello"))
        publisher.sync()
    replace(copy)
    assert b"pubsub_build_info{" in request(broker, "/metrics")
    assert request(broker, "/dashboard/dashboard.css")
    assert b'"value": "hello"' in request(broker, "/v1/history?start=0&format=jsonl")
    stream = request(broker, "/v1/history?start=0&format=arrow&headers=1")
    assert pa.ipc.open_stream(stream).read_all()["value"].to_pylist() == [b"hello"]
    part = io.BytesIO()
    table = pa.table({"topic": ["cafe/7"], "value": pa.array([b"again"], pa.binary())})
    with pa.ipc.new_stream(part, table.schema) as writer:
        writer.write_table(table)
    staged = json.loads(request(broker, "/v1/stage?query=q&batch=1", part.getvalue()))
    commit = {"query": "q", "batch": 1, "parts": [staged["part"]]}
    assert json.loads(request(broker, "/v1/commit", json.dumps(commit).encode()))["messages"] == 1
    others = ("nsd", "rheos", "spot")
    added = [cafe.replace("cafe", name).replace(f"{broker.port('cafe')}", "0") for name in others]
    config.write_text("".join(["rate-messages = 2000\n", cafe, *added]))
    broker.signal(signal.SIGHUP)
    broker.wait_line("rate-messages is 2000")
    for name in others:
        broker.wait_line(rf"{name} on tcp")
