"""``SharedTopics``: two brokers that agree upon their topics through a bucket in memory."""

from __future__ import annotations

import re
from base64 import b64encode
from functools import partial
from typing import Any
from unittest.mock import patch

from twisted.internet.defer import Deferred, succeed

from pubsub.backplane.memory_engine.memory_state import MemoryBucket
from pubsub.backplane.state.shared_state import StateEntry
from pubsub.backplane.topics.topic_entry import TopicEntry, encode, key_of
from pubsub.broker.routing import sliced_routing
from pubsub.broker.topic_space.durability import Durability
from pubsub.broker.topic_space.topic_sharing import Requirements
from pubsub.errors import BackplaneAway
from tests.contract.drivers.spot import Spot
from tests.unit import fast_wire as wire
from tests.unit.fast_wire import (
    CREATE,
    DURABLE,
    EXCLUSIVE,
    EXISTS,
    NEW_OWNER,
    NEW_READER,
    NO_TOPIC,
    OTHER,
    OVER,
    OWNER,
    RATE_LIMITED,
    READER,
    ROTATE_KEY,
    WRITER,
    WRONG_KEY,
)
from tests.unit.shared_case import Broker, LastingStore, SharedCase
from tests.unit.streams import logged


def holds(value: bytes, key: bytes) -> bool:
    """Return whether a whole word of ``value`` is ``key``, plain or in Base64."""
    return not {key, b64encode(key)}.isdisjoint(re.split(rb"[^\w+/=]", value))


class TopicTests(SharedCase):
    """Topics that exist, and that end"""

    def test_a_topic_made_by_use_exists_everywhere(self) -> None:
        here, there = self.two()
        here.use("a/b")
        self.settle()
        assert there.names() == ["a/b"]
        assert there.broker.topics.named("a/b").hosted
        assert there.figure("topics") == here.figure("topics") == 1
        # A broker that comes later, and one without anything.
        assert self.start().names() == ["a/b"]
        # Reserved topics belong to each broker.
        assert [key for key in self.bucket.entries if "SYS" in key] == []

    def test_an_error_does_not_keep_the_topics_behind_it(self) -> None:
        here, there = self.two()
        create = there.broker.topics.create

        def fail(name: str, **given: Any) -> Any:
            if name == "t/1":
                raise RuntimeError("a defect")
            return create(name, **given)

        with patch.object(there.broker.topics, "create", fail):
            for number in range(4):
                here.use(f"t/{number}")
            self.settle()
        assert there.names() == ["t/0", "t/2", "t/3"]
        assert there.figure("topics_waiting") == 0
        assert len(self.flushLoggedErrors(RuntimeError)) == 1  # type: ignore[no-untyped-call]

    def test_topics_from_before_are_shared(self) -> None:
        here = self.start()
        here.state.leave()
        for number in range(300):
            here.use(f"t/{number}")
        store = self.stop(here)
        self.bucket.apart.clear()
        assert list(self.bucket.entries) == ["format"]
        there = self.start()
        there.use("t/7")
        self.settle()
        here = self.start(store)
        self.settle(20)
        assert here.names() == there.names()
        assert len(there.names()) == 300
        assert here.figure("topics_waiting") == 0

    def test_an_engine_that_takes_a_while(self) -> None:
        here, there = self.two()
        late = self.late_answers(here)
        for number in range(150):
            here.use(f"t/{number}")
        self.settle()
        # A few at a time, in turn.
        while here.figure("topics_waiting"):
            assert 0 < len(late) < 100
            self.answer(late)
        assert here.names() == there.names()

    def test_what_was_made_while_apart(self) -> None:
        here, there = self.two()
        here.state.leave()
        here.use("a")
        there.use("a")
        there.use("b")
        self.settle()
        assert here.names() == ["a"]
        here.state.come_back()
        self.settle()
        assert here.names() == there.names() == ["a", "b"]
        assert here.store.next_offset == 1

    def test_a_state_that_takes_nothing_for_a_while(self) -> None:
        here, there = self.two()
        lines = logged(self)
        self.bucket.refuses = True
        for number in range(100):
            here.use(f"t/{number}")
        self.settle(3)
        assert there.names() == []
        assert here.figure("topics_waiting") > 0
        self.bucket.refuses = False
        here.clock.advance(1)
        self.settle()
        assert len(here.names()) == 100
        assert there.names() == here.names()
        assert here.figure("topics_waiting") == 0
        assert [line for line in lines if "topics are" in line] == [
            "backplane: topics are not shared: the engine refuses it: no room",
            "backplane: topics are shared again",
        ]

    def test_the_durability_is_shared(self) -> None:
        here, there = self.two()
        here.owner(DURABLE)
        self.settle()
        assert there.broker.topics.named("news").durability is Durability.SYNC
        store = self.stop(there)
        again = self.start(store)
        assert again.broker.topics.named("news").durability is Durability.SYNC

    def test_a_deleted_topic_ends_everywhere(self) -> None:
        here, there = self.two()
        here.owner()
        self.settle()
        reader = there.reader()
        deleted = here.shared.delete("news", lambda: self.delete(here, "news"))
        self.settle()
        assert self.successResultOf(deleted) is None
        assert here.names() == there.names() == []
        assert reader.take() == OVER
        assert self.entry("news").end == "deleted"
        assert self.bucket.seconds[key_of("news")] == 30 * 24 * 3600
        # Another topic of this name has none of its messages.
        assert there.client(wire.create(OTHER)).take() == b""
        self.settle()
        assert here.client(wire.subscribe(OTHER)).take() == b""

    def test_two_deletions_at_once(self) -> None:
        here, there = self.two()
        here.use("news")
        self.settle()
        topic, broker = here.broker.topics.named("news"), here.broker

        def delete() -> Deferred[None]:
            return broker.slices.finish(broker.topic_lifecycle.delete(topic))

        both = [here.shared.delete("news", delete) for _ in range(2)]
        self.settle()
        assert list(map(self.successResultOf, both)) == [None, None]
        assert here.names() == there.names() == []
        # The next topic of the name is for everybody.
        spot = Spot(here)
        reader = spot.subscriber("news")
        here.use("news")
        self.settle()
        assert b"x" in reader.take()

    def delete(self, broker: Broker, name: str) -> Deferred[None]:
        topic = broker.broker.topics.named(name)
        return broker.broker.slices.finish(broker.broker.topic_lifecycle.delete(topic))

    def test_a_broker_that_was_away_deletes_too(self) -> None:
        here, there = self.two()
        there.use("a")
        there.use("b")
        self.settle()
        store = self.stop(there)
        for name in ("a", "b"):
            here.shared.delete(name, partial(self.delete, here, name))
        self.settle()
        here.use("b")
        self.settle()
        there = self.start(store)
        assert there.names() == ["b"]
        # The messages of the deleted topic are gone, too.
        assert self.messages(there) == []
        # The same without a restart.
        there.state.leave()
        here.shared.delete("b", lambda: self.delete(here, "b"))
        self.settle()
        assert there.names() == ["b"]
        there.state.come_back()
        self.settle()
        assert there.names() == []

    def messages(self, broker: Broker) -> list[Any]:
        read = broker.store.read(0, None, 1000)
        return list(self.successResultOf(read).batches)

    def test_an_older_topic_of_the_name_is_not_confused_with_a_new_one(self) -> None:
        here, there = self.two()
        here.use("a")
        self.settle()
        here.shared.delete("a", lambda: self.delete(here, "a"))
        self.settle()
        store = LastingStore(10, 1000)
        third = self.start(store)
        third.state.leave()
        # It has never been shared, so it is another one than that which was deleted.
        third.use("a")
        third.state.come_back()
        self.settle()
        assert here.names() == there.names() == ["a"]

    def test_unused_topics_expire_everywhere(self) -> None:
        here, there = self.start(topic_expiry=3600), self.start(topic_expiry=3600)
        here.use("a")
        self.settle()
        topic = there.broker.topics.named("a")
        # Nobody has used it there lately, as the last pass has found.
        topic.idle_since = 1.0
        here.broker.topic_lifecycle.end(here.broker.topics.named("a"))
        self.settle()
        assert self.entry("a").end == "unused"
        assert here.names() == there.names() == []

    def test_a_topic_that_is_used_elsewhere_stays(self) -> None:
        here, there = self.start(topic_expiry=3600), self.start(topic_expiry=3600)
        here.use("a")
        self.settle()
        here.broker.topic_lifecycle.end(here.broker.topics.named("a"))
        self.settle()
        assert not self.entry("a").end
        assert here.names() == there.names() == ["a"]

    def test_an_end_that_the_engine_takes_later(self) -> None:
        here, there = self.start(topic_expiry=3600), self.start(topic_expiry=3600)
        for name in ("a", "b"):
            here.use(name)
        self.settle()
        self.bucket.refuses = True
        for name in ("a", "b"):
            here.broker.topic_lifecycle.end(here.broker.topics.named(name))
        self.settle()
        assert here.names() == []
        here.use("b")
        self.bucket.refuses = False
        here.clock.advance(1)
        self.settle()
        # There they are in use.
        assert here.names() == there.names() == ["a", "b"]

    def test_a_topic_with_a_new_subscriber_stays(self) -> None:
        here, there = self.start(topic_expiry=3600), self.start(topic_expiry=3600)
        here.use("a")
        self.settle()
        # Nobody had used it there at the last pass; somebody has come since.
        there.broker.topics.named("a").idle_since = 1.0
        reader = Spot(there).subscriber("a")
        here.broker.topic_lifecycle.end(here.broker.topics.named("a"))
        self.settle()
        assert here.names() == there.names() == ["a"]
        there.use("a")
        assert b"x" in reader.take()

    def test_an_end_that_is_forgotten_before_a_broker_is_back(self) -> None:
        here, there = self.two()
        here.use("a")
        owner = there.client(wire.create(OWNER, flags=EXCLUSIVE))
        self.settle()
        here.state.leave()
        there.broker.topic_lifecycle.end(there.broker.topics.named("a"))
        owner.stream.lose()
        self.settle()
        for name in ("a", "news"):
            assert self.entry(name).end
            self.bucket.remove(key_of(name))
        here.state.come_back()
        self.settle()
        # It was used here, so it exists everywhere again; and the other one is free.
        assert here.names() == there.names() == ["a"]
        here.use("news")
        self.settle()
        assert here.names() == there.names() == ["a", "news"]

    def test_the_engine_goes_away_before_everything_is_applied(self) -> None:
        here = self.start()
        used = here.broker.memory.used
        here.state.leave()
        value = encode(TopicEntry("1"))
        entries = [StateEntry(key_of(f"t/{number}"), value, 100 + number) for number in range(300)]
        here.shared.state_changed(entries)
        here.shared.state_complete()
        assert here.broker.memory.used > used
        here.shared.state_away()
        self.settle()
        assert not here.shared.is_complete
        assert here.figure("topics_waiting") == 0
        assert here.broker.memory.used == used
        here.state.come_back()
        self.settle()
        assert here.shared.is_complete
        assert here.names() == []

    def test_requirements_that_change(self) -> None:
        here, there = self.two()
        here.owner(DURABLE)
        self.settle()
        reader = there.reader()
        assert here.client(wire.create(OWNER)).take() == b""
        self.settle()
        assert there.broker.topics.named("news").durability is not Durability.SYNC
        # The key is the same, so subscribers are not told anything.
        assert reader.take() == b""
        here.client(wire.publish(WRITER, b"x"))
        assert there.client(wire.publish(WRITER, b"y")).take() == b""
        assert reader.take() == wire.message(b"y")

    def test_a_topic_of_the_configuration(self) -> None:
        here, there = self.two()
        # It stays here when it is deleted, and belongs to nobody.
        configured = here.broker.topics.create("a")
        configured.configured = True
        self.settle()
        there.shared.delete("a", lambda: self.delete(there, "a"))
        self.settle()
        assert not configured.hosted
        there.use("a")
        self.settle()
        assert configured.hosted

    def test_a_topic_that_another_broker_owns_meanwhile(self) -> None:
        here, there = self.two()
        here.state.leave()
        here.use("news")
        assert there.client(wire.create(OWNER, flags=EXCLUSIVE)).take() == b""
        here.state.come_back()
        self.settle()
        here.broker.topic_lifecycle.end(here.broker.topics.named("news"))
        self.settle()
        assert self.entry("news").owner == there.leases.id
        assert there.names() == ["news"]

    def test_a_restart_changes_nothing(self) -> None:
        here, there = self.two()
        here.owner()
        self.settle()
        changes = there.figure("state_changes")
        lines = logged(self)
        store = self.stop(here)
        here = self.start(store)
        assert here.figure("state_changes") == 0
        assert there.figure("state_changes") == changes
        assert not [line for line in lines if "another queue key" in line]
        assert here.client(wire.subscribe(READER)).take() == b""

    def test_the_limit_of_topics(self) -> None:
        lines = logged(self)
        here, there = self.start(), self.start(max_topics=1)
        here.use("a")
        here.use("b")
        self.settle()
        assert len(there.names()) == 1
        there.broker.topics.limit = 2
        there.state.leave()
        there.state.come_back()
        self.settle()
        assert len(there.names()) == 2
        assert there.figure("topics_not_made") == 1
        assert [line for line in lines if "'b' of other brokers is not created here" in line]

    def test_values_of_others_are_not_believed(self) -> None:
        here = self.start()
        for number, value in enumerate(
            (b"", b"x", b"[]", b'{"v":2,"id":"1"}', b'{"v":1}', b'{"v":1,"id":5}',
             b'{"v":1,"id":"1","key":"*"}', b'{"v":1,"id":"1","end":"?"}', b"[" * 5000)
        ):  # fmt: skip
            self.bucket.write(key_of(f"t{number}"), value)
        for key in ("t.a.", "t", "x.a", "t.=zz", key_of("$SYS/x"), "t.=61"):
            self.bucket.write(key, encode(TopicEntry("1")))
        self.settle()
        assert here.names() == []
        assert here.broker.topics.get("$SYS/x") is None
        assert here.figure("topics_malformed") == 9
        assert here.broker.memory.held.get("x") is None

    def test_memory_is_given_back(self) -> None:
        here, there = self.two()
        used = there.broker.memory.used
        for number in range(20):
            here.use(f"t/{number}")
        self.settle()
        assert there.broker.memory.used > used
        for number in range(20):
            name = f"t/{number}"
            here.shared.delete(name, partial(self.delete, here, name))
        self.settle()
        assert there.broker.memory.used == used


class KeyTests(SharedCase):
    """Queue keys and their rotation"""

    def test_a_key_holds_everywhere(self) -> None:
        here, there = self.two()
        here.owner()
        self.settle()
        assert there.client(wire.subscribe(OTHER)).take() == wire.error(2, WRONG_KEY)
        reader = there.reader()
        there.client(wire.publish(WRITER, b"x"))
        assert reader.take() == wire.message(b"x")
        # The key itself is nowhere.
        for one in self.bucket.entries.values():
            assert not holds(one.value, b"k1")
        # Creating it again with the same key succeeds.
        assert there.client(wire.create(OWNER)).take() == b""
        assert there.client(wire.create(OTHER)).take() == wire.error(CREATE, EXISTS)

    def test_an_open_topic_gets_a_key_everywhere(self) -> None:
        here, there = self.two()
        here.use("news")
        self.settle()
        assert there.client(wire.create(OWNER)).take() == b""
        self.settle()
        for broker in (here, there, self.start()):
            assert broker.client(wire.subscribe(OTHER)).take() == wire.error(2, WRONG_KEY)
            assert broker.client(wire.subscribe(READER)).take() == b""

    def test_requirements_without_a_key_leave_it(self) -> None:
        here, _ = self.two()
        here.owner()
        self.settle()
        key = self.entry("news").key
        required = Requirements(b"", True)
        made = here.shared.create("news", required, lambda: succeed("made"))
        assert self.successResultOf(made) == "made"
        entry = self.entry("news")
        assert (entry.key, entry.sync) == (key, True)

    def test_a_topic_that_its_broker_refuses_is_at_no_other(self) -> None:
        here, there = self.start(max_topics=1), self.start()
        assert here.client(wire.create(OWNER, "a")).take() == b""
        answer = here.client(wire.create(OWNER, "b")).take()
        assert answer == wire.error(CREATE, RATE_LIMITED, 0xE70C2DE5)
        self.settle()
        assert there.names() == ["a"]

    def test_a_rotation_is_followed_everywhere(self) -> None:
        here, there = self.two()
        here.owner()
        self.settle()
        near, far = here.reader(), there.reader()
        assert there.client(wire.rotate(OWNER, b"k2")).take() == b""
        self.settle()
        assert near.take() == far.take() == wire.key_update(b"k2")
        for broker in (here, there):
            assert broker.client(wire.publish(WRITER, b"x")).take() == wire.error(3, WRONG_KEY)
            assert broker.client(wire.publish(NEW_OWNER, b"y")).take() == b""
        assert near.take() == far.take() == wire.message(b"y")
        proofs = [one.broker.queue_keys.proof("news") for one in (here, there)]
        assert proofs[0] == proofs[1]
        assert not holds(self.bucket.entries[key_of("news")].value, b"k2")

    def test_a_rotation_with_many_subscribers(self) -> None:
        here, there = self.two()
        here.owner()
        self.settle()
        near, far = here.reader(), there.reader()
        self.patch(sliced_routing, "_FEW", 0)  # type: ignore[no-untyped-call]
        client = there.client(wire.rotate(OWNER, b"k2") + wire.publish(NEW_OWNER, b"x"))
        self.settle()
        assert client.take() == b""
        assert near.take() == wire.key_update(b"k2")
        assert far.take() == wire.key_update(b"k2") + wire.message(b"x")

    def test_a_rotation_of_a_key_that_is_not_known(self) -> None:
        here, there = self.two()
        here.owner()
        self.settle()
        reader = here.reader()
        # There the key is known by its hash only, so it cannot seal the new one.
        topic = there.broker.topics.named("news")
        keys = there.broker.queue_keys
        done = there.shared.rotate(topic, b"k2", lambda: keys.rotate(topic, b"k2", "", "admin"))
        self.settle()
        self.successResultOf(done)
        assert reader.take() == OVER
        assert here.client(wire.subscribe(NEW_READER)).take() == b""
        assert here.client(wire.subscribe(READER)).take() == wire.error(2, WRONG_KEY)

    def test_rotations_that_were_missed(self) -> None:
        here, there = self.two()
        here.owner()
        self.settle()
        reader, granted = there.reader(), Spot(there).subscriber("news")
        there.state.leave()
        for old, new in (("k1", b"k2"), ("k2", b"k3")):
            assert here.client(wire.rotate(wire.grant(key=old), new)).take() == b""
        self.settle()
        assert reader.take() == b""
        there.state.come_back()
        self.settle()
        assert reader.take() == OVER
        here_now = there.client(wire.publish(wire.grant(key="k3"), b"x"))
        assert here_now.take() == b""
        assert granted.take()

    def test_one_of_two_rotations_at_once(self) -> None:
        here, there = self.two()
        here.owner()
        self.settle()
        assert there.client(wire.subscribe(READER)).take() == b""
        for one in (here, there):
            one.threads.waits = True
        first, second = (
            here.client(wire.rotate(OWNER, b"k2")),
            there.client(wire.rotate(OWNER, b"k3")),
        )
        for _ in range(4):
            for one in (here, there):
                one.threads.run()
        self.settle()
        for one in (here, there):
            one.threads.waits = False
            one.threads.run()
        self.settle()
        assert sorted([first.take(), second.take()]) == [b"", wire.error(ROTATE_KEY, WRONG_KEY)]
        found = [one.broker.queue_keys.proof("news") for one in (here, there)]
        assert found[0] == found[1]

    def test_two_rotations_at_one_broker(self) -> None:
        here = self.start()
        here.owner()
        here.threads.waits = True
        first, second = (
            here.client(wire.rotate(OWNER, b"k2")),
            here.client(wire.rotate(OWNER, b"k3")),
        )
        for _ in range(6):
            here.threads.run()
            self.settle()
        assert first.take() == b""
        assert second.take() == wire.error(ROTATE_KEY, WRONG_KEY)
        assert here.client(wire.publish(NEW_OWNER, b"x")).take() == b""

    def test_a_key_that_could_not_be_shared_is_shared_later(self) -> None:
        here = self.start()
        here.owner()
        store = self.stop(here)
        self.bucket = MemoryBucket()
        there = self.start()
        there.use("news")
        self.settle()
        self.bucket.refuses = True
        here = self.start(store)
        self.settle()
        here.state.leave()
        self.bucket.refuses = False
        assert not self.entry("news").key
        here.state.come_back()
        here.clock.advance(1)
        self.settle()
        assert there.client(wire.subscribe(OTHER)).take() == wire.error(2, WRONG_KEY)
        assert there.client(wire.subscribe(READER)).take() == b""

    def test_a_rotation_that_is_reported_before_the_answer_to_the_creation(self) -> None:
        here, there = self.two()
        late = self.late_answers(here)
        creator = here.client(wire.create(OWNER))
        self.settle()
        assert there.client(wire.rotate(OWNER, b"k2")).take() == b""
        self.settle()
        self.answer(late)
        assert creator.take() == b""
        for broker in (here, there):
            assert broker.client(wire.subscribe(READER)).take() == wire.error(2, WRONG_KEY)
            assert broker.client(wire.subscribe(NEW_READER)).take() == b""
        rotated = here.client(wire.rotate(NEW_OWNER, b"k3"))
        self.answer(late)
        assert rotated.take() == b""

    def test_a_rotation_that_is_reported_before_the_refusal_of_a_topic(self) -> None:
        here, there = self.two()
        self.bucket.states.remove(here.state)
        there.owner()
        late = self.late_answers(here)
        # Here it is a topic by use: the shared state has another one.
        here.use("news")
        self.bucket.states.append(here.state)
        assert there.client(wire.rotate(OWNER, b"k2")).take() == b""
        self.settle()
        self.answer(late)
        for broker in (here, there):
            assert broker.client(wire.subscribe(READER)).take() == wire.error(2, WRONG_KEY)
            assert broker.client(wire.subscribe(NEW_READER)).take() == b""

    def test_one_of_two_creators_at_once(self) -> None:
        here, there = self.two()
        for one in (here, there):
            one.threads.waits = True
        first, second = here.client(wire.create(OWNER)), there.client(wire.create(OTHER))
        for _ in range(4):
            for one in (here, there):
                one.threads.run()
        self.settle()
        assert sorted([first.take(), second.take()]) == [b"", wire.error(CREATE, EXISTS)]

    def test_what_follows_waits_for_the_agreement(self) -> None:
        here, _there = self.two()
        here.threads.waits = True
        client = here.client(
            wire.create(OWNER) + wire.subscribe(READER) + wire.publish(WRITER, b"x")
        )
        assert client.take() == b""
        assert here.names() == []
        here.threads.run()
        self.settle()
        assert client.take() == wire.message(b"x")

    def test_a_client_that_leaves_meanwhile(self) -> None:
        here, there = self.two()
        here.threads.waits = True
        client, plain = (
            here.client(wire.create(OWNER, flags=EXCLUSIVE)),
            here.client(wire.create(OWNER, "b")),
        )
        client.stream.lose()
        plain.stream.lose()
        for _ in range(4):
            here.threads.run()
            self.settle()
        assert here.names() == there.names() == ["b"]
        assert self.entry("news").end == "closed"

    def test_a_key_from_before_closes_the_topic_everywhere(self) -> None:
        here = self.start()
        here.owner()
        store = self.stop(here)
        self.bucket = MemoryBucket()
        there = self.start()
        there.use("news")
        self.settle()
        here = self.start(store)
        self.settle()
        assert there.client(wire.subscribe(OTHER)).take() == wire.error(2, WRONG_KEY)
        assert there.client(wire.subscribe(READER)).take() == b""

    def test_other_keys_from_before(self) -> None:
        lines = logged(self)
        here = self.start()
        here.owner()
        store = self.stop(here)
        self.bucket = MemoryBucket()
        there = self.start()
        assert there.client(wire.create(OTHER)).take() == b""
        self.settle()
        here = self.start(store)
        assert here.client(wire.subscribe(READER)).take() == wire.error(2, WRONG_KEY)
        assert here.client(wire.subscribe(OTHER)).take() == b""
        assert [line for line in lines if "topic 'news' has another queue key now" in line]
        assert not [line for line in lines if "k1" in line or "k2" in line]


class AwayTests(SharedCase):
    """The engine is away"""

    def test_what_must_be_unique_fails(self) -> None:
        here, there = self.two()
        here.owner()
        self.settle()
        here.state.leave()
        assert (
            here.client(wire.create(OWNER, "b")).take()
            == wire.error(CREATE, RATE_LIMITED, 0xE70C2DE5)
            or "b" not in here.names()
        )
        assert here.client(wire.rotate(OWNER, b"k2")).take() == wire.error(ROTATE_KEY, RATE_LIMITED)
        failed = here.shared.delete("news", lambda: succeed(None))
        self.failureResultOf(failed, BackplaneAway)  # type: ignore[no-untyped-call]
        # Existing topics are served, and are created again without a change.
        assert here.client(wire.create(OWNER)).take() == b""
        reader = here.reader()
        assert here.client(wire.publish(WRITER, b"x")).take() == b""
        assert reader.take() == wire.message(b"x")
        here.state.come_back()
        self.settle()
        assert here.client(wire.create(OWNER, "b")).take() == b""
        self.settle()
        assert there.names() == ["b", "news"]

    def test_an_engine_that_does_not_answer(self) -> None:
        here = self.start()
        here.state.put = lambda *change: Deferred()  # type: ignore[method-assign]
        client = here.client(wire.create(OWNER))
        assert client.take() == b""
        here.advance(6)
        assert client.take() == wire.error(CREATE, RATE_LIMITED)
        # The connection continues, and so do others that wait for the same topic.
        del here.state.put
        client.send(wire.create(OWNER))
        assert client.take() == b""
        assert here.names() == ["news"]

    def test_requests_for_a_name_that_is_also_used(self) -> None:
        here = self.start()
        here.state.put = lambda *change: Deferred()  # type: ignore[method-assign]
        clients = [here.client(wire.create(OWNER)) for _ in range(2)]
        here.use("news")
        here.advance(6)
        del here.state.put
        here.advance(6)
        self.settle()
        assert [client.take() for client in clients] == [wire.error(CREATE, RATE_LIMITED)] * 2
        here.advance(2)
        self.settle()
        assert not self.entry("news").end
        assert self.start().names() == ["news"]


class ExclusiveTests(SharedCase):
    """Exclusive topics: one owner among all brokers"""

    def test_one_owner(self) -> None:
        here, there = self.two()
        owner = here.client(wire.create(OWNER, flags=EXCLUSIVE))
        self.settle()
        assert there.names() == []
        for flags in (0, EXCLUSIVE):
            assert there.client(wire.create(OWNER, flags=flags)).take() == wire.error(
                CREATE, EXISTS
            )
        assert there.client(wire.subscribe(OWNER)).take() == wire.error(2, NO_TOPIC)
        there.use("news")
        self.settle()
        assert not there.broker.topics.get("news")
        owner.stream.lose()
        self.settle()
        assert here.names() == []
        assert there.client(wire.create(OTHER, flags=EXCLUSIVE)).take() == b""
        self.settle()
        assert here.client(wire.create(OWNER)).take() == wire.error(CREATE, EXISTS)

    def test_an_owner_that_makes_it_a_common_topic(self) -> None:
        here, there = self.two()
        owner = here.client(wire.create(OWNER, flags=EXCLUSIVE))
        self.settle()
        owner.send(wire.create(OWNER))
        self.settle()
        assert owner.take() == b""
        assert there.names() == ["news"]
        owner.stream.lose()
        self.settle()
        assert here.names() == ["news"]

    def test_a_common_topic_that_was_exclusive_ends_at_brokers_that_are_away(self) -> None:
        here, there, third = self.start(), self.start(), self.start()
        owner = here.client(wire.create(OWNER, flags=EXCLUSIVE))
        self.settle()
        owner.send(wire.create(OWNER))
        self.settle()
        stores = [self.stop(here), self.stop(there)]
        topic = third.broker.topics.named("news")
        third.shared.delete(
            "news", lambda: third.broker.slices.finish(third.broker.topic_lifecycle.delete(topic))
        )
        self.settle()
        assert third.names() == []
        for store in stores:
            assert self.start(store).names() == []
        assert third.names() == []

    def test_a_broker_that_stops(self) -> None:
        here, there = self.two()
        here.client(wire.create(OWNER, flags=EXCLUSIVE))
        self.settle()
        self.stop(here)
        self.settle()
        assert there.client(wire.create(OTHER)).take() == b""

    def test_a_broker_that_crashes(self) -> None:
        here, there = self.two()
        here.client(wire.create(OWNER, flags=EXCLUSIVE))
        self.settle()
        here.state.leave()
        store = self.stop(here)
        assert there.client(wire.create(OTHER)).take() == wire.error(CREATE, EXISTS)
        self.bucket.apart.clear()
        self.start(store)
        self.settle()
        assert there.client(wire.create(OTHER)).take() == b""

    def test_an_owner_that_leaves_while_the_engine_is_away(self) -> None:
        here, there = self.two()
        owner = here.client(wire.create(OWNER, flags=EXCLUSIVE))
        self.settle()
        here.state.leave()
        owner.stream.lose()
        self.settle()
        assert there.client(wire.create(OTHER)).take() == wire.error(CREATE, EXISTS)
        here.state.come_back()
        self.settle()
        assert there.client(wire.create(OTHER)).take() == b""

    def test_another_broker_deletes_it(self) -> None:
        here, there = self.two()
        owner = here.client(wire.create(OWNER, flags=EXCLUSIVE) + wire.subscribe(OWNER))
        self.settle()
        done = there.shared.delete("news", lambda: succeed(None))
        self.settle()
        self.successResultOf(done)
        assert owner.take() == OVER
        assert here.names() == []
