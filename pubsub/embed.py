"""A broker inside another program: ``embed`` returns it as a Twisted service.

    from pubsub.embed import embed

    broker = embed({"store": "memory", "listen": [{"protocol": "cafe", "port": 7070}]})
    broker.setServiceParent(application)

The service leaves the process alone: it handles no signals, replaces no hook for exceptions and
tunes neither the heap nor the garbage collector. It makes the time of the reactor monotonic.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from twisted.application.service import Service
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from pubsub.broker.credentials.master_secrets import MasterSecret
from pubsub.broker.credentials.secret_files import MIN_SECRET
from pubsub.errors import ConfigurationError, PubSubError
from pubsub.plugin import installed_protocols
from pubsub.server.configuration import CommandLine, Config, merge
from pubsub.server.file_tables import read_file
from pubsub.server.reload import LiveConfiguration
from pubsub.server.tap import make_broker, tuning_of
from pubsub.wire.listener_service import ListenerService
from pubsub.wire.peer_address import place_text

if TYPE_CHECKING:
    from twisted.internet.interfaces import IAddress

    from pubsub.broker.service import BrokerService

HTTP = "http"
"""The name of the HTTP API, where protocols are named."""
ConfigurationSource = Mapping[str, object] | str | os.PathLike[str]
log = Logger()


class NotServed(PubSubError, LookupError):
    """No listener of the broker serves this protocol, or it has no address with a port."""

    reason = "not-served"


def embed(
    config: ConfigurationSource, *, secrets: Mapping[str, bytes] | None = None
) -> EmbeddedBroker:
    """Return a broker as a service, which listens once it is started.

    ``config`` is the path of a configuration file, or a mapping with the same tables and keys,
    where files may be ``Path`` objects.
    Without ``listen`` in it, every installed protocol is served on its default port.
    ``secrets`` are master secrets by id, of at least 32 bytes, that need no file.

    Raises ConfigurationError if the configuration is invalid; ``startService`` raises StartError
    if the broker cannot start.
    """
    return EmbeddedBroker(read_config(config, secrets or {}))


def read_config(source: ConfigurationSource, secrets: Mapping[str, bytes]) -> Config:
    """Return the configuration of ``embed``; raises ConfigurationError."""
    document = _plain(source) if isinstance(source, Mapping) else read_file(os.fspath(source))
    config = merge(installed_protocols(), CommandLine(), document, secrets)
    added = [_secret(id, key) for id, key in secrets.items()]
    for secret in added:
        if secret.id in {known.id for known in config.secrets}:
            raise ConfigurationError(f"secret {secret.id!r}: the configuration has this id already")
    return replace(config, secrets=[*config.secrets, *added])


def _plain(value: Any) -> Any:
    """Return ``value`` as if it was read from a file; raises ConfigurationError."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ConfigurationError(f"{key!r}: a key of the configuration must be text")
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _secret(id: str, key: bytes) -> MasterSecret:
    if not isinstance(key, bytes):
        raise ConfigurationError(f"secret {id!r}: it must be bytes, not {type(key).__name__}")
    if len(key) < MIN_SECRET:
        raise ConfigurationError(
            f"secret {id!r}: it has {len(key)} bytes; give at least {MIN_SECRET} random ones"
        )
    return MasterSecret(id, "HS256", key)


class EmbeddedBroker(Service):
    """A broker that can be started and stopped repeatedly; made by ``embed``.

    All methods are called in the thread of the reactor.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        # Made now, so that endpoints with mistakes are refused before the program starts.
        self._broker, self._live = _make(config)
        # Whether it may have been stopped, so that it cannot start again; whether it listens.
        self._spent = False
        self._opened = False
        self._stopping: Deferred[None] | None = None

    @property
    def broker(self) -> BrokerService:
        """The broker itself, with its counters, topics and clients; another after each start."""
        return self._broker

    def privilegedStartService(self) -> None:
        """Listen, before privileges are dropped; raises StartError."""
        self._renew()
        self._guarded(self._broker.privilegedStartService)

    def startService(self) -> None:
        """Open the history and listen; raises StartError, and then holds nothing open."""
        if self.running:
            return
        self._renew()
        self._guarded(self._broker.startService)
        super().startService()  # type: ignore[no-untyped-call]

    def stopService(self) -> Deferred[None]:
        """Stop accepting, deliver the accepted messages, close; fires when that is done.

        A broker that stops still is waited for too.
        """
        if self._opened:
            super().stopService()  # type: ignore[no-untyped-call]
            return self._stop()
        return succeed(None) if self._stopping is None else _same_time(self._stopping)

    def reload(
        self, config: ConfigurationSource, *, secrets: Mapping[str, bytes] | None = None
    ) -> Deferred[tuple[int, int]]:
        """Reload as on SIGHUP; fires with how many subscriptions stay and how many end.

        Wait for that before the next one. The rest of ``config`` is used from the next start on.
        Raises ConfigurationError, and then changes nothing.
        """
        new = read_config(config, secrets or {})
        applied = self._live.apply(new)
        self._config = new
        return applied

    def addresses(self, protocol: str) -> list[IAddress]:
        """Return where ``protocol`` is served, in the order of its listeners.

        The HTTP API is the protocol ``http``. Raises NotServed.
        """
        return [address for service in self._services(protocol) for address in service.addresses]

    def url(self, protocol: str) -> str:
        """Return the URL of the first listener of ``protocol`` that has a port.

        Its scheme is the name of the protocol, with ``+tls`` if the listener uses TLS; that of the
        HTTP API is ``http`` or ``https``. Raises NotServed.
        """
        for service in self._services(protocol):
            for address in service.addresses:
                if isinstance(address, IPv4Address | IPv6Address):
                    return f"{_scheme(protocol, service.is_tls)}://{_host_and_port(address)}"
        raise NotServed(f"{protocol}: it listens on no port; is the broker started?")

    def _services(self, protocol: str) -> list[ListenerService]:
        services = [s for s in self._broker if isinstance(s, ListenerService)]
        found = [service for service in services if service.protocol == protocol]
        if not found:
            served = ", ".join(sorted({s.protocol for s in services})) or "nothing"
            raise NotServed(f"{protocol} is not served; served: {served}")
        return found

    def _renew(self) -> None:
        """Replace a broker that has been stopped."""
        if self._spent:
            self._broker, self._live = _make(self._config)
            self._spent = False

    def _guarded(self, start: Callable[[], object]) -> None:
        """Call ``start``; if it fails, release its resources and raise its error."""
        try:
            start()
        except BaseException:
            self._stop().addErrback(lambda f: log.failure("a failed start left ports open", f))
            raise
        self._opened = True

    def _stop(self) -> Deferred[None]:
        self._spent, self._opened = True, False
        before, stopping = self._stopping, self._broker.stopService()
        if before is not None:
            # It was started again while the broker before it was stopping.
            ended = _same_time(before)
            stopping.addCallback(lambda _: ended)
        self._stopping = stopping

        def stopped(result: None) -> None:
            if self._stopping is stopping:
                self._stopping = None
            return result

        return stopping.addBoth(stopped)


def _same_time(done: Deferred[None]) -> Deferred[None]:
    """Return a Deferred that fires with ``done``."""
    waiting: Deferred[None] = Deferred()
    done.chainDeferred(waiting)
    return waiting


def _make(config: Config) -> tuple[BrokerService, LiveConfiguration]:
    # Importing it installs the default reactor, if the program has not installed another.
    from twisted.internet import reactor

    broker = make_broker(config, reactor)
    return broker, LiveConfiguration(broker, config, reactor, tuning_of(config))


def _scheme(protocol: str, tls: bool) -> str:
    if protocol == HTTP:
        return "https" if tls else HTTP
    return f"{protocol}+tls" if tls else protocol


def _host_and_port(address: IPv4Address | IPv6Address) -> str:
    host = address.host
    # A socket that listens on every address is reached on loopback.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return place_text(host, address.port)
