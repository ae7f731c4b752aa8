"""``Fanout`` with an engine in memory, beyond the pairs of protocols (tests/contract)."""

from __future__ import annotations

import struct
from collections import deque
from typing import Any

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.fanout import Fanout
from pubsub.backplane.memory_engine.memory import MemoryBackplane, MemoryEngine
from pubsub.backplane.messages.envelopes import Outgoing
from pubsub.backplane.messages.record import encode_batch
from pubsub.broker.routing.batch import Batch
from pubsub.broker.topic_space.durability import DURABILITY, DurabilityRules
from pubsub.broker.topic_space.provisional_topics import ProvisionalTopics
from pubsub.errors import ConfigurationError
from pubsub.kernel import Columns
from pubsub.plugin import installed_protocols
from pubsub.server.configuration import CommandLine, merge
from tests.contract.drivers.spot import Spot
from tests.unit.brokers import message
from tests.unit.streams import House


class Shared(SynchronousTestCase):
    """Brokers at one engine"""

    def setUp(self) -> None:
        self.engine = MemoryEngine()
        self.houses: list[House] = []

    def broker(self, **top: object) -> House:
        rules = DURABILITY.parse(top.pop("durability", ""))
        named = {name.replace("_", "-"): value for name, value in top.items()}
        house = House({"spot": {}}, top=named)
        deque(house.broker.topic_lifecycle.reconfigure(DurabilityRules(rules)))
        backplane = MemoryBackplane(self.engine, lambda call: house.clock.callLater(0, call))
        Fanout(house.broker, backplane).setServiceParent(house.broker)  # type: ignore[no-untyped-call]
        house.start()
        self.addCleanup(house.broker.stopService)
        self.houses.append(house)
        return house

    def settle(self) -> None:
        for _ in range(4):
            for house in self.houses:
                house.pump(3)

    def send(self, topic: str, data: bytes) -> None:
        """Send as another program at the engine does."""
        self.engine.send(None, topic, data)
        self.settle()


class FanoutTests(Shared):
    """Topics, prefixes and order"""

    def exchange(self, **top: object) -> bytes:
        """Return the messages on several topics that a reader of a prefix receives."""
        here, there = self.broker(**top), self.broker(**top)
        spot = Spot(there)
        reader = spot.listener()
        reader.send(message(b"", b"\x02", b"t/*"))
        self.settle()
        assert {prefix for one in self.engine.open for prefix in one.prefixes} == {b"t/"}
        source, publisher = Spot(here), Spot(here).publisher()
        requests = [
            source.publish(publisher, payload, topic=topic)
            for topic, payload in (("t/a", b"1"), ("other", b"x"), ("t/b", b"2"), ("t/a", b"3"))
        ]
        # A topic of its own for each message first; then a read of several topics.
        for request in requests:
            publisher.send(request)
            self.settle()
        publisher.send(b"".join(requests))
        self.settle()
        self.there = there
        return reader.take()

    def expected(self) -> bytes:
        found = [(b"t/a", b"1"), (b"t/b", b"2"), (b"t/a", b"3")]
        return b"".join(message(b"", b"\x01", topic, data) for topic, data in found * 2)

    def test_the_order_across_topics(self) -> None:
        assert self.exchange(durability="*=none") == self.expected()
        assert self.there.store.next_offset == 0
        assert "other" not in self.there.broker.topics

    def test_the_order_across_stored_topics(self) -> None:
        assert self.exchange() == self.expected()
        # The history here has the messages that clients here read.
        assert self.there.store.next_offset == 6

    def test_the_order_across_topics_of_both_kinds(self) -> None:
        assert self.exchange(durability="t/a=none") == self.expected()
        assert self.there.store.next_offset == 2

    def test_a_topic_that_readers_need_stays_after_its_first_messages(self) -> None:
        here, there = self.broker(), self.broker()
        topics, router = there.broker.topics, there.broker.router
        needed = ProvisionalTopics(topics, router)
        deque(needed.add(("a",)))
        router.read_history(needed["a"])
        self.settle()
        source = Spot(here)
        publisher = source.publisher()
        publisher.send(source.publish(publisher, b"x", topic="a"))
        self.settle()
        assert there.store.next_offset == 1
        router.leave_history(needed["a"])
        deque(needed.withdraw())
        assert "a" in topics

    def test_a_prefix_is_wanted_for_as_long_as_it_has_readers(self) -> None:
        spot = Spot(self.broker())
        (link,) = self.engine.open
        readers = [spot.listener() for _ in range(2)]
        for reader in readers:
            reader.send(message(b"", b"\x02", b"t/*") * 2)
        self.settle()
        assert set(link.prefixes) == {b"t/"}
        readers[0].send(message(b"", b"\x03", b"t/*"))
        self.settle()
        assert set(link.prefixes) == {b"t/"}
        readers[1].stream.lose()
        self.settle()
        assert not link.prefixes

    def test_limits_of_the_receiving_broker(self) -> None:
        here, there = self.broker(), self.broker(max_topics=1)
        spot = Spot(there)
        reader = spot.listener()
        reader.send(message(b"", b"\x02", b"*"))
        self.settle()
        source = Spot(here)
        publisher = source.publisher()
        for topic in ("a", "b"):
            publisher.send(source.publish(publisher, b"x", topic=topic))
            self.settle()
        assert reader.take() == message(b"", b"\x01", b"a", b"x")
        assert there.broker.counters.refusals["backplane", "limit-reached"] == 1

    def test_nothing_is_taken_at_the_memory_bound(self) -> None:
        here, there = self.broker(), self.broker()
        spot = Spot(there)
        reader = spot.listener()
        reader.send(spot.subscribe(reader, "a"))
        self.settle()
        there.broker.memory.limit = 1
        source = Spot(here)
        publisher = source.publisher()
        publisher.send(source.publish(publisher, b"x", topic="a"))
        self.settle()
        assert there.broker.counters.drop_reasons["memory"] == 1

    def test_the_engine_is_asked_for_the_subscribed_topics(self) -> None:
        house = self.broker()
        (backplane,) = self.engine.open
        assert backplane.topics == set()
        router, topics = house.broker.router, house.broker.topics
        topic = topics.create("a")
        router.read_history(topic)
        router.read_history(topic)
        assert backplane.topics == {"a"}
        router.leave_history(topic)
        assert backplane.topics == {"a"}
        router.leave_history(topic)
        assert backplane.topics == set()

    def test_garbage_is_counted_and_costs_nothing(self) -> None:
        house = self.broker()
        house.broker.router.read_history(house.broker.topics.create("a"))
        link = Outgoing(99, 1024**2)
        used = house.broker.memory.used
        bad = struct.pack("<QIIBBBx", 1, 2**32 - 1, 2**32 - 1, 0, 0, 0)
        for data in (
            b"",
            b"garbage",
            bytes(5000),
            link.envelopes(b"")[0] if link.envelopes(b"") else b"x",
            *link.envelopes(bad),
        ):
            self.send("a", data)
        refusals = house.broker.counters.refusals
        assert refusals["backplane", "malformed"] == 5
        assert house.broker.memory.used == used
        assert house.store.next_offset == 0

    def test_small_reads_of_one_topic_become_one_batch(self) -> None:
        house = self.broker()
        house.broker.router.read_history(house.broker.topics.create("a"))
        house.broker.router.read_history(house.broker.topics.create("b"))
        batches: list[list[bytes]] = []
        receive = house.broker.dispatcher.receive

        def watch(topics: Any, columns: Columns, *rest: Any) -> None:
            batches.append(columns.payloads())
            receive(topics, columns, *rest)

        self.patch(house.broker.dispatcher, "receive", watch)  # type: ignore[no-untyped-call]
        link = Outgoing(99, 1024**2)
        large = bytes(40_000)
        for topic, sender, payload in (
            ("a", b"me", b"1"), ("a", b"me", b"22"), ("b", b"me", b"3"), ("a", b"me", b"4"),
            ("a", b"you", b"5"), ("a", b"you", large), ("a", b"you", large), ("a", b"you", b"6"),
        ):  # fmt: skip
            read = Batch((topic,), Columns.of([payload]), 0, 0, sender, "spot")
            ((_, head, columns),) = encode_batch(read, link.next_read(), [b""])
            self.engine.send(None, topic, *link.envelopes(head, columns))
        self.settle()
        assert batches == [[b"1", b"22"], [b"3"], [b"4"], [b"5", large], [large, b"6"]]
        assert house.store.next_offset == 8

    def test_headers_of_a_read_of_several_topics(self) -> None:
        house, names = self.broker(), ("a", "b")
        for name in names:
            house.broker.router.read_history(house.broker.topics.create(name))
        link, columns = Outgoing(99, 1024**2), Columns.of([b"1", b"2", b"3"], [0, 1, 0])
        for headers in ([{"k": b"x"}, {}, {"k": b"z"}], [{}, {"k": b"y"}, {}]):
            read = Batch(names, columns, 0, 0, b"me", "http", headers)
            for index, head, own in encode_batch(read, link.next_read(), [b"", b""]):
                self.engine.send(None, names[index], *link.envelopes(head, own))
            self.settle()
        page = self.successResultOf(house.store.read(0, None, 10**6))
        found: list[tuple[bytes, dict[str, bytes]]] = []
        for one in page.batches:
            assert one.headers is not None
            found += zip(one.columns.payloads(), map(dict, one.headers), strict=True)
        assert found == [
            (b"1", {"k": b"x"}), (b"2", {}), (b"3", {"k": b"z"}),
            (b"1", {}), (b"2", {"k": b"y"}), (b"3", {}),
        ]  # fmt: skip

    def test_own_messages_do_not_come_back(self) -> None:
        house = self.broker()
        house.broker.router.read_history(house.broker.topics.create("a"))
        crossed: list[bytes] = []
        send = self.engine.send

        def watch(sender: MemoryBackplane | None, topic: str, data: bytes) -> None:
            crossed.append(data)
            send(sender, topic, data)

        self.patch(self.engine, "send", watch)  # type: ignore[no-untyped-call]
        spot = Spot(house)
        publisher = spot.publisher()
        publisher.send(spot.publish(publisher, b"x", topic="a"))
        self.settle()
        # Over another connection, as after a failure of a server of a cluster.
        self.engine.come_back()
        publisher.send(spot.publish(publisher, b"y", topic="a"))
        self.settle()
        assert house.store.next_offset == len(crossed) == 2
        for data in tuple(crossed):
            self.send("a", data)
        assert house.store.next_offset == 2
        assert not house.broker.counters.refusals

    def test_the_state_of_the_connection_is_shown(self) -> None:
        house = self.broker()

        def shown() -> tuple[object, object]:
            figures = house.broker.statistics.snapshot()["backplane"]
            return figures["connected"], figures["trouble"]

        assert shown() == (True, "")
        self.engine.leave("no server answers")
        assert shown() == (False, "no server answers")
        self.engine.come_back()
        assert shown() == (True, "")

    def test_reserved_topics_are_not_shared(self) -> None:
        here, there = self.broker(events=True), self.broker(events=True)
        del here
        self.settle()
        assert not there.broker.counters.refusals
        assert all(not one.topics for one in self.engine.open)


class SettingsTests(SynchronousTestCase):
    """Settings"""

    def check(self, message: str, **settings: object) -> None:
        named = {name.replace("_", "-"): value for name, value in settings.items()}
        with pytest.raises(ConfigurationError) as caught:
            merge(installed_protocols(), CommandLine(), named)
        assert str(caught.value) == message

    def test_peers_are_refused(self) -> None:
        self.check(
            "backplane: cannot be combined with --peer; a topic would reach the same broker twice",
            backplane="nats://a", spot={"peers": ["tcp://b:7073"]},
        )  # fmt: skip

    def test_memory(self) -> None:
        self.check(
            "max-memory: the backplane alone needs 33554432 bytes; give more memory, or lower "
            "backplane-bytes",
            backplane="nats://a", max_memory="32M",
        )  # fmt: skip

    def test_passwords_are_not_shown(self) -> None:
        expected = (
            "backplane: expected nats://HOST:PORT[,HOST:PORT...] or tls://HOST:PORT; in "
            "credentials, % escapes stand for characters of URLs"
        )
        for url in ("http://u:secret@a", "nats://u:secret@a:x", "nats://u:secret@", "a:secret@b"):
            self.check(expected, backplane=url)
        config = merge(
            installed_protocols(), CommandLine(), {"backplane": "nats://u:secret@a,b:4333"}
        )
        servers = config.broker["backplane"]
        assert servers.urls == ("nats://u:secret@a:4222", "nats://u:secret@b:4333")
        assert str(servers) == repr(servers) == "nats://a:4222,nats://b:4333"
