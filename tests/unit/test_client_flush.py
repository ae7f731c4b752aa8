"""The time limit of a flush, and of the end of a client."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pubsub.client import Notice, OutcomeUnknown, Uncertain
from tests.unit.client_runtime import MemoryRuntime, MemoryStream, Work
from tests.unit.raising import raised
from tests.unit.streams import House


class FlushTests(SynchronousTestCase):
    """With a client that gives up after 30 seconds, and a broker whose replies are held back"""

    def prepare(self, protocol: str) -> None:
        self.runtime = MemoryRuntime(House({protocol: {}}))
        self.notices: list[Notice] = []
        self.client = self.runtime.client(protocol, timeout=30, on_event=self.notices.append)
        self.runtime.run(self.client.publish("news", b"0", confirm=True))
        (self.stream,) = self.runtime.streams
        self.stream.reading = False
        self.runtime.run(self.client.publish_many("news", [b"1", b"2", b"3"]))
        self.runtime.settle()

    def answer_slowly(self, work: Work[None]) -> None:
        """Deliver one reply each 20 seconds."""
        for reply in replies(self.stream):
            self.runtime.advance(20)
            assert not work.done
            self.stream.observer.received(reply)
        self.runtime.settle()

    def test_each_reply_extends_the_limit(self) -> None:
        """Also those to messages of one group, which is confirmed at its end."""
        self.prepare("nsd")
        flush = self.runtime.begin(self.client.flush())
        self.answer_slowly(flush)
        flush.result()

    def test_closing_waits_as_long(self) -> None:
        self.prepare("nsd")
        closing = self.runtime.begin(self.client.close())
        self.answer_slowly(closing)
        self.stream.reading = True
        self.runtime.settle()
        closing.result()
        assert self.notices == []

    def test_a_second_call_that_closes_waits_as_well(self) -> None:
        """The program that makes it may end behind it."""
        self.prepare("nsd")
        calls = [self.runtime.begin(self.client.close()) for _ in range(2)]
        self.answer_slowly(calls[1])
        self.stream.reading = True
        self.runtime.settle()
        for call in calls:
            call.result()
        assert self.notices == []

    def test_a_call_that_does_not_wait_ends_those_that_do(self) -> None:
        self.prepare("nsd")
        waiting = [self.runtime.begin(self.client.flush()), self.runtime.begin(self.client.close())]
        self.runtime.begin(self.client.close(flush=False))
        assert self.stream.closed
        for call in waiting:
            assert "the client was closed" in str(raised(OutcomeUnknown, call.result))
        assert self.notices == [Uncertain(3, "the client was closed")]
        self.runtime.run(self.client.close())

    def test_without_replies_it_ends(self) -> None:
        self.prepare("nsd")
        flush = self.runtime.begin(self.client.flush())
        first = replies(self.stream)[0]
        self.runtime.advance(20)
        self.stream.observer.received(first)
        self.runtime.advance(29)
        assert not flush.done
        self.runtime.advance(2)
        assert "no reply within 30 s" in str(raised(OutcomeUnknown, flush.result))
        assert not self.stream.closed

    def test_messages_that_a_connection_has_lost_are_in_a_notice(self) -> None:
        """They are not confirmed later: there is nothing to wait for."""
        self.prepare("nsd")
        flush = self.runtime.begin(self.client.flush())
        self.stream.snap("broken")
        self.runtime.settle()
        flush.result()
        assert self.notices == [Uncertain(3, "broken")]
        self.runtime.run(self.client.close(flush=False))

    def test_no_timer_is_left(self) -> None:
        """A test of trial fails if its client leaves one behind."""
        self.runtime = MemoryRuntime(House({"nsd": {}}))
        client = self.runtime.client("nsd", timeout=30)
        clock = self.runtime.house.clock
        before = list(clock.getDelayedCalls())
        self.runtime.run(client.publish("news", b"0"))
        self.runtime.run(client.flush())
        self.runtime.run(client.close())
        left = [repr(call) for call in clock.getDelayedCalls() if call not in before]
        assert [call for call in left if "FlushLimit" in call or "LinkDriver" in call] == []


def replies(stream: MemoryStream) -> list[bytes]:
    """Return the lines that the broker has sent and the client has not read."""
    lines = stream.far.take().splitlines(keepends=True)
    assert len(lines) >= 3
    return lines
