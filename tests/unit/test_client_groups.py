"""Publishes of a client that nobody waits for: how they are grouped, confirmed and sent."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.client import Notice, OutcomeUnknown, Refusal, Uncertain
from pubsub.client.publish_requests import RequestGroup
from pubsub.client.tickets import Ticket
from pubsub.protocols.cafe.codec import Ping, encode
from pubsub.wire.client_events import Confirmed, Level
from tests.unit.client_runtime import MemoryRuntime, MemoryStream
from tests.unit.streams import House

_PING = encode(Ping())


class GroupTests(SynchronousTestCase):
    """With a client of cafe that has published a message"""

    def setUp(self) -> None:
        self.runtime = MemoryRuntime(House({"cafe": {}}))
        self.notices: list[Notice] = []
        self.client = self.runtime.client("cafe", on_event=self.notices.append)
        self.runtime.run(self.client.publish("cafe/7", b"0", confirm=True))
        (self.stream,) = self.runtime.streams
        self.stream.sent = b""

    def publish(self, count: int, size: int = 1, calls: int = 1) -> None:
        for _ in range(calls):
            self.runtime.run(self.client.publish_many("cafe/7", [bytes(size)] * count))
            self.runtime.settle()

    def pings(self) -> int:
        return self.stream.sent.count(_PING)

    def test_messages_that_are_sent_meanwhile_are_confirmed_together(self) -> None:
        self.stream.reading = False
        self.publish(1, calls=6)
        assert self.pings() == 1
        self.stream.reading = True
        self.runtime.settle()
        assert self.pings() == 2
        self.runtime.run(self.client.flush())
        assert self.pings() == 2

    def test_a_large_group_is_confirmed_at_once(self) -> None:
        self.stream.reading = False
        self.publish(1)
        self.publish(16_000)
        assert self.pings() == 1
        self.publish(400)
        assert self.pings() == 2
        self.publish(1, size=512 * 1024)
        assert self.pings() == 2
        self.publish(1, size=512 * 1024)
        assert self.pings() == 3

    def test_who_waits_is_confirmed_at_once(self) -> None:
        self.stream.reading = False
        self.publish(1, calls=2)
        waiting = self.runtime.begin(self.client.publish("cafe/7", b"x", confirm=True))
        self.runtime.settle()
        # The one before it, and its own.
        assert self.pings() == 3
        self.stream.reading = True
        self.runtime.settle()
        waiting.result()

    def test_a_flush_confirms_what_is_left(self) -> None:
        self.stream.reading = False
        self.publish(1, calls=2)
        flush = self.runtime.begin(self.client.flush())
        self.runtime.settle()
        assert self.pings() == 2
        assert not flush.done
        self.stream.reading = True
        self.runtime.settle()
        flush.result()

    def test_what_is_left_is_uncertain_when_the_connection_breaks(self) -> None:
        self.stream.reading = False
        self.publish(1, calls=3)
        self.stream.snap()
        (uncertain,) = [one for one in self.notices if isinstance(one, Uncertain)]
        assert uncertain.count == 3

    def test_a_transport_that_takes_no_more_is_given_a_piece_at_most(self) -> None:
        self.patch(MemoryStream, "write", _take_one(self.stream))  # type: ignore[no-untyped-call]
        work = [
            self.runtime.begin(self.client.publish_many("cafe/7", [bytes(1000)] * 20))
            for _ in range(40)
        ]
        self.runtime.settle()
        assert all(one.done for one in work)
        assert len(self.stream.sent) < 200_000
        for _ in range(40):
            self.stream.observer.writable(True)
            self.runtime.settle()
        assert len(self.stream.sent) > 800_000
        self.runtime.run(self.client.flush())


class OutcomeTests(SynchronousTestCase):
    """A group of which the broker does not know whether some messages were published"""

    def test_a_call_that_waits(self) -> None:
        notices: list[Notice] = []
        for refused in (0, 2):
            ticket: Ticket[Level] = Ticket()
            event = Confirmed(5, Level.STORED, refused, "the disk is slow", unknown=3)
            RequestGroup(5, 100, ticket).settle(event, "http at ::1", notices.append)
            assert isinstance(ticket.error, OutcomeUnknown)
            assert str(ticket.error) == "http at ::1: the disk is slow"
        assert notices == []

    def test_no_call(self) -> None:
        """A reader of the notices that stops at the first learns that it is not all refused."""
        notices: list[Notice] = []
        event = Confirmed(5, Level.STORED, 2, "why", unknown=3)
        RequestGroup(5, 100).settle(event, "http at ::1", notices.append)
        assert notices == [Uncertain(3, "why"), Refusal(2, "why")]


def _take_one(stream: MemoryStream) -> Any:
    """Return a ``write`` after which ``stream`` takes nothing."""
    write = MemoryStream.write

    def write_one(self: MemoryStream, data: bytes) -> None:
        write(self, data)
        stream.observer.writable(False)

    return write_one


class IterationTests(SynchronousTestCase):
    def test_a_loop_that_ends_in_a_batch_leaves_the_rest_to_the_next(self) -> None:
        runtime = MemoryRuntime(House({"cafe": {}}))
        client = runtime.client("cafe")
        messages = client.subscribe("cafe/7")
        runtime.run(messages.accepted())
        payloads = [b"%d" % number for number in range(10)]
        runtime.run(client.publish_many("cafe/7", payloads))
        runtime.settle()
        assert runtime.run(_take(messages, 3)) == payloads[:3]
        assert runtime.run(_next(messages)) == payloads[3]
        assert runtime.run(_take(messages, 6)) == payloads[4:]


async def _take(messages: Any, count: int) -> list[bytes]:
    found = []
    async for message in messages:
        found.append(message.payload)
        if len(found) == count:
            break
    return found


async def _next(messages: Any) -> bytes:
    message = await anext(messages)
    return bytes(message.payload)
