"""``NatsConnection``: the beginning and the end of a connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from twisted.internet.selectreactor import SelectReactor
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.engine import nats_connection
from pubsub.backplane.engine.nats_backplane import NatsBackplane
from pubsub.backplane.engine.nats_connection import NatsConnection, cancel_others, unhandled
from pubsub.backplane.engine.nats_work import Change, Unusable
from pubsub.errors import ConfigurationError
from tests.unit.raising import raised
from tests.unit.streams import logged

OPTIONS = SimpleNamespace(servers=SimpleNamespace(urls=["nats://engine:4222"]), replicas=1)


class _Client:
    """A connection to the engine; ``meanwhile`` is called before the next flush ends."""

    def __init__(self) -> None:
        self.subscribed: list[str] = []
        self.meanwhile: Callable[[], object] = lambda: None

    async def subscribe(self, subject: str, cb: object) -> SimpleNamespace:
        self.subscribed.append(subject)
        return SimpleNamespace(unsubscribe=lambda: self._end(subject))

    async def _end(self, subject: str) -> None:
        self.subscribed.remove(subject)

    async def flush(self, timeout: int) -> None:
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()


class ConnectingTests(SynchronousTestCase):
    """Changes of subscriptions before the connection can be used"""

    def setUp(self) -> None:
        options = cast(Any, OPTIONS)
        self.connection = NatsConnection(options, cast(Any, None), None)
        self.client: Any = _Client()
        self.change("first", True)

    def change(self, subject: str, begins: bool) -> None:
        self.connection.hand_over([Change(subject, begins)], [])

    def subscribe_all(self) -> None:
        async def run() -> None:
            await self.connection._subscribe_all(self.client)
            while self.connection._changes:
                await self.connection._change(self.client, self.connection._changes.popleft())

        asyncio.run(run())

    def test_a_subject_added_during_the_flush(self) -> None:
        self.client.meanwhile = lambda: self.change("second", True)
        self.subscribe_all()
        assert self.client.subscribed == ["first", "second"]

    def test_a_subject_removed_during_the_flush(self) -> None:
        self.change("second", True)
        self.client.meanwhile = lambda: self.change("first", False)
        self.subscribe_all()
        assert self.client.subscribed == ["second"]


class _Stuck(NatsConnection):
    """An engine that takes forever."""

    async def _keep_connected(self) -> None:
        await asyncio.Event().wait()


class _Failing(NatsConnection):
    """An engine whose first connections fail in ways that nobody has foreseen."""

    async def _connection(self, url: str) -> None:
        self.attempts = getattr(self, "attempts", 0) + 1
        if self.attempts < 3:
            raise AssertionError("nats-py")
        self._is_tried()
        self._stopping = True


class AttemptTests(SynchronousTestCase):
    """Attempts to connect, which go on whatever happens"""

    def test_a_defect_does_not_end_them(self) -> None:
        self.patch(nats_connection, "_PAUSE", 0.0)  # type: ignore[no-untyped-call]
        reasons: list[str] = []
        watcher = SimpleNamespace(away=reasons.append)
        connection = _Failing(cast(Any, OPTIONS), cast(Any, watcher), SelectReactor())
        connection.start(30)
        connection._after_pass()
        assert (connection.attempts, reasons) == (3, ["nats-py", "nats-py"])
        errors = self.flushLoggedErrors(AssertionError)  # type: ignore[no-untyped-call]
        assert len(errors) == 2
        connection._loop.end()

    def test_a_file_that_cannot_be_used(self) -> None:
        def of_nats(url: str) -> None:
            raise ConfigurationError(f"{url}: junk")

        options = SimpleNamespace(**vars(OPTIONS), of_nats=of_nats)
        connection = NatsConnection(cast(Any, options), cast(Any, None), None)
        error = raised(Unusable, asyncio.run, connection._connection("u"))
        assert str(error) == "u: junk"


class EndTests(SynchronousTestCase):
    """Connections whose end nats-py does not report, or not completely"""

    def test_the_end_is_not_waited_for_without_limit(self) -> None:
        self.patch(nats_connection, "_END", 0.01)  # type: ignore[no-untyped-call]
        options = cast(Any, OPTIONS)
        reactor = SelectReactor()
        connection = _Stuck(options, cast(Any, None), reactor)
        connection.start(0.01)
        ended = connection.stop()
        deadline = time.monotonic() + 30
        while not ended.called:
            assert time.monotonic() < deadline
            reactor.iterate(0.05)
        assert reactor.getDelayedCalls() == []

    def test_a_closed_connection_is_found(self) -> None:
        async def silent() -> None:
            raise TimeoutError

        client = SimpleNamespace(
            is_closed=True, jetstream=lambda timeout: SimpleNamespace(account_info=silent)
        )
        options = cast(Any, OPTIONS)
        connection = NatsConnection(options, cast(Any, None), None)
        asyncio.run(asyncio.wait_for(connection._check_again(cast(Any, client)), 45))

    def test_tasks_that_are_left_are_ended(self) -> None:
        async def leave() -> bool:
            left = asyncio.ensure_future(asyncio.Event().wait())
            await asyncio.sleep(0)
            await cancel_others()
            return left.cancelled()

        assert asyncio.run(leave())

    def test_only_other_errors_are_logged(self) -> None:
        logged: list[object] = []
        loop = cast(Any, SimpleNamespace(default_exception_handler=logged.append))
        defect = {"exception": ValueError()}
        for context in ({"exception": ConnectionResetError()}, defect, {"message": "x"}):
            unhandled(loop, context)
        assert logged == [defect, {"message": "x"}]


class SlowTests(SynchronousTestCase):
    """An engine that takes messages slowly"""

    def test_publishers_are_held_for_a_while(self) -> None:
        clock, handed = Clock(), list[object]()
        options = SimpleNamespace(servers="nats://engine:4222", max_bytes=1000)
        connection = SimpleNamespace(state=None, hand_over=lambda *work: handed.append(work))
        backplane = NatsBackplane(
            cast(Any, options),
            clock,
            lambda call: None,
            lambda *dropped: None,
            make_connection=cast(Any, lambda *given: connection),
        )
        backplane.connected("nats://engine:4222", 1000)
        assert backplane.send("a", bytes(600), 1) == ""
        assert backplane.gate.shut
        assert backplane.send("a", bytes(401), 1) == "backplane-full"
        # It takes them in time, so nothing follows from that.
        backplane.sent(600)
        assert not backplane.gate.shut
        clock.advance(10)
        assert backplane.send("a", bytes(700), 1) == ""
        clock.advance(4)
        assert backplane.gate.shut
        clock.advance(2)
        assert not backplane.gate.shut
        assert backplane.send("a", b"x", 1) == "backplane-slow"
        backplane.sent(700)
        assert backplane.send("a", b"x", 1) == ""
        assert not clock.getDelayedCalls()


class ReasonTests(SynchronousTestCase):
    """Why the engine is away, in the log"""

    def test_a_reason_that_replaces_the_first_is_logged_after_a_while(self) -> None:
        clock, lines = Clock(), logged(self)
        backplane = NatsBackplane(
            cast(Any, OPTIONS), clock, lambda call: None, lambda *dropped: None
        )
        backplane.connected("nats://engine:4222", 1)
        for reason in ("it stops", "refused", "certificate expired"):
            backplane.away(reason)
            clock.advance(10)
        assert [line for line in lines if "still" in line] == []
        for _ in range(60):
            backplane.away("certificate expired")
            clock.advance(1)
        still = ["backplane: the engine is still away: certificate expired"]
        assert [line for line in lines if "still" in line] == still
        backplane.connected("nats://engine:4222", 1)
        backplane.away("it stops")
        assert "the engine is away: it stops" in lines[-1]

    def test_subscribers_that_may_have_missed_messages_are_reported(self) -> None:
        clock, lines = Clock(), logged(self)
        backplane = NatsBackplane(
            cast(Any, OPTIONS), clock, lambda call: None, lambda *dropped: None
        )
        backplane.connected("nats://engine:4222", 2**20)
        backplane.away("killed")
        clock.advance(5)
        backplane.connected("nats://engine:4222", 2**20)
        # Nobody subscribes here.
        assert not [line for line in lines if "have missed" in line]
        backplane.want("a")
        for _ in range(3):
            backplane.away("killed")
            backplane.unusable("starting")
            clock.advance(0.5)
        backplane.connected("nats://other:4222", 2**20)
        assert lines[-1] == (
            "backplane: subscribers here may have missed live messages of other brokers in the "
            "1.5 s before, except those of a shared history"
        )
        assert "connected to nats://other:4222" in lines[-2]

    def test_messages_may_be_missed_since_the_engine_has_been_silent(self) -> None:
        clock, lines = Clock(), logged(self)
        backplane = NatsBackplane(
            cast(Any, OPTIONS), clock, lambda call: None, lambda *dropped: None
        )
        backplane.want("a")
        # Less than between two pings shows nothing.
        for silence, missed in ((11.0, "14.0"), (4.0, "3.0")):
            backplane.connected("nats://engine:4222", 2**20)
            backplane.away("it does not answer in time", silence)
            clock.advance(3)
            backplane.connected("nats://engine:4222", 2**20)
            assert f"in the {missed} s before" in lines[-1]

    def test_a_server_that_is_cut_off(self) -> None:
        clock, lines = Clock(), logged(self)
        backplane = NatsBackplane(
            cast(Any, OPTIONS), clock, lambda call: None, lambda *dropped: None
        )
        backplane.connected("nats://engine:4222", 1024**2)
        del lines[:]
        for is_cut_off in (False, True, True, False, False):
            backplane.cut_off(is_cut_off)
            assert backplane.figures()["cut_off"] == is_cut_off
            clock.advance(5)
        cut, healed = lines
        assert "or nats://engine:4222 is cut off from them" in cut
        assert "there again" in healed
        assert "in the 10 s before" in healed
        # The end of the connection says more. Messages have been missing from the beginning.
        backplane.want("a")
        backplane.cut_off(True)
        clock.advance(5)
        backplane.away("it does not answer in time")
        assert not backplane.figures()["cut_off"]
        clock.advance(1)
        backplane.connected("nats://other:4222", 1024**2)
        assert "in the 6.0 s before" in lines[-1]

    def test_one_server_is_away_and_another_one_is_unusable(self) -> None:
        clock, lines = Clock(), logged(self)
        backplane = NatsBackplane(
            cast(Any, OPTIONS), clock, lambda call: None, lambda *dropped: None
        )
        unusable = "backplane: the engine cannot be used: it refuses the credentials"
        for _ in range(2):
            backplane.connected("nats://engine:4222", 1)
            for _ in range(100):
                backplane.away("connection refused")
                assert backplane.trouble == "connection refused"
                clock.advance(0.5)
                backplane.unusable("it refuses the credentials")
                assert backplane.trouble == "it refuses the credentials"
                clock.advance(0.5)
        # Once for each end of a connection.
        assert lines.count(unusable) == 2
