"""nsd's identities: they survive connections and, with the store, restarts."""

from __future__ import annotations

from collections import deque

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.memory_budget import MemoryBudget
from pubsub.broker.topic_space.provisional_topics import ProvisionalTopics
from pubsub.errors import LimitReached, MemoryExhausted
from pubsub.interfaces import Value
from pubsub.protocols.nsd.identities import (
    IDENTITY_BYTES,
    PLACE_BYTES,
    SUBSCRIPTION_BYTES,
    SUBSCRIPTIONS,
    TABLE,
    Identities,
)
from pubsub.protocols.nsd.moved_identity import MovedIdentity
from pubsub.store.memory_store import MemoryStore
from tests.unit import nsd_lines as wire
from tests.unit.brokers import publish
from tests.unit.nsd_lines import Nsd
from tests.unit.spot_house import join
from tests.unit.streams import logged

DONE = {"_class": "SuccessResponse"}
MANY = 1000


def refusal(text: str) -> dict[str, str]:
    return {"_class": "ErrorResponse", "error": text}


class IdentitiesTests(SynchronousTestCase):
    """Identities"""

    def setUp(self) -> None:
        self.store = MemoryStore(10, 1000)
        self.memory = MemoryBudget(0)
        self.identities = Identities(self.store, self.memory)

    def test_an_open_identity_is_remembered(self) -> None:
        assert not self.identities.opened("ada")
        self.identities.open("ada")
        self.identities.open("ada")
        assert self.identities.opened("ada")
        assert self.memory.used == IDENTITY_BYTES

    def test_subscribing_does_not_open(self) -> None:
        self.identities.subscribe("ada", "ben", MANY, MANY)
        assert not self.identities.opened("ada")
        found = self.identities.find("ada")
        assert found is not None
        assert (found.name, found.channels) == ("ada", {"ben"})
        assert self.identities.find("ben") is None

    def test_memory_is_charged_once_and_released(self) -> None:
        for _ in range(3):
            self.identities.subscribe("ada", "ben", MANY, MANY)
        assert self.memory.used == IDENTITY_BYTES + SUBSCRIPTION_BYTES
        for _ in range(3):
            self.identities.unsubscribe("ada", "ben")
            self.identities.unsubscribe("nobody", "ben")
        assert self.memory.used == 0

    def test_an_identity_without_anything_ends(self) -> None:
        """It is as one that is unknown; one that is opened, or that a user owns, is not."""
        self.identities.open("open")
        for name, owner in (("blank", ""), ("owned", "ada"), ("open", "")):
            for channel in ("a", "b"):
                self.identities.subscribe(name, channel, MANY, MANY, owner)
            self.identities.unsubscribe(name, "a")
            assert name in self.identities.names()
            self.identities.unsubscribe(name, "b")
        assert self.identities.names() == ["open", "owned"]
        assert [name for name, _ in self.store.items(TABLE)] == ["open", "owned"]
        assert self.memory.used == 2 * IDENTITY_BYTES
        for name in ("blank", "other"):
            self.identities.subscribe(name, "gone", MANY, MANY)
        self.identities.channel_ended("gone", True)
        assert self.identities.names() == ["open", "owned"]
        self.identities.is_shared = True
        self.identities.subscribe("blank", "a", MANY, MANY)
        self.identities.unsubscribe("blank", "a")
        assert "blank" in self.identities.names()

    def test_limits(self) -> None:
        self.identities.subscribe("ada", "a", 1, 2)
        self.identities.subscribe("ada", "b", 1, 2)
        self.identities.subscribe("ada", "a", 1, 2)
        with pytest.raises(LimitReached, match="subscriptions"):
            self.identities.subscribe("ada", "c", 1, 2)
        with pytest.raises(LimitReached, match="identities"):
            self.identities.subscribe("ben", "a", 1, 2)
        with pytest.raises(LimitReached, match="identities"):
            self.identities.check_room("ben", None, 1, 2)
        self.identities.check_room("ada", None, 1, 2)
        self.identities.check_room("ada", "a", 1, 2)
        with pytest.raises(LimitReached, match="subscriptions"):
            self.identities.check_room("ada", "c", 1, 2)
        assert self.identities.find("ben") is None

    def test_channels_are_the_opened_identities(self) -> None:
        self.identities.open("ada")
        self.identities.subscribe("ben", "ada", MANY, MANY)
        self.identities.open("cal")
        assert sorted(self.identities.opened_channels()) == ["ada", "cal"]

    def test_at_the_memory_bound_nothing_is_remembered(self) -> None:
        memory = MemoryBudget(1)
        identities = Identities(self.store, memory)
        memory.add(1)
        for _ in range(2):
            with pytest.raises(MemoryExhausted):
                identities.open("ada")
            with pytest.raises(MemoryExhausted):
                identities.check_room("ada", "ada", MANY, MANY)
        assert identities.find("ada") is None
        assert list(self.store.items(TABLE)) == []
        assert memory.used == 1

    def test_everything_is_restored_from_the_store(self) -> None:
        self.identities.open("zoë")
        for channel in ("zoë", "b", 'c"\n', "gone"):
            self.identities.subscribe("zoë", channel, MANY, MANY)
        self.identities.unsubscribe("zoë", "gone")
        self.identities.subscribe("ben", "b", MANY, MANY)
        memory = MemoryBudget(0)
        again = Identities(self.store, memory)
        assert again.opened("zoë")
        assert not again.opened("ben")
        found = again.find("zoë")
        assert found is not None
        assert found.channels == {"zoë", "b", 'c"\n'}
        assert memory.used == self.memory.used == 2 * IDENTITY_BYTES + 4 * SUBSCRIPTION_BYTES

    def test_a_subscription_writes_itself_and_not_the_others(self) -> None:
        written: list[int] = []
        put = self.store.put

        def count(table: str, key: str, value: Value) -> None:
            assert isinstance(value, bytes)
            written.append(len(key) + len(value))
            put(table, key, value)

        self.store.put = count  # type: ignore[method-assign]
        for number in range(1000):
            self.identities.subscribe("ada", f"{number:04}", MANY, MANY)
        first, second = written[:2], written[2:]
        assert sum(first) < 100
        assert set(second) == {first[1]}
        assert len(second) == 999
        del written[:]
        self.identities.unsubscribe("ada", "0000")
        assert written == []

    def test_records_of_version_0_1_0_are_converted(self) -> None:
        self.store.put(TABLE, "ada", b'{"opened": true, "channels": ["ada", "b\\u0000c"]}')
        for _ in range(2):
            identities = Identities(self.store, MemoryBudget(0))
            found = identities.find("ada")
            assert found is not None
            assert (found.opened, found.channels) == (True, {"ada", "b\0c"})
        identities.unsubscribe("ada", "ada")
        found = Identities(self.store, MemoryBudget(0)).find("ada")
        assert found is not None
        assert found.channels == {"b\0c"}
        assert len(list(self.store.items(SUBSCRIPTIONS))) == 1


class MovedTests(SynchronousTestCase):
    """Identities that brokers share"""

    def setUp(self) -> None:
        self.store = MemoryStore(10, 1000)
        self.memory = MemoryBudget(0)
        self.identities = Identities(self.store, self.memory)

    def adopt(self, *places: int) -> None:
        """Take the identity over from another broker, with a subscription and known places."""
        moved = MovedIdentity(5)
        moved.places = dict.fromkeys(places, 0)
        identity = self.identities.adopt("ada", moved, True, "")
        self.identities.add_channel(identity, "ben")

    def test_one_that_comes_back_while_it_is_forgotten_keeps_its_subscriptions(self) -> None:
        self.adopt()
        forgetting = self.identities.release("ada")
        self.adopt()
        deque(forgetting)
        assert self.identities.has("ada", "ben")
        assert Identities(self.store, MemoryBudget(0)).has("ada", "ben")
        assert self.memory.used == IDENTITY_BYTES + SUBSCRIPTION_BYTES

    def test_places_are_counted_while_they_are_known(self) -> None:
        self.adopt(7, 8)
        known = IDENTITY_BYTES + SUBSCRIPTION_BYTES
        assert self.memory.used == known + 2 * PLACE_BYTES
        self.adopt(9)
        assert self.memory.used == known + PLACE_BYTES
        deque(self.identities.release("ada"))
        assert self.memory.used == IDENTITY_BYTES

    def test_a_broker_that_shares_no_more_has_them_all(self) -> None:
        self.adopt()
        deque(self.identities.release("ada"))
        store = MemoryStore(1000, 2**20)
        for key, value in self.store.items(TABLE):
            store.put(TABLE, key, value)
        nsd = Nsd(store=store)
        assert nsd.ask(wire.open_("ada"), wire.publish("ada", "1")) == [DONE] * 2
        (found,) = nsd.ask(wire.get("ada"))
        assert [message["body"] for message in found["messages"]] == ["1"]


class RestartTests(SynchronousTestCase):
    """A second broker on the same store"""

    def setUp(self) -> None:
        self.store = MemoryStore(1000, 2**20)
        before = Nsd(store=self.store)
        before.ask(
            wire.open_("ada"),
            wire.open_("ben"),
            wire.subscribe("ada", "ben"),
            wire.publish("ben", "before"),
        )
        before.ask(wire.open_("cal"), wire.unsubscribe("cal", "cal"))
        self.nsd = Nsd(store=self.store)

    def test_subscriptions_and_messages_are_restored(self) -> None:
        (response,) = self.nsd.ask(wire.get("ada"))
        assert [message["body"] for message in response["messages"]] == ["before"]

    def test_an_identity_opened_before_can_publish(self) -> None:
        assert self.nsd.ask(wire.publish("ben", "after"), wire.publish("eve", "x")) == [
            DONE,
            refusal("NO SUCH CHANNEL: eve"),
        ]
        (response,) = self.nsd.ask(wire.get("ada", 1))
        assert [(m["when"], m["body"]) for m in response["messages"]] == [(2, "after")]

    def test_channels_opened_before_exist(self) -> None:
        """nsd §1.1: "A channel exists once it was opened here"."""
        assert self.nsd.ask(wire.subscribe("eve", "ben"), wire.unsubscribe("ada", "ben")) == [
            DONE,
            DONE,
        ]
        assert self.nsd.ask(wire.subscribe("eve", "cal")) == [DONE]

    def test_listeners_of_a_broker_share_identities(self) -> None:
        factory = self.nsd.config.listeners[0].protocol.make_factory(self.nsd.listeners["nsd"])
        self.nsd.factories["nsd"] = factory
        (response,) = self.nsd.ask(wire.get("ada"))
        assert len(response["messages"]) == 1


class LowerLimitTests(SynchronousTestCase):
    """A second broker on the same store, which has room for one topic"""

    def setUp(self) -> None:
        self.lines = logged(self)
        self.store = MemoryStore(1000, 2**20)
        before = Nsd(store=self.store)
        before.ask(wire.open_("ada"), wire.open_("ben"), wire.open_("cal"))
        before.ask(*[wire.subscribe(name, "cal") for name in ("ada", "ben")])
        before.ask(wire.publish("cal", "before"))
        self.nsd = Nsd({"max-topics": 1}, {"spot": {}}, store=self.store)
        self.nsd.start()
        self.topics = self.nsd.broker.topics

    def test_the_others_have_no_topic_until_there_is_room(self) -> None:
        assert [topic.name for topic in self.topics if topic.name[0] != "$"] == ["ada"]
        assert [line for line in self.lines if line.startswith("nsd: ")] == [
            "nsd: channels without a topic: 2 (limit-reached: topics); raise max-topics or "
            "max-memory"
        ]
        refused = refusal("LIMIT REACHED: topics")
        assert self.nsd.ask(wire.publish("cal", "refused")) == [refused]
        self.topics.limit = 10
        assert self.nsd.ask(wire.publish("cal", "after")) == [DONE]
        for name in ("ada", "ben", "cal"):
            (response,) = self.nsd.ask(wire.get(name))
            assert [one["body"] for one in response["messages"]] == ["before", "after"]

    def test_they_are_read_as_soon_as_they_have_one(self) -> None:
        self.topics.limit = 10
        assert self.topics.create("cal").history_readers == 3
        self.nsd.ask(wire.unsubscribe("ada", "cal"))
        assert self.topics.named("cal").history_readers == 2

    def test_a_topic_that_another_client_may_not_have_changes_nothing(self) -> None:
        self.nsd.document["access"] = [
            {"listener": "spot", "allow": ["publish"]},
            {"listener": "nsd", "allow": "*"},
        ]
        self.nsd.document["max-topics"] = 10
        self.nsd.reloader().reload()
        join(self.nsd, b"DEALER", publish(b"cal", b"refused"), publish(b"new", b"refused"))
        provisional = ProvisionalTopics(self.topics, self.nsd.broker.router)
        deque(provisional.add(["ben", "other"]))
        deque(provisional.withdraw())
        assert "new" not in self.topics
        assert "other" not in self.topics
        asked = [wire.publish(name, f"to {name}") for name in ("ben", "cal")]
        assert self.nsd.ask(*asked) == [DONE, DONE]
        for name, channels in (("ada", ("cal",)), ("ben", ("ben", "cal"))):
            (response,) = self.nsd.ask(wire.get(name, 1))
            bodies = [one["body"] for one in response["messages"]]
            assert bodies == [f"to {channel}" for channel in channels]

    def test_an_identity_can_leave_a_channel_without_a_topic(self) -> None:
        missing = refusal("NO SUCH CHANNEL: cal")
        assert self.nsd.ask(*[wire.unsubscribe("ada", "cal")] * 2) == [DONE, missing]
        self.topics.limit = 10
        assert self.topics.create("cal").history_readers == 2
        (response,) = self.nsd.ask(wire.get("ada"))
        assert response["messages"] == []

    def test_an_identity_that_ends_before_reads_none(self) -> None:
        identities = self.nsd.factories["nsd"]._identities
        for name in ("ada", "cal"):
            deque(identities.delete(name))
        self.topics.limit = 10
        assert self.topics.create("cal").history_readers == 1


class RefusedTests(SynchronousTestCase):
    """nsd §6.1: "A request refused changes nothing"."""

    def test_an_open_over_the_limit_of_identities_creates_no_channel(self) -> None:
        nsd = Nsd(max_identities=1)
        assert nsd.ask(wire.open_("ada"), wire.open_("ben")) == [
            DONE,
            refusal("LIMIT REACHED: identities"),
        ]
        assert nsd.ask(wire.subscribe("ada", "ben")) == [refusal("NO SUCH CHANNEL: ben")]

    def test_an_open_over_the_limit_of_subscriptions_creates_no_channel(self) -> None:
        nsd = Nsd(max_subscriptions=0)
        assert nsd.ask(wire.open_("ada")) == [refusal("LIMIT REACHED: subscriptions")]
        assert (
            nsd.ask(wire.publish("ada", "x"), wire.subscribe("ben", "ada"))
            == [refusal("NO SUCH CHANNEL: ada")] * 2
        )

    def test_an_open_that_may_only_publish_does_not_subscribe(self) -> None:
        nsd = Nsd(allow_subscribe="ben")
        assert nsd.ask(wire.open_("ada"), wire.publish("ada", "x"), wire.get("ada")) == [
            DONE,
            DONE,
            {"_class": "MessageListResponse", "messages": []},
        ]

    def test_an_open_that_may_only_read_subscribes_and_cannot_publish(self) -> None:
        nsd = Nsd(allow_publish="ben")
        assert nsd.ask(wire.open_("ada"), wire.publish("ada", "x")) == [
            DONE,
            refusal("NOT AUTHORIZED: ada"),
        ]

    def test_an_open_without_any_right_is_refused(self) -> None:
        nsd = Nsd(allow_publish="ben", allow_subscribe="ben")
        assert nsd.ask(wire.open_("ada"), wire.open_("ben")) == [
            refusal("NOT AUTHORIZED: ada"),
            DONE,
        ]
        assert "ada" not in nsd.broker.topics
