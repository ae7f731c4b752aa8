"""``twistd pubsub``: builds the tree of services from the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from twisted.application.service import IService
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from pubsub.broker.audit import AuditLog
from pubsub.broker.durability import Durability, DurabilityRules
from pubsub.broker.limits import BrokerLimits
from pubsub.broker.master_secrets import SecretRing
from pubsub.broker.service import BrokerService
from pubsub.broker.wall_clock import WallClock
from pubsub.build_info import build_kind
from pubsub.errors import ConfigurationError, NotConfigured, PubSubError, StartError
from pubsub.interfaces import IStore
from pubsub.server.clocks import system_wall_clock, use_monotonic_timers
from pubsub.server.command_line import Options as ParsedOptions
from pubsub.server.command_line import make_options
from pubsub.server.configuration import Config, ListenerConfig
from pubsub.server.memory_tuning import tune_memory
from pubsub.server.reload import Reloader
from pubsub.server.shutdown import ForcedShutdown
from pubsub.server.upgrade_notes import is_upgrade, report_upgrade
from pubsub.store.log_store import MEMORY_BYTES, LogOptions, LogStore
from pubsub.store.memory import MemoryStore
from pubsub.tuning import Tuning, choose
from pubsub.wire.listener_service import ListenerService
from pubsub.wire.reactor_tick import Call, at_tick_end
from twisted import __version__ as twisted_version

log = Logger()
# ServiceMaker looks for a module's `Options`, and calls it once `twistd pubsub` is asked for.
Options = make_options


def makeService(options: ParsedOptions) -> IService:
    """Return the broker that ``options`` describe; exit with a one-line error if that fails."""
    from twisted.internet import reactor

    sys.excepthook = report_start_error
    try:
        broker = make_broker(options.config, reactor)
    except PubSubError as error:
        raise SystemExit(f"pubsub: {error}") from None
    tune_memory(_tuning(options.config))
    reloader = Reloader(broker, options.read, reactor)
    reloader.setServiceParent(broker)  # type: ignore[no-untyped-call]
    ForcedShutdown(broker, reactor).setServiceParent(broker)  # type: ignore[no-untyped-call]
    return broker


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
    tuning = _tuning(config)
    _report(tuning)
    tick_end = at_tick_end(reactor, tuning)
    store, nbytes = _make_store(settings, reactor, wall, tick_end)
    max_memory = settings["max-memory"]
    if 0 < max_memory <= nbytes:
        raise ConfigurationError(
            f"max-memory: the history alone needs {nbytes} bytes; give more memory"
        )
    broker = BrokerService(
        reactor,
        wall,
        store,
        BrokerLimits(
            max_memory=max_memory,
            history_memory=nbytes,
            memory_seconds=settings["memory-seconds"],
            max_topics=settings["max-topics"],
            max_sessions=settings["max-sessions"],
            resume_window=settings["resume-window"],
            stop_seconds=settings["stop-timeout"],
            topic_expiry=settings["topic-expiry"],
            identity_expiry=settings["identity-expiry"],
        ),
        ring=SecretRing(config.secrets),
        audit=AuditLog(wall.system, settings["audit-log"], settings["audit-size"]),
        durability=DurabilityRules(settings["durability"]),
        events=settings["events"],
        redacted=config.redacted,
        at_tick_end=tick_end,
    )
    for listener in config.listeners:
        _add(broker, listener, reactor, tuning)
    if config.admin is not None:
        _add(broker, config.admin, reactor, tuning)
    return broker


def _tuning(config: Config) -> Tuning:
    return choose(config.broker["tuning"], twisted_version)


def _report(tuning: Tuning) -> None:
    """Log what the speed of this broker depends on."""
    log.info("kernel: {kernel}, tuning: {tuning}", kernel=build_kind(), tuning=tuning)
    if tuning.untested:
        log.warn(
            "tuning: without {names}, as Twisted {version} is not tested",
            names=", ".join(trick.name for trick in tuning.untested),
            version=twisted_version,
        )


def _make_store(
    settings: Mapping[str, Any],
    reactor: IReactorTime,
    wall: WallClock,
    tick_end: Callable[[Call], object],
) -> tuple[IStore, int]:
    """Return the history and its bytes of memory; raises ConfigurationError."""
    location = settings["store"]
    if location is None:
        for pattern, durability in settings["durability"]:
            if durability is Durability.SYNC:
                raise ConfigurationError(
                    f"durability: {pattern}=sync needs a history on disk; remove --store memory"
                )
        messages, nbytes = settings["history"]
        return MemoryStore(messages, nbytes), nbytes if messages else 0
    options = LogOptions(
        settings["commit-interval"],
        settings["commit-bytes"],
        settings["retention"],
        settings["compression"] == "zstd",
    )
    store = LogStore(
        location.directory, reactor, options, tick_end, wall.retention_time, location.migrate
    )
    return store, MEMORY_BYTES


def _add(
    broker: BrokerService, config: ListenerConfig, reactor: IReactorTime, tuning: Tuning
) -> None:
    listener = broker.make_listener(config.protocol.name, config.settings, config.endpoint)
    try:
        factory = config.protocol.make_factory(listener)
    except NotConfigured as error:
        if not config.implied:
            raise ConfigurationError(f"{config.protocol.name}: {error}") from None
        log.warn("{protocol}: not served: {reason}", protocol=config.protocol.name, reason=error)
        return
    service = ListenerService(
        config.protocol.name, config.endpoint, factory, reactor, listener.refuse, tuning
    )
    broker.add_listener(listener, service)


def report_start_error(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """Print a StartError as one line, without a traceback; for ``sys.excepthook``.

    twistd cleans up after an exception in startService and raises it again to the interpreter.
    Other exceptions are defects and keep their traceback.
    """
    if isinstance(error, StartError):
        print(f"pubsub: {error}", file=sys.__stderr__)
    else:
        sys.__excepthook__(kind, error, traceback)
