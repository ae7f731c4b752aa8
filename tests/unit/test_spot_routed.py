"""spot's clients behind ROUTER sockets: the routing ids before requests and deliveries (§3.6)."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.management.subscriptions import SubscriptionList
from pubsub.protocols.spot.commands import (
    Publish,
    Query,
    SpotError,
    Subscribe,
    decode_request,
    decode_routed,
)
from pubsub.protocols.spot.zmtp import encode_message
from tests.unit.brokers import message, publish, subscribe
from tests.unit.fakes import recheck_all
from tests.unit.raising import raised
from tests.unit.routed_identities import ANN, BEN, NUMBER
from tests.unit.spot_house import house, join
from tests.unit.streams import Client


class DecodingTests(SynchronousTestCase):
    """decode_routed"""

    def test_with_and_without_a_delimiter(self) -> None:
        route = b"\1\5" + ANN
        assert decode_routed([ANN, b"", b"\2", b"t"]) == (route, Subscribe(b"t"))
        assert decode_routed([ANN, b"\2", b"t"]) == (route, Subscribe(b"t"))
        assert decode_routed([ANN, b"\1", b"t", b""]) == (route, Publish(b"t", b""))
        assert decode_routed([ANN, NUMBER, b"", b"\4"]) == (route + b"\1\4" + NUMBER, Query())

    def test_others_are_malformed(self) -> None:
        for frames in (
            [b""], [ANN], [ANN, b""], [ANN, b"", b"\6"], [ANN, b"", b"", b"\4"], [b"", b""],
            [b"x" * 256, b"", b"\4"], [ANN, NUMBER, b"\4"], [b"", ANN, b"", b"\4"],
        ):  # fmt: skip
            raised(SpotError, decode_routed, frames)

    @given(st.lists(st.binary(min_size=2, max_size=255), min_size=1, max_size=3))
    @example([b"\1\1"])
    def test_any_route_before_a_request(self, ids: list[bytes]) -> None:
        for request in ([b"\4"], [b"\2", b"t"], [b"\1", b"t", b""], [b"\1", b"me", b"t", b"\4"]):
            route, decoded = decode_routed([*ids, b"", *request])
            assert decoded == decode_request(request)
            assert encode_message([*ids, b"end"]) == route + b"\0\3end"


class RoutedTests(SynchronousTestCase):
    """Clients behind a proxy"""

    def setUp(self) -> None:
        self.house = house(max_subscriptions=3)
        self.proxy = join(self.house)
        self.writer = join(self.house, b"PUB")

    def request(self, *frames: bytes) -> bytes:
        """Return the reply to a request through the proxy."""
        return self.ask(self.proxy, *frames)

    def ask(self, client: Client, *frames: bytes) -> bytes:
        client.send(message(*frames))
        self.house.turn()
        return client.take()

    def publish(self, topic: bytes, data: bytes) -> bytes:
        """Publish, and return the messages that the proxy gets."""
        self.writer.send(message(topic, data))
        self.house.turn()
        return self.proxy.take()

    def test_each_client_has_its_own_subscriptions(self) -> None:
        self.request(ANN, b"", b"\2", b"a")
        self.request(BEN, b"", b"\2", b"b*")
        assert self.publish(b"a", b"1") == message(ANN, b"", b"\1", b"a", b"1")
        assert self.publish(b"b1", b"2") == message(BEN, b"", b"\1", b"b1", b"2")
        self.request(BEN, b"", b"\2", b"a")
        both = self.publish(b"a", b"3")
        assert sorted((both[: len(both) // 2], both[len(both) // 2 :])) == [
            message(ANN, b"", b"\1", b"a", b"3"),
            message(BEN, b"", b"\1", b"a", b"3"),
        ]
        self.request(ANN, b"", b"\3", b"a")
        assert self.publish(b"a", b"4") == message(BEN, b"", b"\1", b"a", b"4")

    def test_the_list_of_their_subscriptions_is_paged(self) -> None:
        self.request(ANN, b"", b"\2", b"a")
        self.request(ANN, b"", b"\2", b"z")
        self.request(BEN, b"", b"\2", b"b")
        broker = self.house.broker
        listed = SubscriptionList(broker.clients, broker.topics)
        assert _topics_by_page(listed, "") == ["a", "b", "z"]
        self.request(ANN, b"", b"\3", b"a")
        self.request(BEN, b"", b"\2", b"z")
        assert _topics_by_page(listed, "") == ["b", "z"]
        # A topic is listed once, also if it is the only one that is asked for.
        assert [one.topic.name for one in listed.after("", topic="z") if one is not None] == ["z"]

    def test_the_connection_itself_is_a_client_too(self) -> None:
        self.proxy.send(subscribe(b"a"))
        self.request(ANN, b"\2", b"a")
        data = self.publish(b"a", b"1")
        assert len(data) == len(publish(b"a", b"1") + message(ANN, b"", b"\1", b"a", b"1"))

    def test_a_query_is_answered_to_its_client(self) -> None:
        self.publish(b"t", b"")
        answer = [b"", b"\5", b"\1\0\0\0", b"t"]
        assert self.request(ANN, NUMBER, b"", b"\4") == message(ANN, NUMBER, *answer)
        request = join(self.house, b"REQ")
        for number in (NUMBER, b"\2\2\3\4"):
            assert self.ask(request, number, b"", b"\4") == message(number, *answer)
        assert self.house.broker.counters.refusals == {}

    def test_publications_of_clients(self) -> None:
        reader = join(self.house, b"SUB", message(b"\1"))
        for data in (b"1", b"2", b"3"):
            self.request(ANN, b"", b"\1", b"t", data)
        self.request(BEN, b"\1", b"t", b"4")
        self.house.turn()
        assert reader.take() == b"".join(message(b"t", data) for data in (b"1", b"2", b"3", b"4"))

    def test_memory_is_released(self) -> None:
        self.publish(b"t", b"")
        before = self.house.broker.memory.used
        self.request(ANN, b"", b"\4")
        self.request(BEN, b"", b"\3", b"t")
        assert self.house.broker.memory.used == before
        self.request(ANN, b"", b"\2", b"t")
        self.request(BEN, b"", b"\2", b"t*")
        assert self.house.broker.memory.used > before
        self.request(ANN, b"", b"\3", b"t")
        self.request(BEN, b"", b"\3", b"t*")
        assert self.house.broker.memory.used == before
        assert self.publish(b"t", b"x") == b""

    def test_the_end_of_the_connection_ends_them(self) -> None:
        self.request(ANN, b"", b"\2", b"t")
        self.proxy.stream.lose()
        self.house.turn()
        assert not self.house.broker.topics.named("t").groups

    def test_the_client_that_was_silent_longest_is_forgotten_at_the_limit(self) -> None:
        for client in (b"ann", b"ben", b"cat"):
            self.request(client, b"", b"\2", b"t")
        self.request(b"ann", b"", b"\4")
        self.request(b"dan", b"", b"\2", b"t")
        data = self.publish(b"t", b"x")
        assert [name in data for name in (b"ann", b"ben", b"cat", b"dan")] == [1, 0, 1, 1]
        for topic in (b"t2", b"t3", b"t4"):
            self.request(b"dan", b"", b"\2", topic)
        assert b"ann" not in self.publish(b"t", b"x")
        assert self.house.broker.counters.refusals == {("spot", "limit-reached"): 4}

    def test_a_proxy_that_does_not_read(self) -> None:
        self.request(ANN, b"", b"\2", b"t")
        self.proxy.stream.stop_reading()
        for number in range(100):
            self.writer.send(message(b"t", b"%03d" % number + b"." * 200))
        self.house.turn()
        self.request(BEN, b"", b"\2", b"t")
        self.writer.send(message(b"t", b"last"))
        self.house.turn()
        self.proxy.stream.read()
        self.house.turn()
        data = self.proxy.take()
        assert data.count(ANN) == 101
        assert data.count(BEN) == 1
        assert data.index(b"000.") < data.index(b"050.") < data.index(b"099.")

    def test_rules_apply_to_them(self) -> None:
        self.request(ANN, b"", b"\2", b"t")
        listener = self.house.listeners["spot"]
        listener.reconfigure({**listener.settings, "allow-subscribe": ()})
        recheck_all(self.house.broker.router, self.house.broker.topics)
        assert self.publish(b"t", b"x") == b""
        self.request(BEN, b"", b"\2", b"t")
        assert self.house.broker.counters.refusals["spot", "not-authorized"] == 1


def _topics_by_page(listed: SubscriptionList, key: str) -> list[str]:
    """Return the topics of the rows behind ``key``, of which each page has one."""
    found = next((one for one in listed.after(key) if one is not None), None)
    return [] if found is None else [found.topic.name, *_topics_by_page(listed, found.key)]
