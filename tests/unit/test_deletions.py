"""Topics and identities end: unused ones expire, and operators delete them over HTTP."""

from __future__ import annotations

from collections import deque
from typing import Any

from twisted.internet.address import IPv4Address, UNIXAddress
from twisted.internet.defer import maybeDeferred
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.credentials.queue_keys import KEYS
from pubsub.broker.listeners.limits import CONNECTION_BYTES
from pubsub.broker.listeners.listener_settings import SETTINGS
from pubsub.broker.topic_space.durability import Durability
from pubsub.broker.topic_space.topic_lifecycle import TOPICS
from pubsub.http_api.server import SETTINGS as OWN
from pubsub.http_api.server import HttpApiFactory
from pubsub.kernel import Columns
from pubsub.protocols.nsd.identities import IDENTITY_BYTES, SUBSCRIPTION_BYTES, SUBSCRIPTIONS, TABLE
from pubsub.protocols.rheos.listener_state import PARENTS
from pubsub.settings import read_all
from tests.unit import cafe_wire as cafe
from tests.unit import nsd_lines as nsd
from tests.unit import rheos_wire as rheos
from tests.unit.brokers import publish, ready, subscribe
from tests.unit.fakes import Held, make_listener
from tests.unit.fast_wire import (
    ENDED,
    EXCLUSIVE,
    OWNER,
    WRITER,
    WRONG_KEY,
    FastCase,
    create,
    error,
)
from tests.unit.fast_wire import publish as write
from tests.unit.streams import Client, House, logged
from tests.unit.web import Answer, WebClient, WebHouse

LISTEN: dict[str, dict[str, object]] = {"cafe": {}, "nsd": {}, "rheos": {}, "spot": {}}


class Operated(House):
    """A broker with the protocols that need no secret, and the HTTP API."""

    def __init__(self, **top: object) -> None:
        super().__init__(LISTEN, top={name.replace("_", "-"): v for name, v in top.items()})
        listener = self.broker.make_listener(
            "admin", {**read_all(SETTINGS, {"allow-anonymous": True}), **read_all(OWN, {})}
        )
        self.broker.add_listener(listener)
        self.admin = HttpApiFactory(listener, maybeDeferred)
        self.start()

    def delete(self, path: str, address: Any = None) -> Answer:
        """Send a DELETE from this machine, or from ``address``."""
        client = WebClient(
            self.admin, self.clock, address or IPv4Address("TCP", "127.0.0.1", 40_000)
        )
        client.ask("DELETE", path)
        self.pump(5)
        return client.answer("DELETE")

    def client(self, protocol: str, *requests: bytes) -> Client:
        """Return a client that has sent these requests."""
        client = self.connect(protocol)
        for request in requests:
            client.send(request)
        self.pump(5)
        client.take()
        return client

    def held(self) -> int:
        """Return the bytes that the broker holds, apart from its connections."""
        return self.broker.memory.used - CONNECTION_BYTES * self.broker.counters.connections

    def names(self) -> set[str]:
        """Return the names of the topics that no configuration names."""
        return {topic.name for topic in self.broker.topics if not topic.configured}


class DeleteTests(SynchronousTestCase):
    """DELETE /v1/topics/NAME and /v1/identities/NAME"""

    def setUp(self) -> None:
        self.house = Operated()

    def test_a_topic_ends_with_its_messages(self) -> None:
        source = self.house.client("spot", ready(b"DEALER"), publish(b"a/b", b"1"))
        assert self.house.delete("/v1/topics/a%2Fb").status == 204
        assert self.house.names() == set()
        assert "a/b" not in dict(self.house.store.items(TOPICS))
        page = self.successResultOf(self.house.store.read(0, None, 10**6))
        assert page.batches == []
        # It can begin again.
        source.send(publish(b"a/b", b"2"))
        page = self.successResultOf(self.house.store.read(0, None, 10**6))
        assert [batch.payloads() for batch in page.batches] == [[b"2"]]

    def test_its_subscribers_are_notified_in_the_terms_of_their_wire(self) -> None:
        alice = rheos.ALICE
        self.house.client("rheos", rheos.create(alice, b"cafe/1"))
        reader = self.house.client("rheos", rheos.subscribe(rheos.BOB, b"cafe/1"))
        spot = self.house.client("spot", ready(b"DEALER"), subscribe(b"cafe/1"))
        old = self.house.client("cafe", cafe.hs_sub(b"\x01", b"bob"))
        self.house.advance(1)
        old.take()
        assert self.house.delete("/v1/topics/cafe%2F1").status == 204
        self.house.pump(3)
        assert old.take() == cafe.error(0x08)
        assert not self.house.broker.topics.named("cafe/1").groups
        # Each of them can subscribe again.
        old.send(cafe.subscribe(1))
        spot.send(subscribe(b"cafe/1"))
        reader.send(rheos.subscribe(rheos.BOB, b"cafe/1"))
        self.house.client("spot", ready(b"DEALER"), publish(b"cafe/1", b"x"))
        assert cafe.payloads(old.take()) == [b"x"]
        assert spot.take() == publish(b"cafe/1", b"x")
        assert b"x" in reader.take()

    def test_a_topic_of_the_configuration_is_emptied_and_stays(self) -> None:
        topic = self.house.broker.topics.named("cafe/1")
        self.house.client("cafe", cafe.hs_pub(1), cafe.publish(1, b"x"))
        assert topic.hosted
        assert self.house.delete("/v1/topics/cafe%2F1").status == 204
        assert self.house.broker.topics.named("cafe/1") is topic
        assert not topic.hosted
        assert "cafe/1" not in dict(self.house.store.items(TOPICS))
        writer = self.house.client("cafe", cafe.hs_pub(1), cafe.publish(1, b"y"))
        assert topic.hosted
        assert writer.take() == b""

    def test_the_state_of_protocols_about_a_topic_is_deleted(self) -> None:
        house = self.house
        house.client("rheos", rheos.create(rheos.ALICE, b"ada"))
        house.client("nsd", nsd.open_("ada"), nsd.open_("ben"), nsd.subscribe("ben", "ada"))
        assert house.delete("/v1/topics/ada").status == 204
        assert list(house.store.items(PARENTS)) == []
        assert [key for key, _ in house.store.items(SUBSCRIPTIONS)] == ['["ben", "ben"]']
        client = house.connect("nsd")
        client.send(nsd.publish("ada", "x") + nsd.subscribe("ben", "ada"))
        assert client.take() == nsd.error("NO SUCH CHANNEL: ada") * 2

    def test_an_identity_ends_with_its_subscriptions(self) -> None:
        house = self.house
        house.client("nsd", nsd.open_("ada"), nsd.open_("ben"), nsd.subscribe("ben", "ada"))
        before = house.held()
        assert house.delete("/v1/identities/ben").status == 204
        assert before - house.held() == IDENTITY_BYTES + 2 * SUBSCRIPTION_BYTES
        assert [key for key, _ in house.store.items(TABLE)] == ["ada"]
        assert [key for key, _ in house.store.items(SUBSCRIPTIONS)] == ['["ada", "ada"]']
        # Its channel is a topic like any other.
        assert house.names() == {"ada", "ben"}
        readers = {t.name: t.history_readers for t in house.broker.topics if not t.configured}
        assert readers == {"ada": 1, "ben": 0}

    def test_a_topic_that_has_ended_before_its_turn(self) -> None:
        house, broker = self.house, self.house.broker
        house.client("spot", ready(b"DEALER"), publish(b"a", b"1"))
        topic = broker.topics.named("a")
        late = broker.topic_lifecycle.delete(topic)
        assert house.delete("/v1/topics/a").status == 204
        # The name is free: another topic has it, with a key, and readers.
        again = broker.topics.create("a")
        broker.queue_keys.close(again, b"k", "", "")
        for _ in late:
            pass
        assert broker.topics.named("a") is again
        assert broker.queue_keys.matches(again, b"k")
        assert "a" not in broker.queue_keys.exclusive

    def test_unknown_names(self) -> None:
        assert self.house.delete("/v1/topics/nothing").error == (404, "unknown-topic")
        assert self.house.delete("/v1/identities/nobody").error == (404, "unknown-identity")
        assert self.house.delete("/v1/topics/a/b").error == (404, "not-found")
        assert self.house.delete("/v1/topics/%ff").error == (400, "invalid-request")

    def test_a_topic_of_another_broker(self) -> None:
        topic = self.house.broker.topics.create("far")
        topic.upstream = object()  # type: ignore[assignment]
        assert self.house.delete("/v1/topics/far").error == (409, "remote-topic")

    def test_without_secrets_only_this_machine_may_delete(self) -> None:
        self.house.broker.topics.create("a")
        far = IPv4Address("TCP", "192.0.2.1", 40_000)
        assert self.house.delete("/v1/topics/a", far).error == (403, "not-authorized")
        assert self.house.delete("/v1/identities/a", far).error == (403, "not-authorized")
        assert self.house.delete("/v1/topics/a", UNIXAddress(None)).status == 204

    def test_without_secrets_this_machine_may_delete_a_topic_with_a_key(self) -> None:
        """Otherwise a key that it sets could never be removed again."""
        house = self.house
        house.broker.queue_keys.close(house.broker.topics.create("a"), b"k", "", "")
        far = IPv4Address("TCP", "192.0.2.1", 40_000)
        assert house.delete("/v1/topics/a", far).error == (403, "not-authorized")
        assert house.delete("/v1/topics/a").status == 204
        assert "a" not in house.broker.queue_keys.names

    def test_many_subscribers_are_notified_in_slices(self) -> None:
        house = self.house
        topic = house.broker.topics.create("a")
        clients = [house.client("spot", ready(b"DEALER"), subscribe(b"a")) for _ in range(150)]
        client = WebClient(house.admin, house.clock, IPv4Address("TCP", "127.0.0.1", 1))
        client.stream.feed(b"DELETE /v1/topics/a HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert 0 < sum(map(len, topic.groups.values())) < 150
        # No client can join it in between.
        clients[0].stream.feed(subscribe(b"a"))
        assert house.broker.counters.refusals["spot", "not-authorized"] == 1
        house.pump(5)
        assert client.answer("DELETE").status == 204
        assert "a" not in house.broker.topics


class TokenTests(SynchronousTestCase):
    """The right to delete, where there are secrets"""

    def setUp(self) -> None:
        self.house = WebHouse()
        self.house.broker.topics.create("open")
        self.house.lock("closed", b"k")

    def delete(self, name: str, token: bytes | None = None) -> int:
        client = self.house.connect("127.0.0.1")
        client.ask("DELETE", f"/v1/topics/{name}", token=token)
        return client.answer("DELETE").status

    def test_a_token_needs_the_permission(self) -> None:
        assert self.delete("open") == 403
        assert self.delete("open", self.house.token("publish", "history", "create")) == 403
        assert self.delete("open", self.house.token("delete")) == 204

    def test_a_closed_topic_needs_its_key_or_an_administrator(self) -> None:
        assert self.delete("closed", self.house.token("delete", key="other")) == 403
        assert self.delete("closed", self.house.token("delete")) == 204
        self.house.lock("closed", b"k")
        assert self.delete("closed", self.house.token("admin", key="other")) == 204
        assert "closed" not in self.house.broker.queue_keys.names

    def test_reserved_topics_are_the_administrators(self) -> None:
        self.house.broker.topics.create("$SYS/x")
        assert self.delete("%24SYS%2Fx", self.house.token("delete")) == 403
        assert self.delete("%24SYS%2Fx", self.house.token("admin")) == 204

    def test_the_listeners_rules_apply(self) -> None:
        self.house = WebHouse(allow_publish="b*")
        self.house.broker.topics.create("a")
        assert self.delete("a", self.house.token("delete")) == 403


class FastTests(FastCase):
    """Topics of fast"""

    def test_its_subscribers_are_notified(self) -> None:
        fast = self.house()
        fast.owner()
        reader = fast.reader()
        topic = fast.broker.topics.named("news")
        fast.broker.slices.finish(fast.broker.topic_lifecycle.delete(topic))
        assert reader.take() == error(2, ENDED)
        assert "news" not in fast.broker.topics

    def test_it_stays_closed_to_the_end(self) -> None:
        fast = self.house(also={"rheos": {}})
        fast.owner()
        readers = [fast.reader(), fast.reader()]
        intruder = fast.connect("rheos")
        work = fast.broker.topic_lifecycle.delete(fast.broker.topics.named("news"))
        next(work)
        intruder.send(rheos.publish(rheos.ALICE, b"x", name=b"news"))
        writer = fast.client(write(WRITER, b"y"))
        assert [*work] == [None]
        assert [one.take() for one in readers] == [error(2, ENDED)] * 2
        assert writer.take() == error(3, WRONG_KEY)
        assert dict(fast.store.items(KEYS)) == {}
        assert "news" not in fast.broker.queue_keys.names

    def test_it_is_closed_after_a_crash_meanwhile(self) -> None:
        fast = self.house()
        fast.owner()
        fast.reader()
        next(fast.broker.topic_lifecycle.delete(fast.broker.topics.named("news")))
        assert [name for name, _ in fast.store.items(KEYS)] == ["news"]

    def test_an_exclusive_topic_ends_once(self) -> None:
        fast = self.house()
        owner, other = fast.owner(EXCLUSIVE), fast.client()
        topic = fast.broker.topics.named("news")
        fast.broker.slices.finish(fast.broker.topic_lifecycle.delete(topic))
        other.send(create(OWNER))
        owner.stream.lose()
        fast.turn()
        assert "news" in fast.broker.topics
        assert fast.broker.topics.named("news").hosted


class ExpiryTests(SynchronousTestCase):
    """topic-expiry and identity-expiry"""

    def test_nothing_expires_by_default(self) -> None:
        house = Operated()
        house.client("rheos", rheos.create(rheos.ALICE, b"a"))
        house.client("nsd", nsd.open_("ada"))
        house.advance(3000)
        assert house.names() == {"a", "ada"}

    def test_unused_topics_expire(self) -> None:
        house = Operated(topic_expiry=100)
        lines = logged(self)
        house.client("rheos", *(rheos.create(rheos.ALICE, name) for name in (b"a", b"b", b"loud")))
        house.broker.topics.named("loud").set_durability(Durability.NONE)
        house.client("nsd", nsd.open_("ada"))
        stored = house.client("spot", ready(b"DEALER"), publish(b"stored", b"x"))
        reader = house.client("spot", ready(b"DEALER"), subscribe(b"b"))
        assert house.names() == {"a", "b", "loud", "ada", "stored"}
        for _ in range(5):
            house.advance(60)
            stored.send(publish(b"loud", b"x"))
        # A message, a reader, an identity that is subscribed, and a message that is not stored.
        assert house.names() == {"b", "loud", "ada", "stored"}
        assert "a" not in dict(house.store.items(TOPICS))
        assert "unused topics have expired: 1" in lines
        reader.stream.lose()
        house.advance(300)
        assert house.names() == {"ada", "stored"}

    def test_a_topic_with_messages_that_are_published_at_the_end_of_the_tick(self) -> None:
        house = Operated(topic_expiry=100)
        topics = [house.broker.topics.create(name) for name in "ab"]
        publisher = make_listener(house.broker).publisher(Held(), b"ada")
        for topic in topics:
            topic.idle_since = house.clock.seconds() - 100
        publisher.publish(topics[0], Columns.of([b"first"]))
        assert publisher.publish_soon(topics[1], Columns.of([b"1"]))
        deque(house.broker.unused_names._expire_topics(frozenset()))
        house.turn()
        assert house.names() == {"a", "b"}
        page = self.successResultOf(house.store.read(0, None, 1000))
        assert [batch.topic for batch in page.batches] == ["a", "b"]

    def test_topics_with_a_key_and_those_of_the_configuration_stay(self) -> None:
        house = Operated(topic_expiry=100)
        topic = house.broker.topics.create("closed")
        house.broker.queue_keys.close(topic, b"k", "owner", "owner")
        house.advance(500)
        assert house.names() == {"closed"}
        assert "cafe/1" in house.broker.topics

    def test_a_session_keeps_its_topics(self) -> None:
        house = Operated(topic_expiry=1, resume_window=100)
        reader = house.client("spot", ready(b"DEALER", b"bob"), subscribe(b"a"))
        reader.stream.lose()
        house.advance(60)
        assert house.names() == {"a"}
        house.advance(200)
        assert house.names() == set()

    def test_unused_identities_expire(self) -> None:
        house = Operated(identity_expiry=100, topic_expiry=100)
        lines = logged(self)
        client = house.client(
            "nsd",
            nsd.open_("ada"),
            nsd.open_("ben"),
            nsd.subscribe("ben", "ada"),
            nsd.open_("cal"),
            nsd.publish("cal", "x"),
        )
        for _ in range(5):
            house.advance(60)
            client.send(nsd.get("ben"))
        # One polls, and one has a message on its channel.
        assert {key for key, _ in house.store.items(TABLE)} == {"ben", "cal"}
        assert "nsd: unused identities have expired: 1" in lines
        assert house.names() == {"ada", "ben", "cal"}
        house.advance(500)
        assert {key for key, _ in house.store.items(TABLE)} == {"cal"}
        assert house.names() == {"cal"}

    def test_a_defect_does_not_end_the_passes(self) -> None:
        house = Operated(topic_expiry=100)
        house.broker.topics.create("a")
        topics_in = house.store.topics_in

        def fail(start: int, stop: int) -> Any:
            raise OSError

        house.store.topics_in = fail  # type: ignore[method-assign]
        house.advance(200)
        assert len(self.flushLoggedErrors(OSError)) > 1  # type: ignore[no-untyped-call]
        house.store.topics_in = topics_in  # type: ignore[method-assign]
        house.advance(300)
        assert house.names() == set()
