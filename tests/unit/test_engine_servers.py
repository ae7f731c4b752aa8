"""``EngineServers``: the servers in turn, and the one that replaces a server that is cut off."""

from __future__ import annotations

import asyncio
from itertools import islice
from types import SimpleNamespace
from typing import Any, cast

from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.engine.engine_servers import EngineServers
from pubsub.backplane.engine.jetstream import NoLeader
from pubsub.backplane.engine.nats_work import Unusable


class _Servers(EngineServers):
    """Of which those in ``leaders`` find a leader, and ``broken`` cannot be used."""

    def __init__(self, *urls: str) -> None:
        super().__init__(cast(Any, SimpleNamespace(servers=SimpleNamespace(urls=urls))))
        self.leaders: set[str] = set()
        self.broken = ""
        self.error: Exception = Unusable("it has no TLS")
        self.asked: list[str] = []

    async def _ask_for_leader(self, url: str) -> None:
        self.asked.append(url)
        if url == self.broken:
            raise self.error
        if url not in self.leaders:
            raise NoLeader


class EngineServersTests(SynchronousTestCase):
    """Turns of three servers"""

    def setUp(self) -> None:
        self.servers = _Servers("nats://a", "nats://b", "nats://c")
        self.turns = iter(self.servers)

    def leave(self) -> str | None:
        return asyncio.run(self.servers.leave())

    def test_each_server_has_its_turn(self) -> None:
        assert "".join(url[-1] for url in islice(self.turns, 7)) == "abcabca"

    def test_a_server_with_a_leader_is_next(self) -> None:
        next(self.turns)
        self.servers.broken = "nats://b"
        self.servers.leaders = {"nats://a", "nats://c"}
        assert self.leave() == "nats://a is cut off from its cluster, and nats://c is not"
        assert "".join(url[-1] for url in islice(self.turns, 4)) == "cabc"

    def test_a_server_that_answers_something_else(self) -> None:
        next(self.turns)
        self.servers.broken, self.servers.leaders = "nats://b", {"nats://c"}
        # As nats-py reads an INFO that is a list.
        self.servers.error = AttributeError("'list' object has no attribute 'get'")
        assert self.leave() == "nats://a is cut off from its cluster, and nats://c is not"

    def test_without_a_leader_nothing_changes(self) -> None:
        next(self.turns)
        assert self.leave() is None
        assert self.servers.asked == ["nats://b", "nats://c"]
        assert next(self.turns) == "nats://b"

    def test_a_single_server_is_not_asked(self) -> None:
        self.servers = _Servers("nats://a")
        next(iter(self.servers))
        assert self.leave() is None
        assert self.servers.asked == []
