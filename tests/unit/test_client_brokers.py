"""Clients with the URLs of several brokers: the order of attempts, failures and other brokers."""

from __future__ import annotations

from itertools import cycle
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.client import (
    ConnectFailed,
    Disconnected,
    Gap,
    Level,
    MessageBatch,
    Notice,
    OutcomeUnknown,
    Reconnected,
)
from pubsub.client.broker_urls import BrokerUrls, ConnectAttempts
from pubsub.client.client_url import parse_urls
from pubsub.client.link_timing import Timing
from tests.unit.fakes import clock_at
from tests.unit.raising import raised
from tests.unit.several_brokers import SeveralBrokers
from tests.unit.streams import House


class AttemptsTests(SynchronousTestCase):
    """ConnectAttempts"""

    def attempts(self, count: int, *numbers: float) -> ConnectAttempts:
        self.brokers = BrokerUrls(parse_urls([f"cafe://h:{n + 1}" for n in range(count)]))
        return ConnectAttempts(self.brokers, Timing(), cycle(numbers or (1.0,)).__next__)

    def failed(self, attempts: ConnectAttempts, refused: bool = False) -> tuple[int, float]:
        """Fail; return the port of the attempt, and the pause after it."""
        port = attempts.url.port
        attempts.failed("no", refused)
        pause = attempts.pause()
        attempts.advance()
        return port, pause

    def test_the_given_order_and_pauses_between_rounds(self) -> None:
        attempts = self.attempts(3)
        attempts.begin()
        found = [self.failed(attempts) for _ in range(7)]
        assert found == [(1, 0), (2, 0), (3, 0.1), (1, 0), (2, 0), (3, 0.2), (1, 0)]
        attempts.begin()
        assert [self.failed(attempts) for _ in range(3)] == [(1, 0), (2, 0), (3, 0.1)]

    def test_one_url_has_a_pause_after_each_attempt(self) -> None:
        attempts = self.attempts(1)
        attempts.begin()
        assert [self.failed(attempts) for _ in range(3)] == [(1, 0.1), (1, 0.2), (1, 0.4)]

    def test_the_others_follow_a_connection_in_random_order(self) -> None:
        attempts = self.attempts(4, 0.9, 0.5, 0.1)
        attempts.begin()
        attempts.succeeded()
        attempts.ended(lasted=True)
        found = [self.failed(attempts) for _ in range(6)]
        assert [port for port, _ in found] == [1, 4, 3, 2, 1, 2]
        assert [pause > 0 for _, pause in found] == [False, False, False, True, False, False]

    def test_a_broker_at_which_the_client_is_already_is_the_next(self) -> None:
        attempts = self.attempts(4, 0.1, 0.5, 0.9)
        attempts.begin()
        attempts.succeeded()
        self.brokers.good = 3
        attempts.ended(lasted=True)
        assert [self.failed(attempts)[0] for _ in range(4)] == [1, 4, 2, 3]

    def test_connections_that_end_at_once_do_not_avoid_the_pause(self) -> None:
        attempts = self.attempts(2)
        attempts.begin()
        pauses = []
        for _ in range(4):
            attempts.succeeded()
            attempts.ended(lasted=False)
            pauses.append(self.failed(attempts)[1])
        assert pauses == [0, 0.1, 0, 0.2]

    def test_a_round_in_which_all_brokers_refuse(self) -> None:
        attempts = self.attempts(2)
        attempts.begin()
        attempts.failed("no", refused=True)
        assert not attempts.all_refused
        attempts.advance()
        attempts.failed("away", refused=False)
        assert not attempts.all_refused
        assert str(attempts.error()) == "cannot connect to cafe://h:1: no; cafe://h:2: away"
        assert not attempts.error().refused
        attempts.failed("neither", refused=True)
        assert attempts.error().refused


class SeveralCase(SynchronousTestCase):
    """With three brokers that share nothing, at the ports 1 to 3"""

    protocols = ("cafe", "nsd", "rheos", "spot")

    def setUp(self) -> None:
        self.clock = clock_at()
        self.houses = {
            port: House({name: {} for name in self.protocols}, clock=self.clock)
            for port in (1, 2, 3)
        }
        self.runtime = SeveralBrokers(self.houses)
        self.notices: list[Notice] = []

    def client(self, protocol: str, *ports: int, **options: Any) -> Any:
        return self.runtime.client_of(protocol, *ports, on_event=self.notices.append, **options)

    def subscription(self, client: Any, *topics: str, **options: Any) -> Any:
        made = client.subscribe(*topics, events=True, **options)
        self.runtime.run(made.accepted())
        return made

    def publish_at(self, port: int, topic: str, *payloads: bytes, protocol: str = "cafe") -> None:
        client = self.runtime.client_of(protocol, port)
        self.runtime.run(client.publish_many(topic, list(payloads), confirm=True))
        self.runtime.run(client.close())
        self.runtime.settle()

    def items(self, subscription: Any) -> list[Any]:
        """Return the payloads and the kinds of the notices that have arrived."""
        found: list[Any] = []
        self.runtime.settle()
        while True:
            work = self.runtime.begin(subscription.next_item(0.001))
            try:
                item = work.result()
            except TimeoutError:
                return found
            found += item.payloads if isinstance(item, MessageBatch) else [type(item)]


class FirstConnectionTests(SeveralCase):
    def test_the_next_url_is_tried_at_once(self) -> None:
        self.runtime.refusing = {1, 2}
        client = self.client("cafe", 1, 2, 3)
        assert self.runtime.run(client.publish("cafe/7", b"x", confirm=True)) is Level.HANDLED
        assert self.runtime.tried == [1, 2, 3]
        # The client's next connection begins with the broker that was found.
        self.kept = self.subscription(client, "cafe/7")
        assert self.runtime.tried == [1, 2, 3, 3]

    def test_the_error_names_all_brokers_when_all_have_failed(self) -> None:
        self.runtime.refusing = {1, 2}
        client = self.client("cafe", 1, 2)
        error = raised(ConnectFailed, self.runtime.run, client.publish("cafe/7", b"x"))
        assert str(error) == (
            "cannot connect to cafe://cafe:1: connection refused; cafe://cafe:2: connection refused"
        )
        assert not error.refused
        self.runtime.refusing.clear()
        self.runtime.run(client.publish("cafe/7", b"x", confirm=True))

    def test_a_broker_that_never_answers(self) -> None:
        self.runtime.silent = {1}
        client = self.client("cafe", 1, 2)
        work = self.runtime.begin(client.publish("cafe/7", b"x", confirm=True))
        assert not work.done
        self.runtime.advance(10.5)
        assert work.result() is Level.HANDLED
        assert self.runtime.tried[:2] == [1, 2]

    def test_a_url_that_is_given_twice_is_tried_once(self) -> None:
        self.runtime.refusing = {1}
        client = self.client("cafe", 1, 1)
        raised(ConnectFailed, self.runtime.run, client.publish("cafe/7", b"x"))
        assert self.runtime.tried == [1]


class RefusedTests(SeveralCase):
    """Brokers that do not admit the client"""

    def setUp(self) -> None:
        super().setUp()
        self.locked = House({"cafe": {"allow-anonymous": False}}, clock=self.clock)

    def lock(self, *ports: int) -> None:
        self.houses.update(dict.fromkeys(ports, self.locked))

    def test_one_broker_that_refuses_is_passed_over(self) -> None:
        self.lock(1)
        client = self.client("cafe", 1, 2)
        assert self.runtime.run(client.publish("cafe/7", b"x", confirm=True)) is Level.HANDLED
        assert self.runtime.tried[:2] == [1, 2]

    def test_all_that_refuse_are_an_error_of_the_caller(self) -> None:
        self.lock(1, 2)
        client = self.client("cafe", 1, 2)
        error = raised(
            ConnectFailed, self.runtime.run, client.publish("cafe/7", b"x", confirm=True)
        )
        assert error.refused

    def test_a_broker_that_is_down_may_admit_the_client_later(self) -> None:
        self.lock(1)
        self.runtime.refusing = {2}
        client = self.client("cafe", 1, 2)
        error = raised(
            ConnectFailed, self.runtime.run, client.publish("cafe/7", b"x", confirm=True)
        )
        assert not error.refused

    def test_a_connected_client_goes_on_while_one_broker_is_down(self) -> None:
        self.lock(2)
        client = self.client("cafe", 1, 2)
        self.runtime.run(client.publish("cafe/7", b"x", confirm=True))
        self.runtime.kill(1)
        work = self.runtime.begin(client.publish("cafe/7", b"y", confirm=True))
        self.runtime.advance(3)
        assert not work.done
        self.runtime.refusing.clear()
        self.runtime.advance(11)
        assert work.result() is Level.HANDLED


class OtherBrokerTests(SeveralCase):
    """The broker of a connected client goes away"""

    def test_subscriptions_go_on_at_another_broker_after_a_gap(self) -> None:
        for protocol in ("cafe", "rheos", "spot"):
            self.runtime.refusing.clear()
            client = self.client(protocol, 1, 2)
            reader = self.subscription(client, "cafe/7")
            self.publish_at(1, "cafe/7", b"1")
            self.runtime.advance(6)
            self.runtime.tried.clear()
            self.runtime.kill(1)
            # At once, without a pause.
            self.runtime.settle()
            assert self.runtime.tried[:1] == [2], protocol
            self.publish_at(2, "cafe/7", b"2")
            assert self.items(reader) == [b"1", Disconnected, Gap, Reconnected, b"2"], protocol
            self.runtime.run(client.close())
        notice = [one for one in self.notices if isinstance(one, Reconnected)][-1]
        assert notice.reason == "broken; now at spot://spot:2"

    def test_messages_in_flight_are_unknown_and_later_ones_are_published(self) -> None:
        client = self.client("cafe", 1, 2)
        self.runtime.run(client.publish("cafe/7", b"0", confirm=True))
        (stream,) = self.runtime.at[1]
        stream.reading = False
        flying = self.runtime.begin(client.publish("cafe/7", b"1", confirm=True))
        self.runtime.kill(1)
        error = raised(OutcomeUnknown, flying.result)
        assert str(error).startswith("cafe://cafe:1: broken")
        assert self.runtime.run(client.publish("cafe/7", b"2", confirm=True)) is Level.HANDLED
        assert self.runtime.tried[:2] == [1, 2]

    def test_all_brokers_are_away_for_some_time(self) -> None:
        client = self.client("cafe", 1, 2, 3)
        reader = self.subscription(client, "cafe/7")
        self.runtime.refusing = {2, 3}
        self.runtime.kill(1)
        self.runtime.advance(5)
        assert set(self.runtime.tried) == {1, 2, 3}
        # Pauses between the rounds: about seven in five seconds.
        assert len(self.runtime.tried) < 3 * 10
        self.runtime.refusing.discard(3)
        self.runtime.advance(11)
        self.publish_at(3, "cafe/7", b"1")
        assert self.items(reader) == [Disconnected, Gap, Reconnected, b"1"]

    def test_a_broker_that_stops_is_left(self) -> None:
        client = self.client("cafe", 1, 2)
        self.subscribed = self.subscription(client, "cafe/7")
        self.runtime.advance(6)
        for stream in self.runtime.at[1]:
            stream.far.stream.protocol.drain()
        self.runtime.settle()
        assert self.runtime.tried[:2] == [1, 2]


class NsdTests(SeveralCase):
    """nsd shows the history to which a position belongs"""

    def test_another_history_is_noticed_and_not_read_from_its_beginning(self) -> None:
        self.publish_at(2, "news", b"old", b"older", protocol="nsd")
        self.publish_at(1, "news", b"0", protocol="nsd")
        client = self.client("nsd", 1, 2, client_id="ada")
        reader = self.subscription(client, "news")
        self.publish_at(1, "news", b"1", protocol="nsd")
        self.runtime.advance(6)
        assert self.items(reader) == [b"1"]
        self.runtime.kill(1)
        self.runtime.advance(1)
        self.publish_at(2, "news", b"2", protocol="nsd")
        self.runtime.advance(1)
        assert self.items(reader) == [Disconnected, Gap, Reconnected, b"2"]
        (gap,) = [one for one in self.notices if isinstance(one, Gap)]
        assert gap.reason == "this broker has another history than the one before"

    def test_a_reader_of_the_beginning_that_has_nothing_yet(self) -> None:
        self.publish_at(2, "news", b"a", b"b", protocol="nsd")
        client = self.client("nsd", 1, 2, client_id="ada")
        reader = self.subscription(client, "news", start=0)
        self.runtime.advance(6)
        self.runtime.kill(1)
        self.runtime.advance(1)
        assert self.items(reader) == [Disconnected, Gap, Reconnected, b"a", b"b"]
