"""The effects of new settings on each part of a running broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.audit_log.audit import AuditLog
from pubsub.broker.clients.handshakes import Handshakes
from pubsub.broker.figures.events import TOPIC
from pubsub.broker.listeners.limits import ConnectionQuota
from pubsub.broker.memory_budget import MemoryBudget
from pubsub.broker.topic_space.durability import Durability, DurabilityRules
from pubsub.errors import ConfigurationError, LimitReached, SessionUnknown
from tests.unit import cafe_wire as wire
from tests.unit.fakes import scratch
from tests.unit.streams import Client, House, logged


class ReloadCase(SynchronousTestCase):
    """A house with a cafe listener, whose settings are reloaded."""

    top: dict[str, Any] = {}  # noqa: RUF012

    def setUp(self) -> None:
        self.house = House({"cafe": {}}, top=self.top)
        self.broker = self.house.broker
        self.reloader = self.house.reloader()
        self.lines = logged(self)
        self.house.start()

    def reload(self, **settings: Any) -> None:
        self.house.document.update({k.replace("_", "-"): v for k, v in settings.items()})
        self.reloader.reload()
        self.house.pump()

    def client(self, handshake: bytes) -> Client:
        return wire.handshaken(self.house, handshake)


class QuotaTests(SynchronousTestCase):
    """max-connections and max-connections-per-address"""

    def test_connections_from_before_a_limit_count(self) -> None:
        quota = ConnectionQuota(0, 0)
        for _ in range(3):
            quota.admit("a")
        quota.reconfigure(0, 3)
        with pytest.raises(LimitReached):
            quota.admit("a")
        quota.leave("a")
        quota.admit("a")
        quota.reconfigure(3, 0)
        with pytest.raises(LimitReached):
            quota.admit("b")
        for _ in range(3):
            quota.leave("a")
        assert quota.open == 0


class HandshakeTests(SynchronousTestCase):
    """handshake-seconds"""

    class One:
        overdue = False

        def handshake_overdue(self) -> None:
            self.overdue = True

    def setUp(self) -> None:
        self.clock = Clock()
        self.handshakes, self.one = Handshakes(self.clock, 10), self.One()
        self.handshakes.begin(self.one)

    def test_a_shorter_time_counts_from_the_beginning(self) -> None:
        self.clock.advance(3)
        self.handshakes.reconfigure(5)
        self.clock.advance(1.9)
        assert not self.one.overdue
        self.clock.advance(0.2)
        assert self.one.overdue

    def test_time_that_has_passed_already(self) -> None:
        self.clock.advance(3)
        self.handshakes.reconfigure(2)
        assert self.one.overdue

    def test_a_longer_time(self) -> None:
        self.handshakes.reconfigure(20)
        self.clock.advance(19)
        assert not self.one.overdue
        self.clock.advance(2)
        assert self.one.overdue

    def test_no_limit(self) -> None:
        self.handshakes.reconfigure(0)
        self.clock.advance(1000)
        assert not self.one.overdue
        assert not self.clock.getDelayedCalls()


class MemoryTests(SynchronousTestCase):
    """max-memory"""

    class Waiting:
        held = 0

        def hold(self, reason: object) -> None:
            self.held += 1

        def release(self, reason: object) -> None:
            self.held -= 1

    def test_a_higher_bound_releases_publishers(self) -> None:
        memory, waiting = MemoryBudget(100), self.Waiting()
        memory.add(100)
        memory.wait(waiting)
        memory.reconfigure({"max-memory": 200})
        assert waiting.held == 0
        assert not memory.full

    def test_a_lower_bound_empties_the_caches(self) -> None:
        memory, forgotten = MemoryBudget(1000), list[int]()
        memory.cache(1000, lambda: forgotten.append(1)).charge(300)
        memory.reconfigure({"max-memory": 200})
        assert forgotten == [1]
        assert memory.used == 0

    def test_without_a_bound(self) -> None:
        memory = MemoryBudget(100)
        memory.add(200)
        memory.reconfigure({"max-memory": 0})
        assert not memory.full


class SessionTests(ReloadCase):
    """resume-window and max-sessions"""

    def lost(self) -> Any:
        bob = self.client(wire.hs_sub(b"\x01", b"bob"))
        (session,) = (s for s in self.broker.sessions._sessions.values() if s.client == b"bob")
        bob.stream.lose()
        return session

    def test_a_shorter_window_ends_lost_sessions(self) -> None:
        session = self.lost()
        self.house.advance(10)
        self.reload(resume_window=5)
        with pytest.raises(SessionUnknown):
            self.broker.sessions.find(session.id, session.kind, b"bob")

    def test_a_longer_window_keeps_them(self) -> None:
        session = self.lost()
        self.reload(resume_window=600)
        self.house.advance(300)
        assert self.broker.sessions.find(session.id, session.kind, b"bob") is session


class LimitTests(ReloadCase):
    """Other bounds"""

    def test_bounds_apply_at_once(self) -> None:
        self.reload(max_topics=1, max_sessions=7, stop_timeout=3, topic_expiry=100)
        with pytest.raises(LimitReached):
            self.broker.topics.create("other")
        assert self.broker.sessions.limit == 7
        assert self.broker.drainage.seconds == 3
        assert self.broker.topics.expire

    def test_topics_begin_to_expire(self) -> None:
        self.broker.topics.create("unused")
        self.reload(topic_expiry=60, resume_window=0)
        self.house.advance(200)
        assert "unused" not in self.broker.topics

    def test_a_reload_during_a_pass_over_all_topics(self) -> None:
        self.reload(topic_expiry=60, resume_window=0)
        answers: list[Deferred[frozenset[str]]] = []

        def topics_in(start: int, stop: int) -> Deferred[frozenset[str]]:
            answers.append(Deferred())
            return answers[-1]

        self.patch(self.house.store, "topics_in", topics_in)  # type: ignore[no-untyped-call]
        timers = len(self.house.clock.getDelayedCalls())
        for number in range(1, 5):
            self.house.advance(20)
            # The pass goes on, and no other one begins.
            assert len(answers) == number
            self.reload(topic_expiry=60 + number)
            answers[-1].callback(frozenset())
            self.house.pump()
            assert len(self.house.clock.getDelayedCalls()) == timers

    def test_an_idle_client_is_disconnected(self) -> None:
        bob = self.client(wire.hs_sub(b"\x01"))
        self.reload(idle_timeout=5)
        self.house.advance(8)
        assert bob.closed


class DurabilityTests(ReloadCase):
    """durability"""

    def test_topics_that_exist_and_new_ones(self) -> None:
        before = self.broker.topics.create("a")
        self.reload(durability=["a=none", "b=none"])
        assert before.durability.name == "NONE"
        assert self.broker.topics.create("b").durability is Durability.NONE
        self.reload(durability=[])
        assert before.durability.name == "ASYNC"

    def test_requirements_of_the_creator_stay(self) -> None:
        topic = self.broker.topics.create("a")
        self.broker.topic_lifecycle.set_requirements(topic, sync=True, exclusive=False)
        self.reload(durability=["*=none"])
        assert topic.durability.name == "SYNC"

    def test_a_topic_that_is_read_from_the_history_is_stored_meanwhile(self) -> None:
        bob, alice = self.client(wire.hs_sub(b"\x01", b"bob")), self.client(wire.hs_pub(1))
        bob.stream.stop_reading()
        for _ in range(64):
            alice.send(wire.publish(1, b"x" * 60_000))
        topic = self.broker.topics.named("cafe/1")
        assert topic.behind
        self.reload(durability=["*=none"])
        self.house.advance(2)
        assert topic.durability.name == "ASYNC"
        bob.stream.read()
        self.house.advance(3)
        assert not topic.behind
        assert topic.durability.name == "NONE"
        assert bob.take().count(b"x" * 60_000) == 64
        assert self.broker.counters.dropped == 0

    def test_a_topic_that_has_ended_meanwhile_is_left_alone(self) -> None:
        lifecycle, topic = self.broker.topic_lifecycle, self.broker.topics.create("a")
        lifecycle._still_read.add(topic)
        lifecycle.end(topic)
        lifecycle._rules = DurabilityRules([("a", Durability.NONE)])
        lifecycle.sweep()
        assert topic.durability.name == "ASYNC"


class EventTests(ReloadCase):
    """events"""

    def events(self) -> list[str]:
        page = self.successResultOf(self.broker.store.read(0, frozenset([TOPIC]), 10**6))
        columns = [batch.columns for batch in page.batches]
        return [json.loads(one)["event"] for c in columns for one in c.payloads()]

    def test_they_are_turned_on_and_off(self) -> None:
        before = self.client(wire.hs_sub(b"\x01"))
        self.reload(events=True)
        during = self.client(wire.hs_sub(b"\x01"))
        before.stream.lose()
        self.house.pump()
        assert self.events() == ["connect"]
        self.reload(events=False)
        self.client(wire.hs_sub(b"\x01"))
        during.stream.lose()
        self.house.pump()
        assert self.events() == ["connect"]
        self.reload(events=True)
        self.client(wire.hs_sub(b"\x01"))
        assert self.events() == ["connect", "connect"]

    def test_without_room_for_their_topic_they_stay_off(self) -> None:
        self.reload(events=True, max_topics=1)
        assert [line for line in self.lines if line.startswith("events: cannot create topic $SYS")]
        assert self.broker.served.objects.events is None


class AuditTests(SynchronousTestCase):
    """audit-log and audit-size"""

    def setUp(self) -> None:
        self.directory = scratch(self)
        self.audit = AuditLog(lambda: 0.0, self.path("one"), 100)
        self.addCleanup(lambda: self.audit.close())

    def path(self, name: str) -> str:
        return str(self.directory / name)

    def events(self, name: str) -> list[str]:
        lines = Path(self.path(name)).read_text().splitlines()
        return [json.loads(line)["event"] for line in lines]

    def test_the_records_go_to_the_new_file(self) -> None:
        self.audit.record("a")
        self.audit.reconfigure({"audit-log": self.path("two"), "audit-size": 100})
        self.audit.record("b")
        assert (self.events("one"), self.events("two")) == (["a"], ["b"])

    def test_to_the_log(self) -> None:
        lines = logged(self)
        self.audit.reconfigure({"audit-log": "", "audit-size": 100})
        self.audit.record("b")
        assert self.events("one") == []
        assert lines[0].startswith("audit: ")

    def test_a_file_that_cannot_be_opened_changes_nothing(self) -> None:
        with pytest.raises(ConfigurationError):
            self.audit.reconfigure({"audit-log": self.path("no/two"), "audit-size": 100})
        self.audit.record("b")
        assert self.events("one") == ["b"]
