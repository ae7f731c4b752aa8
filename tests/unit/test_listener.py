"""Listener and Counters: admission, counting, logging."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from twisted.logger import ILogObserver, LogEvent, LogLevel, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import provider

from pubsub.broker.delivery.slow_policy import DROP, SlowPolicy
from pubsub.broker.figures import counters as counters_module
from pubsub.broker.figures.counters import OTHERS, Counters
from pubsub.broker.listeners.limits import CONNECTION_BYTES, BrokerLimits
from pubsub.broker.publishing.rate_limits import Rate
from pubsub.errors import LimitReached, MemoryExhausted, NotAuthorized, RateLimited
from pubsub.kernel import Columns
from tests.unit.fakes import START, Reader, Transport, make_broker, make_listener


class ListenerTests(SynchronousTestCase):
    """Listener"""

    def test_connections_are_counted_and_charged(self) -> None:
        broker = make_broker()
        listener = make_listener(broker)
        listener.admit("a")
        listener.admit("b")
        assert broker.counters.connections == 2
        assert broker.memory.used == 2 * CONNECTION_BYTES
        listener.leave("a")
        listener.leave("b")
        assert broker.counters.connections == 0
        assert broker.memory.used == 0

    def test_over_the_quota_nothing_is_charged(self) -> None:
        broker = make_broker()
        listener = make_listener(broker, max_connections_per_address=1)
        listener.admit("a")
        with pytest.raises(LimitReached):
            listener.admit("a")
        assert broker.counters.connections == 1
        assert broker.memory.used == CONNECTION_BYTES
        listener.admit("b")

    def test_at_the_memory_bound_the_quota_is_not_used_up(self) -> None:
        broker = make_broker(limits=BrokerLimits(max_memory=CONNECTION_BYTES))
        listener = make_listener(broker, max_connections=1)
        broker.memory.add(CONNECTION_BYTES)
        with pytest.raises(MemoryExhausted):
            listener.admit("a")
        broker.memory.free(CONNECTION_BYTES)
        listener.admit("a")
        assert listener.quota.open == 1

    def test_each_listener_has_its_own_quota(self) -> None:
        broker = make_broker()
        make_listener(broker, max_connections=1).admit("a")
        make_listener(broker, max_connections=1).admit("a")
        assert broker.counters.connections == 2

    def test_outboxes_have_the_policy_of_the_listener(self) -> None:
        listener = make_listener(
            make_broker(), slow_consumer="drop", slow_bytes="1K", slow_seconds=7
        )
        box = listener.outbox(Transport(), Reader())
        assert box.policy == SlowPolicy(DROP, 1024, 7)
        assert box.label == "bob"

    def test_a_recheck_uses_the_present_rules(self) -> None:
        broker = make_broker()
        listener = make_listener(broker, allow_subscribe="news")
        news, sport = broker.topics.create("news"), broker.topics.create("sport")
        assert listener.may_continue("bob", news)
        assert not listener.may_continue("bob", sport)
        listener.reconfigure({**listener.settings, "allow-subscribe": ("sport",)})
        assert listener.may_continue("bob", sport)
        assert not listener.may_continue("bob", news)
        assert broker.counters.refusals == {("toy", "revoked"): 2}

    def test_sessions_of_a_role_have_one_kind(self) -> None:
        broker = make_broker()
        ours, theirs = make_listener(broker), make_listener(broker)
        assert ours.session_kind("reader") is ours.session_kind("reader")
        kinds = {ours.session_kind("reader"), ours.session_kind("writer")}
        assert len(kinds | {theirs.session_kind("reader")}) == 3

    def test_a_new_configuration_changes_rules_and_rates(self) -> None:
        listener = make_listener(make_broker())
        changed = make_listener(
            make_broker(), allow_publish="in", grant="in", rate_messages=3, rate_bytes="1K"
        )
        slow, quota = listener.slow, listener.quota
        listener.reconfigure(changed.settings)
        assert listener._rates._own_rate == Rate(3, 1024)
        listener.access.check_publish("in")
        with pytest.raises(NotAuthorized):
            listener.access.check_publish("out")
        assert (listener.slow, listener.quota) == (slow, quota)

    def test_a_new_listener_rate_applies_to_new_connections(self) -> None:
        listener = make_listener(make_broker(), listener_rate_messages=3)
        before = listener.limiter
        listener.reconfigure(listener.settings)
        assert listener.limiter is before
        listener.reconfigure({**listener.settings, "listener-rate-messages": 1})
        topic = listener.topics.create("t")
        one, other = listener.publisher(None, b""), listener.publisher(None, b"")
        one.publish(topic, Columns.of([b"x"]))
        with pytest.raises(RateLimited):
            other.publish(topic, Columns.of([b"x"]))
        listener.reconfigure({**listener.settings, "listener-rate-messages": 0})
        assert listener.limiter is None

    def test_checking_keys_itself_survives_a_new_configuration(self) -> None:
        broker = make_broker()
        listener = make_listener(broker)
        listener.check_keys_itself()
        broker.queue_keys.close(broker.topics.create("news"), b"key", "ada", "client")
        listener.reconfigure(listener.settings)
        listener.access.check_publish("news")

    def test_an_endpoint_identifies_a_listener(self) -> None:
        settings = make_listener(make_broker()).settings
        assert make_broker().make_listener("toy", settings).endpoint == ""
        assert make_broker().make_listener("toy", settings, "tcp:1").endpoint == "tcp:1"

    def test_refusals_are_counted_by_protocol_and_reason(self) -> None:
        broker = make_broker()
        listener = make_listener(broker)
        listener.refuse("rate-limited", "bob", 3)
        listener.refuse("rate-limited", "eve")
        listener.refuse("too-large", "bob")
        assert broker.counters.refusals == {("toy", "rate-limited"): 4, ("toy", "too-large"): 1}
        assert broker.counters.refused == 5
        last = broker.counters.last_refusals["toy", "rate-limited"]
        assert last == ("eve", int(START * 1e6))


class CountersTests(SynchronousTestCase):
    """Counters"""

    def setUp(self) -> None:
        self.counters = Counters()
        self._counts: list[int] = []
        globalLogPublisher.addObserver(self._observe)
        self.addCleanup(globalLogPublisher.removeObserver, self._observe)

    @provider(ILogObserver)
    def _observe(self, event: LogEvent) -> None:
        if event["log_level"] is LogLevel.warn:
            self._counts.append(event["count"])

    def warned(self) -> list[int]:
        """Return the counts of the warnings so far."""
        return self._counts

    def test_drops_are_counted_by_client_topic_and_reason(self) -> None:
        for key in (("a", "t", "x"), ("b", "t", "x"), ("a", "u", "x"), ("a", "t", "y")):
            self.counters.drop(*key, 2)
        self.counters.drop("a", "t", "x", 1)
        assert len(self.counters.drops) == 4
        assert self.counters.drops["a", "t", "x"] == 3
        assert self.counters.dropped == 9

    def test_the_first_of_a_kind_and_each_tenfold_are_logged(self) -> None:
        for _ in range(1000):
            self.counters.drop("a", "t", "x", 1)
        assert self.warned() == [1, 10, 100, 1000]
        self.counters.drop("b", "t", "x", 1)
        assert self.warned()[-1] == 1

    def test_a_count_that_passes_a_tenfold_is_logged(self) -> None:
        self.counters.drop("a", "t", "x", 7)
        self.counters.drop("a", "t", "x", 8)
        self.counters.drop("a", "t", "x", 70)
        self.counters.drop("a", "t", "x", 70)
        assert self.warned() == [7, 15, 155]

    def test_refusals_are_logged_in_the_same_way(self) -> None:
        for _ in range(20):
            self.counters.refuse("toy", "rate-limited", "bob")
        self.counters.refuse("toy", "too-large", "bob", 5)
        assert self.warned() == [1, 10, 5]

    def test_the_clients_that_dropped_last_are_counted_alone(self) -> None:
        with patch.object(counters_module, "_MAX_KINDS", 3):
            for number in (0, 1, 2, 0, 3, 4):
                self.counters.drop(f"client {number}", "t", "x", 2)
            self.counters.drop("client 5", "u", "y", 5)
            self.counters.drop("client 5", "u", "y", 5)
        assert self.counters.dropped == 22
        assert self.counters.drops == {
            ("client 3", "t", "x"): 2,
            ("client 4", "t", "x"): 2,
            ("client 5", "u", "y"): 10,
            (OTHERS, "t", "x"): 8,
        }

    def test_topics_beyond_the_limit_are_counted_together(self) -> None:
        with patch.object(counters_module, "_MAX_KINDS", 3):
            for number in range(8):
                self.counters.drop("client", f"topic {number}", "x", 1)
        assert self.counters.dropped == self.counters.drops.total() == 8
        assert self.counters.drops[OTHERS, "topic 0", "x"] == 1
        assert self.counters.drops[OTHERS, OTHERS, "x"] == 2
        assert len(self.counters.drops) == 7

    def test_any_number_of_clients_is_a_few_lines_of_the_log(self) -> None:
        with patch.object(counters_module, "_MAX_KINDS", 3):
            for number in range(1003):
                self.counters.drop(f"client {number}", "t", "x", 1)
        assert self.warned() == [1, 1, 1, 1, 10, 100, 1000]
