"""The listeners of a broker: made at the start, added, moved and removed by a reload."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IProtocolFactory
from twisted.logger import Logger

from pubsub.broker.listeners.listener import Listener
from pubsub.broker.listeners.tls_settings import TLS
from pubsub.broker.service import BrokerService
from pubsub.errors import ConfigurationError, NotConfigured, Refused, StartError
from pubsub.server.configuration import ListenerConfig
from pubsub.server.configuration_changes import fixed_settings
from pubsub.tuning import Tuning
from pubsub.wire.listener_service import ListenerService

if TYPE_CHECKING:
    from cryptography import x509

log = Logger()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A listener that is not listening yet, and the endpoint that it will have."""

    listener: Listener
    service: ListenerService
    config: ListenerConfig


class ListenerSet:
    """The listeners of ``broker``.

    A listener that was removed is kept without connections, and used again when one of its protocol
    is added with the same settings of those that need a restart: sessions can be resumed there, and
    the state of its protocol in memory is not lost. So a listener moves to another address.
    """

    def __init__(self, broker: BrokerService, reactor: object, tuning: Tuning) -> None:
        self._broker = broker
        self._reactor = reactor
        self._tuning = tuning
        self._retired: list[tuple[Listener, IProtocolFactory]] = []

    def find(self, protocol: str, endpoint: str) -> Listener | None:
        """Return the listener of this protocol and endpoint."""
        for listener in self._broker.listeners:
            if (listener.protocol, listener.endpoint) == (protocol, endpoint):
                return listener
        return None

    def endpoint_certificates(self, listener: Listener) -> list[x509.Certificate]:
        """Return the certificates that the endpoint string of a listener names."""
        service = self._broker.served.service_of(listener)
        return service.endpoint_certificates if isinstance(service, ListenerService) else []

    def others(self, wanted: list[ListenerConfig]) -> list[Listener]:
        """Return the listeners that are not ``wanted``."""
        keys = {(one.protocol.name, one.endpoint) for one in wanted}
        return [one for one in self._broker.listeners if (one.protocol, one.endpoint) not in keys]

    def prepare(self, config: ListenerConfig, free: list[Listener]) -> Prepared | None:
        """Return a listener to be added; None if it is implied and cannot be served.

        One of ``free``, which are going to be removed, is taken if possible, and then removed from
        that list. Raises ConfigurationError.
        """
        known = self._reusable(config, free)
        if known is not None:
            return self._served(*known, config)
        made = self._make(config)
        return None if made is None else self._served(*made, config)

    def _make(self, config: ListenerConfig) -> tuple[Listener, IProtocolFactory] | None:
        """Return a new listener and its factory; see ``prepare``."""
        name = config.protocol.name
        listener = self._broker.make_listener(name, config.settings, config.endpoint)
        try:
            return listener, config.protocol.make_factory(listener)
        except NotConfigured as error:
            if not config.implied:
                raise ConfigurationError(f"{name}: {error}") from None
            log.warn("{protocol}: not served: {reason}", protocol=name, reason=error)
            return None
        except Refused as refused:
            raise ConfigurationError(
                f"{name}: its topics cannot be created ({refused.reason}: {refused}); raise "
                "max-topics or max-memory"
            ) from None

    def _served(
        self, listener: Listener, factory: IProtocolFactory, config: ListenerConfig
    ) -> Prepared:
        try:
            service = ListenerService(
                listener.event_protocol,
                config.endpoint,
                factory,
                self._reactor,
                listener.refuse,
                self._tuning,
                lambda: listener.settings.get(TLS),
                listener.is_exposed,
                listener.memory,
                listener.admit_handshake,
                lambda: listener.frame_seconds,
                lambda: listener.quota.spares_next,
            )
        except BaseException:
            self._keep(listener, factory)
            raise
        return Prepared(listener, service, config)

    def keep(self, prepared: Iterable[Prepared]) -> None:
        """These listeners are not added; the objects made for them may be used later."""
        for one in prepared:
            self._keep(one.listener, one.service.factory)

    def _keep(self, listener: Listener, factory: IProtocolFactory) -> None:
        if listener not in self._broker.listeners:
            self._retired.append((listener, factory))

    def _reusable(
        self, config: ListenerConfig, free: list[Listener]
    ) -> tuple[Listener, IProtocolFactory] | None:
        name = config.protocol.name
        wanted = fixed_settings(name, config.settings)
        for listener in free:
            service = self._broker.served.service_of(listener)
            if not isinstance(service, ListenerService) or listener.protocol != name:
                continue
            if fixed_settings(name, listener.settings) == wanted:
                free.remove(listener)
                return listener, service.factory
        for known in self._retired:
            listener = known[0]
            if listener.protocol == name and fixed_settings(name, listener.settings) == wanted:
                self._retired.remove(known)
                return known
        return None

    def add(self, prepared: Prepared) -> None:
        """Add a listener, which listens at once if the broker runs; raises StartError."""
        listener, config = prepared.listener, prepared.config
        listener.endpoint = config.endpoint
        listener.reconfigure(config.settings)
        try:
            self._broker.add_listener(listener, prepared.service)
        except StartError:
            self._retired.append((listener, prepared.service.factory))
            raise

    def remove(self, listeners: list[Listener], moving: list[Listener]) -> Deferred[Any]:
        """Drain and remove ``listeners``; fires when their ports are closed.

        Those that are ``moving`` will be added again.
        """
        closing = []
        for listener in listeners:
            service = self._broker.served.service_of(listener)
            if isinstance(service, ListenerService) and listener not in moving:
                self._retired.append((listener, service.factory))
            closing.append(self._broker.remove_listener(listener))
        return DeferredList(closing, consumeErrors=True)
