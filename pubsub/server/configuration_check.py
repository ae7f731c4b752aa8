"""Checks a configuration file as the start of a broker does, without starting one."""

from __future__ import annotations

import re
from dataclasses import replace

from pubsub.broker.audit_log.audit import check_place
from pubsub.errors import ConfigurationError, StartError
from pubsub.plugin import installed_protocols
from pubsub.server.certificates import CertificateWatch
from pubsub.server.configuration import CommandLine, Config, ListenerConfig, merge
from pubsub.server.configuration_changes import entries
from pubsub.server.file_tables import read_file
from pubsub.server.history_settings import check_history
from pubsub.server.memory_limit import warn_beyond_limit
from pubsub.server.planned_ports import PlannedPorts
from pubsub.server.tap import make_broker
from pubsub.wire.listener_service import ListenerService

# Of a socket that only the service manager can hand over.
_INHERITED = re.compile(r"(haproxy:)?systemd:")
_OWN = "tcp:0:interface=127.0.0.1"


def read_and_check(path: str) -> Config:
    """Return the configuration of the file; raises ConfigurationError with the file's name.

    The broker is made in memory and not started, so that protocols and endpoints check the settings
    that they are given; the log gets the warnings of a start. The addresses are those that the
    start would listen on, and nothing listens. Neither the history nor the audit log is opened.
    """
    document = read_file(path)
    try:
        config = merge(installed_protocols(), CommandLine(), document)
        check_history(config.broker)
        warn_beyond_limit(config.broker)
        _check_directory(config)
        _check_inherited(config)
        if config.broker["audit-log"]:
            check_place(config.broker["audit-log"])
        for service in make_broker(_harmless(config), PlannedPorts()):
            if isinstance(service, ListenerService):
                service.privilegedStartService()
            elif isinstance(service, CertificateWatch):
                service.look()
    except (ConfigurationError, StartError) as error:
        raise ConfigurationError(f"{path}: {error}") from None
    return config


def _check_directory(config: Config) -> None:
    store = config.broker["store"]
    if store is not None and store.directory.exists() and not store.directory.is_dir():
        raise ConfigurationError(
            f"history: {store.directory} is a file; give a directory, --store log:DIR"
        )


def _check_inherited(config: Config) -> None:
    """Raise ConfigurationError if two listeners have one socket of the service manager."""
    seen: set[str] = set()
    for one in entries(config):
        if _INHERITED.match(one.endpoint) and one.endpoint in seen:
            raise ConfigurationError(
                f"{one.protocol.name}: cannot listen on {one.endpoint}: another listener of the "
                "file has this socket; give each one its own FileDescriptorName="
            )
        seen.add(one.endpoint)


def _harmless(config: Config) -> Config:
    """Return the configuration with nothing that is written to or inherited."""
    broker = {**config.broker, "audit-log": "", "store": None, "durability": (), "max-memory": 0}
    return replace(
        config,
        broker=broker,
        listeners=[_without_inherited(one) for one in config.listeners],
        admin=None if config.admin is None else _without_inherited(config.admin),
    )


def _without_inherited(one: ListenerConfig) -> ListenerConfig:
    return replace(one, endpoint=_OWN) if _INHERITED.match(one.endpoint) else one
