"""The readiness of the broker: it has started, it stores messages, and it listens everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from pubsub.broker.delivery.drainage import Drainage
    from pubsub.broker.listeners.limits import ConnectionQuota
    from pubsub.interfaces import IStore


STALLED_SECONDS = 30
"""The time for which a write or sync lasts when the broker is no longer ready."""


class Obstacle(NamedTuple):
    """A word for all clients, and a text for those with more rights."""

    kind: str
    text: str


class Door(Protocol):
    """A listener, as lists show it."""

    protocol: str
    event_protocol: str
    endpoint: str
    quota: ConnectionQuota
    settings: Mapping[str, Any]

    @property
    def tls(self) -> bool: ...

    @property
    def serves_anonymous(self) -> bool:
        """Whether there are addresses at which anonymous clients are served."""


class Readiness:
    """The reasons for which a broker with these ``listeners`` does not serve.

    ``service_of`` returns the service of a listener, whose ``addresses`` are those that it listens
    on. A listener without a service is served by the program that embeds the broker.
    """

    def __init__(
        self,
        store: IStore,
        drainage: Drainage,
        listeners: Sequence[Door],
        service_of: Callable[[Any], object | None],
    ) -> None:
        self.started = False
        """True once the broker has started."""
        self.listeners = listeners
        self.backplane: Callable[[], str | None] = lambda: None
        """Returns why other brokers cannot be reached, if there are any; the own clients are
        served all the same."""
        self.missing: Sequence[str] = ()
        """The errors of the last reload, for each listener that could not be added."""
        self._store = store
        self._drainage = drainage
        self._service_of = service_of

    def addresses(self, listener: Door) -> Sequence[Any] | None:
        """Return the addresses of a listener; None if another program serves it."""
        service: Any = self._service_of(listener)
        return None if service is None else service.addresses

    def obstacles(self) -> Iterator[Obstacle]:
        """Yield the reasons for which the broker does not serve."""
        if self._drainage.draining and self._drainage.keeps_running:
            yield Obstacle("drained", "the listeners are drained by request; SIGHUP starts them")
        elif self._drainage.draining:
            yield Obstacle("stopping", "the broker is stopping")
        elif not self.started:
            yield Obstacle("starting", "the broker is starting")
        trouble = self._store.trouble or self._stall()
        if trouble is not None:
            yield Obstacle("storing", f"the history cannot be written: {trouble}")
        for listener in self.listeners:
            if self.addresses(listener) == []:
                text = f"{listener.event_protocol} does not listen on {listener.endpoint}"
                yield Obstacle("listening", text)
        for reason in self.missing:
            yield Obstacle("listening", reason)

    def _stall(self) -> str | None:
        seconds = self._store.figures().get("stalled_seconds", 0.0) if self.started else 0.0
        if seconds < STALLED_SECONDS:
            return None
        return f"the disk has not ended a write or sync for {seconds:.0f} s"
