"""Notifications to the service manager, over its own protocol."""

from __future__ import annotations

import socket
from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pubsub.server.service_manager import ServiceManager, notifier, watchdog_seconds
from tests.unit.fakes import make_broker, scratch

STOPPING = "STOPPING=1\nEXTEND_TIMEOUT_USEC=40000000\nSTATUS=draining the clients"


class NotifierTests(SynchronousTestCase):
    """notifier"""

    def listening(self, address: str | bytes) -> socket.socket:
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(manager.close)
        manager.bind(address)
        return manager

    def test_a_datagram_to_the_socket(self) -> None:
        path = str(scratch(self) / "notify")
        manager = self.listening(path)
        notify = notifier({"NOTIFY_SOCKET": path})
        assert notify is not None
        notify("READY=1\nSTATUS=here")
        assert manager.recv(1000) == b"READY=1\nSTATUS=here"

    def test_an_abstract_socket(self) -> None:
        name = f"pubsub-test-{id(self)}"
        manager = self.listening(f"\0{name}")
        notify = notifier({"NOTIFY_SOCKET": f"@{name}"})
        assert notify is not None
        notify("READY=1")
        assert manager.recv(1000) == b"READY=1"

    def test_a_manager_that_does_not_listen_or_read(self) -> None:
        path = str(scratch(self) / "notify")
        notify = notifier({"NOTIFY_SOCKET": path})
        assert notify is not None
        notify("READY=1")
        manager = self.listening(path)
        for _ in range(10_000):
            notify("WATCHDOG=1")
        assert manager.recv(1000) == b"WATCHDOG=1"

    def test_without_a_manager(self) -> None:
        assert notifier({}) is None
        assert notifier({"NOTIFY_SOCKET": "vsock:2:1234"}) is None


class WatchdogTests(SynchronousTestCase):
    """watchdog_seconds"""

    def test_the_variables(self) -> None:
        assert watchdog_seconds({}, 7) == 0
        assert watchdog_seconds({"WATCHDOG_USEC": "3000000"}, 7) == 3
        assert watchdog_seconds({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "7"}, 7) == 3
        # It is meant for another process.
        assert watchdog_seconds({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "8"}, 7) == 0
        assert watchdog_seconds({"WATCHDOG_USEC": "soon"}, 7) == 0


class ManagerTests(SynchronousTestCase):
    """ServiceManager"""

    def manager(self, watchdog: float = 0) -> Any:
        self.clock, self.sent = Clock(), list[str]()
        broker = make_broker(self.clock)
        made = ServiceManager(broker, self.clock, self.sent.append, watchdog, lambda: 5.5)
        made.setServiceParent(broker)  # type: ignore[no-untyped-call]
        broker.startService()
        self.broker = broker
        return made

    def test_ready_once_the_reactor_runs(self) -> None:
        self.manager()
        assert self.sent == []
        self.clock.advance(0)
        assert self.sent == ["READY=1\nSTATUS=serving 0 listeners"]

    def test_a_reload(self) -> None:
        manager = self.manager()
        self.clock.advance(0)
        self.sent.clear()
        manager.reloading()
        manager.reloaded(True)
        assert self.sent == [
            "RELOADING=1\nMONOTONIC_USEC=5500000\nSTATUS=reloading the configuration",
            "READY=1\nSTATUS=serving 0 listeners",
        ]

    def test_a_reload_that_begins_with_the_start(self) -> None:
        manager = self.manager()
        manager.reloading()
        self.clock.advance(0)
        manager.reloaded(True)
        assert self.sent[-1] == "READY=1\nSTATUS=serving 0 listeners"

    def test_a_reload_that_failed_is_in_the_status(self) -> None:
        """For the service manager every reload succeeds."""
        manager = self.manager()
        self.clock.advance(0)
        manager.reloading()
        manager.reloaded(False)
        assert self.sent[-1] == (
            "READY=1\nSTATUS=serving 0 listeners; the last reload failed, see the log"
        )

    def test_why_the_broker_is_not_ready(self) -> None:
        manager = self.manager()
        self.clock.advance(0)
        self.sent.clear()
        self.broker.readiness.missing = ["nsd: port 1 is in use"]
        self.clock.pump([5, 5])
        assert self.sent == ["STATUS=not ready: nsd: port 1 is in use"]
        manager.reloading()
        self.sent.clear()
        self.clock.advance(5)
        assert self.sent == []
        manager.reloaded(True)
        self.broker.readiness.missing = []
        self.clock.pump([5, 5])
        assert [one.rpartition("STATUS=")[2] for one in self.sent] == [
            "not ready: nsd: port 1 is in use", "serving 0 listeners",
        ]  # fmt: skip
        self.broker.stopService()
        assert not self.clock.getDelayedCalls()

    def test_signs_of_life_at_half_the_interval(self) -> None:
        self.manager(watchdog=4)
        self.clock.advance(0)
        self.sent.clear()
        self.clock.pump([1] * 6)
        assert self.sent == ["WATCHDOG=1"] * 3

    def test_they_go_on_while_the_broker_stops(self) -> None:
        self.manager(watchdog=4)
        self.clock.advance(0)
        self.sent.clear()
        self.broker.stopService()
        self.clock.advance(2)
        assert self.sent == [STOPPING, "WATCHDOG=1"]

    def test_a_broker_that_stops_at_once_was_never_ready(self) -> None:
        self.manager()
        self.broker.stopService()
        self.clock.advance(1)
        assert self.sent == [STOPPING]

    def test_the_manager_waits_as_long_as_the_broker(self) -> None:
        """It would kill the broker while clients still read their last messages."""
        self.manager()
        self.broker.drainage.seconds = 120.5
        self.broker.stopService()
        assert "EXTEND_TIMEOUT_USEC=150500000" in self.sent[-1].splitlines()
