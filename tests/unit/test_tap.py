"""``twistd pubsub``: the broker, its store and its listeners from the command line."""

from __future__ import annotations

import gc
import io
import os
import sys
from pathlib import Path
from queue import SimpleQueue
from socket import gethostname
from threading import Event
from typing import Any

import twisted.internet
from twisted.internet.address import IPv4Address
from twisted.internet.epollreactor import EPollReactor
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import TestCase

from pubsub.broker.service import BrokerService
from pubsub.broker.topic_space.durability import Durability
from pubsub.build_info import build_kind, version
from pubsub.errors import ConfigurationError, LimitReached, StartError
from pubsub.server import tap
from pubsub.server.log_setup import LoggedProcess
from pubsub.server.reload import Reloader
from pubsub.tuning import TUNED
from pubsub.wire.connection import Connection
from pubsub.wire.reactor_tick import ticks_of
from tests.unit.fakes import Guest, scratch
from tests.unit.raising import raised
from tests.unit.streams import logged
from tests.unit.tokens import KEY
from tests.unit.tunings import restore_collector, restore_switches
from tests.unit.user_files import user_file

MEMORY = "--store=memory"
SECONDS = 20.0
BUILD = f"pubsub {version()}, kernel: {build_kind()}"


def secret(directory: Path) -> str:
    """The option for a master secret in a new file."""
    path = directory / "secret"
    path.write_bytes(KEY)
    path.chmod(0o600)
    return f"--secret-file={path}"


class TapCase(TestCase):
    """A reactor in memory"""

    def setUp(self) -> None:
        self.reactor = MemoryReactorClock()

    def make(self, *options: str) -> BrokerService:
        """Return the broker of ``twistd pubsub`` with these options, not started."""
        parsed = tap.Options()
        # The ports of this reactor are at 0.0.0.0.
        parsed.parseOptions(["--allow-anonymous", *options])
        return tap.make_broker(parsed.config, self.reactor)

    def refused(self, *options: str) -> str:
        """Return the error message of these options."""
        return str(raised(ConfigurationError, self.make, *options))


class MakeBrokerTests(TapCase):
    """The effect of options"""

    def ports(self) -> list[int]:
        return [port for port, *_ in self.reactor.tcpServers]

    def test_it_listens_once_it_is_started(self) -> None:
        broker = self.make(MEMORY, "--proto=cafe", "--port=7170", "--listen=nsd=tcp:7171")
        assert [listener.protocol for listener in broker.listeners] == ["cafe", "nsd"]
        assert self.ports() == []
        broker.startService()
        self.addCleanup(broker.stopService)
        assert self.ports() == [7170, 7171]

    def test_a_client_is_served(self) -> None:
        broker = self.make(MEMORY, "--proto=cafe")
        broker.startService()
        self.addCleanup(broker.stopService)
        ((_, factory, *_),) = self.reactor.tcpServers
        connection = factory.buildProtocol(IPv4Address("TCP", "192.0.2.1", 4711))
        assert isinstance(connection, Connection)
        assert connection.listener in broker.listeners

    def test_the_store_is_a_file_unless_memory_is_asked_for(self) -> None:
        path = scratch(self) / "history.db"
        assert self.make(f"--store=sqlite:{path}", "--proto=nsd").store.durable
        assert not path.exists()
        assert not self.make(MEMORY, "--proto=nsd").store.durable

    def test_the_reactor_looks_again_for_messages_that_are_gathered(self) -> None:
        parsed = tap.Options()
        parsed.parseOptions([MEMORY, "--proto=cafe", "--port=0"])
        reactor: Any = EPollReactor()
        gathering = tap.make_broker(parsed.config, reactor).dispatcher.gathering
        assert gathering.look_again == ticks_of(reactor, TUNED).look_again

    def test_a_store_in_memory_refuses_sync(self) -> None:
        error = self.refused(MEMORY, "--proto=nsd", "--durability=orders/*=sync")
        assert "orders/*=sync" in error
        broker = self.make(MEMORY, "--proto=nsd", "--durability=orders/*=none")
        assert broker.topics.create("orders/1").durability is Durability.NONE

    def test_the_memory_of_the_history_is_reserved(self) -> None:
        sizes = MEMORY, "--proto=nsd", "--history=10,4M"
        assert "max-memory" in self.refused(*sizes, "--max-memory=4M")
        broker = self.make(*sizes, "--max-memory=5M")
        assert (broker.memory.limit, broker.memory.used) == (5 * 2**20, 4 * 2**20)

    def test_the_number_of_topics_is_limited(self) -> None:
        broker = self.make(MEMORY, "--proto=nsd", "--max-topics=2")
        broker.topics.create("a")
        broker.topics.create("b")
        raised(LimitReached, broker.topics.create, "c")

    def test_the_shutdown_has_a_deadline(self) -> None:
        broker = self.make(MEMORY, "--proto=nsd", "--stop-timeout=7")
        broker.startService()
        guest = Guest(broker, stubborn=True)
        stopped = broker.stopService()
        self.reactor.advance(6.9)
        self.assertNoResult(stopped)  # type: ignore[no-untyped-call]
        self.reactor.advance(0.2)
        self.successResultOf(stopped)
        assert len(guest.calls) == 2

    def test_the_http_api_is_a_listener(self) -> None:
        secret_file = secret(scratch(self))
        broker = self.make(MEMORY, "--proto=nsd", "--admin-port=7180", secret_file)
        assert [listener.protocol for listener in broker.listeners] == ["nsd", "admin"]

    def test_fast_needs_a_secret(self) -> None:
        assert "fast" in self.refused(MEMORY, "--proto=fast")
        broker = self.make(MEMORY, "--proto=fast", secret(scratch(self)))
        assert [listener.protocol for listener in broker.listeners] == ["fast"]

    def test_without_a_secret_fast_is_omitted(self) -> None:
        lines = logged(self)
        broker = self.make(MEMORY)
        found = [listener.protocol for listener in broker.listeners]
        assert found == ["cafe", "nsd", "rheos", "spot", "admin"]
        assert any(line.startswith("fast: not served: ") for line in lines)

    def test_a_file_of_users_that_no_listener_asks_for_is_reported(self) -> None:
        users = f"--password-file={user_file(scratch(self))}"
        options = MEMORY, "--proto=cafe", "--proto=nsd", "--proto=spot", users
        lines = logged(self)
        self.make(*options)
        assert [line.split(";")[0] for line in lines if line.startswith("password-file: ")] == [
            "password-file: no listener takes passwords"
        ]
        lines.clear()
        for accepting in (
            "--cafe-client-id-password=optional",
            "--nsd-identity-password=required",
            "--spot-mechanism=null,plain",
        ):
            self.make(*options, accepting)
        assert not [line for line in lines if line.startswith("password-file: ")]
        for setting, needy in (
            ("client-id-password", "--cafe-client-id-password=optional"),
            ("identity-password", "--nsd-identity-password=required"),
            ("mechanism plain", "--spot-mechanism=null,plain"),
        ):
            error = self.refused(*options[:-1], needy)
            assert f"{setting} needs users; set password-file" in error


class MakeServiceTests(TapCase):
    """makeService"""

    def setUp(self) -> None:
        super().setUp()
        self.patch(twisted.internet, "reactor", self.reactor)  # type: ignore[no-untyped-call]
        self.patch(sys, "excepthook", sys.excepthook)  # type: ignore[no-untyped-call]
        restore_collector(self)
        restore_switches(self)

    def service(self, *options: str) -> BrokerService:
        parsed = tap.Options()
        # The ports of this reactor are at 0.0.0.0.
        parsed.parseOptions(["--allow-anonymous", *options])
        process = tap.makeService(parsed)
        assert isinstance(process, LoggedProcess)
        broker, *_ = process
        assert isinstance(broker, BrokerService)
        return broker

    def test_the_service_has_the_broker_and_its_signal_handlers(self) -> None:
        lines = logged(self)
        broker = self.service(MEMORY, "--proto=cafe")
        kinds = [type(service).__name__ for service in broker]
        assert kinds == [
            "WorkerThread", "WorkerThread", "ListenerService", "CertificateWatch", "FrozenGrowth",
            "Reloader", "ForcedShutdown",
        ]  # fmt: skip
        assert f"{BUILD}, tuning: on, name: {gethostname()}" in lines

    def test_the_service_manager_is_told_of_a_stop_before_services_of_the_broker_wait(self) -> None:
        environment = {**os.environ, "NOTIFY_SOCKET": str(scratch(self) / "notify")}
        self.patch(os, "environ", environment)  # type: ignore[no-untyped-call]
        process = self.service(MEMORY).parent
        assert process is not None
        # Stopped in the other order.
        kinds = [type(service).__name__ for service in process]
        assert kinds == ["BrokerService", "ServiceManager"]

    def test_a_configuration_that_never_comes_keeps_no_other_waiting(self) -> None:
        handed_over: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
        self.reactor.callFromThread = lambda *call: handed_over.put(call)  # type: ignore[attr-defined]
        (reloader,) = [one for one in self.service(MEMORY) if isinstance(one, Reloader)]
        run: Any = reloader._run_in_thread
        may_end = Event()
        self.addCleanup(may_end.set)
        run(lambda: may_end.wait(SECONDS))
        read = run(lambda: "read")
        call, *arguments = handed_over.get(timeout=SECONDS)
        call(*arguments)
        assert self.successResultOf(read) == "read"

    def test_objects_of_the_start_are_not_collected_again(self) -> None:
        objects: list[list[object]] = [[] for _ in range(1000)]
        before = gc.get_freeze_count()
        self.service(MEMORY, "--proto=cafe")
        assert gc.get_freeze_count() - before > len(objects)

    def test_without_tuning_nothing_of_the_process_is_changed(self) -> None:
        lines = logged(self)
        before = gc.get_freeze_count()
        self.service(MEMORY, "--proto=cafe", "--tuning=off")
        assert gc.get_freeze_count() <= before
        assert f"{BUILD}, tuning: off, name: {gethostname()}" in lines

    def test_the_name_of_the_broker(self) -> None:
        lines = logged(self)
        assert self.make(MEMORY, "--proto=cafe").statistics.name == gethostname()
        assert self.make(MEMORY, "--proto=cafe", "--name=broker-a").statistics.name == "broker-a"
        assert f"{BUILD}, tuning: on, name: broker-a" in lines
        for wrong in ("a\nb", " a", "a" * 101):
            error = raised(SystemExit, self.make, f"--name={wrong}")
            assert "name: expected a name of at most" in str(error)

    def test_an_untested_version_of_twisted_is_reported(self) -> None:
        self.patch(tap, "twisted_version", "99.1.0")  # type: ignore[no-untyped-call]
        lines = logged(self)
        self.service(MEMORY, "--proto=cafe")
        assert f"{BUILD}, tuning: on in part, name: {gethostname()}" in lines
        (line,) = (line for line in lines if line.startswith("tuning: "))
        assert line.startswith("tuning: without tick-hook, ")
        assert line.endswith(", as Twisted 99.1.0 is not tested")
        lines.clear()
        self.service(MEMORY, "--proto=cafe", "--tuning=off")
        assert f"{BUILD}, tuning: off, name: {gethostname()}" in lines
        assert not [line for line in lines if line.startswith("tuning: ")]

    def test_an_error_ends_the_process_with_one_line(self) -> None:
        error = raised(SystemExit, self.service, MEMORY, "--proto=fast")
        assert str(error.code).startswith("pubsub: fast: ")
        assert "\n" not in str(error.code)

    def test_only_errors_of_the_start_have_no_traceback(self) -> None:
        self.service(MEMORY, "--proto=cafe")
        output, shown = io.StringIO(), list[BaseException]()
        self.patch(sys, "__stderr__", output)  # type: ignore[no-untyped-call]
        self.patch(sys, "__excepthook__", lambda kind, error, trace: shown.append(error))  # type: ignore[no-untyped-call]
        sys.excepthook(StartError, StartError("port 7070 is in use"), None)
        assert output.getvalue() == "pubsub: port 7070 is in use\n"
        defect = ZeroDivisionError()
        sys.excepthook(ZeroDivisionError, defect, None)
        assert shown == [defect]
