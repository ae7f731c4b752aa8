"""Replies of a later version of the broker to a client of the history: they have more members."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from pubsub.client.history_client import (
    CommitLimits,
    CommitReply,
    HistoryBounds,
    HistoryClient,
    HistoryError,
    Reader,
)

READER = {"name": "r", "offset": 5, "epoch": "1-0", "updated": 7, "lag": 2}


class _Pool:
    """Answers each request with the same object."""

    def __init__(self, body: dict[str, Any]) -> None:
        self._data = json.dumps(body).encode()

    def request(self, *_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(status=200, data=self._data)


def client(**body: Any) -> HistoryClient:
    """Return a client whose broker answers with ``body`` and a member that is not known here."""
    pool: Any = _Pool({**body, "later": {"a": 1}})
    return HistoryClient("http://127.0.0.1:1", attempts=1, pool=pool)


def test_bounds_and_limits() -> None:
    assert client(first=1, next=2, epoch="1-0").bounds() == HistoryBounds(1, 2, "1-0")
    assert client(batch_bytes=1, message_bytes=2).limits() == CommitLimits(1, 2)


def test_a_commit_is_not_taken_for_failed() -> None:
    found = client(duplicate=False, first=1, next=3, messages=2).commit("q", 1, ["part"])
    assert found == CommitReply(False, 1, 3, 2)
    assert client(duplicate=True).commit("q", 1, []) == CommitReply(True)


def test_readers() -> None:
    rows = [
        {**READER, "owner": "bob", "later": 1},
        {**READER, "quiet_from": 3, "quiet_topics": "ab"},
    ]
    assert client(items=rows, next=None).readers() == [
        Reader("r", 5, "1-0", 7, 2, "bob"),
        Reader("r", 5, "1-0", 7, 2, None, (3, "ab")),
    ]


class _OtherServer:
    """Answers each request with the same bytes, as a server of pages does."""

    def __init__(self, data: bytes, headers: dict[str, str]) -> None:
        self.reply = SimpleNamespace(status=200, data=data, headers=headers, close=self.close)
        self.closed = 0

    def request(self, *_: object, **__: object) -> SimpleNamespace:
        return self.reply

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("data", [b"<html>", b"[]", b'"text"', b"null", b"{}", b"", b"\xff"])
def test_a_server_that_is_no_broker(data: bytes) -> None:
    server: Any = _OtherServer(data, {})
    found = HistoryClient("http://127.0.0.1:1", attempts=1, pool=server)
    for request in (
        found.bounds,
        found.topics,
        found.readers,
        found.limits,
        lambda: found.hold_reader("r", "h"),
        lambda: found.commit("q", 1, []),
        lambda: list(found.read(0)),
    ):
        with pytest.raises(HistoryError, match="the reply is not one of a broker") as caught:
            request()
        assert (caught.value.status, caught.value.code) == (200, "foreign-reply")
    assert server.closed == 1
    server.reply.headers = {"Pubsub-Stop": "soon", "Pubsub-Epoch": "1-0"}
    with pytest.raises(HistoryError):
        list(found.read(0))
