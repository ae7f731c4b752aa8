"""Several readers of one subscription: coroutines, and threads of a blocking client."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import SynchronousTestCase, TestCase

from pubsub.client import MessageBatch, blocking
from pubsub.testing import start_broker
from tests.unit.client_runtime import MemoryRuntime
from tests.unit.raising import raised
from tests.unit.streams import House

SECONDS = 60.0


class CoroutineTests(SynchronousTestCase):
    """Coroutines that wait in ``next_item``"""

    def setUp(self) -> None:
        self.runtime = MemoryRuntime(House({"cafe": {}}))
        self.client = self.runtime.client("cafe")
        self.messages = self.client.subscribe("cafe/7")
        self.runtime.run(self.messages.accepted())

    def test_each_message_wakes_one_and_the_end_wakes_all(self) -> None:
        waiting = [self.runtime.begin(self.messages.next_item(60)) for _ in range(4)]
        for payload in (b"1", b"2"):
            self.runtime.run(self.client.publish("cafe/7", payload, confirm=True))
        self.runtime.settle()
        items = [work.result() for work in waiting if work.done]
        found = [one.payloads for one in items if isinstance(one, MessageBatch)]
        assert found == [[b"1"], [b"2"]]
        self.messages.close()
        self.runtime.settle()
        assert [work.result() for work in waiting if work.result() is None] == [None] * 2

    def test_one_that_has_given_up_is_forgotten(self) -> None:
        first = self.runtime.begin(self.messages.next_item(1))
        second = self.runtime.begin(self.messages.next_item(60))
        self.runtime.advance(2)
        raised(TimeoutError, first.result)
        self.runtime.run(self.client.publish("cafe/7", b"1", confirm=True))
        self.runtime.settle()
        assert second.result() is not None


class ThreadTests(TestCase):
    """Threads that wait in ``next``"""

    timeout = SECONDS

    async def test_messages_of_one_batch_and_the_end(self) -> None:
        broker = start_broker(self)
        await deferToThread(self.read_in_threads, broker.url("cafe"))

    def read_in_threads(self, url: str) -> None:
        with blocking.connect(url) as client, client.subscribe("cafe/7") as messages:
            found: queue.Queue[Any] = queue.Queue()
            threads = [
                threading.Thread(target=lambda: found.put(messages.next(SECONDS)), daemon=True)
                for _ in range(5)
            ]
            for thread in threads:
                thread.start()
            client.publish_many("cafe/7", [b"1", b"2"])
            client.publish("cafe/7", b"3")
            payloads = [found.get(timeout=SECONDS).payload for _ in range(3)]
            assert sorted(payloads) == [b"1", b"2", b"3"]
            with pytest.raises(TimeoutError, match=r"within 0\.01 s"):
                messages.next(0.01)
            messages.close()
            assert [found.get(timeout=SECONDS) for _ in range(2)] == [None, None]
            for thread in threads:
                thread.join()
