"""SIGHUP: the configuration is read again, and what can change under live clients does.

That is the ring of secrets, the rules and rates of listeners that are still there, and what their
protocols look up each time they need it. Every live subscription is then re-checked. What a
listener or the broker is made with, listeners that come or go above all, needs a restart, and a
configuration with an error changes nothing.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, cast

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorFromThreads
from twisted.logger import Logger

from pubsub.broker.master_secrets import SecretRing
from pubsub.errors import ConfigurationError

if TYPE_CHECKING:
    from pubsub.broker.service import BrokerService
    from pubsub.server.configuration import Config

log = Logger()


class Reloader(Service):
    """Applies what ``read`` gives to ``broker`` whenever the process gets SIGHUP."""

    def __init__(self, broker: BrokerService, read: Callable[[], Config], reactor: object) -> None:
        self._broker = broker
        self._read = read
        self._reactor = cast(IReactorFromThreads, reactor)

    def startService(self) -> None:
        """Listen for the signal."""
        super().startService()  # type: ignore[no-untyped-call]
        signal.signal(signal.SIGHUP, self._signalled)

    def stopService(self) -> Deferred[None] | None:
        """Leave the signal alone, so that it does not end a process that is stopping."""
        super().stopService()  # type: ignore[no-untyped-call]
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        return None

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._reactor.callFromThread(self.reload)

    def reload(self) -> None:
        """Read and apply; a configuration that cannot be used is told and left alone."""
        try:
            config = self._read()
        except ConfigurationError as error:
            log.error("reload: nothing is changed: {reason}", reason=error)
            return
        before, ring = self._broker.tokens.ring, SecretRing(config.secrets)
        self._broker.tokens.replace(ring)
        self._reconfigure(config)
        kept, removed = self._broker.recheck()
        self._broker.audit.record(
            "reload",
            secrets_added=sorted(secret.id for secret in ring if secret not in before),
            secrets_removed=sorted(secret.id for secret in before if secret not in ring),
            kept=kept,
            removed=removed,
        )
        log.info("reloaded: {kept} subscriptions stay, {removed} end", kept=kept, removed=removed)

    def _reconfigure(self, config: Config) -> None:
        """Match listeners by protocol and endpoint."""
        entries = [*config.listeners, *([config.admin] if config.admin is not None else [])]
        found = {(entry.protocol.name, entry.endpoint): entry for entry in entries}
        for listener in self._broker.listeners:
            entry = found.get((listener.protocol, listener.endpoint))
            if entry is not None:
                listener.reconfigure(entry.settings)
