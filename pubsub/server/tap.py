"""``twistd pubsub``: builds the tree of services from the command line."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from socket import gethostname
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from twisted.application.service import IService, MultiService, Service
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from pubsub.broker.audit_log.audit import AuditLog
from pubsub.broker.core import DispatcherMaker
from pubsub.broker.credentials.passwords import PasswordVerifier
from pubsub.broker.listeners.limits import BrokerLimits
from pubsub.broker.routing.dispatcher import Dispatcher
from pubsub.broker.service import BrokerService
from pubsub.broker.topic_space.durability import DurabilityRules
from pubsub.broker.wall_clock import WallClock
from pubsub.build_info import build_kind, check_kernel_choice, version
from pubsub.errors import ConfigurationError, PubSubError, StartError
from pubsub.server.access_settings import report_deprecated
from pubsub.server.backplane_settings import add_backplane
from pubsub.server.certificates import CertificateWatch
from pubsub.server.clocks import system_wall_clock, use_monotonic_timers
from pubsub.server.command_line import Options as ParsedOptions
from pubsub.server.command_line import make_options
from pubsub.server.configuration import Config
from pubsub.server.configuration_changes import entries
from pubsub.server.early_interrupt import leave_interrupt_to
from pubsub.server.frozen_growth import FrozenGrowth
from pubsub.server.history_settings import HistoryCheck, check_history, history_bytes, make_store
from pubsub.server.issuer_key_fetcher import IssuerKeyFetcher
from pubsub.server.listener_set import ListenerSet
from pubsub.server.log_setup import (
    FailedStart,
    LoggedProcess,
    ProcessLog,
    call_later_from_threads,
    error_line,
)
from pubsub.server.memory_limit import warn_beyond_limit
from pubsub.server.memory_tuning import tune_memory, use_no_blas_threads
from pubsub.server.pid_file import check_pid_file
from pubsub.server.reload import LiveConfiguration, Reloader
from pubsub.server.service_manager import ServiceManager, notifier, watchdog_seconds
from pubsub.server.shutdown import ForcedShutdown
from pubsub.server.thread_tuning import tune_threads
from pubsub.server.upgrade_notes import is_upgrade, report_upgrade
from pubsub.store.worker import Worker, run_alone
from pubsub.tuning import FROZEN_GROWTH, Tuning, choose
from pubsub.wire.inherited_sockets import warn_of_unused
from pubsub.wire.reactor_tick import idle_tricks, ticks_of
from twisted import __version__ as twisted_version

if TYPE_CHECKING:
    from pubsub.server.tracing import Tracing

log = Logger()
# ServiceMaker looks for a module's `Options`, and calls it once `twistd pubsub` is asked for.
Options = make_options


def makeService(options: ParsedOptions) -> IService:
    """Return the broker that ``options`` describe; exit with a one-line error if that fails."""
    from twisted.internet import reactor

    sys.excepthook = report_start_error
    leave_interrupt_to(reactor)
    twistd: Mapping[str, Any] = options.parent or {}
    try:
        check_kernel_choice(os.environ)
        check_pid_file(twistd)
        broker = make_broker(options.config, reactor)
    except PubSubError as error:
        raise FailedStart(f"pubsub: {error}") from None
    warn_beyond_limit(options.config.broker)
    tuning = tuning_of(options.config)
    tune_memory(tuning)
    tune_threads(tuning)
    if FROZEN_GROWTH in tuning:
        ended = attrgetter("counters.ended_connections")
        growth = FrozenGrowth(partial(ended, broker), time.perf_counter)
        growth.setServiceParent(broker)  # type: ignore[no-untyped-call]
    use_no_blas_threads()
    process_log = ProcessLog(options.config.broker, twistd, call_later_from_threads(reactor))
    process_log.watch(broker.served.log_connections)
    live = LiveConfiguration(broker, options.config, reactor, tuning, process_log.configure)
    process = LoggedProcess(process_log)
    broker.setServiceParent(process)  # type: ignore[no-untyped-call]
    begun, done = _report_to_manager(process, broker, reactor)
    # In threads of its own: the pool of the reactor waits for its threads at the end, and a read of
    # a file that never comes must not keep the next reload waiting.
    run_in_thread = partial(run_alone, "pubsub-reload", reactor=reactor)
    reloader = Reloader(live, options.read, reactor, begun, done, run_in_thread)
    reloader.setServiceParent(broker)  # type: ignore[no-untyped-call]
    shutdown = ForcedShutdown(broker, reactor)
    shutdown.setServiceParent(broker)  # type: ignore[no-untyped-call]
    broker.drainage.stop = shutdown.stop
    return process


def _report_to_manager(
    process: MultiService, broker: BrokerService, reactor: IReactorTime
) -> tuple[Callable[[], object], Callable[[bool], object]]:
    """Report to the service manager, if there is one; return the calls around a reload."""
    notify = notifier(os.environ)
    if notify is None:
        return (lambda: None), (lambda is_applied: None)
    seconds = watchdog_seconds(os.environ, os.getpid())
    manager = ServiceManager(broker, reactor, notify, seconds)
    # After the broker, so that it is stopped first: services of the broker may wait for clients.
    manager.setServiceParent(process)  # type: ignore[no-untyped-call]
    return manager.reloading, manager.reloaded


def make_broker(
    config: Config, reactor: IReactorTime, wall: WallClock | None = None
) -> BrokerService:
    """Return a broker with its store and its listeners, which listen once it is started.

    ``reactor`` becomes monotonic, and ``wall`` is the time of messages and tokens, by default the
    system's.
    Raises ConfigurationError.
    """
    settings = config.broker
    if is_upgrade(settings["store"]):
        report_upgrade(config)
    use_monotonic_timers(reactor)
    wall = wall or system_wall_clock()
    tuning = tuning_of(config)
    name = settings["name"] or gethostname()
    _report(tuning, name, reactor)
    wall.ticks = ticks = ticks_of(reactor, tuning)
    check_history(settings)
    threads = _BrokerThreads(
        Worker("pubsub-passwords", 1, reactor), Worker("pubsub-keys", 1, reactor)
    )
    tracing = _make_tracing(reactor) if settings["otel"] else None
    make_dispatcher = Dispatcher if tracing is None else tracing.make_dispatcher
    broker = _compose(config, reactor, wall, ticks.add, threads, make_dispatcher)
    broker.statistics.name = name
    broker.dispatcher.gathering.look_again = ticks.look_again
    if tracing is not None:
        tracing.attach(broker)
    report_deprecated(config.access, [(one.protocol.name, one.settings) for one in entries(config)])
    for thread in threads:
        WorkerThread(thread).setServiceParent(broker)  # type: ignore[no-untyped-call]
    if settings["store"] is not None:
        check = HistoryCheck(settings["store"].directory)
        check.setServiceParent(broker)  # type: ignore[no-untyped-call]
    add_backplane(broker, settings, reactor, ticks.add)
    listeners = ListenerSet(broker, reactor, tuning)
    for one in entries(config):
        prepared = listeners.prepare(one, [])
        if prepared is not None:
            listeners.add(prepared)
    warn_of_unused(one.endpoint for one in entries(config))
    broker.passwords.warn_if_unused()
    certificate = settings["backplane-cert"] if settings["backplane"] else ""
    chain_of = listeners.endpoint_certificates
    watch = CertificateWatch(broker.listeners, reactor, wall.system, certificate, chain_of)
    watch.setServiceParent(broker)  # type: ignore[no-untyped-call]
    broker.configuration.reloaded = watch.look_again
    broker.statistics.certificates = watch.figures
    return broker


class _BrokerThreads(NamedTuple):
    """The threads of a broker, beside those of its history."""

    passwords: Worker
    keys: Worker


def _compose(
    config: Config,
    reactor: IReactorTime,
    wall: WallClock,
    tick_end: Callable[[Callable[[], None]], object],
    threads: _BrokerThreads,
    make_dispatcher: DispatcherMaker,
) -> BrokerService:
    """Return the broker with its store, without listeners."""
    settings = config.broker
    passwords = PasswordVerifier(reactor, threads.passwords.hand_over)
    passwords.replace(config.passwords)
    return BrokerService(
        reactor,
        wall,
        make_store(settings, reactor, wall, tick_end),
        BrokerLimits.of(settings, history_bytes(settings)),
        ring=config.ring,
        audit=AuditLog(wall.system, settings["audit-log"], settings["audit-size"]),
        durability=DurabilityRules(settings["durability"]),
        events=settings["events"],
        redacted=config.redacted,
        at_tick_end=tick_end,
        passwords=passwords,
        make_dispatcher=make_dispatcher,
        access=config.access,
        fetch_keys=IssuerKeyFetcher(reactor, threads.keys.run).fetch,
    )


def _make_tracing(reactor: IReactorTime) -> Tracing:
    """Return the tracing of a broker; raises ConfigurationError."""
    try:
        from pubsub.server.tracing import Tracing
    except ImportError as error:
        raise ConfigurationError(
            f"otel: {error}; install it with pip install 'pubsub-broker[otel]'"
        ) from None
    return Tracing(reactor)


class WorkerThread(Service):
    """Ends the thread of ``worker`` with the broker; it starts when it is needed."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def stopService(self) -> None:
        """Wait for the call under way."""
        super().stopService()  # type: ignore[no-untyped-call]
        self._worker.stop()


def tuning_of(config: Config) -> Tuning:
    """Return the tricks that a broker with this configuration uses."""
    return choose(config.broker["tuning"], twisted_version)


def _report(tuning: Tuning, name: str, reactor: object) -> None:
    """Log the version, the form of the kernel, the tuning in use and the name of the broker."""
    log.info(
        "pubsub {version}, kernel: {kernel}, tuning: {tuning}, name: {name}",
        version=version(),
        kernel=build_kind(),
        tuning=tuning,
        name=name,
    )
    if tuning.untested:
        log.warn(
            "tuning: without {names}, as Twisted {version} is not tested",
            names=", ".join(trick.name for trick in tuning.untested),
            version=twisted_version,
        )
    idle = idle_tricks(reactor, tuning)
    if idle:
        log.info(
            "tuning: without {names}, which have no effect with {reactor}",
            names=", ".join(trick.name for trick in idle),
            reactor=type(reactor).__name__,
        )


def report_start_error(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """Print a StartError as one line, without a traceback; for ``sys.excepthook``.

    twistd cleans up after an exception in startService and raises it again to the interpreter.
    Other exceptions are defects and keep their traceback. In the background printed text is lost,
    and twistd shows at most 100 bytes of it on the terminal: the error is logged instead.
    """
    if isinstance(error, StartError):
        if _is_discarded(2):
            log.critical("cannot start: {reason}", reason=error)
        print(error_line(f"pubsub: {error}"), file=sys.__stderr__)
    else:
        sys.__excepthook__(kind, error, traceback)


def _is_discarded(descriptor: int) -> bool:
    """Return whether output to ``descriptor`` is discarded."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(os.devnull))
    except OSError:
        return True
