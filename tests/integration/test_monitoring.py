"""The alert rules and the dashboard, with Debian's Prometheus, which is of release 2 or 3."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import urllib3

from tests.integration.broker import HOST, Broker, Start, listen
from tests.integration.certificates import NAME, Authority
from tests.integration.clients import Cafe, publish, text
from tests.integration.key_server import key_server
from tests.integration.nats_server import nats_server
from tests.integration.needs import missing
from tests.unit.monitoring_files import DASHBOARD, MONITORING
from tests.waiting import until

RULE_TESTS = Path(__file__).with_name("alert_tests.yml")
ADMIN = f"--admin-port=tcp:0:interface={HOST}"
SIZE, FLOOD = 32 * 1024, 3000
# Seconds that Prometheus may take for anything.
TIMEOUT = 60
_LISTENING = re.compile(r'msg="Listening on" (?:component=web )?address=[^ ]*:(\d+)')
_SCRAPE = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: pubsub
    static_configs: [{{targets: ["{target}"]}}]
"""


def tool(name: str) -> str:
    """Return the path of a program of Debian's package."""
    return shutil.which(name) or missing("prometheus")


def promtool(*arguments: str, cwd: Path | None = None) -> str:
    """Run promtool, which must succeed, and return its output."""
    result = subprocess.run(
        [tool("promtool"), *arguments],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_rules_are_valid() -> None:
    assert "SUCCESS" in promtool("check", "rules", str(MONITORING / "alerts.yml"))


def test_each_alert_fires_for_its_cause_alone(tmp_path: Path) -> None:
    for path in (MONITORING / "alerts.yml", RULE_TESTS):
        shutil.copy(path, tmp_path)
    assert "SUCCESS" in promtool("test", "rules", RULE_TESTS.name, cwd=tmp_path)


class Prometheus:
    """A Prometheus on a free port of loopback that scrapes ``broker`` each second."""

    def __init__(self, broker: Broker, directory: Path) -> None:
        config = directory / "prometheus.yml"
        config.write_text(
            _SCRAPE.format(rules=MONITORING / "alerts.yml", target=f"{HOST}:{broker.port('http')}")
        )
        self._process = subprocess.Popen(
            [
                tool("prometheus"),
                f"--config.file={config}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address={HOST}:0",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._http = urllib3.PoolManager(retries=False, timeout=TIMEOUT)
        self._port = self._wait_for_port()
        # Nothing is read of its log any more, which must not fill the pipe.
        self._reader = threading.Thread(target=self._discard, daemon=True)
        self._reader.start()

    def _wait_for_port(self) -> int:
        assert self._process.stderr is not None
        seen = []
        for line in self._process.stderr:
            seen.append(line)
            found = _LISTENING.search(line)
            if found is not None:
                return int(found[1])
        raise AssertionError("".join(seen))

    def _discard(self) -> None:
        assert self._process.stderr is not None
        for _ in self._process.stderr:
            pass

    def query(self, query: str) -> list[Any]:
        """Return the result of a query; fails if it is not valid."""
        url = f"http://{HOST}:{self._port}/api/v1/query"
        answer = self._http.request("GET", url, fields={"query": query})
        body = json.loads(answer.data)
        assert answer.status == 200, body
        found: list[Any] = body["data"]["result"]
        return found

    def healthy_rules(self) -> set[str]:
        """Return the names of the rules that Prometheus has evaluated without an error."""
        answer = self._http.request("GET", f"http://{HOST}:{self._port}/api/v1/rules")
        groups = json.loads(answer.data)["data"]["groups"]
        return {r["name"] for group in groups for r in group["rules"] if r["health"] == "ok"}

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait(TIMEOUT)
        self._http.clear()


@contextmanager
def scraping(broker: Broker, directory: Path) -> Iterator[Prometheus]:
    """Return a context with a Prometheus that scrapes ``broker``."""
    prometheus = Prometheus(broker, directory)
    try:
        yield prometheus
    finally:
        prometheus.stop()


@contextmanager
def traffic(broker: Broker) -> Iterator[None]:
    """Return a context with clients, after one was refused and another evicted."""
    with socket.create_connection((HOST, broker.port("cafe"))) as stranger:
        stranger.sendall(b"what is this")
        assert stranger.recv(1000)
    with (
        Cafe.subscriber(broker, b"\x01", b"stuck", receive_buffer=16 * 1024),
        Cafe.subscriber(broker, b"\x02", b"quick") as quick,
        Cafe.publisher(broker, 1) as source,
        Cafe.publisher(broker, 2) as other,
    ):
        for _ in range(FLOOD):
            source.send(publish(1, bytes(SIZE)))
        assert source.sync() == []
        other.send(publish(2, b"hello"))
        assert text(quick.receive()) == b"hello"
        yield


def test_every_panel_shows_something(start: Start, tmp_path: Path) -> None:
    with key_server() as issuer, nats_server(tmp_path) as engine:
        issuer.reply = issuer.send_keys("a")
        config = tmp_path / "pubsub.toml"
        certificate = Authority(tmp_path).issue("broker", NAME)
        config.write_text(
            f'[keys.corp]\njwks-url = "http://{HOST}:{issuer.port}/"\n'
            f'[nsd]\ntls-cert = "{certificate}"\n'
        )
        broker = start(
            *listen("cafe", "nsd"),
            ADMIN,
            f"--config={config}",
            f"--store=log:{tmp_path}/h",
            "--slow-consumer=disconnect",
            "--slow-bytes=100K",
            f"--backplane={engine.url}",
            "--backplane-history=shared",
        )
        broker.wait_line("keys of corp that are used from now on: 1")
        broker.wait_line("backplane: connected to")
    with scraping(broker, tmp_path) as prometheus, traffic(broker):
        for panel in DASHBOARD["panels"]:
            for target in panel.get("targets", ()):
                query = target["expr"].replace("$instance", ".*")
                query = query.replace("$__rate_interval", "1m")
                until(partial(prometheus.query, query), f"{panel['title']}: {query}")
        names = set(re.findall(r"- alert: (\w+)", (MONITORING / "alerts.yml").read_text()))
        until(lambda: prometheus.healthy_rules() == names, "every rule is evaluated")
