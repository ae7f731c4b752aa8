"""Clients of the library with a broker in memory: connections that end, and waiting publishes."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.client import (
    ClientClosed,
    ConnectFailed,
    Disconnected,
    Gap,
    Level,
    MessageBatch,
    NotExpressible,
    Notice,
    NotPublished,
    NotSent,
    OutcomeUnknown,
    Reconnected,
    Refusal,
    SubscriptionRefused,
    Uncertain,
)
from pubsub.client.publish_requests import PublishRequest
from pubsub.kernel import Columns
from tests.unit import fast_wire
from tests.unit.client_runtime import MemoryRuntime
from tests.unit.raising import raised
from tests.unit.streams import House


def contents(items: list[Any]) -> list[Any]:
    """Return payloads and the kinds of notices."""
    found: list[Any] = []
    for item in items:
        found += item.payloads if isinstance(item, MessageBatch) else [type(item)]
    return found


class LinkCase(SynchronousTestCase):
    """With a broker that has a listener of each protocol that needs no token"""

    def setUp(self) -> None:
        self.house = House({"cafe": {}, "rheos": {}, "spot": {}})
        self.runtime = MemoryRuntime(self.house)
        self.notices: list[Notice] = []

    def client(self, protocol: str, **options: Any) -> Any:
        return self.runtime.client(protocol, on_event=self.notices.append, **options)

    def subscription(self, client: Any, *topics: str, **options: Any) -> Any:
        """Return a subscription that was accepted."""
        made = client.subscribe(*topics, **options)
        self.runtime.run(made.accepted())
        return made

    def items(self, subscription: Any) -> list[Any]:
        """Return everything that can be iterated over now."""
        found = []
        self.runtime.settle()
        while True:
            work = self.runtime.begin(subscription.next_item(0.001))
            try:
                found.append(work.result())
            except TimeoutError:
                return found

    def snap(self) -> None:
        """Break all connections."""
        for stream in self.runtime.streams:
            stream.snap()
        self.runtime.settle()

    def other(self, topic: str, *payloads: bytes) -> None:
        """Publish as another client."""
        self.handled(topic, *payloads)
        self.runtime.settle()

    def handled(self, topic: str, *payloads: bytes) -> None:
        """Have the broker handle messages of another client before anything else."""
        runtime = MemoryRuntime(self.house)
        client = runtime.client("spot")
        work = runtime.begin(client.publish_many(topic, list(payloads), confirm=True))
        assert work.result() is Level.HANDLED
        runtime.run(client.close())


class SubscriberTests(LinkCase):
    def test_a_connection_that_breaks_is_made_again(self) -> None:
        """Over spot the session is resumed: the messages published meanwhile arrive."""
        reader = self.subscription(self.client("spot"), "news", events=True)
        self.other("news", b"1")
        self.snap()
        self.other("news", b"2", b"3")
        self.runtime.advance(1)
        self.other("news", b"4")
        items = self.items(reader)
        assert contents(items) == [b"1", Disconnected, Gap, b"2", b"3", Reconnected, b"4"]
        (gap,) = [item for item in items if isinstance(item, Gap)]
        assert gap.topics == ("news",)
        assert "resumed" in gap.reason
        (back,) = [item for item in items if isinstance(item, Reconnected)]
        assert back.resumed
        assert [type(notice) for notice in self.notices] == [Disconnected, Gap, Reconnected]

    def test_a_subscription_gets_no_messages_of_the_one_before(self) -> None:
        """The other client's message is handled before the request that ends the subscription."""
        for protocol in ("cafe", "spot"):
            client = self.client(protocol)
            self.subscription(client, "cafe/7").close()
            self.handled("cafe/7", b"before")
            reader = self.subscription(client, "cafe/7")
            self.other("cafe/7", b"after")
            assert contents(self.items(reader)) == [b"after"], protocol
            self.runtime.run(client.close())

    def test_the_next_subscription_begins_when_the_connection_has_broken(self) -> None:
        client = self.client("cafe")
        self.subscription(client, "cafe/7").close()
        reader = client.subscribe("cafe/7")
        self.snap()
        self.runtime.advance(1)
        self.other("cafe/7", b"after")
        assert contents(self.items(reader)) == [b"after"]

    def test_reconnected_means_that_the_broker_has_accepted_the_subscriptions(self) -> None:
        for protocol in ("cafe", "rheos", "spot"):
            client = self.client(protocol)
            reader = self.subscription(client, "cafe/7", events=True)
            self.snap()
            while Reconnected not in map(type, self.notices):
                self.house.clock.advance(0.1)
                for stream in self.runtime.streams:
                    stream.carry()
            self.notices.clear()
            self.other("cafe/7", protocol.encode())
            assert contents(self.items(reader))[-1] == protocol.encode()
            self.runtime.run(client.close())

    def test_pauses_between_attempts_grow(self) -> None:
        self.kept = self.subscription(self.client("spot"), "news", events=True)
        self.runtime.down = True
        self.snap()
        self.runtime.advance(60)
        self.runtime.down = False
        count = len(self.runtime.streams)
        self.runtime.advance(10)
        assert len(self.runtime.streams) == count + 1
        assert [type(notice) for notice in self.notices] == [Disconnected, Gap, Reconnected]

    def test_an_event_handler_that_fails_stops_nothing(self) -> None:
        def fail(notice: Notice) -> None:
            raise RuntimeError(str(notice))

        with self.assertLogs("pubsub.client", "ERROR"):
            client = self.runtime.client("spot", on_event=fail)
            reader = self.subscription(client, "news", events=True)
            self.snap()
            self.runtime.advance(1)
        self.other("news", b"1")
        assert contents(self.items(reader)) == [Disconnected, Gap, Reconnected, b"1"]

    def test_two_wait_for_acceptance(self) -> None:
        subscription = self.client("spot").subscribe("news")
        first, second = (self.runtime.begin(subscription.accepted()) for _ in range(2))
        assert first.done
        assert second.done

    def test_a_subscription_that_is_closed_before_it_is_accepted(self) -> None:
        self.runtime.down = True
        client = self.client("spot")
        subscription = client.subscribe("news")
        work = self.runtime.begin(subscription.accepted())
        raised(ConnectFailed, work.result)
        self.runtime.down = False
        subscription = client.subscribe("news")
        subscription.close()
        raised(ClientClosed, self.runtime.begin(subscription.accepted()).result)

    def test_a_deadline_loses_no_message(self) -> None:
        subscription = self.subscription(self.client("spot"), "news")
        work = self.runtime.begin(subscription.next_item(10))
        self.runtime.advance(9)
        assert not work.done
        self.runtime.advance(2)
        raised(TimeoutError, work.result)
        self.other("news", b"1")
        assert contents(self.items(subscription)) == [b"1"]

    def test_a_silent_broker_is_pinged_and_given_up(self) -> None:
        """The silence counts from the last input."""
        self.kept = self.subscription(self.client("spot"), "news", events=True)
        (stream,) = self.runtime.streams
        self.runtime.advance(30)
        self.other("news", b"1")
        pings = stream.sent.count(b"PING")
        self.runtime.advance(55)
        assert stream.sent.count(b"PING") == pings
        self.runtime.advance(8)
        assert stream.sent.count(b"PING") == pings + 1
        # The broker replies, and from now on nothing arrives.
        stream.reading = False
        self.runtime.advance(50)
        assert stream.sent.count(b"PING") == pings + 1
        self.runtime.advance(10)
        assert stream.sent.count(b"PING") == pings + 2
        self.runtime.advance(50)
        assert self.notices == []
        self.runtime.advance(10)
        assert Disconnected in map(type, self.notices)

    def test_a_silent_broker_is_given_up_after_a_connection_that_was_not_read(self) -> None:
        client = self.client("spot", feed_bytes=1)
        reader = self.subscription(client, "news", events=True)
        self.other("news", b"1")
        (stream,) = self.runtime.streams
        assert not stream.reading
        self.runtime.down = True
        self.snap()
        assert b"1" in contents(self.items(reader))
        self.runtime.down = False
        self.runtime.advance(10)
        stream = self.runtime.streams[-1]
        assert stream.reading
        stream.reading = False
        self.notices.clear()
        self.runtime.advance(130)
        assert Disconnected in map(type, self.notices)

    def test_a_queue_that_the_program_leaves_full_is_in_the_log(self) -> None:
        """It also stops the other subscriptions, which cannot know the reason."""
        client = self.client("spot", feed_bytes=1)
        self.kept = self.subscription(client, "news")
        other = self.subscription(client, "sport")
        self.other("news", b"1")
        with self.assertLogs("pubsub.client", "WARNING") as log:
            self.runtime.advance(121)
        (line,) = log.output
        assert "'news'" in line
        assert "sport" not in line
        self.other("sport", b"2")
        assert contents(self.items(self.kept)) == [b"1"]
        self.runtime.advance(1)
        assert contents(self.items(other)) == [b"2"]

    def test_a_topic_of_rheos_has_a_connection_of_its_own(self) -> None:
        """A response does not name its topic."""
        client = self.client("rheos")
        raised(NotExpressible, client.subscribe, "news", "sport")
        news, sport = (self.subscription(client, topic) for topic in ("news", "sport"))
        self.other("news", b"n")
        self.other("sport", b"s")
        assert contents(self.items(news)) == [b"n"]
        assert contents(self.items(sport)) == [b"s"]
        news.close()
        self.runtime.settle()
        assert [stream.lost for stream in self.runtime.streams] == [True, False]
        self.other("sport", b"t")
        assert contents(self.items(sport)) == [b"t"]

    def test_a_subscription_that_is_refused_keeps_no_connection(self) -> None:
        """It is not reported in a block, nor if iterating raises its error."""
        runtime = MemoryRuntime(House({"rheos": {"allow-subscribe": "allowed"}}))
        client = runtime.client("rheos")

        async def enter() -> None:
            async with client.subscribe("news"):
                pass

        raised(SubscriptionRefused, runtime.begin(enter()).result)
        raised(SubscriptionRefused, runtime.begin(client.subscribe("news").next_item()).result)
        runtime.settle()
        assert [stream.lost for stream in runtime.streams] == [True, True]
        assert client._links._reading == []

    def test_input_that_a_defect_cannot_handle(self) -> None:
        reader = self.subscription(self.client("spot"), "news", events=True)

        def fail(data: bytes, now: float) -> None:
            raise RuntimeError("defect")

        with self.assertLogs("pubsub.client", "ERROR"):
            link = reader._feed.on_room.__self__.link
            self.patch(link, "received", fail)  # type: ignore[no-untyped-call]
            self.other("news", b"1")
            self.runtime.settle()
            del link.received
        assert self.runtime.streams[0].closed
        self.runtime.advance(1)
        self.other("news", b"2")
        found = contents(self.items(reader))
        assert (found[0], found[-1]) == (Disconnected, b"2")


class PublisherTests(LinkCase):
    def test_the_outcome_of_sent_messages_is_unknown(self) -> None:
        client = self.client("spot")
        self.runtime.run(client.publish("news", b"0", confirm=True))
        (stream,) = self.runtime.streams
        stream.reading = False
        waiting = self.runtime.begin(client.publish("news", b"1", confirm=True))
        self.runtime.run(client.publish("news", b"2"))
        self.snap()
        raised(OutcomeUnknown, waiting.result)
        (uncertain,) = self.notices
        assert isinstance(uncertain, Uncertain)
        assert uncertain.count == 1
        after = self.runtime.begin(client.publish("news", b"3", confirm=True))
        self.runtime.advance(1)
        assert after.result() is Level.HANDLED

    def test_messages_wait_for_the_broker(self) -> None:
        client = self.client("spot")
        self.runtime.run(client.publish("news", b"0", confirm=True))
        self.runtime.down = True
        self.snap()
        waiting = [self.runtime.begin(client.publish("news", b"%d" % n)) for n in range(10)]
        assert all(work.done for work in waiting)
        confirmed = self.runtime.begin(client.publish("news", b"last", confirm=True))
        self.runtime.down = False
        self.runtime.advance(2)
        assert confirmed.result() is Level.HANDLED

    def test_a_queue_that_is_full_holds_publishers(self) -> None:
        client = self.client("spot", queue_bytes=1000, timeout=5)
        self.runtime.run(client.publish("news", b"0", confirm=True))
        self.runtime.down = True
        self.snap()
        first = self.runtime.begin(client.publish("news", bytes(1000)))
        assert first.done
        second = self.runtime.begin(client.publish("news", b"x"))
        third = self.runtime.begin(client.publish("news", b"y", confirm=True))
        assert not second.done
        self.runtime.advance(6)
        for work in (second, third):
            raised(NotSent, work.result)
        self.runtime.down = False
        # Longer than the longest pause.
        self.runtime.advance(11)
        fourth = self.runtime.begin(client.publish("news", b"z", confirm=True))
        assert fourth.result() is Level.HANDLED

    def test_a_call_that_waits_for_room_and_is_cancelled_leaves_nothing(self) -> None:
        client = self.client("spot", queue_bytes=1000)
        self.runtime.run(client.publish("news", b"0", confirm=True))
        self.runtime.down = True
        self.snap()
        self.runtime.run(client.publish("news", bytes(1000)))
        for _ in range(3):
            call = client.publish("news", b"x")
            call.send(None)
            call.close()
        assert not client._links.publishing.link._room

    def test_a_first_attempt_that_fails_is_an_error(self) -> None:
        self.runtime.down = True
        client = self.client("cafe")
        for confirm in (False, True):
            raised(
                ConnectFailed,
                self.runtime.begin(client.publish("cafe/7", b"", confirm=confirm)).result,
            )
        self.runtime.down = False
        self.runtime.run(client.publish("cafe/7", b"", confirm=True))

    def test_closing_while_messages_wait(self) -> None:
        client = self.client("spot", queue_bytes=1000, timeout=5)
        self.runtime.run(client.publish("news", b"0", confirm=True))
        self.runtime.down = True
        self.snap()
        self.runtime.run(client.publish("news", bytes(1000)))
        waiting = self.runtime.begin(client.publish("news", b"x"))
        closing = self.runtime.begin(client.close())
        self.runtime.advance(6)
        raised(OutcomeUnknown, closing.result)
        assert waiting.done
        refusals = [notice for notice in self.notices if isinstance(notice, Refusal)]
        assert sum(notice.count for notice in refusals) == 1
        raised(ClientClosed, self.runtime.begin(client.publish("news", b"x")).result)
        assert not [call for call in self.house.clock.getDelayedCalls() if not call.active()]

    def test_a_link_that_is_closed_takes_no_messages(self) -> None:
        client = self.client("spot")
        self.runtime.run(client.publish("news", b"0", confirm=True))
        link = client._links.publishing.link
        self.runtime.run(client.close())
        raised(ClientClosed, link.add, PublishRequest("news", Columns.one(b"x")))
        connections = len(self.runtime.streams)
        raised(ClientClosed, client.subscribe, "news")
        self.runtime.advance(1)
        assert len(self.runtime.streams) == connections

    def test_refusals_without_a_waiting_publish_are_reported(self) -> None:
        house = House({"rheos": {"allow-publish": "allowed"}})
        runtime = MemoryRuntime(house)
        client = runtime.client("rheos", on_event=self.notices.append)
        runtime.run(client.publish("news", b"x"))
        runtime.run(client.publish_many("news", [b"x", b"y"]))
        error = raised(
            NotPublished, runtime.begin(client.publish("news", b"x", confirm=True)).result
        )
        assert ": 1 message was refused: " in str(error)
        refusals = [notice for notice in self.notices if isinstance(notice, Refusal)]
        assert sum(notice.count for notice in refusals) == 3


class FastTests(SynchronousTestCase):
    def test_a_message_over_the_limit_of_the_listener(self) -> None:
        """The broker closes the connection; the message that it names was refused."""
        runtime = MemoryRuntime(fast_wire.Fast(self, max_payload=100))
        client = runtime.client("fast", token=fast_wire.OWNER.decode())
        error = raised(
            NotPublished, runtime.begin(client.publish("news", bytes(101), confirm=True)).result
        )
        assert "TOO_LARGE" in str(error)
        # It may succeed later: the client connects again by itself.
        runtime.advance(1)
        assert len(runtime.streams) == 2
        work = runtime.begin(client.publish("news", bytes(100), confirm=True))
        runtime.advance(1)
        assert work.result() is Level.HANDLED

    def test_a_token_that_is_wrong(self) -> None:
        runtime = MemoryRuntime(fast_wire.Fast(self))
        client = runtime.client("fast", token="a.b.c")
        error = raised(ConnectFailed, runtime.begin(client.publish("news", b"")).result)
        assert error.refused
        assert "BAD_TOKEN" in str(error)
        assert "a.b.c" not in str(error) + repr(client)
