"""Each protocol is a folder and a dropin; after removal of any one of them the others work."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from urllib.request import urlopen

import pytest

import pubsub
from pubsub.plugin import installed_protocols
from tests.integration.broker import (
    DEFECTS,
    HOST,
    TIMEOUT,
    Broker,
    Start,
    listen,
    run,
    run_python,
)
from tests.integration.clients import Cafe, Nsd
from tests.integration.fast_client import make_secret, make_token

PACKAGE = Path(pubsub.__file__).parent
PROTOCOLS = sorted(installed_protocols())
TOPIC = "cafe/1"
"""The topic of cafe's channel 1, and any topic to the others."""
KEYED = "keyed"
"""Where fast publishes, as its topics have a key."""
# Plugins are found in every directory of the path, so only the copy may be on it.
SITE = """
import os, sys
home = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [
    path for path in sys.path if path == home or not os.path.isdir(os.path.join(path, "pubsub"))
]
"""
CLIENTS = """
import json, sys
import pubsub.pipeline.publishing.publisher_urls as publisher_urls
from pubsub.pipeline.options.connector_options import sink_options
from pubsub.pipeline.jobs.dissect import dissect, dissectors
from pubsub.errors import ConfigurationError

def destination(given):
    return publisher_urls.find_destination(sink_options(given, publisher_urls.client_options()))

home, missing, topics, sinks = json.loads(sys.argv[1])
assert publisher_urls.__file__.startswith(home), publisher_urls.__file__
for protocol, given in sinks.items():
    with destination(given).publishers() as publisher:
        publisher.add(topics[protocol], protocol.encode())
        publisher.finish()
    assert "is known" not in dissect(dissectors(), protocol, b"x").fault, protocol
assert dissect(dissectors(), missing, b"x").fault == f"no protocol {missing!r} is known"
try:
    destination({"url": f"{missing}://127.0.0.1"})
except ConfigurationError as error:
    print(error)
"""


@pytest.fixture(params=PROTOCOLS)
def missing(request: pytest.FixtureRequest) -> str:
    """Return the protocol that is removed."""
    return str(request.param)


@pytest.fixture
def home(tmp_path: Path, missing: str) -> Path:
    """Return a copy of the package and its dropins without that protocol."""
    home = tmp_path / "copy"
    # Sources only: the compiled kernel is optional.
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(PACKAGE, home / "pubsub", ignore=ignored)
    shutil.rmtree(home / "pubsub" / "protocols" / missing)
    shutil.copy(PACKAGE.parent / "pubsub_broker.py", home)
    plugins = home / "twisted" / "plugins"
    plugins.mkdir(parents=True)
    for dropin in (PACKAGE.parent / "twisted" / "plugins").glob("pubsub_*.py"):
        if dropin.stem != f"pubsub_{missing}":
            shutil.copy(dropin, plugins)
    (home / "sitecustomize.py").write_text(SITE)
    return home


def path(home: Path) -> dict[str, str]:
    """Return an environment in which the copy is the only package."""
    return {"PYTHONPATH": str(home)}


def others(missing: str) -> list[str]:
    """Return the remaining protocols."""
    return [name for name in PROTOCOLS if name != missing]


def publish(home: Path, missing: str, broker: Broker, token: str) -> str:
    """Publish a message with each protocol's client in the copy and return its output."""
    names = others(missing)
    topics = {name: KEYED if name == "fast" else TOPIC for name in names}
    sinks = {name: {"url": f"{name}://{HOST}:{broker.port(name)}"} for name in names}
    if "fast" in sinks:
        sinks["fast"]["token"] = token
    arguments = json.dumps([str(home), missing, topics, sinks])
    return run_python(CLIENTS, arguments, env=path(home), cwd=home)


def over_http(broker: Broker) -> list[bytes]:
    """Return all messages, read over HTTP."""
    url = f"http://{HOST}:{broker.port('http')}/v1/history?start=0&format=jsonl"
    with urlopen(url, timeout=TIMEOUT) as answer:
        return [json.loads(line)["value"].encode() for line in answer]


def received(reader: Cafe | Nsd, count: int) -> Sequence[bytes]:
    """Return the messages that a subscriber has received."""
    if isinstance(reader, Cafe):
        return reader.receive_texts(count)
    return [message["body"].encode() for message in reader.get("ada")]


def test_help_lists_the_remaining_protocols(home: Path, missing: str) -> None:
    result = run(["--help"], home, env=path(home))
    assert result.returncode == 0, result.stderr
    listed = re.findall(r"(?m)^(\w+) \(.*; default port \d+\):$", result.stdout)
    assert listed == others(missing)
    assert f"--{missing}-" not in result.stdout
    assert not any(word in result.stdout + result.stderr for word in DEFECTS)


def test_messages_pass_between_the_remaining_protocols(
    home: Path, missing: str, start: Start, tmp_path: Path
) -> None:
    secret = make_secret(tmp_path / "secret")
    broker = start(
        *listen(*others(missing)), f"--admin-port=tcp:0:interface={HOST}",
        f"--secret-file={secret}", "--grant=*", env=path(home),
    )  # fmt: skip
    with Nsd.to(broker) if missing == "cafe" else Cafe.subscriber(broker) as reader:
        if isinstance(reader, Nsd):
            reader.do("Open", TOPIC)
            reader.do("Subscribe", "ada", channel=TOPIC)
        printed = publish(home, missing, broker, make_token(secret).decode())
        sent = [name.encode() for name in others(missing)]
        open_to_all = [name for name in sent if name != b"fast"]
        assert list(received(reader, len(open_to_all))) == open_to_all
    assert over_http(broker) == sent
    assert printed.startswith(f"option url: the protocol {missing} is not installed; choose from ")
