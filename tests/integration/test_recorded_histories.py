"""Histories that earlier versions have written: what they had acknowledged is there, once.

``recorded`` has the directory of a killed broker of version 0.1.0, and that of one of the day on
which the history became a log of segments, each with its secret.
"""

from __future__ import annotations

import io
import json
import tarfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.integration.broker import HOST, Broker, Start, listen
from tests.integration.clients import Nsd
from tests.integration.fast_client import make_token

RECORDED = Path(__file__).parent / "recorded"
MESSAGES = [
    ("cafe/7", "hello", "cafe", "YWxpY2U="),
    ("cafe/7", "again", "cafe", "YWxpY2U="),
    ("ada", "hi", "nsd", "YWRh"),
    ("closed", "secret", "fast", ""),
    ("cafe/7", "once", "http", ""),
    # Published just before the broker was killed: in 0.1.0 only a journal has it.
    ("s/last", "on disk", "rheos", "MTExMTExMTEtMTExMS00MTExLTgxMTEtMTExMTExMTExMTEx"),
]


@pytest.fixture(params=["0.1.0", "2026-11-22"])
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str, str]:
    """Return the directory, the option for the store, and the epoch in which it was written."""
    with tarfile.open(RECORDED / f"history-{request.param}.tar.xz") as tar:
        # An argument of extractall would be an error before Python 3.11.4.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(tmp_path)
    if request.param == "0.1.0":
        return tmp_path, f"--store=sqlite:{tmp_path / 'history.db'}", "1-9dfb05d8"
    return tmp_path, f"--store=log:{tmp_path / 'history'}", "1-9606535c"


class RecordedApi:
    """Requests to a broker's HTTP API."""

    def __init__(self, broker: Broker, token: str) -> None:
        self._url, self._token = f"http://{HOST}:{broker.port('http')}", token

    def ask(self, path: str, body: bytes | None = None, token: bool = True) -> tuple[int, bytes]:
        headers = {"Authorization": f"Bearer {self._token}"} if token else {}
        request = urllib.request.Request(self._url + path, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def json(self, path: str, body: bytes | None = None, token: bool = True) -> Any:
        status, content = self.ask(path, body, token)
        assert status in (200, 201), content
        return json.loads(content)


def commit(http: RecordedApi, batch: int) -> dict[str, Any]:
    """Commit a batch of the query that has committed batch 5."""
    part = io.BytesIO()
    table = pa.table({"topic": ["cafe/7"], "value": pa.array([b"once"], pa.binary())})
    with pa.ipc.new_stream(part, table.schema) as writer:
        writer.write_table(table)
    staged = http.json(f"/v1/stage?query=q&batch={batch}", part.getvalue(), token=False)
    body = json.dumps({"query": "q", "batch": batch, "parts": [staged["part"]]})
    found: dict[str, Any] = http.json("/v1/commit", body.encode(), token=False)
    return found


def test_nothing_that_was_acknowledged_is_missing(
    start: Start, recorded: tuple[Path, str, str]
) -> None:
    directory, store, epoch = recorded
    secret = directory / "secret"
    broker = start(
        *listen("nsd"),
        f"--admin-port=tcp:0:interface={HOST}",
        store,
        # The recorded messages get older.
        "--retention=*=messages:1000",
        f"--secret-file={secret}",
    )
    http = RecordedApi(broker, make_token(secret, "--expires=1h").decode())
    _, lines = http.ask(f"/v1/history?start=0&format=jsonl&epoch={epoch}")
    rows = [json.loads(line) for line in lines.splitlines()]
    end = len(MESSAGES)
    if "damaged" in rows[-1]:
        # On the machine that wrote the log, nothing that was read can have been lost since. On
        # any other, the offsets that may have been are passed. 0.1.0 did not know the machine.
        assert store.startswith("--store=log:")
        start_of_lost, end = rows.pop()["damaged"]
        assert (start_of_lost, end) == (len(MESSAGES), 16_384)
    assert [(r["topic"], r["value"], r["protocol"], r["key"]) for r in rows] == MESSAGES
    assert [row["offset"] for row in rows] == list(range(len(MESSAGES)))

    (reader,) = http.json("/v1/readers", token=False)["items"]
    assert (reader["name"], reader["offset"], reader["epoch"]) == ("daily", 3, epoch)
    assert commit(http, 5) == {"first": 4, "next": 5, "messages": 1, "duplicate": True}
    assert commit(http, 6)["first"] == end

    with Nsd.to(broker) as client:
        found = client.ask("Get", "bob", after=0)
    bodies = [(message["when"], message["body"]) for message in found["messages"]]
    assert bodies == [(1, "hello"), (2, "again"), (3, "hi"), (5, "once"), (end + 1, "once")]

    assert http.ask("/v1/topics/closed/messages", b"x", token=False)[0] == 403
    assert http.ask("/v1/topics/closed/messages", b"x")[0] == 200
