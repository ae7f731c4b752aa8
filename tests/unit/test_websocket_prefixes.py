"""WebSocket clients that subscribe to all topics whose names have a prefix."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.access_rules.access_table import AccessTable
from pubsub.errors import MemoryExhausted
from tests.unit.access_rules import rule
from tests.unit.fakes import recheck_all
from tests.unit.web import WebHouse
from tests.unit.web_sockets import SocketClient, connected


class PrefixCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.house = WebHouse()
        self.house.publish("game:1", b"before")
        self.client = connected(self.house)

    def received(self, client: SocketClient | None = None) -> list[tuple[str, str]]:
        """Return topic and value of the messages that have arrived."""
        rows = [one["message"] for one in (client or self.client).pull() if "message" in one]
        return [(row["topic"], row["value"]) for row in rows]


class SubscribeTests(PrefixCase):
    def test_topics_that_exist_and_new_ones_from_their_first_message(self) -> None:
        answer = self.client.ask("subscribe", prefix="game:")
        assert answer == {"prefix": "game:", "start": 1, "epoch": self.house.store.epoch}
        for topic, value in (("game:1", "1"), ("game:2", "2"), ("gam", "3"), ("game:", "4")):
            self.house.publish(topic, value.encode())
        assert self.received() == [("game:1", "1"), ("game:2", "2"), ("game:", "4")]

    def test_the_empty_prefix_has_all_topics_but_those_of_the_broker(self) -> None:
        self.client.ask("subscribe", prefix="")
        self.house.publish("a", b"1")
        self.house.pass_time(20)
        assert {topic for topic, _ in self.received()} == {"a"}

    def test_a_message_comes_once_with_several_prefixes_and_a_name(self) -> None:
        self.client.ask("subscribe", topic="game:1")
        for prefix in ("game:", "game", "game:1"):
            self.client.ask("subscribe", prefix=prefix)
        self.house.publish("game:1", b"1")
        self.house.publish("game:2", b"2")
        assert self.received() == [("game:1", "1"), ("game:2", "2")]

    def test_unsubscribe(self) -> None:
        self.client.ask("subscribe", topic="game:1")
        for prefix in ("game:", "game:2"):
            self.client.ask("subscribe", prefix=prefix)
        assert self.client.ask("unsubscribe", prefix="game:") == {"prefix": "game:"}
        for topic in ("game:1", "game:2", "game:22", "game:3", "game:4"):
            self.house.publish(topic, topic.encode())
        assert [topic for topic, _ in self.received()] == ["game:1", "game:2", "game:22"]
        assert self.client.refused("unsubscribe", prefix="game:") == "not-subscribed"

    def test_a_topic_goes_on_by_its_prefix(self) -> None:
        self.client.ask("subscribe", topic="game:1")
        self.client.ask("subscribe", prefix="game:")
        self.client.ask("unsubscribe", topic="game:1")
        self.house.publish("game:1", b"1")
        assert self.received() == [("game:1", "1")]
        assert self.client.refused("subscribe", topic="game:1") == "already-subscribed"

    def test_refused(self) -> None:
        self.client.ask("subscribe", prefix="game:")
        assert self.client.refused("subscribe", prefix="game:") == "already-subscribed"
        given: dict[str, Any]
        for given in ({"start": 0}, {"timestamp": 0}, {"position": "a:0"}, {"reader": "a"},
                      {"topic": "b"}):  # fmt: skip
            number = self.client.send("subscribe", prefix="a", **given)
            (answer,) = self.client.pull()
            assert answer["id"] == number
            assert answer["error"]["code"] == "invalid-request", answer
            assert "a prefix begins with new messages" in answer["error"]["message"]
        for prefix in (5, None, "x" * 256, "\ud800"):
            assert self.client.refused("subscribe", prefix=prefix) == "invalid-request", prefix
            assert self.client.refused("unsubscribe", prefix=prefix) == "invalid-request"

    def test_batches(self) -> None:
        self.client.ask("subscribe", prefix="game:", binary=True, batches=True)
        self.house.publish("game:9", *[b"%d" % number for number in range(50)])
        self.client.pull()
        assert b"".join(b"%d" % number for number in range(50)) in b"".join(self.client.binary)


class LimitTests(PrefixCase):
    def test_names_and_prefixes_together(self) -> None:
        house = WebHouse(max_subscriptions=2)
        client = connected(house)
        client.ask("subscribe", topic="a")
        client.ask("subscribe", prefix="b")
        assert client.refused("subscribe", prefix="c") == "limit-reached"
        assert client.refused("subscribe", topic="c") == "limit-reached"

    def test_memory_and_the_interest_of_the_broker_are_released(self) -> None:
        memory = self.house.broker.memory
        self.client.ask("ping")
        used = memory.used
        for number in range(10):
            self.client.ask("subscribe", prefix=f"game:{number}")
        assert memory.used >= used + 10 * 512
        for number in range(10):
            self.client.ask("unsubscribe", prefix=f"game:{number}")
        self.house.pass_time(1)
        assert memory.used == used
        self.client.ask("subscribe", prefix="game:")
        self.client.stream.lose()
        self.house.pass_time(1)
        assert memory.used < used
        # A topic that is created later finds nobody.
        self.house.publish("game:new", b"1")

    def test_too_little_memory_for_the_topics(self) -> None:
        """Not some of them: the client would not know those that are missing."""
        for number in range(50):
            self.house.publish(f"game:{number}", b"")
        memory = self.house.broker.memory
        router = self.house.broker.router
        number = self.client.send("subscribe", prefix="game:")
        self.client.pull()
        self.client.ask("unsubscribe", prefix="game:")
        assert number
        before, subscribe, left = memory.used, router.subscribe, [20]

        def some(*given: Any, **named: Any) -> bool:
            left[0] -= 1
            if left[0] < 0:
                raise MemoryExhausted("subscriptions")
            return subscribe(*given, **named)

        with patch.object(router, "subscribe", some):
            assert self.client.refused("subscribe", prefix="game:") == "memory"
        self.house.publish("game:1", b"1")
        assert self.received() == []
        assert memory.used <= before + 512


class AccessTests(PrefixCase):
    """Each topic is checked by itself"""

    def test_topics_that_may_not_be_read_are_left_out(self) -> None:
        house = WebHouse(allow_subscribe=["game:1", "game:2"])
        house.publish("game:x", b"")
        house.publish("game:1", b"")
        client = connected(house)
        client.ask("subscribe", prefix="game:")
        for topic in ("game:1", "game:x", "game:2", "game:3"):
            house.publish(topic, b"1")
        assert self.received(client) == [("game:1", "1"), ("game:2", "1")]

    def test_a_change_of_the_rules(self) -> None:
        self.client.ask("subscribe", prefix="game:")
        self.house.publish("game:2", b"1")
        self.received()
        self.house.broker.set_access(AccessTable([rule(True, "subscribe", "game:2")]))
        recheck_all(self.house.broker.router, self.house.broker.topics)
        assert {"revoked": {"topic": "game:1"}} in self.client.pull()
        for topic in ("game:1", "game:2", "game:3"):
            self.house.publish(topic, b"2")
        assert self.received() == [("game:2", "2")]

    def test_the_rights_of_another_token(self) -> None:
        self.house.broker.set_access(AccessTable([rule(True, "subscribe", "game:1")]))
        self.client.ask("subscribe", prefix="game:")
        self.house.broker.set_access(AccessTable([rule(True, "subscribe", "game:*")]))
        self.client.ask("connect")
        self.house.publish("game:1", b"1")
        self.house.publish("game:2", b"2")
        assert self.received() == [("game:1", "1"), ("game:2", "2")]

    def test_a_topic_that_gets_a_key(self) -> None:
        self.client.ask("subscribe", prefix="game:")
        topic = self.house.broker.topics.named("game:1")
        self.house.broker.queue_keys.close(topic, b"new", "owner", "owner")
        self.house.pass_time(1)
        assert {"revoked": {"topic": "game:1"}} in self.client.pull()
