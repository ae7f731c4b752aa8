"""The messages written to a client that it did not take."""

from __future__ import annotations

import contextlib
import socket
from array import array
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.delivery.last_writes import LastWrites
from pubsub.broker.delivery.slow_policy import DISCONNECT
from pubsub.broker.routing.audience import Share
from pubsub.broker.topic_space.topics import Topic
from pubsub.wire.unsent_bytes import untaken_bytes
from tests.unit.cafe_wire import Cafe, publish


class EstimateTests(SynchronousTestCase):
    """``LastWrites``"""

    def setUp(self) -> None:
        self.topic = Topic("t")
        self.writes = LastWrites()

    def in_last(self, nbytes: int) -> int:
        return sum(self.writes.messages_in(nbytes).values())

    def test_without_a_write_nothing_is_known(self) -> None:
        assert self.in_last(1000) == 0

    @given(st.lists(st.integers(1, 50), min_size=1, max_size=100), st.integers(0, 10_000))
    def test_equally_long_messages_are_counted_exactly(
        self, counts: Sequence[int], nbytes: int
    ) -> None:
        """Also those before the remembered writes; one that was begun to be taken counts."""
        self.writes = LastWrites()
        for count in counts:
            self.writes.add(20 * count, count, self.topic)
        assert self.in_last(nbytes) == -(-nbytes // 20)

    def test_each_write_has_its_own_measure(self) -> None:
        self.writes.add(1000, 10, self.topic)
        self.writes.add(1000, 1, self.topic)
        assert [self.in_last(nbytes) for nbytes in (0, 1, 1000, 1001, 1100, 2000)] == [
            0, 1, 1, 2, 2, 11,
        ]  # fmt: skip

    def test_each_topic_has_its_share(self) -> None:
        topics = [Topic("a"), Topic("b")]
        share = Share(topics, array("I", [0] * 30 + [1] * 10).tobytes(), frozenset({0, 1}))
        self.writes.add(400, 40, share)
        assert self.writes.messages_in(200) == {topics[0]: 15, topics[1]: 5}


class ConnectionTests(SynchronousTestCase):
    """Subscribers that do not take their messages"""

    def stuck(self, **settings: Any) -> Cafe:
        """A broker with a subscriber that has taken nothing of 20 messages of 10,000 bytes."""
        cafe = Cafe(slow_bytes="1M", **settings)
        cafe.start()
        self.alice, self.bob = cafe.publisher(), cafe.subscriber()
        self.bob.stream.stop_reading()
        self.alice.send(publish(1, bytes(10_000)) * 20)
        return cafe

    def test_bytes_for_an_evicted_subscriber_are_not_delivered(self) -> None:
        cafe = self.stuck(slow_consumer=DISCONNECT, slow_seconds=5)
        assert cafe.broker.counters.delivered == 20
        cafe.advance(8)
        assert self.bob.stream.aborted
        assert cafe.broker.counters.delivered == 0
        assert cafe.broker.counters.dropped == 20

    def test_messages_taken_before_the_end_are_delivered(self) -> None:
        cafe = self.stuck(slow_consumer=DISCONNECT, slow_seconds=5)
        # Seven messages and the beginning of another.
        del self.bob.stream.buffered[: 7 * 10_016 + 1000]
        cafe.advance(8)
        assert cafe.broker.counters.delivered == 7
        assert cafe.broker.counters.dropped == 13

    def test_bytes_for_a_subscriber_that_leaves_are_not_delivered(self) -> None:
        cafe = self.stuck()
        self.bob.stream.lose()
        assert cafe.broker.counters.delivered == 0
        assert cafe.broker.counters.dropped == 20

    def test_bytes_not_taken_in_time_at_the_end_are_not_delivered(self) -> None:
        cafe = self.stuck(slow_seconds=5)
        self.bob.protocol.readConnectionLost()
        assert cafe.broker.counters.delivered == 20
        cafe.advance(8)
        assert self.bob.stream.aborted
        assert cafe.broker.counters.delivered == 0

    def test_bytes_taken_at_the_end_are_delivered(self) -> None:
        cafe = self.stuck()
        self.bob.protocol.readConnectionLost()
        self.bob.stream.read()
        cafe.advance(8)
        assert self.bob.stream.lost
        assert (cafe.broker.counters.delivered, cafe.broker.counters.dropped) == (20, 0)


class KernelTests(SynchronousTestCase):
    """``untaken_bytes`` of a real socket"""

    def test_bytes_that_the_kernel_has_not_sent_are_not_taken(self) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        theirs = socket.create_connection(listening.getsockname())
        ours = listening.accept()[0]
        for sock in (listening, theirs):
            self.addCleanup(sock.close)
        ours.setblocking(False)
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                sent += ours.send(bytes(65_536))

        class Bottom:
            fileno = ours.fileno

        untaken = untaken_bytes(Bottom())
        taken = 0
        ours.shutdown(socket.SHUT_WR)
        while piece := theirs.recv(65_536):
            taken += len(piece)
        assert taken == sent
        assert 0 < untaken < sent
        ours.close()
        assert untaken_bytes(Bottom()) == 0
