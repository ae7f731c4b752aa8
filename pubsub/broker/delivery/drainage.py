"""Draining: clients get their queued messages and a goodbye, in bounded time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from twisted.internet.defer import Deferred, TimeoutError, maybeDeferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

if TYPE_CHECKING:
    from pubsub.broker.clients.client_registry import ClientRegistry
    from pubsub.broker.clients.session_sharing import SessionSharing
    from pubsub.broker.credentials.queue_keys import QueueKeys
    from pubsub.broker.routing.router import Router
    from pubsub.interfaces import ConnectedClient

log = Logger()


class Drained(Protocol):
    """A listener."""

    event_protocol: str
    endpoint: str


def report_failure(failure: Failure) -> None:
    """Report that a stop has failed on the way; the history is closed nevertheless."""
    log.failure("the connections could not be drained", failure)


def _trap_timeout(failure: Failure) -> None:
    failure.trap(TimeoutError)


class Drainage:
    """Drains clients, and aborts those that are left after ``seconds``.

    ``listeners`` are those of the broker. ``remove`` stops a listener and drains its clients.
    """

    def __init__(
        self,
        clock: IReactorTime,
        router: Router,
        clients: ClientRegistry,
        keys: QueueKeys,
        seconds: float,
        listeners: Sequence[Drained],
        remove: Callable[[Any], Deferred[None]],
    ) -> None:
        self.draining = False
        """True when the broker stops, or when a request has drained every protocol."""
        self.keeps_running = False
        """True if only the listeners were drained, and the process does not end."""
        self.stop: Callable[[], object] | None = None
        """Stops the process; None in a program that embeds the broker."""
        self.seconds = seconds
        self.listeners = listeners
        self.remove = remove
        self._clock = clock
        self._router = router
        self._clients = clients
        self._keys = keys

    def reconfigure(self, settings: Mapping[str, Any]) -> None:
        """Apply the setting ``stop-timeout``."""
        self.seconds = settings["stop-timeout"]

    def drain(self, clients: Iterable[ConnectedClient]) -> Deferred[None] | None:
        """Drain ``clients``; fires when they are closed. None if none is left."""
        draining = list(clients)
        self._router.finish()
        drained = self._clients.drain(draining)
        if drained is None:
            return None
        deadline = self._clock.callLater(self.seconds, self.abort, draining)

        def cancel(result: None) -> None:
            if deadline.active():
                deadline.cancel()

        return drained.addCallback(cancel)

    def drain_settled(self, clients: Iterable[ConnectedClient]) -> None:
        """Drain ``clients`` once subscribers are told the queue keys that are being written."""
        present = list(clients)
        settled = self._settle()
        settled.addCallback(lambda _: self.drain(one for one in present if one in self._clients))
        settled.addErrback(report_failure)

    def leave(
        self, sharing: SessionSharing | None, then: Callable[[], Deferred[None]]
    ) -> Deferred[None]:
        """Begin to stop: leave the sessions to other brokers, if they are shared; call ``then``.

        Before clients are drained, subscribers are told the queue keys that are being written.
        """
        self.draining, self.keeps_running = True, False
        if sharing is None:
            return maybeDeferred(then).addCallback(lambda _: self._settle())
        return self._settle().addCallback(lambda _: self._leave_shared(sharing, then))

    def _leave_shared(
        self, sharing: SessionSharing, then: Callable[[], Deferred[None]]
    ) -> Deferred[None]:
        self._router.finish()
        sharing.leaving()
        drained = maybeDeferred(self.drain, self._clients)
        return drained.addCallback(lambda _: sharing.leave()).addCallback(lambda _: then())

    def _settle(self) -> Deferred[None]:
        settled = Deferred.fromCoroutine(self._keys.settle())
        if not settled.called:
            # A disk that does not answer holds up the end, but not the clients.
            settled.addTimeout(self.seconds, self._clock)
            settled.addErrback(_trap_timeout)
        return settled

    def abort(self, clients: Iterable[ConnectedClient]) -> None:
        """Close those of ``clients`` that are left at once."""
        left = [client for client in clients if client in self._clients]
        if not left:
            # At a second signal, for example, that comes while the history is closed.
            return
        log.warn("connections did not close in time: {count}", count=len(left))
        self._clients.abort("the broker stops", left)
