"""The reader of a subscription, with an API whose replies are made up."""

from __future__ import annotations

import json
from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pubsub.client import (
    ClientClosed,
    ClientError,
    ConnectFailed,
    ReaderHeld,
    RequestRefused,
    SubscriptionRefused,
)
from pubsub.client.api_requests import ApiRequests
from pubsub.client.client_tls import TlsOptions
from pubsub.client.client_url import parse_url
from pubsub.client.link_timing import Timing
from pubsub.client.messages import MessageBatch
from pubsub.client.reader_session import ReaderPosition, ReaderSession, TakenMessages
from pubsub.client.runtime import Cancel, Observer
from pubsub.client.twisted_runtime import TwistedRuntime
from pubsub.kernel import Columns
from pubsub.wire.client_events import Messages
from tests.unit.client_runtime import Work
from tests.unit.raising import raised

LEASE = ("PUT", "/v1/leases/billing")
READER = ("GET", "/v1/readers/billing")
STORE = ("PUT", "/v1/readers/billing")
HELD = (200, {"seconds": 10})
IN_USE = "reader-in-use"
SILENT = "silent"
TIMEOUT = 30.0


def refused(status: int, code: str, **members: Any) -> tuple[int, dict[str, Any]]:
    return status, {"error": code, "message": f"no: {code}", **members}


class ScriptedRuntime(TwistedRuntime):
    """Answers each request with the next reply to such a one, and repeats the last."""

    def __init__(self) -> None:
        self.clock = Clock()
        super().__init__(self.clock)
        self.replies: dict[tuple[str, str], list[Any]] = {}
        self.requests: list[tuple[tuple[str, str], Any]] = []

    def connect(self, host: str, port: int, tls: object, observer: Observer) -> Cancel:
        call = self.clock.callLater(0, lambda: observer.made(_Stream(self, observer)))
        return lambda: call.cancel() if call.active() else None

    def answer(self, request: bytes, observer: Observer) -> None:
        head, _, body = request.partition(b"\r\n\r\n")
        method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
        key = method, target.partition("?")[0]
        self.requests.append((key, json.loads(body) if body else None))
        replies = self.replies.get(key) or [None]
        reply = replies.pop(0) if len(replies) > 1 else replies[0]
        if reply == SILENT:
            return
        if reply is None:
            observer.lost("the broker closed the connection")
            return
        status, members = reply
        text = json.dumps(members).encode()
        observer.received(b"HTTP/1.1 %d x\r\nContent-Length: %d\r\n\r\n" % (status, len(text)))
        observer.received(text)
        observer.lost("closed")

    def bodies(self, key: tuple[str, str]) -> list[Any]:
        """Return the bodies of requests."""
        return [body for one, body in self.requests if one == key]


class _Stream:
    def __init__(self, runtime: ScriptedRuntime, observer: Observer) -> None:
        self._runtime = runtime
        self._observer = observer

    def write(self, data: bytes) -> None:
        self._runtime.clock.callLater(0, self._runtime.answer, data, self._observer)

    def close(self) -> None: ...

    def abort(self) -> None: ...

    def set_reading(self, reading: bool) -> None: ...


class SessionCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.runtime = ScriptedRuntime()
        self.begun: list[str] = []
        self.errors: list[ClientError] = []
        self.is_proved = False
        self.runtime.replies = {
            LEASE: [HELD],
            READER: [(200, {"offset": 7, "epoch": "2-b"})],
            STORE: [(204, {})],
            ("DELETE", LEASE[1]): [(204, {})],
            ("GET", "/v1/bounds"): [(200, {"first": 0, "next": 9, "epoch": "3-c"})],
        }

    def session(self, start: int | None = None) -> ReaderSession:
        """Return a session that runs."""
        target = parse_url("http://localhost:7080")
        api = ApiRequests(self.runtime, target, TlsOptions(), lambda: None, 5.0)
        session = ReaderSession(
            self.runtime, [api], "billing", start, self.begun.append, self.errors.append,
            lambda: self.is_proved, Timing(), TIMEOUT,
        )  # fmt: skip
        self.runtime.spawn(session.run())
        self.advance(0.1)
        return session

    def advance(self, seconds: float) -> None:
        end = self.runtime.clock.seconds() + seconds
        while self.runtime.clock.seconds() < end:
            self.runtime.clock.advance(0.02)

    def commit(self, session: ReaderSession, offset: int, epoch: str = "2-b") -> Work[None]:
        work = Work(session.commit(ReaderPosition(epoch, offset)))
        self.advance(0.1)
        return work


class BeginningTests(SessionCase):
    """The start of a session"""

    def test_a_stored_position(self) -> None:
        self.session(start=3)
        assert self.begun == ["2-b:7"]
        assert not self.runtime.bodies(STORE)

    def test_the_first_position_is_stored(self) -> None:
        self.runtime.replies[READER] = [refused(404, "not-found")]
        self.session()
        assert self.begun == ["3-c:9"]
        assert self.runtime.bodies(STORE) == [{"offset": 9, "epoch": "3-c"}]

    def test_a_given_first_position(self) -> None:
        self.runtime.replies[READER] = [refused(404, "not-found")]
        self.session(start=0)
        assert self.begun == ["3-c:0"]
        assert self.runtime.bodies(STORE) == [{"offset": 0, "epoch": "3-c"}]

    def test_a_refusal(self) -> None:
        self.runtime.replies[LEASE] = [refused(403, "not-authorized")]
        session = self.session()
        (error,) = self.errors
        assert isinstance(error, SubscriptionRefused)
        assert "no: not-authorized" in str(error)
        assert not self.begun
        assert session.gone.done

    def test_a_server_without_leases(self) -> None:
        """As a broker of an earlier version: 404 is not only for a reader without a position."""
        self.runtime.replies[LEASE] = [refused(404, "not-found")]
        session = self.session()
        (error,) = self.errors
        assert isinstance(error, SubscriptionRefused)
        assert session.gone.done

    def test_the_first_request_is_not_repeated_unless_the_broker_was_reached(self) -> None:
        self.runtime.replies[LEASE] = [None, HELD]
        self.session()
        self.advance(1)
        (error,) = self.errors
        assert isinstance(error, ConnectFailed)
        assert "the broker closed the connection" in str(error)
        self.is_proved = True
        self.runtime.replies[LEASE] = [None, refused(503, "memory"), HELD]
        self.session()
        self.advance(1)
        assert self.begun == ["2-b:7"]

    def test_a_reply_of_another_server(self) -> None:
        replies = [(LEASE, (200, ["x"])), (READER, (200, {"offset": "x"}))]
        seconds: list[Any] = [None, "x", [1], True, -1, float("inf"), float("nan"), 10**400]
        replies += [(LEASE, (200, {"seconds": one})) for one in seconds]
        for key, reply in replies:
            self.errors.clear()
            before, self.runtime.replies[key] = self.runtime.replies[key], [reply]
            self.session()
            (error,) = self.errors
            assert "not one of a broker" in str(error)
            self.runtime.replies[key] = before

    def test_a_name_that_is_held_for_no_time(self) -> None:
        for seconds in (None, "x", 10**400):
            self.errors.clear()
            self.runtime.replies[LEASE] = [refused(409, IN_USE, seconds=seconds)]
            self.session()
            self.advance(1)
            (error,) = self.errors
            assert isinstance(error, ReaderHeld)

    def test_a_close_before_the_beginning(self) -> None:
        session = self.session()
        self.begun.clear()
        self.runtime.replies[LEASE] = [refused(409, IN_USE, seconds=9.0)]
        waiting = self.session()
        waiting.close()
        self.advance(0.2)
        assert waiting.gone.done
        assert not self.begun
        session.close()


class LeaseTests(SessionCase):
    """The lease of the name"""

    def test_the_lease_of_a_killed_program_is_waited_for(self) -> None:
        lefts = [refused(409, IN_USE, seconds=seconds) for seconds in (2.5, 1.5, 0.5)]
        self.runtime.replies[LEASE] = [*lefts, HELD]
        self.session()
        assert not self.begun
        self.advance(4)
        assert self.begun == ["2-b:7"]

    def test_a_lease_that_is_renewed_is_another_program(self) -> None:
        lefts = [refused(409, IN_USE, seconds=seconds) for seconds in (8.0, 7.0, 9.9)]
        self.runtime.replies[LEASE] = lefts
        self.session()
        self.advance(4)
        (error,) = self.errors
        assert isinstance(error, ReaderHeld)
        assert "another program holds the reader 'billing'" in str(error)

    def test_it_is_renewed_and_released(self) -> None:
        session = self.session()
        self.advance(10)
        holders = {body["holder"] for body in self.runtime.bodies(LEASE)}
        assert len(self.runtime.bodies(LEASE)) == 5
        assert len(holders) == 1
        session.close()
        assert not session.gone.done
        self.advance(0.1)
        assert session.gone.done
        assert self.runtime.requests[-1][0] == ("DELETE", LEASE[1])
        self.advance(20)
        assert self.runtime.requests[-1][0] == ("DELETE", LEASE[1])
        assert not self.runtime.clock.getDelayedCalls()

    def test_a_release_without_an_answer(self) -> None:
        self.runtime.replies["DELETE", LEASE[1]] = [None]
        session = self.session()
        session.close()
        self.advance(1)
        assert session.gone.done

    def test_the_broker_is_away_for_a_moment(self) -> None:
        self.runtime.replies[LEASE] = [HELD, None, HELD]
        self.session()
        self.advance(8)
        assert not self.errors

    def test_another_program_has_taken_the_name(self) -> None:
        self.runtime.replies[LEASE] = [HELD, refused(409, IN_USE, seconds=9.0)]
        session = self.session()
        self.advance(3)
        (error,) = self.errors
        assert isinstance(error, ReaderHeld)
        raised(ReaderHeld, self.commit(session, 8).result)
        assert not self.runtime.bodies(STORE)


class CommitTests(SessionCase):
    """Commits"""

    def test_a_position_is_stored_once(self) -> None:
        session = self.session()
        for offset in (8, 8, 9):
            self.commit(session, offset).result()
        assert [body["offset"] for body in self.runtime.bodies(STORE)] == [8, 9]
        assert Work(session.commit(None)).done

    def test_while_the_broker_is_away(self) -> None:
        session = self.session()
        self.runtime.replies[STORE] = [None, None, refused(503, "history-unavailable"), (204, {})]
        work = self.commit(session, 8)
        assert not work.done
        self.advance(2)
        work.result()
        assert len(self.runtime.bodies(STORE)) == 4

    def test_for_too_long(self) -> None:
        session = self.session()
        self.runtime.replies[STORE] = [None]
        work = self.commit(session, 8)
        self.advance(TIMEOUT + 1)
        raised(ConnectFailed, work.result)
        self.runtime.replies[STORE] = [(204, {})]
        self.commit(session, 8).result()

    def test_calls_take_turns(self) -> None:
        session = self.session()
        self.runtime.replies[STORE] = [None, (204, {})]
        works = [self.commit(session, offset) for offset in (8, 9, 10)]
        self.advance(2)
        for work in works:
            work.result()
        assert [body["offset"] for body in self.runtime.bodies(STORE)] == [8, 8, 9, 10]

    def test_a_refusal_is_raised(self) -> None:
        session = self.session()
        self.runtime.replies[STORE] = [refused(507, "limit-reached")]
        error = raised(RequestRefused, self.commit(session, 8).result)
        assert (error.status, error.code) == (507, "limit-reached")

    def test_a_message_that_the_broker_has_lost(self) -> None:
        session = self.session()
        self.runtime.replies[STORE] = [refused(409, "epoch"), (204, {})]
        with self.assertLogs("pubsub.client", "WARNING") as logged:
            self.commit(session, 8).result()
        assert "the position of reader billing is not stored" in logged.output[0]
        self.commit(session, 8, "3-c").result()
        assert self.runtime.bodies(STORE)[-1] == {"offset": 8, "epoch": "3-c"}

    def test_a_program_that_was_slow_renews_the_lease_first(self) -> None:
        self.runtime.replies[LEASE] = [HELD, None]
        session = self.session()
        # No renewal has arrived.
        self.advance(11)
        self.runtime.replies[LEASE] = [refused(409, IN_USE, seconds=5.0)]
        raised(ReaderHeld, self.commit(session, 8).result)
        assert not self.runtime.bodies(STORE)

    def test_a_close_waits_for_a_commit(self) -> None:
        """Another program, which the release admits, begins behind it."""
        session = self.session()
        self.runtime.replies[STORE] = [None, (204, {})]
        work = Work(session.commit(ReaderPosition("2-b", 8)))
        self.advance(0.02)
        session.close()
        self.advance(0.5)
        work.result()
        assert [one for one, _ in self.runtime.requests[-2:]] == [STORE, ("DELETE", LEASE[1])]
        assert session.gone.done

    def test_a_close_gives_a_commit_up(self) -> None:
        session = self.session()
        self.runtime.replies[STORE] = [SILENT]
        work = self.commit(session, 8)
        session.close()
        self.advance(0.9)
        assert not work.done
        self.advance(0.2)
        assert session.gone.done
        assert "the subscription was closed" in str(raised(ClientClosed, work.result))
        assert not self.runtime.clock.getDelayedCalls()

    def test_after_the_end(self) -> None:
        session = self.session()
        session.close()
        self.advance(0.1)
        raised(ClientClosed, self.commit(session, 8).result)


class TakenTests(SynchronousTestCase):
    """The place that a program has reached"""

    def batch(self, offsets: range | None, epoch: str | None = "1-a") -> MessageBatch:
        columns = Columns.of([b"x", b"y", b"z"])
        return MessageBatch(Messages("orders", columns, offsets=offsets, epoch=epoch))

    def test_each_message(self) -> None:
        taken = TakenMessages(True)
        assert taken.position is None
        messages = taken.each_of(self.batch(range(4, 7)))
        assert taken.position is None
        next(messages)
        assert taken.position == ("1-a", 5)
        list(messages)
        assert taken.position == ("1-a", 7)

    def test_a_batch(self) -> None:
        taken = TakenMessages(True)
        taken.add(self.batch(range(4, 7)))
        assert taken.position == ("1-a", 7)

    def test_messages_that_are_not_stored(self) -> None:
        taken = TakenMessages(True)
        for batch in (self.batch(None), self.batch(range(3), None)):
            taken.add(batch)
            assert len(list(taken.each_of(batch))) == 3
        assert taken.position is None
