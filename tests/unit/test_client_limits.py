"""Deadlines, room and pauses of a client whose connection breaks, is silent or is not read."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.client import (
    ConnectFailed,
    Disconnected,
    Level,
    NotSent,
    OutcomeUnknown,
    Reconnected,
)
from pubsub.protocols.cafe.codec import Disconnect, encode
from tests.unit.client_runtime import MemoryRuntime, Work
from tests.unit.raising import raised
from tests.unit.streams import House


class LimitCase(SynchronousTestCase):
    """With a broker that serves spot"""

    def setUp(self) -> None:
        self.runtime = MemoryRuntime(House({"spot": {}}))
        self.notices: list[Any] = []

    def publisher(self, **options: Any) -> Any:
        """Return a client that has published a message."""
        client = self.runtime.client("spot", on_event=self.notices.append, **options)
        # One that is deleted while messages are unconfirmed logs a warning.
        self.addCleanup(lambda: self.runtime.begin(client.close(flush=False)))
        self.runtime.run(client.publish("news", b"0", confirm=True))
        return client

    def snap(self) -> None:
        self.runtime.streams[-1].snap()
        self.runtime.settle()

    def kinds(self) -> list[type]:
        return [type(notice) for notice in self.notices]


class DeadlineTests(LimitCase):
    def test_a_message_whose_confirmation_does_not_come(self) -> None:
        client = self.publisher(timeout=5)
        (stream,) = self.runtime.streams
        stream.reading = False
        work = self.runtime.begin(client.publish("news", b"1", confirm=True))
        self.runtime.advance(4)
        assert not work.done
        self.runtime.advance(2)
        assert "no confirmation in time" in str(raised(OutcomeUnknown, work.result))
        # The confirmation that comes late is not taken for that of the next one.
        late = self.runtime.begin(client.publish("news", b"2", confirm=True))
        assert not late.done
        stream.reading = True
        self.runtime.settle()
        assert late.result() is Level.HANDLED
        assert not stream.lost

    def test_a_message_that_was_not_sent(self) -> None:
        """It is not sent later, and leaves its room to others."""
        client = self.publisher(timeout=5, queue_bytes=1000)
        self.runtime.down = True
        self.snap()
        work = self.runtime.begin(client.publish("news", b"late" * 250, confirm=True))
        self.runtime.advance(4)
        assert not work.done
        waiting = self.runtime.begin(client.publish("news", b"next"))
        assert not waiting.done
        self.runtime.advance(2)
        raised(NotSent, work.result)
        assert waiting.done
        waiting.result()
        self.runtime.down = False
        self.runtime.advance(11)
        stream = self.runtime.streams[-1]
        assert b"next" in stream.sent
        assert b"late" not in stream.sent

    def test_the_time_for_room_counts(self) -> None:
        """The deadline of a message that had to wait for room is before those of later ones."""
        client = self.publisher(timeout=30, queue_bytes=1000)
        (stream,) = self.runtime.streams
        stream.reading = False
        self.runtime.run(client.publish("news", bytes(1000)))
        first = self.runtime.begin(client.publish("news", bytes(1000), confirm=True))
        self.runtime.advance(20)
        second = self.runtime.begin(client.publish("news", bytes(1000), confirm=True))
        # The message before them is confirmed, so that there is room for the first.
        stream.reading = True
        stream.carry()
        stream.reading = False
        self.runtime.settle()
        assert stream.sent.count(bytes(1000)) == 2
        self.runtime.advance(9)
        assert not first.done
        self.runtime.advance(2)
        raised(OutcomeUnknown, first.result)
        assert not second.done
        self.runtime.advance(20)
        raised(NotSent, second.result)

    def test_all_that_wait_for_a_first_connection_get_its_error(self) -> None:
        self.runtime.down = True
        client = self.runtime.client("spot", on_event=self.notices.append)
        work = [Work(client.publish("news", b"%d" % number)) for number in range(3)]
        self.runtime.settle()
        for one in work:
            raised(ConnectFailed, one.result)
        assert self.notices == []


class RoomTests(LimitCase):
    def test_messages_in_flight_when_the_connection_breaks_take_no_room(self) -> None:
        client = self.publisher(queue_bytes=1000)
        for _ in range(3):
            self.runtime.streams[-1].reading = False
            self.runtime.run(client.publish("news", bytes(1000)))
            self.snap()
            self.runtime.advance(11)
            work = self.runtime.begin(client.publish("news", b"x", confirm=True))
            assert work.result() is Level.HANDLED
        assert sum(one.count for one in self.notices if hasattr(one, "count")) == 3

    def test_a_window_in_flight_is_open_again_after_a_reconnection(self) -> None:
        client = self.publisher(queue_bytes=64 << 20)
        self.runtime.streams[-1].reading = False
        for _ in range(6):
            self.runtime.run(client.publish("news", bytes(900_000)))
            self.runtime.settle()
        self.snap()
        self.runtime.advance(1)
        work = self.runtime.begin(client.publish("news", b"x", confirm=True))
        assert work.result() is Level.HANDLED

    def test_room_is_given_to_one_at_a_time(self) -> None:
        """So that what is held stays below the limit and one message."""
        client = self.publisher(queue_bytes=1000)
        self.runtime.down = True
        self.snap()
        self.runtime.run(client.publish("news", bytes(1000)))
        waiting = [self.runtime.begin(client.publish("news", bytes(900))) for _ in range(5)]
        link = client._links.publishing.link
        most = 0
        self.runtime.down = False
        for _ in range(200):
            self.runtime.house.clock.advance(0.05)
            self.runtime.house.pump(1)
            most = max(most, link.nbytes)
            for stream in self.runtime.streams:
                stream.carry()
                most = max(most, link.nbytes)
        for work in waiting:
            work.result()
        assert most <= 1000 + 900 + 200


class PauseTests(LimitCase):
    def reconnect(self) -> float:
        """Break the connection; return the seconds until there is another one."""
        count, start = len(self.runtime.streams), self.runtime.now()
        self.runtime.streams[-1].snap()
        while len(self.runtime.streams) == count:
            self.runtime.house.clock.advance(0.01)
        self.runtime.settle()
        return self.runtime.now() - start

    def test_a_connection_that_lasted_is_made_again_soon(self) -> None:
        self.publisher()
        for _ in range(12):
            self.runtime.advance(6)
            assert self.reconnect() < 1

    def test_connections_that_break_at_once_are_made_less_often(self) -> None:
        self.publisher()
        assert max(self.reconnect() for _ in range(9)) > 4

    def test_a_client_that_does_not_read_keeps_its_connection(self) -> None:
        """The broker's replies to pings would be behind the messages that are not read."""
        client = self.runtime.client("spot", on_event=self.notices.append, feed_bytes=1)
        messages = client.subscribe("news")
        self.runtime.run(messages.accepted())
        (stream,) = self.runtime.streams
        publisher = self.publisher()
        self.runtime.run(publisher.publish("news", b"1"))
        self.runtime.settle()
        assert not stream.reading
        self.runtime.advance(600)
        assert (self.kinds(), stream.lost) == ([], False)
        while not stream.reading:
            self.runtime.run(messages.next_item(1))
            self.runtime.settle()
        # It is a usual connection again, whose silence is noticed.
        stream.reading = False
        self.runtime.advance(130)
        assert {Disconnected, Reconnected} <= set(self.kinds())

    def test_a_client_that_closes_says_goodbye(self) -> None:
        """So that the broker keeps no session for its return, and serves nothing further."""
        house = House({"cafe": {}})
        runtime = MemoryRuntime(house)
        client = runtime.client("cafe")
        messages = client.subscribe("cafe/7")
        runtime.run(messages.accepted())
        runtime.run(client.publish("cafe/7", b"x", confirm=True))
        streams = list(runtime.streams)
        runtime.run(client.close())
        for stream in streams:
            assert stream.sent.endswith(encode(Disconnect()))
            assert stream.lost
