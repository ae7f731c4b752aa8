"""Exclusive topics of brokers that crash, or lose the engine: leases in a bucket in memory."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred, succeed

from pubsub.backplane.topics.leases import LeaseValue, decode_lease
from tests.unit import fast_wire as wire
from tests.unit.fast_wire import CREATE, EXCLUSIVE, EXISTS, OTHER, OVER, OWNER, RATE_LIMITED
from tests.unit.shared_case import Broker, SharedCase
from tests.unit.streams import logged

LEASE = 60
TAKEN = wire.error(CREATE, EXISTS)


class LeaseCase(SharedCase):
    """Brokers at one bucket, and time that passes"""

    def after(self, seconds: float) -> None:
        """Let time pass at all brokers, in steps."""
        for _ in range(int(seconds * 2)):
            for broker in self.brokers:
                broker.clock.advance(0.5)
            self.settle(1)
        self.settle()

    def crash(self, broker: Broker) -> None:
        """Nothing of it reaches the bucket from now on, and it does not run."""
        self.brokers.remove(broker)
        self.bucket.apart.add(broker.state)
        self.bucket.states.remove(broker.state)

    def own(self, broker: Broker, name: str = "news", raw: bytes = OWNER) -> bytes:
        """Create an exclusive topic; return the answer."""
        answer: bytes = broker.client(wire.create(raw, name, EXCLUSIVE)).take()
        self.settle()
        return answer

    def lease(self, broker: Broker) -> LeaseValue:
        found = decode_lease(self.bucket.entries["b." + broker.leases.id].value)
        assert found is not None
        return found


class CrashTests(LeaseCase):
    """A broker that does not come back"""

    def test_its_topics_are_free_after_its_lease(self) -> None:
        lines = logged(self)
        here, there, third = self.start(), self.start(), self.start()
        assert self.own(here) == self.own(here, "b") == b""
        self.after(3 * LEASE)
        self.crash(here)
        self.after(LEASE * 0.9)
        assert self.own(there, raw=OTHER) == TAKEN
        assert self.lease(here).asked
        self.after(LEASE * 0.3)
        assert self.lease(here).ended
        # It can be used by every broker, not only be created again.
        third.use("b")
        self.settle()
        assert self.own(there, raw=OTHER) == b""
        assert third.names() == ["b"]
        assert there.figure("topics_released") + third.figure("topics_released") == 2
        (line,) = [line for line in lines if "has ended without closing" in line]
        assert "free now: 2" in line

    def test_a_broker_that_comes_later(self) -> None:
        here = self.start()
        self.own(here)
        self.crash(here)
        there = self.start()
        self.after(LEASE * 0.9)
        assert self.own(there) == TAKEN
        self.after(LEASE * 0.3)
        assert self.own(there) == b""

    def test_a_broker_without_a_lease(self) -> None:
        """As NATS has removed the lease, or a version without leases has left the topic."""
        here = self.start()
        self.own(here)
        self.crash(here)
        self.bucket.remove("b." + here.leases.id)
        there = self.start()
        self.after(LEASE * 1.2)
        assert self.own(there) == b""

    def test_the_time_is_that_of_the_lease(self) -> None:
        here, there = self.two()
        self.own(here)
        self.crash(here)
        lease = self.lease(here)
        self.bucket.write("b." + here.leases.id, lease._replace(seconds=600).encode())
        self.after(LEASE * 5)
        assert self.own(there) == TAKEN
        self.after(600)
        assert self.own(there) == b""

    def test_the_broker_that_was_to_release_them_fails(self) -> None:
        here, there = self.two()
        self.own(here)
        self.crash(here)
        third = self.start()
        self.after(LEASE * 0.9)
        put = there.state.put
        # It ends the lease, and no more.
        there.state.put = (  # type: ignore[method-assign]
            lambda key, *change: put(key, *change) if key.startswith("b.") else Deferred()
        )
        third.state.leave()
        self.after(LEASE * 0.2)
        assert self.lease(here).ended
        self.crash(there)
        third.state.come_back()
        self.settle()
        # The name is free already, though its value is still there.
        assert not self.entry("news").end
        self.after(LEASE * 0.4)
        assert self.entry("news").end == "closed"

    def test_a_topic_is_created_before_its_value_is_gone(self) -> None:
        here, there = self.two()
        self.own(here)
        self.crash(here)
        lease = self.lease(here)
        self.bucket.write("b." + here.leases.id, lease._replace(ended=True).encode())
        self.settle()
        assert self.own(there, raw=OTHER) == b""
        self.after(LEASE * 2)
        assert self.entry("news").owner == there.leases.id
        assert self.own(there) == TAKEN

    def test_many_topics(self) -> None:
        here, there = self.two()
        owner = here.client()
        for number in range(500):
            owner.send(wire.create(OWNER, f"t/{number}", EXCLUSIVE))
        self.settle(10)
        assert there.figure("topics") == 500
        changes = here.figure("state_changes")
        self.after(LEASE)
        # One lease, whatever the number of topics.
        assert here.figure("state_changes") - changes <= 8
        self.crash(here)
        self.after(LEASE * 1.2)
        assert there.figure("topics_released") == 500
        assert there.figure("topics") == 0
        assert there.broker.memory.held.get("backplane", 0) == 0

    def test_it_is_started_again(self) -> None:
        here, there = self.two()
        self.own(here)
        self.crash(here)
        again = self.start(here.kept)
        self.after(2)
        assert self.own(there, raw=OTHER) == b""
        assert again.leases.id != here.leases.id


class PartitionTests(LeaseCase):
    """A broker that does not reach the engine for some time"""

    def test_a_broker_that_returns_too_late(self) -> None:
        lines = logged(self)
        here, there = self.two()
        owner = here.client(wire.create(OWNER, flags=EXCLUSIVE) + wire.subscribe(OWNER))
        self.settle()
        here.state.leave()
        self.after(LEASE * 1.2)
        assert self.own(there, raw=OTHER) == b""
        # This broker does not know it yet, and no other broker reads the messages published here.
        owner.send(wire.publish(OWNER, b"x"))
        assert owner.take() == wire.message(b"x")
        here.state.come_back()
        self.settle()
        assert owner.take() == OVER
        assert here.names() == []
        owner.send(wire.create(OWNER, flags=EXCLUSIVE))
        assert owner.take() == TAKEN
        assert here.figure("leases_lost") == 1
        assert [line for line in lines if "no sign of life of this broker" in line]
        # A topic created now has another lease.
        assert self.own(here, "b") == b""
        self.after(LEASE * 3)
        assert here.broker.topics.get("b")
        assert self.own(there, "b", OTHER) == wire.error(CREATE, EXISTS, wire.topic_id("b"))

    def test_topics_that_nobody_has_taken_end_too(self) -> None:
        here, there = self.two()
        self.own(here)
        here.state.leave()
        self.after(LEASE * 1.2)
        here.state.come_back()
        self.settle()
        assert here.names() == []
        assert self.own(there, raw=OTHER) == b""

    def test_a_broker_that_returns_in_time(self) -> None:
        here, there = self.two()
        self.own(here)
        here.state.leave()
        self.after(LEASE * 0.9)
        assert self.lease(here).asked
        here.state.come_back()
        self.settle()
        assert not self.lease(here).asked
        self.after(LEASE * 3)
        assert self.own(there) == TAKEN
        assert here.names() == ["news"]

    def test_a_lease_ends_while_a_topic_is_created(self) -> None:
        here, there = self.two()
        self.own(here, "b")
        here.state.leave()
        self.after(LEASE * 1.2)
        here.state.come_back()
        # It does not know it yet.
        assert self.own(here) == b""
        assert self.entry("news").owner == here.leases.id
        self.after(LEASE * 2)
        assert self.own(there) == TAKEN

    def test_the_engine_is_away_for_all(self) -> None:
        here, there = self.two()
        self.own(here)
        for broker in (here, there):
            broker.state.leave()
        self.after(LEASE * 20)
        there.state.come_back()
        # The other one needs a second more.
        self.after(1)
        here.state.come_back()
        self.after(LEASE * 2)
        assert self.own(there) == TAKEN
        assert here.names() == ["news"]
        assert here.figure("leases_lost") == 0

    def test_a_broker_that_reaches_the_engine_later_than_another(self) -> None:
        here, there = self.two()
        self.own(here)
        for broker in (here, there):
            broker.state.leave()
        self.after(5 * LEASE)
        there.state.come_back()
        # It measures from now on, so the other one has all of its time.
        self.after(LEASE * 0.6)
        assert not self.lease(here).asked
        self.after(LEASE * 0.3)
        assert self.lease(here).asked
        here.state.come_back()
        self.after(LEASE)
        assert not self.lease(here).ended
        assert self.own(there) == TAKEN

    def lose_the_state(self) -> None:
        """The engine has lost its disk, and no broker reaches it yet."""
        for broker in self.brokers:
            broker.state.leave()
        self.bucket.clear()

    def test_the_shared_state_is_lost(self) -> None:
        lines = logged(self)
        here, there = self.two()
        owner = here.client(wire.create(OWNER, flags=EXCLUSIVE) + wire.subscribe(OWNER))
        self.settle()
        self.lose_the_state()
        for broker in self.brokers:
            broker.state.come_back()
        self.settle()
        assert self.own(there, raw=OTHER) == TAKEN
        found = self.entry("news")
        assert (found.owner, bool(found.key)) == (here.leases.id, True)
        self.after(LEASE * 3)
        assert self.own(there, raw=OTHER) == TAKEN
        owner.send(wire.publish(OWNER, b"x"))
        assert owner.take() == wire.message(b"x")
        assert here.figure("leases_lost") == 0
        assert not [line for line in lines if "sign of life" in line]
        assert len([line for line in lines if "the shared state was lost" in line]) == 2
        # It is free when its owner leaves.
        owner.stream.lose()
        self.settle()
        assert self.own(there, raw=OTHER) == b""

    def test_the_shared_state_is_lost_and_another_broker_is_first(self) -> None:
        here, there = self.two()
        owner = here.client(wire.create(OWNER, flags=EXCLUSIVE) + wire.subscribe(OWNER))
        self.settle()
        self.lose_the_state()
        there.state.come_back()
        self.settle()
        assert self.own(there, raw=OTHER) == b""
        here.state.come_back()
        self.settle()
        assert owner.take() == OVER
        assert here.names() == []
        assert self.entry("news").owner == there.leases.id

    def test_an_end_that_is_reported_late(self) -> None:
        here, there = self.two()
        self.own(here)
        former, lease = here.leases.id, self.lease(here)
        self.bucket.states.remove(here.state)
        self.bucket.write("b." + former, lease._replace(ended=True).encode())
        self.after(LEASE * 0.5)
        # Its own change has shown it: it does not begin the lease again.
        assert here.leases.id != former
        assert here.figure("leases_lost") == 1
        found = decode_lease(self.bucket.entries["b." + former].value)
        assert found is not None
        assert found.ended
        # Nothing else tells it that others may have its topics.
        assert here.names() == []
        assert self.own(there, raw=OTHER) == b""

    def test_the_engine_takes_no_changes(self) -> None:
        """As JetStream without a quorum: connections stay, and each change fails."""
        here, there = self.two()
        self.own(here)
        for broker in (here, there):
            broker.state.put = lambda *change: Deferred()  # type: ignore[method-assign]
        self.after(LEASE * 20)
        del there.state.put
        self.after(LEASE * 0.2)
        assert self.lease(here).asked
        del here.state.put
        self.after(LEASE * 2)
        assert self.own(there) == TAKEN
        assert here.figure("leases_lost") == 0

    def test_an_answer_that_does_not_arrive(self) -> None:
        here, there = self.two()
        self.own(here)
        put = here.state.put

        def unanswered(*change: object) -> Deferred[int]:
            put(*change).addErrback(lambda failure: None)  # type: ignore[arg-type]
            return Deferred()

        here.state.put = unanswered  # type: ignore[method-assign, assignment]
        self.after(LEASE / 4)
        del here.state.put
        self.after(LEASE * 3)
        assert self.own(there) == TAKEN
        assert here.figure("leases_lost") == 0

    def test_an_end_that_the_engine_does_not_take(self) -> None:
        """As while JetStream elects a leader: the connection stays, and changes fail."""
        here, there = self.two()
        owners = [here.client(wire.create(OWNER, name, EXCLUSIVE)) for name in ("news", "b")]
        self.settle()
        self.bucket.refuses = True
        for owner in owners:
            owner.stream.lose()
        self.settle()
        assert here.names() == []
        self.bucket.refuses = False
        self.after(LEASE / 4)
        assert self.own(there) == self.own(there, "b") == b""
        assert here.figure("leases_lost") == 0

    def test_an_owner_that_leaves_before_its_topic_is_there(self) -> None:
        here, there = self.two()
        put, late = here.state.put, []

        def unanswered(*change: Any) -> Deferred[int]:
            late.append(put(*change))
            return Deferred()

        owner = here.client(wire.create(OWNER, "b", EXCLUSIVE))
        here.state.put = unanswered  # type: ignore[method-assign, assignment]
        owner.send(wire.create(OWNER, "news", EXCLUSIVE))
        self.settle()
        del here.state.put
        assert self.own(there) == TAKEN
        # The answer does not come, and neither does that of the change which closes it.
        self.bucket.refuses = True
        self.after(6)
        owner.stream.lose()
        self.settle()
        self.bucket.refuses = False
        self.after(LEASE / 4)
        assert self.own(there) == b""

    def test_a_topic_that_was_deleted_and_has_another_owner(self) -> None:
        here, there = self.two()
        owner = here.client(wire.create(OWNER, "news", EXCLUSIVE) + wire.subscribe(OWNER))
        self.settle()
        here.state.leave()
        there.shared.delete("news", lambda: succeed(None))
        assert self.own(there, raw=OTHER) == b""
        here.state.come_back()
        self.settle()
        assert owner.take() == OVER
        assert here.names() == []
        assert self.own(here) == TAKEN

    def test_a_crash_after_a_lease_was_lost(self) -> None:
        here, there = self.two()
        self.own(here)
        here.state.leave()
        self.after(LEASE * 1.2)
        here.state.come_back()
        self.settle()
        assert here.figure("leases_lost") == 1
        assert self.own(here) == b""
        here.state.leave()
        store = self.stop(here)
        self.bucket.apart.clear()
        self.start(store)
        assert self.own(there) == b""


class OrderTests(LeaseCase):
    """Brokers that stop in order, and values of others"""

    def test_a_clean_stop_frees_all_at_once(self) -> None:
        here, there = self.two()
        for name in ("news", "b"):
            assert self.own(here, name) == b""
        put = here.state.put
        # The engine is slow: only the first change is made before the process is gone.
        here.state.put = (  # type: ignore[method-assign]
            lambda key, *change: put(key, *change) if key.startswith("b.") else Deferred()
        )
        self.stop(here)
        self.settle()
        assert self.lease(here).ended
        assert self.own(there, raw=OTHER) == self.own(there, "b", OTHER) == b""

    def test_a_stop_does_not_wait_long_for_an_engine_that_does_not_answer(self) -> None:
        here = self.start()
        owner = here.client()
        for number in range(1000):
            owner.send(wire.create(OWNER, f"t/{number}", EXCLUSIVE))
        self.settle(100)
        asked: list[str] = []

        def silent(key: str, *change: Any) -> Deferred[int]:
            asked.append(key)
            return Deferred()

        self.patch(here.state, "put", silent)  # type: ignore[no-untyped-call]
        done: list[object] = []
        here.shared.stopService().addCallback(done.append)
        for _ in range(30):
            here.clock.advance(0.5)
        assert done == [None]
        # Its lease is ended first, and with it all of them.
        assert asked[0].startswith("b.")
        assert len(asked) < 400

    def test_a_clean_stop_frees_the_names_for_use(self) -> None:
        here, there = self.two()
        self.own(here)
        self.stop(here)
        self.settle()
        there.use("news")
        self.settle()
        assert there.names() == ["news"]

    def test_brokers_without_exclusive_topics_have_no_lease(self) -> None:
        here, there = self.two()
        here.use("a")
        self.after(LEASE * 2)
        assert not [key for key in self.bucket.entries if key.startswith("b.")]
        assert self.own(there) == b""
        (key,) = [key for key in self.bucket.entries if key.startswith("b.")]
        assert self.bucket.seconds[key] == 24 * 3600

    def test_a_broker_without_the_engine_creates_none(self) -> None:
        here = self.start()
        here.state.leave()
        assert self.own(here) == wire.error(CREATE, RATE_LIMITED)
        here.state.come_back()
        self.settle()
        assert self.own(here) == b""

    def test_values_of_others_are_not_believed(self) -> None:
        assert decode_lease(LeaseValue(60, 1, asked=True).encode()) == (60, 1, True, False)
        for value in (
            None, b"", b"x", b"[]", b"3", b"[" * 5000, b'{"v":2,"seconds":60,"number":1}',
            b'{"v":1,"seconds":1e9,"number":1}', b'{"v":1,"seconds":60,"number":1e999}',
            b'{"v":1,"seconds":null,"number":1}', b'{"v":1,"seconds":NaN,"number":1}',
        ):  # fmt: skip
            assert decode_lease(value) is None
        here, there = self.two()
        self.own(here)
        # Another program has overwritten it, so this broker cannot tell that it has the topics.
        self.bucket.write("b." + here.leases.id, b"x")
        self.after(LEASE)
        assert here.names() == []
        assert self.own(there) == b""
