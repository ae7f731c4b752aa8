"""Leases of reader names: one running query for each name."""

from __future__ import annotations

import signal
from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase

from pubsub.errors import ConfigurationError
from pubsub.pipeline.histories.history import ReaderInUse, Unreachable
from pubsub.pipeline.readers.reader_lease import ReaderLease
from tests.unit.http_case import HttpCase, Time
from tests.unit.raising import raised

SECONDS = 10.0


class LeasingBroker:
    """A broker's leases; ``down`` is the number of requests that fail."""

    def __init__(self, time: Time) -> None:
        self._time = time
        self.leases: dict[str, tuple[str, float]] = {}
        self.down = 0

    def hold_reader(self, reader: str, holder: str) -> float:
        if self.down:
            self.down -= 1
            raise Unreachable("gone")
        found, end = self.leases.get(reader, (holder, 0.0))
        if found != holder and end > self._time.now:
            raise ReaderInUse("in use", end - self._time.now)
        self.leases[reader] = holder, self._time.now + SECONDS
        return SECONDS

    def release_reader(self, reader: str, holder: str) -> None:
        if self.leases.get(reader, ("", 0.0))[0] == holder:
            del self.leases[reader]


class LeaseTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.time = Time()
        self.broker = LeasingBroker(self.time)

    def lease(self, name: str = "daily") -> ReaderLease:
        found = ReaderLease(name, [self.broker], lambda: self.time.now, self.time.sleep)
        # The thread of the lease would use the clock of the machine.
        self.addCleanup(found.end)
        return found

    def test_a_second_query_is_refused_while_the_first_renews(self) -> None:
        first = self.lease()
        first.begin()
        sleep = self.time.sleep

        def sleep_while_the_first_renews(seconds: float) -> None:
            sleep(seconds)
            first.renew()

        self.time.sleep = sleep_while_the_first_renews  # type: ignore[method-assign]
        error = raised(ConfigurationError, self.lease().begin)
        assert "another stream has the name 'daily'" in str(error)
        assert self.time.now < 3
        self.lease("nightly").begin()
        first.check()

    def test_a_killed_query_is_waited_for(self) -> None:
        self.broker.hold_reader("daily", "killed")
        self.lease().begin()
        assert SECONDS <= self.time.now < SECONDS + 2

    def test_a_query_that_ended_is_not_waited_for(self) -> None:
        first = self.lease()
        first.begin()
        first.end()
        self.lease().begin()
        assert self.time.now == 0

    def test_a_broker_that_is_restarted(self) -> None:
        self.broker.down = 3
        with self.assertLogs("pubsub.pipeline", "WARNING"):
            self.lease().begin()
        assert self.broker.leases

    def test_a_lost_name(self) -> None:
        first = self.lease()
        first.begin()
        self.time.now = SECONDS
        second = self.lease()
        second.begin()
        first.renew()
        second.check()
        raised(ConfigurationError, first.check)
        self.broker.down = 1
        second.renew()
        second.check()

    def test_termination_ends_the_lease(self) -> None:
        ended = []
        before = signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
        self.addCleanup(signal.signal, signal.SIGTERM, before)
        lease = self.lease()
        lease.begin()
        lease.end_at_termination()
        signal.raise_signal(signal.SIGTERM)
        assert ended == [signal.SIGTERM]
        assert not self.broker.leases

    def test_an_end_that_the_broker_does_not_answer(self) -> None:
        lease = self.lease()
        lease.begin()
        with patch.object(self.broker, "release_reader", side_effect=Unreachable("gone")):
            lease.end()
        assert self.broker.leases


class RequestTests(HttpCase):
    def test_requests(self) -> None:
        self.server.add_reply(200, {"seconds": 10})
        self.server.add_reply(204, None)
        assert self.history.hold_reader("a/b", "me") == 10
        self.history.release_reader("a/b", "me")
        assert [ask[:2] for ask in self.server.requests] == [
            ("PUT", "/v1/leases/a%2Fb"),
            ("DELETE", "/v1/leases/a%2Fb?holder=me"),
        ]

    def test_replies(self) -> None:
        self.server.add_reply(409, {"error": "reader-in-use", "message": "held", "seconds": 3.5})
        assert raised(ReaderInUse, self.history.hold_reader, "a", "me").seconds == 3.5
        self.server.add_reply(404, {"error": "not-found", "message": "no"})
        assert self.history.hold_reader("a", "me") == 0
