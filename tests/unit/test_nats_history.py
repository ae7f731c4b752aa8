"""``HistoryStream``: the stream as the servers of a cluster describe it after a partition."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from nats.js.api import ClusterInfo, PeerInfo
from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.engine.nats_history import HistoryStream, StreamOptions
from pubsub.backplane.history.replica_stream import StreamAway
from tests.unit.raising import raised

OPTIONS = StreamOptions(replicas=3, max_bytes=0, max_seconds=0)
READ = 100


class _JetStream:
    """Answers with ``last`` and ``cluster``."""

    def __init__(self, last: int, cluster: ClusterInfo | None) -> None:
        self.consumers = 0
        state = SimpleNamespace(last_seq=last, messages=last)
        self._info = SimpleNamespace(
            config=OPTIONS.configuration(), state=state, cluster=cluster, created=None
        )

    async def stream_info(self, name: str) -> SimpleNamespace:
        return self._info

    async def add_consumer(self, stream: str, config: object) -> SimpleNamespace:
        self.consumers += 1
        return SimpleNamespace(name="reader")


class _EngineClient:
    """A connection to a server of the cluster."""

    def __init__(self, stream: _JetStream) -> None:
        self._stream = stream

    def jetstream(self, timeout: float) -> _JetStream:
        return self._stream

    def new_inbox(self) -> str:
        return "inbox"

    async def subscribe(self, subject: str, cb: object) -> None:
        pass


def _cluster(leader: str | None, *current: bool) -> ClusterInfo:
    peers = [PeerInfo(name=f"nats-{number}", current=one) for number, one in enumerate(current, 2)]
    return ClusterInfo(leader=leader, replicas=peers)


class BeginningTests(SynchronousTestCase):
    """A stream that has fewer messages than this broker has read"""

    def begin(self, last: int, cluster: ClusterInfo | None) -> int:
        self.stream = _JetStream(last, cluster)
        history = HistoryStream(OPTIONS)
        history.client = cast(Any, _EngineClient(self.stream))
        return asyncio.run(history.begin(READ))

    def test_most_servers_say_so(self) -> None:
        for cluster in (
            None,
            ClusterInfo(leader="nats-1"),
            _cluster("nats-1", True, True),
            _cluster("nats-1", False, True),
        ):
            assert self.begin(READ - 1, cluster) == READ - 1

    def test_a_server_that_was_cut_off_says_so(self) -> None:
        for cluster in (
            _cluster("nats-1", False, False),
            _cluster(None, True, False, False),
            _cluster(None, True, True),
        ):
            error = raised(StreamAway, self.begin, READ - 1, cluster)
            assert "has not caught up" in str(error)
            assert not self.stream.consumers

    def test_a_stream_that_has_them_needs_no_agreement(self) -> None:
        assert self.begin(READ, _cluster(None, False, False)) == READ
