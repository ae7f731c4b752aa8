"""The stream of shared histories, in memory and in NATS: what ``ReplicaStream`` promises."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from pubsub.backplane.engine.engine_url import ENGINE, EngineOptions
from pubsub.backplane.engine.nats_backplane import NatsBackplane
from pubsub.backplane.engine.nats_history import StreamOptions
from pubsub.backplane.history.replica_stream import ReplicaStream, StreamAway, StreamMessage
from pubsub.backplane.memory_engine.memory_stream import MemoryLog, MemoryStream
from tests.integration.nats_server import NatsServer

ORIGINS = ("a" * 16, "b" * 16)


def at_tick_end(call: Callable[[], None]) -> object:
    return cast("Any", reactor).callLater(0, call)


class Joined:
    """Waits until the engine is there."""

    def __init__(self) -> None:
        self.there: Deferred[None] = Deferred()
        self.gone: Deferred[None] = Deferred()

    def joined(self) -> None:
        self.there.callback(None)

    def left(self) -> None:
        if not self.gone.called:
            self.gone.callback(None)


class Bodies:
    """Base cases; a class at the top level would be collected as a test."""

    class StreamTests(TestCase):
        """Two brokers at one stream"""

        timeout = 30

        def setUp(self) -> None:
            self.begin_engine()

        def begin_engine(self) -> None:
            raise NotImplementedError

        def connect(self, watcher: Joined) -> ReplicaStream:
            raise NotImplementedError

        def end_engine(self) -> None:
            raise NotImplementedError

        async def stream(self) -> ReplicaStream:
            watcher = Joined()
            stream = self.connect(watcher)
            self.watcher = watcher
            await watcher.there
            return stream

        async def read(self, stream: ReplicaStream, count: int) -> list[StreamMessage]:
            found: list[StreamMessage] = []
            while len(found) < count:
                found += await stream.fetch()
            return found

        async def test_all_read_the_same(self) -> None:
            here, there = await self.stream(), await self.stream()
            assert await here.begin(0) == await there.begin(0) == 0
            sent = [(ORIGINS[number % 2], b"%d" % number) for number in range(20)]
            for origin, data in sent:
                await (here if origin == ORIGINS[0] else there).publish(origin, data)
            for stream in (here, there):
                found = await self.read(stream, len(sent))
                assert [(one.origin, one.data) for one in found] == sent
                assert [one.sequence for one in found] == list(range(1, 21))

        async def test_the_order_without_waiting(self) -> None:
            stream = await self.stream()
            await stream.begin(0)
            done = [stream.publish(ORIGINS[0], b"%d" % number) for number in range(300)]
            for one in done:
                await one
            found = await self.read(stream, 300)
            assert [one.data for one in found] == [b"%d" % number for number in range(300)]

        async def test_reading_begins_anywhere(self) -> None:
            stream = await self.stream()
            await stream.begin(0)
            for number in range(5):
                await stream.publish(ORIGINS[0], b"%d" % number)
            assert await stream.begin(3) == 5
            found = await self.read(stream, 2)
            assert [(one.sequence, one.data) for one in found] == [(4, b"3"), (5, b"4")]
            waiting = stream.fetch()
            await stream.publish(ORIGINS[1], b"later")
            (one,) = await waiting
            assert one == StreamMessage(6, ORIGINS[1], b"later")

        async def test_the_largest_message(self) -> None:
            stream = await self.stream()
            await stream.begin(0)
            data = bytes(stream.limit)
            await stream.publish(ORIGINS[0], data)
            (found,) = await self.read(stream, 1)
            assert found.data == data

        async def test_the_engine_goes(self) -> None:
            stream = await self.stream()
            await stream.begin(0)
            waiting = stream.fetch()
            self.end_engine()
            with pytest.raises(StreamAway):
                await waiting
            await self.watcher.gone
            with pytest.raises(StreamAway):
                await stream.publish(ORIGINS[0], b"")
            with pytest.raises(StreamAway):
                await stream.begin(0)


class MemoryTests(Bodies.StreamTests):
    """In memory"""

    def begin_engine(self) -> None:
        self.log = MemoryLog()

    def connect(self, watcher: Joined) -> ReplicaStream:
        stream = MemoryStream(self.log, at_tick_end)
        stream.watch(watcher)
        stream.open()
        return stream

    def end_engine(self) -> None:
        self.log.leave()


class NatsTests(Bodies.StreamTests):
    """In JetStream"""

    def begin_engine(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.server = NatsServer(Path(directory.name))
        self.addCleanup(self.server.kill)

    def connect(self, watcher: Joined) -> ReplicaStream:
        options = EngineOptions(ENGINE.parse(self.server.url), "", "", "", "", 2**20)
        backplane = NatsBackplane(
            options, reactor, at_tick_end, lambda *given: None, history=StreamOptions(1, 0, 60.0)
        )
        assert backplane.history is not None
        backplane.history.watch(watcher)
        backplane.open(lambda envelopes: None)
        self.addCleanup(backplane.close)
        return backplane.history

    def end_engine(self) -> None:
        self.server.kill()
