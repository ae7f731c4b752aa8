"""fast's server: the effect of each request, and its refusals (sections of seeds/fast.md)."""

from __future__ import annotations

from twisted.internet.defer import Deferred, succeed

from pubsub.broker.limits import CONNECTION_BYTES
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
    create,
    error,
    grant,
    message,
    publish,
    subscribe,
    topic_id,
    unsubscribe,
)


class CreateTests(FastCase):
    """§3.1"""

    def test_create_makes_a_topic_with_a_key_without_a_reply(self) -> None:
        fast = self.house()
        assert self.answer(fast, create(OWNER)) == b""
        topic = fast.broker.topics.named("news")
        assert topic.id == NEWS
        assert topic.hosted
        assert topic in fast.broker.queue_keys
        assert fast.broker.queue_keys.matches(topic, b"k1")

    def test_any_client_can_create_it_again_with_its_key(self) -> None:
        fast = self.house()
        fast.owner()
        for raw in (OWNER, READER, grant("publish", sub="zoe")):
            assert self.answer(fast, create(raw, flags=DURABLE)) == b""
        assert self.answer(fast, create(OTHER)) == error(1, EXISTS)
        assert self.answer(fast, subscribe(READER)) == b""

    def test_create_requires_a_token_and_a_key(self) -> None:
        fast = self.house()
        assert self.answer(fast, create(FORGED)) == error(1, BAD_TOKEN)
        assert self.answer(fast, create(b"")) == error(1, BAD_TOKEN)
        assert self.answer(fast, create(KEYLESS)) == error(1, WRONG_KEY)
        assert not len(fast.broker.topics)

    def test_create_requires_a_permission_if_the_listener_demands_it(self) -> None:
        assert self.answer(self.house(), create(grant("publish"))) == b""
        strict = self.house(require_create="on")
        assert self.answer(strict, create(grant("publish"))) == error(1, NO_PERMISSION)
        assert self.answer(strict, create(KEYLESS)) == error(1, WRONG_KEY)
        for permission in ("create", "admin", "*"):
            assert self.answer(strict, create(grant(permission), permission)) == b""

    def test_invalid_names_and_flags(self) -> None:
        fast = self.house()
        for name in (b"", b"\xff", b"a\xc3"):
            assert self.answer(fast, create(OWNER, name)) == error(1, INVALID, topic_id(name))
        for flags in (0x04, 0x05, 0x80, 0xFF):
            assert self.answer(fast, create(OWNER, flags=flags)) == error(1, INVALID)
        assert not len(fast.broker.topics)

    def test_the_first_error_is_reported(self) -> None:
        fast = self.house(require_create="on", allow_publish="x", allow_subscribe="x")
        bad = b"\xff"
        bad_id = topic_id(bad)
        assert self.answer(fast, create(FORGED, bad, 4)) == error(1, BAD_TOKEN, bad_id)
        assert self.answer(fast, create(KEYLESS, bad, 4)) == error(1, WRONG_KEY, bad_id)
        few = grant("publish")
        assert self.answer(fast, create(few, bad, 4)) == error(1, NO_PERMISSION, bad_id)
        assert self.answer(fast, create(OWNER, bad)) == error(1, INVALID, bad_id)
        assert self.answer(fast, create(OWNER, flags=4)) == error(1, INVALID)
        assert self.answer(fast, create(OWNER)) == error(1, NO_PERMISSION)

    def test_a_client_that_may_publish_or_read_the_topic_may_create_it(self) -> None:
        for rules in ({"allow_publish": "x"}, {"allow_subscribe": "x"}):
            assert self.answer(self.house(**rules), create(OWNER)) == b""

    def test_create_closes_an_open_topic(self) -> None:
        fast = self.house(also={"cafe": {"channels": "1:news"}})
        assert self.answer(fast, subscribe(READER)) == error(2, WRONG_KEY)
        assert self.answer(fast, create(OWNER)) == b""
        assert self.answer(fast, subscribe(READER)) == b""

    def test_a_topic_of_another_broker_cannot_be_created(self) -> None:
        fast = self.house()
        topic = fast.broker.topics.create("news", hosted=False)
        topic.upstream = Far()
        assert self.answer(fast, create(OWNER)) == error(1, EXISTS)
        assert topic not in fast.broker.queue_keys

    def test_at_the_limit_of_topics_and_of_memory(self) -> None:
        fast = self.house(top={"max-topics": 1})
        fast.owner()
        more = topic_id("more")
        assert self.answer(fast, create(OWNER, "more")) == error(1, RATE_LIMITED, more)
        assert self.answer(fast, create(OWNER)) == b""
        full = self.house(top={"history": 0, "max-memory": CONNECTION_BYTES})
        client = full.client()
        client.send(create(OWNER))
        assert client.take() == error(1, RATE_LIMITED)

    def test_a_refused_create_does_not_host_an_offered_topic(self) -> None:
        fast = self.house(also={"cafe": {"channels": "1:news"}})
        assert self.answer(fast, create(OWNER, flags=2)) == error(1, EXISTS)
        assert not fast.broker.topics.named("news").hosted


class Far:
    """An ``Upstream`` that hosts a topic."""

    def publish(self, topic: object, batch: object) -> None: ...

    def when_confirmed(self, topic: object, call: object) -> None: ...

    def update(self, topic: object) -> Deferred[None]:
        return succeed(None)

    def want(self, topic: object) -> None: ...

    def unwant(self, topic: object) -> None: ...


class CollisionTests(FastCase):
    """§1.1: two names with one id"""

    def test_the_ids_are_the_same(self) -> None:
        assert topic_id(ONE) == topic_id(TWIN) == TWINS

    def test_the_second_name_is_refused_and_the_first_topic_unchanged(self) -> None:
        fast = self.house()
        owner = fast.client(create(OWNER, ONE) + subscribe(OWNER, TWINS))
        assert owner.take() == b""
        assert self.answer(fast, create(OTHER, TWIN)) == error(1, COLLISION, TWINS)
        assert self.answer(fast, create(OWNER, TWIN)) == error(1, COLLISION, TWINS)
        assert TWIN not in fast.broker.topics
        owner.send(publish(OWNER, b"x", topic=TWINS))
        assert owner.take() == message(b"x", topic=TWINS)

    def test_the_id_refers_to_the_first_topic(self) -> None:
        fast = self.house(also={"nsd": {}})
        fast.broker.topics.create(TWIN)
        assert self.answer(fast, create(OWNER, ONE)) == error(1, COLLISION, TWINS)

    def test_the_id_is_free_after_the_end_of_the_first_topic(self) -> None:
        fast = self.house()
        owner = fast.client(create(OWNER, ONE, flags=2))
        fast.broker.topics.create(TWIN)
        assert self.answer(fast, create(OTHER, TWIN)) == error(1, COLLISION, TWINS)
        owner.stream.lose()
        other = fast.client(create(OTHER, TWIN))
        assert other.take() == b""
        other.send(subscribe(OTHER, TWINS) + publish(OTHER, b"x", topic=TWINS))
        assert other.take() == message(b"x", topic=TWINS)


class SubscribeTests(FastCase):
    """§3.2, §3.4, §3.5"""

    def test_a_subscription_starts_with_the_next_message(self) -> None:
        fast = self.house()
        owner = fast.owner()
        owner.send(publish(OWNER, b"before"))
        readers = [fast.reader(), fast.reader(grant("subscribe", "publish"))]
        owner.send(publish(OWNER, b"1", b"22", b"22", b"") + publish(WRITER, bytes(range(256))))
        for reader in readers:
            assert reader.take() == message(b"1", b"22", b"22", b"", bytes(range(256)))
        assert owner.take() == b""

    def test_own_messages_are_delivered(self) -> None:
        fast = self.house()
        client = fast.client(create(OWNER) + subscribe(OWNER) + publish(OWNER, b"me"))
        assert client.take() == message(b"me")

    def test_subscribing_twice_delivers_once(self) -> None:
        fast = self.house()
        owner = fast.owner()
        reader = fast.reader()
        reader.send(subscribe(READER) + subscribe(OWNER))
        owner.send(publish(OWNER, b"x"))
        assert reader.take() == message(b"x")

    def test_a_client_can_subscribe_to_several_topics(self) -> None:
        fast = self.house()
        more = topic_id("more")
        client = fast.client(create(OWNER) + create(OTHER, "more"))
        client.send(subscribe(OWNER) + subscribe(OTHER, more))
        client.send(publish(OTHER, b"b", topic=more) + publish(OWNER, b"a"))
        a, b = message(b"a"), message(b"b", topic=more)
        assert client.take() in (a + b, b + a)
        client.send(unsubscribe(OTHER, more))
        client.send(publish(OTHER, b"b", topic=more) + publish(OWNER, b"a"))
        assert client.take() == message(b"a")

    def test_unsubscribe_requires_the_key_and_no_permission(self) -> None:
        fast = self.house()
        owner = fast.owner()
        reader = fast.reader()
        reader.send(unsubscribe(OTHER) + unsubscribe(FORGED))
        assert reader.take() == error(5, WRONG_KEY) + error(5, BAD_TOKEN)
        owner.send(publish(OWNER, b"still"))
        assert reader.take() == message(b"still")
        reader.send(unsubscribe(grant("rotate")) * 2)
        owner.send(publish(OWNER, b"gone"))
        assert reader.take() == b""
        assert not fast.broker.topics.named("news").groups

    def test_unsubscribe_without_any_subscription(self) -> None:
        fast = self.house()
        fast.owner()
        assert self.answer(fast, unsubscribe(READER)) == b""

    def test_a_disconnected_client_holds_nothing(self) -> None:
        fast = self.house()
        before = fast.broker.memory.used
        client = fast.client(create(OWNER, flags=2) + subscribe(grant(exp=1_700_000_100)))
        client.stream.lose()
        fast.turn()
        assert not fast.broker.clients
        assert not len(fast.broker.topics)
        assert not fast.clock.getDelayedCalls()
        assert fast.broker.memory.used == before


class PublishTests(FastCase):
    """§3.3"""

    def test_the_sender_is_the_subject_of_the_token(self) -> None:
        fast = self.house()
        fast.owner().send(publish(WRITER, b"x") + publish(grant(sub="zoë"), b"y"))
        page = self.successResultOf(fast.store.read(0, None, 1000))
        assert [(b.sender.decode(), b.protocol) for b in page.batches] == [
            ("eve", "fast"), ("zoë", "fast"),
        ]  # fmt: skip

    def test_each_refused_message_has_its_own_error(self) -> None:
        fast = self.house()
        fast.owner()
        reader = fast.reader()
        assert self.answer(fast, publish(READER, b"1", b"2")) == error(3, NO_PERMISSION) * 2
        assert self.answer(fast, publish(OTHER, b"1")) == error(3, WRONG_KEY)
        assert self.answer(fast, publish(FORGED, b"1", b"22")) == error(3, BAD_TOKEN) * 2
        assert self.answer(fast, publish(OWNER, b"1", topic=1)) == error(3, NO_TOPIC, 1)
        assert reader.take() == b""
        assert fast.refusals() == {
            "missing-permission": 2, "wrong-queue-key": 1, "bad-token": 2, "topic-not-found": 1,
        }  # fmt: skip

    def test_each_message_over_the_rate_has_its_own_error(self) -> None:
        fast = self.house(rate_messages=3)
        owner = fast.owner()
        reader = fast.reader()
        owner.send(publish(OWNER, *[b"%d" % n for n in range(5)]))
        assert owner.take() == error(3, RATE_LIMITED) * 2
        assert reader.take() == message(b"0", b"1", b"2")
        owner.send(publish(OWNER, b"x"))
        assert owner.take() == error(3, RATE_LIMITED)

    def test_the_rules_of_the_listener_apply_to_any_token(self) -> None:
        fast = self.house(allow_publish="other")
        owner = fast.owner()
        owner.send(publish(OWNER, b"x"))
        assert owner.take() == error(3, NO_PERMISSION)
        strict = self.house(allow_subscribe="other")
        strict.owner()
        assert self.answer(strict, subscribe(READER)) == error(2, NO_PERMISSION)

    def test_a_payload_over_the_limit_closes(self) -> None:
        fast = self.house(max_payload=4)
        fast.owner()
        client = fast.client(publish(OWNER, b"1234") + publish(OWNER, b"12345") + create(OTHER))
        assert client.take() == error(3, TOO_LARGE)
        assert client.closed
        assert fast.refusals() == {"too-large": 1}

    def test_keys_of_other_topics_do_not_open_it(self) -> None:
        fast = self.house()
        fast.owner()
        more = topic_id("more")
        assert self.answer(fast, create(OTHER, "more") + publish(OWNER, b"x", topic=more)) == (
            error(3, WRONG_KEY, more)
        )
