"""Publishes of many payloads at once: their order, their bounds, and the turns of others."""

from __future__ import annotations

from typing import Never

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.client import Level, NotExpressible, Notice, Uncertain
from pubsub.client.base_client import Client
from pubsub.client.subscription import Subscription
from tests.unit.client_runtime import MemoryRuntime, Work
from tests.unit.raising import raised
from tests.unit.streams import House

BURST = [b"%04d" % number * 16 for number in range(1000)]
_BURST_BYTES = 64_000


class BurstTests(SynchronousTestCase):
    """With a client of cafe that has published a message, and a subscription"""

    def setUp(self) -> None:
        self.runtime = MemoryRuntime(House({"cafe": {}}))
        self.notices: list[Notice] = []
        self.client = self.connected()

    def connected(self, **options: int) -> Client:
        client = self.runtime.client("cafe", on_event=self.notices.append, **options)
        self.messages = client.subscribe("cafe/7")
        self.runtime.run(self.messages.accepted())
        self.runtime.run(client.publish("cafe/7", b"first", confirm=True))
        self.stream = self.runtime.streams[-1]
        return client

    def received(self, count: int) -> list[bytes]:
        return self.runtime.run(_take(self.messages, count))

    def test_they_are_sent_within_the_call(self) -> None:
        before = len(self.stream.sent)
        work = Work(self.client.publish_many("cafe/7", BURST))
        assert work.done
        assert len(self.stream.sent) - before >= _BURST_BYTES
        self.runtime.run(self.client.flush())
        assert self.received(1001) == [b"first", *BURST]

    def test_what_is_asked_for_beside_the_payloads(self) -> None:
        """It does not get lost on the short way: cafe has neither headers nor senders."""
        before = len(self.stream.sent)
        for work in (
            Work(self.client.publish_many("cafe/7", BURST, headers={"name": b"value"})),
            Work(self.client.publish_many("cafe/7", BURST, sender="ada")),
        ):
            raised(NotExpressible, work.result)
        assert len(self.stream.sent) == before
        level = self.runtime.run(self.client.publish_many("cafe/7", BURST, confirm=True))
        assert level is Level.HANDLED

    def test_they_stay_behind_those_that_wait(self) -> None:
        waiting = Work(self.client.publish("cafe/7", b"waiting"))
        assert waiting.done
        assert Work(self.client.publish_many("cafe/7", BURST)).done
        assert Work(self.client.publish_many("cafe/7", BURST[:3])).done
        self.runtime.run(self.client.flush())
        assert self.received(1005) == [b"first", b"waiting", *BURST, *BURST[:3]]

    def test_a_transport_that_is_full_gets_none(self) -> None:
        self.stream.observer.writable(False)
        before = len(self.stream.sent)
        assert Work(self.client.publish_many("cafe/7", BURST)).done
        assert len(self.stream.sent) == before
        self.stream.observer.writable(True)
        assert len(self.stream.sent) - before >= _BURST_BYTES

    def test_the_queue_is_bounded(self) -> None:
        client = self.connected(queue_bytes=100_000)
        self.stream.reading = False
        work = [Work(client.publish_many("cafe/7", BURST)) for _ in range(4)]
        self.runtime.settle()
        # The second begins within the bound.
        assert [one.done for one in work] == [True, True, False, False]
        self.stream.reading = True
        self.runtime.settle()
        assert all(one.done for one in work)
        self.runtime.run(client.flush())
        assert self.received(4001) == [b"first", *4 * BURST]

    def test_they_are_uncertain_when_the_connection_breaks(self) -> None:
        self.stream.reading = False
        self.runtime.run(self.client.publish_many("cafe/7", BURST))
        flush = self.runtime.begin(self.client.flush())
        self.stream.snap()
        (uncertain,) = [one for one in self.notices if isinstance(one, Uncertain)]
        assert uncertain.count == 1000
        self.runtime.settle()
        assert flush.done

    def test_payloads_that_the_wire_cannot_carry(self) -> None:
        with pytest.raises(NotExpressible):
            self.runtime.run(self.client.publish_many("cafe/7", [bytes(2_000_000)] * 2))
        with pytest.raises(TypeError):
            self.runtime.run(self.client.publish_many("cafe/7", [*BURST, 7]))  # type: ignore[list-item]

    def test_others_run_after_128_kib(self) -> None:
        work = [Work(self.client.publish_many("cafe/7", BURST)) for _ in range(4)]
        # The third lets others run, the fourth is one of them.
        assert [one.done for one in work] == [True, True, False, True]
        self.runtime.settle()
        assert work[2].done

    def test_others_run_after_many_small_ones(self) -> None:
        work = [Work(self.client.publish("cafe/7", bytes(1000))) for _ in range(200)]
        assert sum(not one.done for one in work) == 1

    def test_the_turns_of_others_change_no_order(self) -> None:
        for number in range(8):
            Work(self.client.publish_many("cafe/7", [b"%d" % number * 64] * 1000))
        self.runtime.run(self.client.publish("cafe/7", b"last", confirm=True))
        found = [one[:1] for one in self.received(8002)]
        assert found == [b"f", *(b"%d" % (number // 1000) for number in range(8000)), b"l"]


async def _take(messages: Subscription[Never], count: int) -> list[bytes]:
    found: list[bytes] = []
    async for batch in messages.batches():
        found += batch.payloads
        if len(found) >= count:
            break
    return found
