"""The contract of every protocol: one body of tests, run over each and over every pair of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, ClassVar
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from tests.contract.drivers import (
    DRIVERS,
    NOT_AUTHORIZED,
    NOT_FOUND,
    OTHER,
    RATE_LIMITED,
    TOO_LARGE,
    TOPIC,
    Driver,
)
from tests.unit import fast_wire
from tests.unit.streams import Client, House, over_tcp
from tests.unit.tls_streams import V12, V13, TlsClient, over_tls

TEXTS = [b"", b"one", b"two", "drei äöü ☃ 𝄞".encode(), b'{"json": "\\u0000"}', b"a\nb\r\n"]
BINARY = [b"\xff", bytes(range(256)), b"\0" * 100, b"\xfe\xca\x10\x02\0\0\0\x01x", b"\xed\xa0\x80"]


class Served(SynchronousTestCase):
    """A broker with listeners of some protocols, and a driver for each.

    Its clients connect as ``attach`` has it.
    """

    attach: ClassVar[Any] = staticmethod(over_tcp)

    def serve(
        self, *drivers: type[Driver], top: dict[str, object] | None = None, **settings: object
    ) -> list[Any]:
        """Start a broker; ``settings`` are those of the first protocol's listener."""
        listen: dict[str, dict[str, Any]] = {d.name: dict(d.settings) for d in drivers}
        listen[drivers[0].name] |= {n.replace("_", "-"): v for n, v in settings.items()}
        if "fast" in listen:
            own = {n.replace("-", "_"): v for n, v in listen.pop("fast").items()}
            self.house: House = fast_wire.Fast(self, also=listen, top=top, **own)
        else:
            self.house = House(listen, top=top)
        self.house.attach = self.attach
        return [driver(self.house) for driver in drivers]

    def publish_accepted(
        self, driver: Driver, client: Client, *payloads: bytes, topic: str = TOPIC
    ) -> None:
        """Publish, and check that the messages are accepted."""
        answer = driver.ask(client, driver.publish(client, *payloads, topic=topic))
        driver.accepted(answer, len(payloads))

    def refusals(self, driver: Driver) -> dict[str, int]:
        found = self.house.broker.counters.refusals.items()
        return {reason: number for (name, reason), number in found if name == driver.name}


class Bodies:
    """Base cases; a class at the top level would be collected as a test."""

    class Contract(Served):
        """One protocol"""

        kind: ClassVar[type[Driver]]

        def setUp(self) -> None:
            (self.driver,) = self.serve(self.kind)
            self.driver.open()

        def serve_again(self, top: dict[str, object] | None = None, **settings: object) -> None:
            """Start again with other settings."""
            (self.driver,) = self.serve(self.kind, top=top, **settings)
            self.driver.open()

        def test_messages_arrive_unchanged_and_in_order(self) -> None:
            driver = self.driver
            subscriber, publisher = driver.subscriber(), driver.publisher()
            payloads = TEXTS if driver.text else TEXTS + BINARY
            for payload in payloads:
                self.publish_accepted(driver, publisher, payload)
            assert driver.messages(subscriber) == payloads
            self.publish_accepted(driver, publisher, *[b"%d" % n for n in range(300)])
            assert driver.messages(subscriber) == [b"%d" % n for n in range(300)]
            assert driver.messages(subscriber) == []

        def test_messages_whose_heads_are_not_learnt(self) -> None:
            """Because the turns of the tick are over: each is handled on its own."""
            driver = self.driver
            subscriber, publisher = driver.subscriber(), driver.publisher()
            self.house.listeners[driver.name].frame_turns.count(1000)
            payloads = [b"%d" % n for n in range(300)]
            self.publish_accepted(driver, publisher, *payloads)
            assert driver.messages(subscriber) == payloads

        def test_requests_may_arrive_in_any_pieces(self) -> None:
            driver = self.driver
            subscriber, publisher = driver.subscriber(), driver.publisher()
            data = driver.publish(publisher, b"one", b"", b"three")
            answer = b""
            for at in range(len(data)):
                answer += driver.ask(publisher, data[at : at + 1])
            driver.accepted(answer, 3)
            assert driver.messages(subscriber) == [b"one", b"", b"three"]

        def test_large_messages_may_arrive_in_pieces(self) -> None:
            driver = self.driver
            subscriber, publisher = driver.subscriber(), driver.publisher()
            long = min(driver.limit, 60_000)
            payloads = [b"first", b"a" * long, b"b" * (long - 1), b"between", b"c" * long, b"last"]
            request = driver.publish(publisher, *payloads)
            # Pieces end before, in and after the head of a frame, and with its last byte.
            for cuts in ([7000], [1, 3, 50_000, 7], [len(request) - 1], [60_000, 3], [30, 100_000]):
                at = number = 0
                while at < len(request):
                    size = cuts[number % len(cuts)]
                    publisher.send(request[at : at + size])
                    at, number = at + size, number + 1
                driver.accepted(driver.ask(publisher, b""), len(payloads))
                assert driver.messages(subscriber) == payloads

        def test_every_subscriber_gets_every_message(self) -> None:
            driver = self.driver
            subscribers = [driver.subscriber() for _ in range(5)]
            publishers = [driver.publisher() for _ in range(3)]
            for number, publisher in enumerate(publishers):
                self.publish_accepted(driver, publisher, b"%d" % number)
            for subscriber in subscribers:
                assert driver.messages(subscriber) == [b"0", b"1", b"2"]

        def test_subscribing_twice_delivers_once(self) -> None:
            driver = self.driver
            subscriber = driver.subscriber()
            answer = driver.ask(subscriber, driver.subscribe(subscriber))
            assert answer == driver.subscribed(TOPIC)
            self.publish_accepted(driver, driver.publisher(), b"x")
            assert driver.messages(subscriber) == [b"x"]

        def test_topics_are_separate(self) -> None:
            driver = self.driver
            driver.open(OTHER)
            one, other = driver.subscriber(), driver.subscriber(OTHER)
            self.publish_accepted(driver, driver.publisher(), b"1")
            self.publish_accepted(driver, driver.publisher(OTHER), b"2", topic=OTHER)
            assert driver.messages(one) == [b"1"]
            assert driver.messages(other) == [b"2"]

        def test_unsubscribing_ends_the_deliveries(self) -> None:
            driver = self.driver
            subscriber, publisher = driver.subscriber(), driver.publisher()
            request = driver.unsubscribe(subscriber)
            if request is None:
                return
            self.publish_accepted(driver, publisher, b"before")
            assert driver.messages(subscriber) == [b"before"]
            for _ in range(2):
                assert driver.ask(subscriber, request) == driver.subscribed(TOPIC)
            self.publish_accepted(driver, publisher, b"after")
            assert driver.messages(subscriber) == []
            driver.ask(subscriber, driver.subscribe(subscriber))
            self.publish_accepted(driver, publisher, b"again")
            assert driver.messages(subscriber)[-1:] == [b"again"]

        def test_an_unknown_topic_is_refused(self) -> None:
            driver = self.driver
            if driver.name == "spot":
                return
            client = driver.listener()
            answer = driver.ask(client, driver.subscribe(client, "nowhere"))
            assert answer == driver.not_subscribed(NOT_FOUND, "nowhere")
            client = driver.connect() if driver.opens else driver.publisher()
            answer = driver.ask(client, driver.publish(client, b"x", topic="nowhere"))
            assert answer == driver.refused(NOT_FOUND, "nowhere")
            assert self.refusals(driver) == {NOT_FOUND: 2}
            assert not client.closed

        def test_the_largest_message_is_delivered(self) -> None:
            driver = self.driver
            subscriber, publisher = driver.subscriber(), driver.publisher()
            largest = b"x" * driver.limit
            self.publish_accepted(driver, publisher, largest)
            assert driver.messages(subscriber) == [largest]

        def test_one_byte_more_is_refused(self) -> None:
            driver = self.driver
            subscriber, publisher = driver.subscriber(), driver.publisher()
            answer = driver.too_large(publisher)
            assert answer == driver.refused(TOO_LARGE)
            assert publisher.closed == driver.closes
            if not driver.closes:
                self.publish_accepted(driver, publisher, b"x")
                assert driver.messages(subscriber) == [b"x"]
            assert sum(self.refusals(driver).values()) == 1

        def test_malformed_input_is_answered_and_counted(self) -> None:
            driver = self.driver
            subscriber, publisher = driver.subscriber(), driver.publisher()
            client = driver.publisher()
            bad, answer, closes = driver.malformed()
            assert driver.ask(client, bad) == answer
            assert client.closed == closes
            assert sum(self.refusals(driver).values()) == 1
            self.publish_accepted(driver, publisher, b"x")
            assert driver.messages(subscriber) == [b"x"]

        def test_messages_over_the_rate_are_refused(self) -> None:
            self.serve_again(rate_messages=3)
            driver = self.driver
            subscriber, publisher = driver.subscriber(), driver.publisher()
            answer = driver.ask(
                publisher, driver.publish(publisher, *[b"%d" % n for n in range(5)])
            )
            refused = driver.refused(RATE_LIMITED) * 2
            assert answer.endswith(refused)
            driver.accepted(answer[: len(answer) - len(refused)], 3)
            assert self.refusals(driver) == {RATE_LIMITED: 2}
            assert driver.messages(subscriber) == [b"0", b"1", b"2"]
            self.house.clock.advance(1)
            self.publish_accepted(driver, publisher, b"5")
            assert driver.messages(subscriber) == [b"5"]

        def test_access_rules_are_enforced(self) -> None:
            self.serve_again(allow_publish=OTHER, allow_subscribe=TOPIC)
            driver = self.driver
            subscriber, publisher = driver.subscriber(), driver.publisher()
            answer = driver.ask(publisher, driver.publish(publisher, b"x"))
            assert answer == driver.refused(NOT_AUTHORIZED)
            driver.open(OTHER)
            client = driver.listener()
            answer = driver.ask(client, driver.subscribe(client, OTHER))
            assert answer == driver.not_subscribed(NOT_AUTHORIZED, OTHER)
            assert driver.messages(subscriber) == []

        def test_without_the_right_a_topic_looks_like_one_that_does_not_exist(self) -> None:
            if not self.kind.conceals:
                return
            driver = self.driver
            (listener,) = self.house.listeners.values()
            only = {"allow-publish": (OTHER,), "allow-subscribe": (OTHER,)}
            listener.reconfigure({**listener.settings, **only})
            found: list[list[bytes]] = []
            for topic in (TOPIC, "absent"):
                publisher = driver.connect() if driver.opens else driver.publisher()
                client = driver.listener()
                requests = [driver.subscribe(client, topic), driver.unsubscribe(client, topic)]
                answers = [driver.ask(client, request) for request in requests if request]
                answers.append(driver.ask(publisher, driver.publish(publisher, b"x", topic=topic)))
                found.append([answer.replace(topic.encode(), b"?") for answer in answers])
            assert found[0] == found[1]

        def test_connections_over_the_quota_are_refused(self) -> None:
            self.serve_again(max_connections=2)
            driver = self.driver
            self.house.pump()
            while len(self.house.broker.clients) < 2:
                driver.connect()
            late = self.house.connect(driver.name)
            # Over TLS the handshake is not begun: nothing can be sent.
            reply = b"" if isinstance(late, TlsClient) else driver.over_quota_reply()
            assert late.take() == reply
            assert late.closed

        def test_a_publisher_may_disconnect_within_a_request(self) -> None:
            driver = self.driver
            subscriber, publisher = driver.subscriber(), driver.publisher()
            data = driver.publish(publisher, b"whole", b"cut short")
            publisher.send(data[:-3])
            publisher.stream.lose()
            assert driver.messages(subscriber) == [b"whole"]
            self.publish_accepted(driver, driver.publisher(), b"next")
            assert driver.messages(subscriber) == [b"next"]

        def test_a_disconnected_subscriber_is_forgotten(self) -> None:
            driver = self.driver
            gone, stays, publisher = driver.subscriber(), driver.subscriber(), driver.publisher()
            gone.stream.lose()
            self.publish_accepted(driver, publisher, b"x")
            assert driver.messages(stays) == [b"x"]
            assert gone.protocol not in self.house.broker.clients

        def flood(self, subscriber: Client, publisher: Client, count: int) -> list[bytes]:
            """Publish ``count`` times 20,000 bytes; half of it before the subscriber asks."""
            size = min(self.driver.limit, 20_000)
            sent = [b"%05d" % n * (size // 5) for n in range(count * 20_000 // size)]
            for number, payload in enumerate(sent):
                if number == len(sent) // 2:
                    self.driver.ask_for_messages(subscriber)
                self.publish_accepted(self.driver, publisher, payload)
            return sent

        def test_a_slow_subscriber_holds_no_publisher_and_receives_everything(self) -> None:
            self.serve_again(slow_bytes=400_000, slow_seconds=5)
            driver = self.driver
            self.house.start()
            slow, quick = driver.subscriber(), driver.subscriber()
            publisher = driver.publisher()
            slow.stream.stop_reading()
            sent = self.flood(slow, publisher, 40)
            assert not publisher.stream.paused
            assert driver.messages(quick) == sent
            held = self.house.broker.memory.used
            sent += self.flood(slow, publisher, 10) if not driver.polls else []
            assert self.house.broker.memory.used == held
            self.house.advance(20)
            assert not slow.stream.aborted
            while slow.stream.buffered:
                slow.stream.read(on=False)
                self.house.pump(3)
            slow.stream.read()
            assert driver.remaining(slow) == sent
            self.publish_accepted(driver, publisher, b"live")
            assert driver.messages(slow) == [b"live"]
            assert self.house.broker.counters.dropped == 0

        def test_a_subscriber_that_returns_without_reading_holds_no_publisher(self) -> None:
            self.serve_again(slow_bytes=400_000)
            driver = self.driver
            slow, quick = driver.subscriber(), driver.subscriber()
            publisher = driver.publisher()
            for _ in range(10):
                slow.stream.stop_reading()
                sent = self.flood(slow, publisher, 10)
                assert not publisher.stream.paused
                assert driver.messages(quick) == sent
                slow.stream.lose()
                slow = driver.resume(slow) or driver.subscriber()

        def test_a_subscriber_that_does_not_read_is_disconnected(self) -> None:
            """It holds its publishers until it is disconnected; the others receive everything."""
            if self.kind.polls:
                return
            self.serve_again(slow_consumer="pause", slow_bytes=400_000, slow_seconds=5)
            driver = self.driver
            self.house.start()
            slow, quick = driver.subscriber(), driver.subscriber()
            publisher = driver.publisher()
            slow.stream.stop_reading()
            sent: list[bytes] = []
            while not publisher.stream.paused:
                assert len(sent) < 50
                sent.append(b"%02d" % len(sent) * 10_000)
                self.publish_accepted(driver, publisher, sent[-1])
            assert driver.messages(quick) == sent
            publisher.send(driver.publish(publisher, b"later"))
            assert driver.messages(quick) == []
            self.house.advance(10)
            assert slow.stream.aborted
            assert driver.messages(quick) == [b"later"]
            assert not publisher.stream.paused

        def flood_with(self, client: Client, request: bytes) -> None:
            """Send ``request`` until the client, which does not read, is held; then read again."""
            driver, stream, memory = self.driver, client.stream, self.house.broker.memory
            (reply,) = {driver.ask(client, request) for _ in range(2)}
            many = 16_000 // len(request) + 1
            sent = 0
            stream.stop_reading()
            before = memory.used
            while not stream.paused:
                client.send(request * many)
                sent += many
                assert memory.used - before < 1_000_000
            held = memory.used - before
            # Over TLS there are the heads of the records besides, which may have few replies each.
            assert 0.95 * len(stream.buffered) - 100 < held < 1_000_000
            for _ in range(2):
                client.send(request * many)
            sent += 2 * many
            assert memory.used - before == held
            received = b""
            stream.read()
            for _ in range(1000):
                received += client.take()
                if len(received) >= len(reply) * sent:
                    break
                self.house.turn()
            assert received == reply * sent
            assert not stream.paused
            self.house.pump(3)
            assert memory.used <= before

        def test_a_client_that_does_not_read_its_replies_is_held(self) -> None:
            """Its input is not read either; the memory that it takes is bounded and counted."""
            driver = self.driver
            subscriber, publisher = driver.subscriber(), driver.publisher()
            for name in driver.questions(publisher):
                for make in (driver.publisher, driver.subscriber):
                    client = make()
                    self.flood_with(client, driver.questions(client)[name])
                    self.publish_accepted(driver, publisher, b"others")
                    assert driver.messages(subscriber) == [b"others"]

        def test_disconnected_clients_hold_nothing(self) -> None:
            driver = self.driver
            clients = [driver.subscriber(), driver.publisher(), driver.connect()]
            self.publish_accepted(driver, clients[1], b"x")
            for client in clients:
                client.stream.lose()
            for client in tuple(self.house.broker.clients):
                client.abort("the test is over")
            self.house.advance(100)
            deque(self.house.broker.sessions.expire(), maxlen=0)
            assert not self.house.broker.clients
            assert not self.house.broker.memory.holders
            assert not any(topic.groups for topic in self.house.broker.topics)
            assert self.house.broker.counters.connections == 0
            assert not self.house.clock.getDelayedCalls()

    class Turns(Served):
        """Many requests in one read"""

        kind: ClassVar[type[Driver]]

        def test_others_have_their_turn(self) -> None:
            (driver,) = self.serve(self.kind)
            driver.open()
            client, other = driver.publisher(), driver.subscriber()
            name, request = next(iter(driver.questions(client).items()))
            reply = driver.ask(client, request)
            client.stream.feed(request * 1000)
            assert client.stream.paused
            received = client.take()
            assert len(received) < 200 * len(reply)
            other.stream.feed(driver.questions(other)[name])
            assert other.take()
            self.house.turn()
            assert received + client.take() == 1000 * reply
            assert not client.stream.paused

        def test_an_error_of_the_broker_ends_the_connection(self) -> None:
            (driver,) = self.serve(self.kind)
            driver.open()
            client = driver.publisher()
            _, request = next(iter(driver.questions(client).items()))
            client.stream.feed(request * 1000)
            with mock.patch.object(type(client.protocol), "next_turn", side_effect=ValueError):
                self.house.turn()
            assert client.stream.aborted
            logged = self.flushLoggedErrors(ValueError)  # type: ignore[no-untyped-call]
            assert len(logged) == 1

        def test_a_client_that_leaves_meanwhile(self) -> None:
            (driver,) = self.serve(self.kind)
            driver.open()
            client = driver.publisher()
            _, request = next(iter(driver.questions(client).items()))
            client.stream.feed(request * 1000)
            client.stream.lose()
            self.house.turn()
            assert client.protocol not in self.house.broker.clients
            assert not self.house.broker.slices

    class Crossing(Served):
        """Publishing over one protocol and reading over another"""

        source: ClassVar[type[Driver]]
        target: ClassVar[type[Driver]]

        def setUp(self) -> None:
            self.writes, *more = self.serve(*dict.fromkeys((self.source, self.target)))
            self.reads: Driver = more[0] if more else self.writes
            # A topic created over fast is open to other protocols only with ``grant``.
            for listener in self.house.listeners.values():
                listener.reconfigure({**listener.settings, "grant": (TOPIC,)})
            self.writes.open()
            self.reads.open()

        def test_payloads_arrive_unchanged(self) -> None:
            subscriber, publisher = self.reads.subscriber(), self.writes.publisher()
            payloads = TEXTS if self.writes.text else TEXTS + BINARY
            for payload in payloads:
                self.publish_accepted(self.writes, publisher, payload)
            assert self.reads.messages(subscriber) == payloads

        def test_messages_of_mixed_lengths_arrive_in_order(self) -> None:
            subscriber, publisher = self.reads.subscriber(), self.writes.publisher()
            payloads = [b"%d" % n + b"." * (n % 7 * 50) for n in range(500)]
            self.publish_accepted(self.writes, publisher, *payloads)
            assert self.reads.messages(subscriber) == payloads

        def test_undeliverable_messages_are_counted_and_the_others_arrive(self) -> None:
            limit = self.writes.limit
            subscriber, publisher = self.reads.subscriber(), self.writes.publisher()
            self.publish_accepted(self.writes, publisher, b"x" * limit)
            self.publish_accepted(self.writes, publisher, b"next")
            got = self.reads.messages(subscriber)
            dropped = sum(self.house.broker.counters.drops.values())
            assert got[-1] == b"next"
            assert len(got) + dropped == 2
            assert dropped == 0 or limit > self.reads.carries


def _suites() -> Iterator[tuple[str, type[Served]]]:
    for one in DRIVERS.values():
        name = f"{one.__name__}ContractTests"
        yield name, type(name, (Bodies.Contract,), {"__module__": __name__, "kind": one})
        for over, version in (("Tls12", V12), ("Tls13", V13)):
            members = {
                "__module__": __name__,
                "kind": one,
                "attach": staticmethod(over_tls(version)),
            }
            name = f"{one.__name__}Over{over}Tests"
            yield name, type(name, (Bodies.Contract,), members)
        name = f"{one.__name__}TurnsTests"
        yield name, type(name, (Bodies.Turns,), {"__module__": __name__, "kind": one})
        for other in DRIVERS.values():
            name = f"{one.__name__}To{other.__name__}Tests"
            members = {"__module__": __name__, "source": one, "target": other}
            yield name, type(name, (Bodies.Crossing,), members)


globals().update(_suites())
