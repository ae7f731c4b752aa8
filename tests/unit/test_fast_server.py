"""fast's server: the effect of each request, and its refusals (sections of seeds/fast.md)."""

from __future__ import annotations

from ipaddress import ip_network

from twisted.internet.defer import Deferred, succeed

from pubsub.broker.access_rules.access_table import AccessTable, Who
from pubsub.broker.listeners.limits import CONNECTION_BYTES
from tests.unit import fast_wire as wire
from tests.unit.access_rules import rule
from tests.unit.fast_wire import (
    BAD_TOKEN,
    COLLISION,
    DURABLE,
    EXISTS,
    FORGED,
    INVALID,
    KEYLESS,
    NEWS,
    NO_PERMISSION,
    NO_TOPIC,
    ONE,
    OTHER,
    OWNER,
    RATE_LIMITED,
    READER,
    TOO_LARGE,
    TWIN,
    TWINS,
    WRITER,
    WRONG_KEY,
    FastCase,
)


class CreateTests(FastCase):
    """§3.1"""

    def test_create_makes_a_topic_with_a_key_without_a_reply(self) -> None:
        fast = self.house()
        assert self.answer(fast, wire.create(OWNER)) == b""
        topic = fast.broker.topics.named("news")
        assert topic.id == NEWS
        assert topic.hosted
        assert topic in fast.broker.queue_keys
        assert fast.broker.queue_keys.matches(topic, b"k1")

    def test_any_client_can_create_it_again_with_its_key(self) -> None:
        fast = self.house()
        fast.owner()
        for raw in (OWNER, READER, wire.grant("publish", sub="zoe")):
            assert self.answer(fast, wire.create(raw, flags=DURABLE)) == b""
        assert self.answer(fast, wire.create(OTHER)) == wire.error(1, EXISTS)
        assert self.answer(fast, wire.subscribe(READER)) == b""

    def test_create_requires_a_token_and_a_key(self) -> None:
        fast = self.house()
        assert self.answer(fast, wire.create(FORGED)) == wire.error(1, BAD_TOKEN)
        assert self.answer(fast, wire.create(b"")) == wire.error(1, BAD_TOKEN)
        assert self.answer(fast, wire.create(KEYLESS)) == wire.error(1, WRONG_KEY)
        assert not len(fast.broker.topics)

    def test_create_requires_a_permission_if_the_listener_demands_it(self) -> None:
        assert self.answer(self.house(), wire.create(wire.grant("publish"))) == b""
        strict = self.house(require_create="on")
        assert self.answer(strict, wire.create(wire.grant("publish"))) == wire.error(
            1, NO_PERMISSION
        )
        assert self.answer(strict, wire.create(KEYLESS)) == wire.error(1, WRONG_KEY)
        for permission in ("create", "admin", "*"):
            assert self.answer(strict, wire.create(wire.grant(permission), permission)) == b""

    def test_invalid_names_and_flags(self) -> None:
        fast = self.house()
        for name in (b"", b"\xff", b"a\xc3"):
            assert self.answer(fast, wire.create(OWNER, name)) == wire.error(
                1, INVALID, wire.topic_id(name)
            )
        for flags in (0x04, 0x05, 0x80, 0xFF):
            assert self.answer(fast, wire.create(OWNER, flags=flags)) == wire.error(1, INVALID)
        assert not len(fast.broker.topics)

    def test_the_first_error_is_reported(self) -> None:
        fast = self.house(require_create="on", allow_publish="x", allow_subscribe="x")
        bad = b"\xff"
        bad_id = wire.topic_id(bad)
        assert self.answer(fast, wire.create(FORGED, bad, 4)) == wire.error(1, BAD_TOKEN, bad_id)
        assert self.answer(fast, wire.create(KEYLESS, bad, 4)) == wire.error(1, WRONG_KEY, bad_id)
        few = wire.grant("publish")
        assert self.answer(fast, wire.create(few, bad, 4)) == wire.error(1, NO_PERMISSION, bad_id)
        assert self.answer(fast, wire.create(OWNER, bad)) == wire.error(1, INVALID, bad_id)
        assert self.answer(fast, wire.create(OWNER, flags=4)) == wire.error(1, INVALID)
        assert self.answer(fast, wire.create(OWNER)) == wire.error(1, NO_PERMISSION)

    def test_a_client_that_may_publish_or_read_the_topic_may_create_it(self) -> None:
        for rules in ({"allow_publish": "x"}, {"allow_subscribe": "x"}):
            assert self.answer(self.house(**rules), wire.create(OWNER)) == b""

    def test_create_closes_an_open_topic(self) -> None:
        fast = self.house(also={"cafe": {"channels": "1:news"}})
        assert self.answer(fast, wire.subscribe(READER)) == wire.error(2, WRONG_KEY)
        assert self.answer(fast, wire.create(OWNER)) == b""
        assert self.answer(fast, wire.subscribe(READER)) == b""

    def test_a_topic_of_another_broker_cannot_be_created(self) -> None:
        fast = self.house()
        topic = fast.broker.topics.create("news", hosted=False)
        topic.upstream = RemoteHost()
        assert self.answer(fast, wire.create(OWNER)) == wire.error(1, EXISTS)
        assert topic not in fast.broker.queue_keys

    def test_at_the_limit_of_topics_and_of_memory(self) -> None:
        fast = self.house(top={"max-topics": 1})
        fast.owner()
        more = wire.topic_id("more")
        assert self.answer(fast, wire.create(OWNER, "more")) == wire.error(1, RATE_LIMITED, more)
        assert self.answer(fast, wire.create(OWNER)) == b""
        full = self.house(top={"history": 0, "max-memory": CONNECTION_BYTES})
        client = full.client()
        client.send(wire.create(OWNER))
        assert client.take() == wire.error(1, RATE_LIMITED)

    def test_a_refused_create_does_not_host_an_offered_topic(self) -> None:
        fast = self.house(also={"cafe": {"channels": "1:news"}})
        assert self.answer(fast, wire.create(OWNER, flags=2)) == wire.error(1, EXISTS)
        assert not fast.broker.topics.named("news").hosted


class RemoteHost:
    """An ``Upstream`` that hosts a topic."""

    def publish(self, topic: object, batch: object) -> None: ...

    def when_confirmed(self, topic: object, call: object) -> None: ...

    def update(self, topic: object) -> Deferred[bool]:
        return succeed(True)

    def want(self, topic: object) -> None: ...

    def unwant(self, topic: object) -> None: ...

    def no_longer_hosts(self, topic: object) -> bool:
        return False


class CollisionTests(FastCase):
    """§1.1: two names with one id"""

    def test_the_ids_are_the_same(self) -> None:
        assert wire.topic_id(ONE) == wire.topic_id(TWIN) == TWINS

    def test_the_second_name_is_refused_and_the_first_topic_unchanged(self) -> None:
        fast = self.house()
        owner = fast.client(wire.create(OWNER, ONE) + wire.subscribe(OWNER, TWINS))
        assert owner.take() == b""
        assert self.answer(fast, wire.create(OTHER, TWIN)) == wire.error(1, COLLISION, TWINS)
        assert self.answer(fast, wire.create(OWNER, TWIN)) == wire.error(1, COLLISION, TWINS)
        assert TWIN not in fast.broker.topics
        owner.send(wire.publish(OWNER, b"x", topic=TWINS))
        assert owner.take() == wire.message(b"x", topic=TWINS)

    def test_the_id_refers_to_the_first_topic(self) -> None:
        fast = self.house(also={"nsd": {}})
        fast.broker.topics.create(TWIN)
        assert self.answer(fast, wire.create(OWNER, ONE)) == wire.error(1, COLLISION, TWINS)

    def test_the_id_is_free_after_the_end_of_the_first_topic(self) -> None:
        fast = self.house()
        owner = fast.client(wire.create(OWNER, ONE, flags=2))
        fast.broker.topics.create(TWIN)
        assert self.answer(fast, wire.create(OTHER, TWIN)) == wire.error(1, COLLISION, TWINS)
        owner.stream.lose()
        other = fast.client(wire.create(OTHER, TWIN))
        assert other.take() == b""
        other.send(wire.subscribe(OTHER, TWINS) + wire.publish(OTHER, b"x", topic=TWINS))
        assert other.take() == wire.message(b"x", topic=TWINS)


class SubscribeTests(FastCase):
    """§3.2, §3.4, §3.5"""

    def test_a_subscription_starts_with_the_next_message(self) -> None:
        fast = self.house()
        owner = fast.owner()
        owner.send(wire.publish(OWNER, b"before"))
        readers = [fast.reader(), fast.reader(wire.grant("subscribe", "publish"))]
        owner.send(
            wire.publish(OWNER, b"1", b"22", b"22", b"") + wire.publish(WRITER, bytes(range(256)))
        )
        for reader in readers:
            assert reader.take() == wire.message(b"1", b"22", b"22", b"", bytes(range(256)))
        assert owner.take() == b""

    def test_own_messages_are_delivered(self) -> None:
        fast = self.house()
        client = fast.client(
            wire.create(OWNER) + wire.subscribe(OWNER) + wire.publish(OWNER, b"me")
        )
        assert client.take() == wire.message(b"me")

    def test_subscribing_twice_delivers_once(self) -> None:
        fast = self.house()
        owner = fast.owner()
        reader = fast.reader()
        reader.send(wire.subscribe(READER) + wire.subscribe(OWNER))
        owner.send(wire.publish(OWNER, b"x"))
        assert reader.take() == wire.message(b"x")

    def test_a_client_can_subscribe_to_several_topics(self) -> None:
        fast = self.house()
        more = wire.topic_id("more")
        client = fast.client(wire.create(OWNER) + wire.create(OTHER, "more"))
        client.send(wire.subscribe(OWNER) + wire.subscribe(OTHER, more))
        client.send(wire.publish(OTHER, b"b", topic=more) + wire.publish(OWNER, b"a"))
        a, b = wire.message(b"a"), wire.message(b"b", topic=more)
        assert client.take() in (a + b, b + a)
        client.send(wire.unsubscribe(OTHER, more))
        client.send(wire.publish(OTHER, b"b", topic=more) + wire.publish(OWNER, b"a"))
        assert client.take() == wire.message(b"a")

    def test_unsubscribe_requires_the_key_and_no_permission(self) -> None:
        fast = self.house()
        owner = fast.owner()
        reader = fast.reader()
        reader.send(wire.unsubscribe(OTHER) + wire.unsubscribe(FORGED))
        assert reader.take() == wire.error(5, WRONG_KEY) + wire.error(5, BAD_TOKEN)
        owner.send(wire.publish(OWNER, b"still"))
        assert reader.take() == wire.message(b"still")
        reader.send(wire.unsubscribe(wire.grant("rotate")) * 2)
        owner.send(wire.publish(OWNER, b"gone"))
        assert reader.take() == b""
        assert not fast.broker.topics.named("news").groups

    def test_unsubscribe_without_any_subscription(self) -> None:
        fast = self.house()
        fast.owner()
        assert self.answer(fast, wire.unsubscribe(READER)) == b""

    def test_a_disconnected_client_holds_nothing(self) -> None:
        fast = self.house()
        before = fast.broker.memory.used
        client = fast.client(
            wire.create(OWNER, flags=2) + wire.subscribe(wire.grant(exp=1_700_000_100))
        )
        client.stream.lose()
        fast.turn()
        assert not fast.broker.clients
        assert not len(fast.broker.topics)
        assert not fast.clock.getDelayedCalls()
        # Its tokens are remembered.
        assert fast.broker.memory.used - fast.broker.memory.cached == before


class PublishTests(FastCase):
    """§3.3"""

    def test_the_sender_is_the_subject_of_the_token(self) -> None:
        fast = self.house()
        fast.owner().send(wire.publish(WRITER, b"x") + wire.publish(wire.grant(sub="zoë"), b"y"))
        page = self.successResultOf(fast.store.read(0, None, 1000))
        assert [(b.sender.decode(), b.protocol) for b in page.batches] == [
            ("eve", "fast"), ("zoë", "fast"),
        ]  # fmt: skip

    def test_the_address_counts_beside_the_token(self) -> None:
        fast = self.house()
        fast.owner()
        who = Who(("eve",), networks=(ip_network("192.0.2.0/24"),))
        fast.broker.set_access(AccessTable([rule(True, "publish", "news", who)]))
        message = wire.publish(WRITER, b"x")
        assert fast.client(message).take() == b""
        refused = fast.client(message, host="198.51.100.1").take()
        assert refused == wire.error(wire.PUBLISH, NO_PERMISSION)

    def test_a_refused_message_of_another_holder_gives_no_rights_to_the_one_before(self) -> None:
        fast = self.house()
        fast.owner().send(wire.create(OWNER, "sport"))
        eve = rule(True, "publish", "news", Who(("eve",)))
        ada = rule(True, "publish", "news", Who(("ada",)))
        fast.broker.set_access(AccessTable([eve, ada]))
        client, others = fast.client(), [fast.client(wire.publish(OWNER, b"-")) for _ in range(2)]
        sport = wire.topic_id("sport")

        def send(data: bytes) -> bytes:
            """Send ``data`` after messages of others in the same tick, so that it is gathered."""
            for other in others:
                other.stream.feed(wire.publish(OWNER, b"-"))
            client.send(data)
            return client.take()

        refused = wire.error(wire.PUBLISH, NO_PERMISSION, sport)
        assert send(wire.publish(WRITER, b"1") + wire.publish(OWNER, b"2", topic=sport)) == refused
        assert client.protocol._proof is None  # type: ignore[attr-defined]
        assert send(wire.publish(WRITER, b"3")) == b""
        assert send(wire.publish(WRITER, b"4") + wire.publish(OWNER, b"5", topic=sport)) == refused
        fast.broker.set_access(AccessTable([ada]))
        assert send(wire.publish(WRITER, b"6")) == wire.error(wire.PUBLISH, NO_PERMISSION)
        page = self.successResultOf(fast.store.read(0, None, 10_000))
        found = [one for batch in page.batches for one in batch.payloads() if one != b"-"]
        assert found == [b"1", b"3", b"4"]

    def test_each_refused_message_has_its_own_error(self) -> None:
        fast = self.house()
        fast.owner()
        reader = fast.reader()
        assert (
            self.answer(fast, wire.publish(READER, b"1", b"2")) == wire.error(3, NO_PERMISSION) * 2
        )
        assert self.answer(fast, wire.publish(OTHER, b"1")) == wire.error(3, WRONG_KEY)
        assert self.answer(fast, wire.publish(FORGED, b"1", b"22")) == wire.error(3, BAD_TOKEN) * 2
        assert self.answer(fast, wire.publish(OWNER, b"1", topic=1)) == wire.error(3, NO_TOPIC, 1)
        assert reader.take() == b""
        assert fast.refusals() == {
            "missing-permission": 2, "wrong-queue-key": 1, "bad-token": 2, "topic-not-found": 1,
        }  # fmt: skip

    def test_each_message_over_the_rate_has_its_own_error(self) -> None:
        fast = self.house(rate_messages=3)
        owner = fast.owner()
        reader = fast.reader()
        owner.send(wire.publish(OWNER, *[b"%d" % n for n in range(5)]))
        assert owner.take() == wire.error(3, RATE_LIMITED) * 2
        assert reader.take() == wire.message(b"0", b"1", b"2")
        owner.send(wire.publish(OWNER, b"x"))
        assert owner.take() == wire.error(3, RATE_LIMITED)

    def test_the_rules_of_the_listener_apply_to_any_token(self) -> None:
        fast = self.house(allow_publish="other")
        owner = fast.owner()
        owner.send(wire.publish(OWNER, b"x"))
        assert owner.take() == wire.error(3, NO_PERMISSION)
        strict = self.house(allow_subscribe="other")
        strict.owner()
        assert self.answer(strict, wire.subscribe(READER)) == wire.error(2, NO_PERMISSION)

    def test_a_payload_over_the_limit_closes(self) -> None:
        fast = self.house(max_payload=4)
        fast.owner()
        client = fast.client(
            wire.publish(OWNER, b"1234") + wire.publish(OWNER, b"12345") + wire.create(OTHER)
        )
        assert client.take() == wire.error(3, TOO_LARGE)
        assert client.closed
        assert fast.refusals() == {"too-large": 1}

    def test_keys_of_other_topics_do_not_open_it(self) -> None:
        fast = self.house()
        fast.owner()
        more = wire.topic_id("more")
        assert self.answer(
            fast, wire.create(OTHER, "more") + wire.publish(OWNER, b"x", topic=more)
        ) == (wire.error(3, WRONG_KEY, more))
