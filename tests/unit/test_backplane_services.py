"""``BackplaneServices``: the connection ends when the others have said goodbye."""

from __future__ import annotations

from twisted.application.service import Service
from twisted.internet.defer import Deferred, fail
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.backplane_services import BackplaneServices
from tests.unit.streams import logged


class _Stopping(Service):
    """Has a name, and stops when ``stopped`` fires."""

    def __init__(self, calls: list[str], word: str) -> None:
        self._calls, self._word = calls, word
        self.stopped: Deferred[None] = Deferred()

    def startService(self) -> None:
        super().startService()  # type: ignore[no-untyped-call]
        self._calls.append(f"{self._word} starts")

    def stopService(self) -> Deferred[None]:
        super().stopService()  # type: ignore[no-untyped-call]
        self._calls.append(f"{self._word} stops")
        return self.stopped


class BackplaneServicesTests(SynchronousTestCase):
    """Three services, the last of which has the connection"""

    def setUp(self) -> None:
        self.clock = Clock()
        self.calls: list[str] = []
        self.services = BackplaneServices(self.clock)
        self.made = [_Stopping(self.calls, word) for word in ("topics", "secrets", "connection")]
        for one in self.made:
            one.setServiceParent(self.services)  # type: ignore[no-untyped-call]
        self.services.startService()  # type: ignore[no-untyped-call]
        assert self.calls == ["topics starts", "secrets starts", "connection starts"]
        self.calls.clear()

    def test_the_connection_is_stopped_last(self) -> None:
        stopped = self.services.stopService()
        self.made[1].stopped.callback(None)
        assert self.calls == ["secrets stops", "topics stops"]
        self.made[0].stopped.callback(None)
        assert self.calls[2:] == ["connection stops"]
        self.assertNoResult(stopped)  # type: ignore[no-untyped-call]
        self.made[2].stopped.callback(None)
        self.successResultOf(stopped)

    def test_an_engine_that_does_not_answer_is_not_waited_for(self) -> None:
        self.services.stopService()
        self.clock.advance(3)
        assert self.calls[2:] == ["connection stops"]

    def test_a_defect_is_logged(self) -> None:
        lines = logged(self)
        self.made[0].stopped = fail(ZeroDivisionError())
        self.services.stopService()
        self.made[1].stopped.callback(None)
        assert self.calls[2:] == ["connection stops"]
        assert "backplane: a service has not stopped in order" in "".join(lines)
        assert self.flushLoggedErrors(ZeroDivisionError)  # type: ignore[no-untyped-call]
