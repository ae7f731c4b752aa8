"""HTTP: following the topics whose names have a prefix."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.access_rules.access_table import AccessTable
from pubsub.errors import MemoryExhausted
from tests.unit.access_rules import rule
from tests.unit.fakes import recheck_all
from tests.unit.http_follower import PATH, Follower
from tests.unit.web import WebHouse

GAMES = PATH + "?follow=1&prefix=game:"


class PrefixFollowTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.house = WebHouse()
        self.house.publish("game:1", b"before")

    def test_topics_that_exist_and_new_ones_from_their_first_message(self) -> None:
        follower = Follower(self.house, GAMES + "&prefix=game:2&prefix=game:")
        for topic in ("a", "game:1", "game:2", "gam", "b", "game:"):
            self.house.publish(topic, topic.encode())
        assert follower.values() == ["a", "game:1", "game:2", "game:"]

    def test_stored_messages(self) -> None:
        self.house.publish("b", b"no")
        self.house.publish("game:2", b"2")
        follower = Follower(self.house, GAMES + "&start=0")
        self.house.publish("game:3", b"3")
        self.house.publish("a", b"a")
        assert follower.values() == ["before", "2", "3", "a"]

    def test_a_client_that_reconnects_misses_nothing_of_new_topics(self) -> None:
        follower = Follower(self.house, GAMES + "&format=events")
        self.house.publish("game:1", b"1")
        *_, last = [event["id"] for event in follower.events()]
        follower.stream.lose()
        self.house.pass_time(1)
        self.house.publish("game:2", b"2")
        self.house.publish("game:1", b"3")
        again = Follower(self.house, GAMES + "&format=events", **{"Last-Event-ID": last})
        self.house.publish("game:3", b"4")
        found = [json.loads(event["data"])["value"] for event in again.events() if "data" in event]
        assert found == ["2", "3", "4"]

    def test_messages_while_very_many_topics_are_subscribed(self) -> None:
        """They come in order, so the position of each is behind all before it."""
        for number in range(200):
            self.house.broker.topics.create(f"game:{number}")
        with patch.object(self.house.clock, "advance"):
            follower = Follower(self.house, GAMES)
        for name in ("game:99", "game:0", "game:new", "game:99", "a"):
            self.house.publish(name, name.encode())
        assert follower.values() == ["game:99", "game:0", "game:new", "game:99", "a"]
        assert self.house.broker.counters.dropped == 0

    def test_only_with_follow(self) -> None:
        answer = self.house.get(PATH + "?prefix=game:")
        assert answer.error == (400, "invalid-request")

    def test_everything_is_released(self) -> None:
        self.house.get(PATH)
        self.house.pass_time(1)
        used = self.house.broker.memory.used
        follower = Follower(self.house, GAMES)
        assert self.house.broker.memory.used > used
        follower.stream.lose()
        self.house.pass_time(1)
        assert self.house.broker.memory.used == used
        # A topic that is created later finds nobody.
        self.house.publish("game:new", b"1")

    def test_no_memory_for_all_topics(self) -> None:
        """The response is cut off: the client would not know which ones are missing."""
        for number in range(10):
            self.house.publish(f"game:{number}", b"")
        router, left = self.house.broker.router, [5]
        subscribe = router.subscribe

        def some(*given: Any, **named: Any) -> bool:
            left[0] -= 1
            if left[0] < 0:
                raise MemoryExhausted("subscriptions")
            return subscribe(*given, **named)

        with patch.object(router, "subscribe", some):
            follower = Follower(self.house, GAMES)
        assert not follower.complete
        assert follower.stream.aborted


class PrefixAccessTests(SynchronousTestCase):
    """Each topic is checked by itself"""

    def test_topics_that_may_not_be_read_are_left_out(self) -> None:
        house = WebHouse(allow_subscribe=["a", "game:1", "game:2"])
        for topic in ("game:1", "game:x"):
            house.publish(topic, b"0")
        follower = Follower(house, GAMES + "&start=0")
        for topic in ("game:1", "game:x", "game:2", "game:3"):
            house.publish(topic, topic.encode())
        assert follower.values() == ["0", "game:1", "game:2"]

    def test_stored_messages_need_the_permission_history(self) -> None:
        house = WebHouse()
        house.publish("game:1", b"0")
        house.lock("game:1", b"k")
        token = house.token("subscribe", key="k")
        assert Follower(house, GAMES + "&start=0", token=token).values() == []
        live = Follower(house, GAMES, token=token)
        house.publish("game:1", b"1")
        assert live.values() == ["1"]

    def test_a_change_of_the_rules(self) -> None:
        house = WebHouse()
        house.publish("game:1", b"0")
        follower = Follower(house, GAMES)
        house.broker.set_access(AccessTable([rule(True, "subscribe", "game:2")]))
        recheck_all(house.broker.router, house.broker.topics)
        rows = follower.rows()
        revoked = [row["revoked"]["topic"] for row in rows]
        assert sorted(revoked) == ["a", "game:1"]
        # The response goes on for the other topics with the prefix.
        house.publish("game:1", b"1")
        house.publish("game:2", b"2")
        assert follower.values() == ["2"]
