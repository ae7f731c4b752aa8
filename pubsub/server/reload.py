"""SIGHUP: read the configuration again and apply what can change under live clients.

These are the master secrets, and the access rules, rates and protocol settings of listeners that
still exist. Every live subscription is then rechecked. Other settings, and listeners that are added
or removed, need a restart. A configuration with an error changes nothing.
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


def apply(broker: BrokerService, config: Config) -> Deferred[tuple[int, int]]:
    """Apply what can change in a running broker.

    Fires with how many subscriptions stay and how many end.
    """
    entries = [*config.listeners, *([config.admin] if config.admin is not None else [])]
    settings = {(entry.protocol.name, entry.endpoint): entry.settings for entry in entries}
    return broker.reconfigure(SecretRing(config.secrets), settings)


class Reloader(Service):
    """Applies the result of ``read`` to ``broker`` whenever the process receives SIGHUP."""

    def __init__(self, broker: BrokerService, read: Callable[[], Config], reactor: object) -> None:
        self._broker = broker
        self._read = read
        self._reactor = cast(IReactorFromThreads, reactor)

    def startService(self) -> None:
        """Handle the signal."""
        super().startService()  # type: ignore[no-untyped-call]
        signal.signal(signal.SIGHUP, self._signalled)

    def stopService(self) -> Deferred[None] | None:
        """Ignore the signal, so that it does not kill a process that is stopping."""
        super().stopService()  # type: ignore[no-untyped-call]
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        return None

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._reactor.callFromThread(self.reload)

    def reload(self) -> None:
        """Read and apply the configuration; log an error and change nothing if it is invalid."""
        try:
            config = self._read()
        except ConfigurationError as error:
            log.error("reload failed, nothing is changed: {reason}", reason=error)
            return
        apply(self._broker, config).addCallbacks(
            lambda counts: log.info(
                "reloaded: {kept} subscriptions stay, {removed} end",
                kept=counts[0],
                removed=counts[1],
            ),
            lambda failure: log.failure("rechecking the subscriptions failed", failure),
        )
