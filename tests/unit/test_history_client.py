"""A ``HistoryClient`` whose broker, or a proxy on the way to it, fails."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pytest
from urllib3.exceptions import ProtocolError

from pubsub.client.history_client import HistoryClient, HistoryError, HistoryUnreachable

BOUNDS = {"first": 0, "next": 4, "epoch": "1-0"}
STREAM = {"Pubsub-Stop": "4", "Pubsub-Epoch": "1-0"}
SCHEMA = pa.schema([("offset", pa.int64()), ("value", pa.binary())])


class Reply:
    """A reply with these bytes; ``error`` is raised behind them."""

    def __init__(
        self,
        status: int,
        data: bytes,
        headers: dict[str, str] | None = None,
        error: Exception | None = None,
    ) -> None:
        self.status, self.headers, self._error = status, headers or {}, error
        self._left = self._all = data
        self.closed = 0

    @property
    def data(self) -> bytes:
        return self._all

    def read(self, size: int | None = None) -> bytes:
        size = len(self._left) if size is None else size
        data, self._left = self._left[:size], self._left[size:]
        if not data and size and self._error is not None:
            raise self._error
        return data

    def close(self) -> None:
        self.closed += 1


class Server:
    """Gives the replies in turn, and keeps the requests."""

    def __init__(self, *replies: Reply | Exception) -> None:
        self._replies = list(replies)
        self.requests: list[tuple[str, str, Any]] = []

    def request(self, method: str, url: str, body: bytes | None, **_: object) -> Reply:
        self.requests.append((method, url, None if body is None else json.loads(body)))
        reply = self._replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply


def client(*replies: Reply | Exception) -> SimpleNamespace:
    """Return a client, its server and its pauses."""
    server: Any = Server(*replies)
    pauses: list[float] = []
    made = HistoryClient("http://h:1/", attempts=3, pool=server, sleep=pauses.append)
    return SimpleNamespace(made=made, server=server, pauses=pauses)


def rows(*offsets: int, ends: bool = True, error: Exception | None = None) -> Reply:
    """Return a stream with a batch for each of ``offsets``."""
    sink = pa.BufferOutputStream()
    writer = pyarrow.ipc.new_stream(sink, SCHEMA)
    for offset in offsets:
        writer.write_batch(pa.record_batch([[offset], [b"%d" % offset]], schema=SCHEMA))
    if ends:
        writer.close()
    return Reply(200, sink.getvalue().to_pybytes(), STREAM, error)


@pytest.mark.parametrize("status", [408, 429, 502, 503, 504])
def test_a_proxy_whose_broker_is_away_for_a_moment(status: int) -> None:
    found = client(Reply(status, b"<html>"), Reply(200, json.dumps(BOUNDS).encode()))
    assert found.made.bounds().next == 4
    assert found.pauses == [0.1]
    found = client(Reply(status, b"<html>"), rows(0, 1))
    assert len(list(found.made.read(0))) == 2
    assert found.pauses == [0.1]
    found = client(*[Reply(status, b"<html>")] * 3)
    with pytest.raises(HistoryUnreachable, match=rf"^http://h:1 .* \w+ .*\(HTTP {status}\)$"):
        found.made.bounds()
    assert found.pauses == [0.1, 0.2]


def test_the_first_of_several_brokers_that_answers() -> None:
    answer = Reply(200, json.dumps(BOUNDS).encode())
    lost = ProtocolError("lost")
    server: Any = Server(lost, Reply(503, b""), lost, answer, lost, answer)
    pauses: list[float] = []
    made = HistoryClient("http://a:1 , http://b:1/", pool=server, sleep=pauses.append)
    made.bounds()
    # It stays with this one.
    made.bounds()
    asked = [url.removesuffix(":1/v1/bounds") for _, url, _ in server.requests]
    assert asked == [f"http://{name}" for name in "ababbb"]
    assert pauses == [0.1, 0.1]


def test_none_of_several_brokers_answers() -> None:
    server: Any = Server(*[ProtocolError("lost")] * 4)
    made = HistoryClient("http://a,http://b", attempts=2, pool=server, sleep=lambda _: None)
    with pytest.raises(
        HistoryUnreachable, match=r"^http://\w and http://\w cannot be reached: lost"
    ):
        made.bounds()
    with pytest.raises(ValueError, match="begins with http"):
        HistoryClient("http://a,cafe://b")


@pytest.mark.parametrize("status", [301, 400, 404, 500])
def test_other_errors_are_final(status: int) -> None:
    found = client(Reply(status, b"<html>"))
    with pytest.raises(HistoryError, match=rf"^[A-Z].* \(HTTP {status}\)$") as caught:
        found.made.bounds()
    assert (caught.value.code, found.pauses) == ("", [])


def test_objects_within_objects() -> None:
    deep = b'{"a":' * 100_000
    for status in (200, 404):
        with pytest.raises(HistoryError):
            client(Reply(status, deep)).made.bounds()


def test_a_read_continues_where_it_was_interrupted() -> None:
    lost = ProtocolError("lost")
    replies = rows(0, 1, ends=False, error=lost), rows(2, ends=False), lost, rows(3)
    found = client(*replies)
    items = [
        item["offset"][0].as_py() for item in found.made.read(0, epoch="1-0", topics=["b", "a"])
    ]
    assert items == [0, 1, 2, 3]
    asked = [body for *_, body in found.server.requests]
    assert [body["start"] for body in asked] == [0, 2, 3, 3]
    assert "stop" not in asked[0]
    assert {body["stop"] for body in asked[1:]} == {4}
    assert all(body["topics"] == ["a", "b"] and body["epoch"] == "1-0" for body in asked)
    # An item counts as success, so that long reads survive any number of interruptions.
    assert found.pauses == [0.1, 0.1, 0.2]
    assert [reply.closed > 0 for reply in replies if isinstance(reply, Reply)] == [True] * 3


def test_a_reader_that_ends_early_gives_its_connection_up() -> None:
    reply = rows(0, 1, 2)
    found = client(reply)
    items = found.made.read(0)
    next(items)
    items.close()
    assert reply.closed == 1
    assert len(found.server.requests) == 1


def test_a_shared_read_is_not_continued() -> None:
    found = client(rows(0, 1, ends=False, error=ProtocolError("lost")))
    with pytest.raises(HistoryUnreachable, match="lost"):
        list(found.made.read_between("a", "b", start=(3, "1-0"), topics=["b", "a"]))
    assert found.pauses == []
    ((method, url, body),) = found.server.requests
    assert (method, url) == ("POST", "http://h:1/v1/history")
    assert body == {
        "from": "a", "to": "b", "headers": False, "skip_expired": False, "topics": ["a", "b"],
        "start": 3, "epoch": "1-0",
    }  # fmt: skip


def test_a_topic_in_the_place_of_topics() -> None:
    """Its letters would be topics, of which there are no messages."""
    found = client(rows(0))
    for read in (
        found.made.read(0, topics="orders"),
        found.made.read_between("a", "b", topics="orders"),
    ):
        with pytest.raises(TypeError, match="topics must be a list of str, not str"):
            list(read)
    assert found.server.requests == []


@pytest.mark.parametrize("url", ["cafe://127.0.0.1:7070", "127.0.0.1:7080", ""])
def test_a_url_that_is_not_one_of_the_api(url: str) -> None:
    """It would be tried several times, with pauses."""
    with pytest.raises(ValueError, match="begins with http:// or https://"):
        HistoryClient(url)
