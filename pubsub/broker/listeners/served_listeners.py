"""The listeners of a broker, and the services that accept their connections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from twisted.application.service import IService, MultiService
from twisted.internet.defer import Deferred, maybeDeferred, succeed

from pubsub.broker.listeners.listener import Listener
from pubsub.errors import StartError

if TYPE_CHECKING:
    from pubsub.broker.access_rules.access_table import AccessTable
    from pubsub.broker.broker_objects import BrokerObjects
    from pubsub.broker.figures.events import Events


class ServedListeners:
    """Makes listeners with the ``objects`` of the broker; ``parent`` runs their services."""

    objects: BrokerObjects

    def __init__(self, parent: MultiService) -> None:
        self._parent = parent
        self.listeners: list[Listener] = []
        self._services: dict[Listener, IService] = {}
        self._logs_connections = False

    def make(self, protocol: str, settings: Mapping[str, Any], endpoint: str) -> Listener:
        """Return a listener, which is not added yet."""
        return Listener(self.objects, protocol, settings, endpoint)

    def add(self, listener: Listener, service: IService | None) -> None:
        """See ``BrokerService.add_listener``."""
        listener.logs_connections = self._logs_connections
        self.listeners.append(listener)
        listener.added()
        # The rules may have changed, and events been turned on or off, since it was made.
        listener.reconfigure(listener.settings, self.objects.access_table)
        listener.events = self.objects.events
        if service is None:
            return
        self._services[listener] = service
        try:
            service.setServiceParent(self._parent)
        except StartError:
            self.forget(listener)
            raise

    def forget(self, listener: Listener) -> Deferred[None]:
        """Remove ``listener`` and end its service; fires when its port is closed."""
        self.listeners.remove(listener)
        service = self._services.pop(listener, None)
        return succeed(None) if service is None else maybeDeferred(service.disownServiceParent)

    def service_of(self, listener: Listener) -> IService | None:
        """Return the service that was added with ``listener``."""
        return self._services.get(listener)

    def log_connections(self, shown: bool) -> None:
        """Log connections that begin and end from now on, or do not."""
        self._logs_connections = shown
        for listener in self.listeners:
            listener.logs_connections = shown

    def set_access(self, table: AccessTable) -> None:
        """Replace the access rules."""
        self.objects = replace(self.objects, access_table=table)
        for listener in self.listeners:
            listener.reconfigure(listener.settings, table)

    def set_events(self, events: Events | None) -> None:
        """Report to ``events`` from now on, or to none."""
        self.objects = replace(self.objects, events=events)
        for listener in self.listeners:
            listener.events = events
