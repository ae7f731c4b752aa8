"""``PendingChange``: its client is not read meanwhile, and learns how it ended."""

from __future__ import annotations

from typing import Any, cast
from unittest.mock import patch

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.credentials.queue_keys import QueueKeys
from pubsub.errors import NotAuthorized, Refused
from pubsub.wire.connection import Connection
from pubsub.wire.pending_change import PendingChange
from tests.unit import fast_wire as wire
from tests.unit.fast_wire import OWNER, FastCase
from tests.unit.streams import logged


class Requester:
    """A connection, as a change uses it; ``events`` has what was done with it."""

    closing = False

    def __init__(self) -> None:
        self.events: list[str] = []

    def hold(self, holder: object) -> None:
        self.events.append("hold")

    def release(self, holder: object) -> None:
        self.events.append("release")

    def parse_buffered(self) -> None:
        self.events.append("parse")

    def abort(self, reason: str) -> None:
        self.events.append(f"abort {reason}")


class PendingChangeTests(SynchronousTestCase):
    """The ways in which a change ends"""

    def setUp(self) -> None:
        self.requester = Requester()
        self.done: Deferred[Any] = Deferred()

    def begin(self) -> PendingChange:
        return PendingChange(cast("Connection", self.requester), self.done, self.refuse)

    def refuse(self, refused: Refused) -> None:
        self.requester.events.append(f"refuse {refused}")

    def test_one_that_succeeds(self) -> None:
        change = self.begin()
        assert change.pending
        self.done.callback(None)
        assert not change.pending
        assert self.requester.events == ["hold", "release", "parse"]

    def test_one_that_has_ended_already(self) -> None:
        self.done.callback(None)
        assert not self.begin().pending
        assert self.requester.events == []

    def test_one_that_is_refused(self) -> None:
        self.begin()
        self.done.errback(NotAuthorized("no rights"))
        assert self.requester.events == ["hold", "refuse no rights", "release", "parse"]

    def test_one_that_is_refused_when_the_client_is_gone(self) -> None:
        self.begin()
        self.requester.closing = True
        self.done.errback(NotAuthorized("no rights"))
        assert self.requester.events == ["hold", "release", "parse"]

    def test_defects(self) -> None:
        """They end the connection, and are logged with their traceback."""

        def broken(refused: Refused) -> None:
            raise ZeroDivisionError

        lines = logged(self)
        for error in (ZeroDivisionError(), NotAuthorized("no rights")):
            requester, done = Requester(), Deferred[Any]()
            change = PendingChange(cast("Connection", requester), done, broken)
            done.errback(error)
            assert not change.pending
            assert requester.events == ["hold", "abort internal-error", "release", "parse"]
            errors = self.flushLoggedErrors(ZeroDivisionError)  # type: ignore[no-untyped-call]
            assert len(errors) == 1
        assert lines == ["a change that takes several ticks failed"] * 2


class RotationTests(FastCase):
    """A rotation of fast that another party ends"""

    def setUp(self) -> None:
        self.fast = self.house()
        self.owner = self.fast.owner()
        self.done: Deferred[None] = Deferred()
        with patch.object(QueueKeys, "rotate", lambda *_: self.done):
            # The packet behind it comes with the same read.
            self.owner.send(wire.rotate(OWNER, b"k2") + wire.create(OWNER, "first"))

    def created(self) -> list[bool]:
        """Return whether the topics of the packets behind it were created."""
        return [name in self.fast.broker.topics for name in ("first", "second")]

    def settle(self) -> None:
        """End some ticks."""
        for _ in range(3):
            self.fast.turn()

    def test_the_client_is_not_read_meanwhile(self) -> None:
        """Or it could make the broker keep any number of packets."""
        assert self.owner.stream.paused
        self.owner.stream.feed(wire.create(OWNER, "second"))
        self.settle()
        assert self.created() == [False, False]
        self.done.callback(None)
        assert not self.owner.stream.paused
        self.settle()
        assert self.created() == [True, True]

    def test_a_failure_ends_the_connection(self) -> None:
        """What the client sent behind it is not done: it may depend on the change."""
        self.done.errback(Failure(RuntimeError("a defect")))
        self.settle()
        assert self.owner.stream.aborted
        assert self.owner.take() == b""
        assert self.created() == [False, False]
        assert len(self.flushLoggedErrors(RuntimeError)) == 1  # type: ignore[no-untyped-call]
