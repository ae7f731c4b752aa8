"""``docs/upgrading.md``: the reports of a start with a configuration and history of 0.1.0."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from pubsub.broker.listeners.listener_settings import SETTINGS as LISTENER_SETTINGS
from pubsub.client.history_client import HistoryClient
from pubsub.plugin import ADMIN, installed_protocols
from pubsub.server.broker_settings import BROKER_SETTINGS
from tests.integration.broker import HOST, Start, run
from tests.sqlite_histories import history

PAGE = (Path(__file__).parents[2] / "docs" / "upgrading.md").read_text()
# Every setting of version 0.1.0 with its default, except those whose default is empty.
SETTINGS = """
interface = "127.0.0.1"
history = "1000000,256M"
retention = "*=age:7d,bytes:10G"
commit-interval = 0.005
commit-bytes = "1M"
admin-port = "tcp:0:interface=127.0.0.1"
max-memory = "1G"
memory-seconds = 30
audit-size = "16M"
events = false
max-topics = 100000
max-sessions = 100000
resume-window = 60
stop-timeout = 10
allow-publish = "*"
allow-subscribe = "*"
max-connections = 0
max-connections-per-address = 0
rate-messages = 0
rate-bytes = 0
listener-rate-messages = 0
listener-rate-bytes = 0
slow-bytes = "64M"
slow-seconds = 30
idle-timeout = 0

[nsd]
max-body = 1000
max-identities = 100000
max-subscriptions = 10000

[rheos]
layout = "spec"
checksum = "off"
envelope = "none"
max-ids = 1000
max-subscriptions = 10000

[spot]
sync = 10
query-timeout = 2
heartbeat = 2
max-message = "1M"
max-subscriptions = 10000

[fast]
max-payload = "1M"
max-subscriptions = 10000
errors = true
require-create = false
rotation-grace = 0

[admin]
max-readers = 1000
max-batch = "32M"
max-staged = "256M"
stage-seconds = 600

[[listen]]
protocol = "cafe"
endpoint = "tcp:0:interface=127.0.0.1"
udp = true
channels = "0-255"

[[listen]]
protocol = "nsd"
endpoint = "unix:nsd.sock"
"""
KEPT = 'slow-consumer = "pause"\n'


# The rest of version 0.1.0: defaults that have changed, a name that has, and empty defaults.
CHANGED: dict[str, dict[str, object]] = {
    "": {"store": "sqlite", "slow-consumer": "pause"},
    "admin": {"max-streams": 16},
    "spot": {"handshake-timeout": 10},
}


def lines() -> list[str]:
    """Return the lines at the start of the tables, as patterns."""
    found = []
    for row in re.findall(r"^\| .* \|$", PAGE, re.MULTILINE):
        cells = row.strip("| ").split(" | ")
        if len(cells) == 4 and cells[3].startswith("`"):
            text = re.escape(cells[3].strip("`"))
            found.append(re.sub(r"\bFILE\b|\bDIR\b", r"\\S+", text))
    assert len(found) >= 8
    return found


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Return a directory with a history of two messages."""
    with history(tmp_path / "history.db") as made:
        made.put("cafe/7", [b"hello", b"again"])
    return tmp_path


def test_the_first_start_reports_changed_names_and_defaults(start: Start, old: Path) -> None:
    (old / "pubsub.toml").write_text(SETTINGS)
    config = f"--config={old / 'pubsub.toml'}"
    store = f"--store=sqlite:{old / 'history.db'}"
    first = start(config, store)
    expected = [line for line in lines() if "handshake" not in line]
    assert [line for line in expected if not re.search(line, first.output)] == []
    bounds = HistoryClient(f"http://{HOST}:{first.port('http')}").bounds()
    assert (bounds.first, bounds.next) == (0, 2)
    assert (old / "history.db").exists()
    first.stop()
    again = start(config, store)
    assert "upgrade from 0.1" not in again.output
    assert "migrating" not in again.output


def test_defaults_that_are_kept_are_not_reported(start: Start, old: Path) -> None:
    (old / "pubsub.toml").write_text(KEPT + SETTINGS)
    broker = start(f"--config={old / 'pubsub.toml'}", f"--store=sqlite:{old / 'history.db'}")
    assert "upgrade from 0.1" in broker.output
    assert "slow-consumer" not in broker.output


def test_the_default_place_is_migrated(start: Start, old: Path) -> None:
    broker = start(
        "--listen=cafe=tcp:0:interface=127.0.0.1", "--store=log", env={"STATE_DIRECTORY": str(old)}
    )
    assert f"migrating {old / 'history.db'} to {old / 'history'};" in broker.output
    assert "slow-consumer is auto, and was pause" in broker.output


def test_names_that_have_changed_end_the_start(tmp_path: Path) -> None:
    (tmp_path / "pubsub.toml").write_text("[spot]\nhandshake-timeout = 10\n")
    outputs = [
        run(["--config=pubsub.toml"], tmp_path),
        run(["--spot-handshake-timeout=10"], tmp_path),
    ]
    patterns = [line for line in lines() if "handshake" in line]
    assert len(patterns) == 2
    for pattern, done in zip(patterns, outputs, strict=True):
        assert done.returncode == 1
        assert re.search(pattern, done.stderr)


def test_a_new_history_reports_nothing(start: Start, tmp_path: Path) -> None:
    broker = start("--listen=cafe=tcp:0:interface=127.0.0.1", f"--store=log:{tmp_path / 'new'}")
    assert "upgrade from" not in broker.output


def test_every_name_and_default_that_has_changed_is_listed() -> None:
    old = tomllib.loads(SETTINGS)
    own = {protocol.name: protocol.settings for protocol in installed_protocols().values()}
    tables = {"": (*BROKER_SETTINGS, *LISTENER_SETTINGS), **own, ADMIN.name: ADMIN.settings}
    for table, settings in tables.items():
        now = {setting.name: setting for setting in settings}
        before = {k: v for k, v in (old if not table else old.get(table, {})).items()
                  if not isinstance(v, dict | list)}  # fmt: skip
        # The test has to choose a port of its own.
        before.pop("admin-port", None)
        for name, value in {**before, **CHANGED.get(table, {})}.items():
            setting = now.get(name)
            same = setting is not None and setting.read(value) == setting.read(setting.default)
            listed = name in CHANGED.get(table, {})
            assert same or listed, f"[{table}] {name} has changed: list it here and on the page"
            assert not listed or f"`{name}`" in PAGE, f"[{table}] {name}"
