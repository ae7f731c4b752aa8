"""``$SYS/stats``: its cost, and the properties of its topic."""

from __future__ import annotations

import json
from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.figures.statistics import Statistics
from pubsub.broker.figures.stats_topic import TOPIC
from pubsub.broker.listeners.limits import BrokerLimits
from pubsub.broker.memory_budget import MemoryBudget
from pubsub.broker.service import BrokerService
from pubsub.broker.topic_space.durability import Durability, DurabilityRules
from pubsub.broker.topic_space.topic_registry import TopicRegistry
from pubsub.broker.wall_clock import WallClock
from pubsub.store.memory_store import MemoryStore
from tests.unit.fakes import Lines, Reader, Transport, clock_at, make_broker, make_listener
from tests.unit.http_follower import Follower
from tests.unit.web import WebHouse


class StatsTopicTests(SynchronousTestCase):
    """The topic and its messages"""

    def setUp(self) -> None:
        self.clock = clock_at()
        self.broker = make_broker(self.clock)
        self.broker.startService()
        self.addCleanup(self.broker.stopService)

    def test_there_is_a_message_a_second(self) -> None:
        transport = Transport()
        box = make_listener(self.broker).outbox(transport, Reader())
        topic = self.broker.topics.named(TOPIC)
        self.broker.router.subscribe(box, topic, Lines())
        for _ in range(3):
            self.clock.advance(1)
            self.clock.advance(0)
        found = [json.loads(line) for line in transport.data.splitlines()]
        assert [round(figures["uptime"]) for figures in found] == [1, 2, 3]
        assert found[0].keys() == self.broker.statistics.snapshot().keys()
        assert self.broker.store.next_offset == 0
        assert self.broker.counters.published == 0

    def test_without_a_subscriber_nothing_is_put_together(self) -> None:
        with patch.object(Statistics, "snapshot", side_effect=AssertionError):
            self.clock.advance(1)
        assert not self.flushLoggedErrors()  # type: ignore[no-untyped-call]

    def test_no_rule_stores_it(self) -> None:
        clock = clock_at()
        rules = DurabilityRules([("*", Durability.SYNC)])
        wall = WallClock(clock.seconds, clock.seconds)
        broker = BrokerService(clock, wall, MemoryStore(10, 1000), durability=rules)
        broker.startService()
        self.addCleanup(broker.stopService)
        assert broker.topics.named(TOPIC).durability is Durability.NONE

    def test_it_survives_its_deletion(self) -> None:
        topic = self.broker.topics.named(TOPIC)
        self.broker.topic_lifecycle.end(topic)
        self.test_there_is_a_message_a_second()

    def test_it_counts_to_no_limit(self) -> None:
        broker = make_broker(limits=BrokerLimits(max_topics=1))
        broker.startService()
        self.addCleanup(broker.stopService)
        assert broker.topics.create("a").hosted
        assert broker.statistics.snapshot()["memory"]["accounts"]["other"] == 0

    def test_a_topic_of_the_broker_takes_no_memory_of_clients(self) -> None:
        memory = MemoryBudget(1)
        memory.add(1)
        topics = TopicRegistry(0, memory)
        assert topics.create_own("$SYS/mine").configured
        assert memory.used == 1


class HttpTests(SynchronousTestCase):
    """Over HTTP"""

    def test_a_listener_with_a_grant_serves_it(self) -> None:
        house = WebHouse(grant=["$SYS/stats"])
        path = "/v1/topics/%24SYS%2Fstats/messages?follow=1"
        follower = Follower(house, path)
        house.clock.advance(1)
        house.clock.advance(0)
        (figures,) = [json.loads(value) for value in follower.values()]
        assert figures["protocols"]["http"]["connections"] == 1

    def test_it_is_closed_to_the_others(self) -> None:
        house = WebHouse()
        client = house.connect()
        client.ask("GET", "/v1/topics/%24SYS%2Fstats/messages?follow=1")
        assert client.answer().status == 403
