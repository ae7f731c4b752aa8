"""Replies that wait: their order, their conditions, and the end of the connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.topic_space.durability import Durability
from pubsub.store.memory_store import MemoryStore
from pubsub.wire.replies import UNCONFIRMED, Condition, all_of, confirmed_by_host, stored_in
from tests.unit.connections import Frames, Setup
from tests.unit.stepped_disk import Disk
from tests.unit.streams import Client

ASYNC, SYNC = Durability.ASYNC, Durability.SYNC
UNAVAILABLE = "history-unavailable"


class QueueTests(SynchronousTestCase):
    """The replies of one connection"""

    def setUp(self) -> None:
        self.disk = Disk()
        self.setup = Setup(store=self.disk, slow_seconds=5)
        self.client, self.connection = self.setup.connect()

    def wait(self, name: bytes, durability: Durability = SYNC, count: int = 1) -> None:
        self.connection.reply_when_stored(durability, name, b"no " + name, count)

    @property
    def refusals(self) -> dict[Any, int]:
        return self.setup.broker.counters.refusals

    def test_a_reply_waits_for_the_disk_or_for_the_write(self) -> None:
        for durability, calls in ((SYNC, self.disk.syncs), (ASYNC, self.disk.writes)):
            self.wait(b"a", durability)
            assert self.client.take() == b""
            calls.pop()(True)
            assert self.client.take() == b"a"
        self.wait(b"b", Durability.NONE)
        assert self.client.take() == b"b"
        assert self.disk.syncs == self.disk.writes == []

    def test_requests_that_were_not_stored_are_refused_and_counted(self) -> None:
        self.wait(b"a", count=3)
        self.disk.syncs.pop()(False)
        assert self.client.take() == b"no a"
        assert self.refusals == {("toy", UNAVAILABLE): 3}

    def test_replies_are_in_order_whichever_is_ready_first(self) -> None:
        self.wait(b"1")
        self.wait(b"2")
        self.connection.reply(b"3")
        self.wait(b"4")
        first, second, fourth = self.disk.syncs
        second(True)
        assert self.client.take() == b""
        first(True)
        assert self.client.take() == b"123"
        # The fourth still waits, and what comes behind it waits too.
        self.connection.reply(b"5")
        assert self.client.take() == b""
        fourth(False)
        assert self.client.take() == b"no 45"
        self.connection.reply(b"6")
        assert self.client.take() == b"6"

    def test_a_connection_that_leaves_ends_with_the_last_reply(self) -> None:
        ways: tuple[Callable[[Frames], None], ...] = (
            Frames.close, Frames.drain, Frames.readConnectionLost,
        )  # fmt: skip
        for leave in ways:
            client, connection = self.setup.connect()
            connection.reply_when_stored(SYNC, b"1", b"no 1")
            connection.reply_when_stored(SYNC, b"2", b"no 2")
            leave(connection)
            assert client.stream.paused
            self.disk.syncs.pop(0)(True)
            assert not client.stream.half_closed
            self.disk.syncs.pop(0)(True)
            assert client.stream.half_closed
            # What the client has sent is read and discarded, so that it is not sent a reset.
            assert client.stream.paused == (leave == Frames.readConnectionLost)
            assert client.take().removesuffix(b"bye") == b"12"

    def test_the_first_of_several_last_words_is_sent(self) -> None:
        self.wait(b"1")
        self.connection.close(b"first")
        self.connection.close(b"second")
        self.connection.drain()
        self.disk.syncs.pop()(True)
        assert self.client.take() == b"1first"

    def test_a_connection_that_is_gone_is_owed_nothing(self) -> None:
        ways: tuple[Callable[[Client], None], ...] = (
            lambda client: client.stream.lose(),
            lambda client: client.protocol.abort("why"),
        )
        for end in ways:
            client, connection = self.setup.connect()
            connection.reply_when_stored(SYNC, b"a", b"no a")
            end(client)
            self.disk.syncs.pop()(False)
            assert client.stream.writes == []
            assert self.refusals == {}

    def test_a_client_that_goes_on_sending_has_to_wait(self) -> None:
        memory = self.setup.broker.memory
        before = memory.used
        self.wait(b"1")
        self.connection.reply(bytes(60_000))
        assert memory.used == before
        self.connection.reply(bytes(2**21))
        assert memory.used > before + 2**21
        assert not self.client.stream.paused
        self.wait(b"2")
        self.connection.reply(bytes(2**21))
        assert self.client.stream.paused
        first, second = self.disk.syncs
        first(True)
        assert len(self.client.take()) == 1 + 60_000 + 2**21
        assert memory.used > before + 2**21
        assert not self.client.stream.paused
        second(True)
        assert len(self.client.take()) == 1 + 2**21
        assert memory.used == before

    def test_many_small_replies_are_counted(self) -> None:
        memory = self.setup.broker.memory
        before = memory.used
        self.wait(b"1")
        for _ in range(10_000):
            self.connection.reply(b"")
        assert memory.used > before + 1_000_000
        self.client.stream.lose()
        assert memory.used <= before


class ConditionTests(SynchronousTestCase):
    """Conditions"""

    def result(self, condition: Condition) -> list[str | None]:
        """Return what the condition has been reported with, and will be."""
        found: list[str | None] = []
        condition(found.append)
        return found

    def test_stored(self) -> None:
        disk = Disk()
        assert self.result(stored_in(disk, Durability.NONE)) == [None]
        assert self.result(stored_in(MemoryStore(1000, 2**20), SYNC)) == [None]
        for durability, calls in ((SYNC, disk.syncs), (ASYNC, disk.writes)):
            for done, expected in ((True, None), (False, UNAVAILABLE)):
                found = self.result(stored_in(disk, durability))
                assert found == []
                calls.pop()(done)
                assert found == [expected]
        assert disk.syncs == disk.writes == []

    def test_confirmed_by_the_host_of_a_topic(self) -> None:
        topic = Setup().broker.topics.create("t")
        assert self.result(confirmed_by_host(topic)) == [None]
        for done, expected in ((True, None), (False, UNCONFIRMED)):
            host = _Host(done)
            topic.upstream = host  # type: ignore[assignment]
            assert self.result(confirmed_by_host(topic)) == [expected]
            assert host.asked == [topic]

    def test_all_of_several(self) -> None:
        calls: list[Callable[[str | None], None]] = []
        for results, expected in (
            ((None, None, None), None),
            ((None, "b", "c"), "b"),
            (("a", None, None), "a"),
        ):
            found = self.result(all_of([calls.append] * 3))
            for one in results:
                assert found == []
                calls.pop()(one)
            assert found == [expected]


class _Host:
    """Another broker, which answers at once."""

    def __init__(self, answer: bool) -> None:
        self._answer = answer
        self.asked: list[object] = []

    def when_confirmed(self, topic: object, call: Callable[[bool], None]) -> None:
        self.asked.append(topic)
        call(self._answer)
