"""What ``twistd pubsub`` runs: the command line made into a tree of services."""

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
from pubsub.broker.listener import Listener
from pubsub.broker.master_secrets import SecretRing
from pubsub.broker.service import BrokerService
from pubsub.build_info import build_kind
from pubsub.errors import ConfigurationError, NotConfigured, PubSubError, StartError
from pubsub.interfaces import IStore
from pubsub.server.command_line import Options as ParsedOptions
from pubsub.server.command_line import make_options
from pubsub.server.configuration import Config, ListenerConfig
from pubsub.server.memory_tuning import collect_less, keep_freed_memory
from pubsub.server.reload import Reloader
from pubsub.server.shutdown import ForcedShutdown
from pubsub.store.memory import MemoryStore
from pubsub.store.sqlite import MEMORY_BYTES, SqliteOptions, SqliteStore
from pubsub.wire.listener_service import ListenerService
from pubsub.wire.reactor_tick import Call, at_tick_end

log = Logger()
# ServiceMaker looks for a module's `Options`, and calls it once `twistd pubsub` is asked for.
Options = make_options


def makeService(options: ParsedOptions) -> IService:
    """The broker that ``options`` describe; ends the process with one line if it cannot be."""
    from twisted.internet import reactor

    sys.excepthook = _one_line
    try:
        broker = make_broker(options.config, reactor)
    except PubSubError as error:
        raise SystemExit(f"pubsub: {error}") from None
    keep_freed_memory()
    collect_less()
    log.info("the path of a message is {build_kind}", build_kind=build_kind())
    reloader = Reloader(broker, options.read, reactor)
    reloader.setServiceParent(broker)  # type: ignore[no-untyped-call]
    ForcedShutdown(broker, reactor).setServiceParent(broker)  # type: ignore[no-untyped-call]
    return broker


def make_broker(config: Config, reactor: IReactorTime) -> BrokerService:
    """A broker with its store and its listeners; nothing listens before it is started.

    Raises ConfigurationError.
    """
    settings = config.broker
    tick_end = at_tick_end(reactor)
    store, nbytes = _make_store(settings, reactor, tick_end)
    max_memory = settings["max-memory"]
    if max_memory:
        # The history's part is set aside, so that clients cannot be starved by it or the reverse.
        max_memory -= nbytes
        if max_memory <= 0:
            raise ConfigurationError("max-memory: the history alone takes all of it")
    broker = BrokerService(
        reactor,
        store,
        BrokerLimits(
            max_memory=max_memory,
            memory_seconds=settings["memory-seconds"],
            max_topics=settings["max-topics"],
            max_sessions=settings["max-sessions"],
            resume_window=settings["resume-window"],
            stop_seconds=settings["stop-timeout"],
        ),
        ring=SecretRing(config.secrets),
        audit=AuditLog(reactor.seconds, settings["audit-log"], settings["audit-size"]),
        durability=DurabilityRules(settings["durability"]),
        events=settings["events"],
        redacted=config.redacted,
        at_tick_end=tick_end,
    )
    for listener in config.listeners:
        _add(broker, listener, reactor)
    if config.admin is not None:
        _add(broker, config.admin, reactor)
    return broker


def _make_store(
    settings: Mapping[str, Any], reactor: IReactorTime, tick_end: Callable[[Call], object]
) -> tuple[IStore, int]:
    """The history and the bytes of memory it takes; raises ConfigurationError."""
    path = settings["store"]
    if path is None:
        for pattern, durability in settings["durability"]:
            if durability is Durability.SYNC:
                raise ConfigurationError(
                    f"durability: {pattern}=sync is more than --store memory can promise"
                )
        messages, nbytes = settings["history"]
        return MemoryStore(messages, nbytes), nbytes if messages else 0
    options = SqliteOptions(
        settings["commit-interval"], settings["commit-bytes"], settings["retention"]
    )
    return SqliteStore(path, reactor, options, tick_end), MEMORY_BYTES


def _add(broker: BrokerService, config: ListenerConfig, reactor: IReactorTime) -> None:
    listener = Listener(broker, config.protocol.name, config.settings, config.endpoint)
    try:
        factory = config.protocol.make_factory(listener)
    except NotConfigured as error:
        if not config.implied:
            raise ConfigurationError(f"{config.protocol.name}: {error}") from None
        log.warn("{protocol} is not served: {reason}", protocol=config.protocol.name, reason=error)
        return
    broker.listeners.append(listener)
    service = ListenerService(config.protocol.name, config.endpoint, factory, reactor)
    service.setServiceParent(broker)  # type: ignore[no-untyped-call]


def _one_line(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """An excepthook: what keeps the broker from starting is told without a traceback.

    twistd lets an exception of startService out to the interpreter, having cleaned up. Anything
    that is not ours is a defect and keeps its traceback.
    """
    if isinstance(error, StartError):
        print(f"pubsub: {error}", file=sys.__stderr__)
    else:
        sys.__excepthook__(kind, error, traceback)
