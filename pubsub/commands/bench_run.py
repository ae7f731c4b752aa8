"""The publishers and subscribers of ``pubsub bench``, and their measurements.

Each message begins with the number of the run and the time at which it was given to the client, in
ns of the monotonic clock, both in hexadecimal, because nsd carries text alone; the rest are dots.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

from pubsub.commands.destination import Destination
from pubsub.commands.latency_histogram import LatencyHistogram
from pubsub.commands.notice_report import NoticeReport
from pubsub.commands.pace import paced

LEAST_BYTES = 24
_NUMBER_BYTES = 8
_PROGRESS_SECONDS = 0.2
# Messages are lost if none has arrived for this time.
_QUIET_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Load:
    """The messages to publish. ``rate`` is messages a second of all publishers; None: no limit."""

    topic: str
    publishers: int
    subscribers: int
    count: int
    size: int
    batch: int
    rate: float | None
    confirm: bool

    def shares(self) -> list[int]:
        """Return the number of messages of each publisher."""
        least, more = divmod(self.count, self.publishers)
        return [least + (number < more) for number in range(self.publishers)]


@dataclass(slots=True)
class Results:
    """The measurements; ``publishing`` and ``receiving`` are in seconds, of all clients."""

    published: int = 0
    received: int = 0
    lost: int = 0
    publishing: float = 0.0
    receiving: float = 0.0
    latency: LatencyHistogram = field(default_factory=LatencyHistogram)


class BenchRun:
    """One measurement of ``load``. ``on_progress`` is called with counts and seconds."""

    def __init__(self, load: Load, publish_at: Destination, subscribe_at: Destination) -> None:
        self.load = load
        self.on_progress: Callable[[dict[str, int], float], None] | None = None
        self._publish_at = publish_at
        self._subscribe_at = subscribe_at
        self._report = NoticeReport(publish_at)
        self._number = os.urandom(_NUMBER_BYTES // 2).hex().encode()
        self._results = Results()
        self._last_arrival = 0.0

    async def run(self) -> Results:
        """Return the results. Raises ClientError."""
        async with AsyncExitStack() as stack:
            streams = [await self._subscriber(stack, n) for n in range(self.load.subscribers)]
            clients = [await self._client(stack, n) for n in range(self.load.publishers)]
            watching = asyncio.ensure_future(self._watch())
            stack.callback(watching.cancel)
            await self._measure(clients, streams)
        return self._results

    async def _measure(self, clients: list[Any], streams: list[AsyncIterator[Any]]) -> None:
        started = self._last_arrival = time.monotonic()
        results = self._results
        receiving = [asyncio.ensure_future(self._receive(stream)) for stream in streams]
        try:
            async with asyncio.TaskGroup() as group:
                for client, share in zip(clients, self.load.shares(), strict=True):
                    group.create_task(self._publish(client, share))
            results.publishing = max(time.monotonic() - started, 1e-9)
            await self._wait_for_arrivals(receiving)
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            for task in receiving:
                task.cancel()
            await asyncio.gather(*receiving, return_exceptions=True)
        results.receiving = max(self._last_arrival - started, 1e-9)
        results.lost = self.load.count * self.load.subscribers - results.received

    async def _wait_for_arrivals(self, receiving: list[asyncio.Task[None]]) -> None:
        """Return when everything has arrived, or nothing has for some time. Raises ClientError."""
        left = set(receiving)
        self._last_arrival = max(self._last_arrival, time.monotonic())
        while left and time.monotonic() - self._last_arrival < _QUIET_SECONDS:
            done, left = await asyncio.wait(left, timeout=_PROGRESS_SECONDS)
            for task in done:
                task.result()

    async def _client(self, stack: AsyncExitStack, number: int) -> Any:
        from pubsub.commands.broker_client import connected

        where = self._publish_at
        if where.client_id is not None and self.load.publishers > 1:
            where = replace(where, client_id=f"{where.client_id}-{number}")
        return await stack.enter_async_context(connected(where, self._report))

    async def _subscriber(self, stack: AsyncExitStack, number: int) -> AsyncIterator[Any]:
        from pubsub.commands.broker_client import connected, subscribe

        where = self._subscribe_at
        if where.client_id is not None:
            where = replace(where, client_id=f"{where.client_id}-sub-{number}")
        client = await stack.enter_async_context(connected(where, self._report))
        subscription = subscribe(client, [self.load.topic], None)
        return (await stack.enter_async_context(subscription)).batches()

    async def _publish(self, client: Any, count: int) -> None:
        load = self.load
        rate = None if load.rate is None else load.rate / load.publishers
        async for numbers in paced(self._batches(count), rate):
            head = self._number + b"%016x" % time.monotonic_ns()
            payload = head.ljust(load.size, b".")
            await client.publish_many(load.topic, [payload] * len(numbers), confirm=load.confirm)
            self._results.published += len(numbers)

    async def _batches(self, count: int) -> AsyncIterator[list[bytes]]:
        while count:
            size = min(count, self.load.batch)
            yield [b""] * size
            count -= size

    async def _receive(self, stream: AsyncIterator[Any]) -> None:
        left = self.load.count
        async for batch in stream:
            now = time.monotonic_ns()
            # The messages of a batch have few different times.
            heads = Counter(map(itemgetter(slice(LEAST_BYTES)), batch.payloads))
            for head, count in heads.items():
                if len(head) == LEAST_BYTES and head.startswith(self._number):
                    sent = int(head[_NUMBER_BYTES:], 16)
                    left -= count
                    self._results.received += count
                    self._results.latency.record(now - sent, count)
                    # Messages of others do not count.
                    self._last_arrival = time.monotonic()
            if left <= 0:
                return

    async def _watch(self) -> None:
        started = time.monotonic()
        while True:
            await asyncio.sleep(_PROGRESS_SECONDS)
            if self.on_progress is not None:
                done = {"published": self._results.published, "received": self._results.received}
                self.on_progress(done, time.monotonic() - started)
