"""The objects of a broker that its listeners use."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from twisted.application.service import IServiceCollection
from twisted.internet.interfaces import IReactorTime

if TYPE_CHECKING:
    from pubsub.broker.access_rules.access_table import AccessTable
    from pubsub.broker.audit_log.audit import AuditLog
    from pubsub.broker.audit_log.refused_attempts import RefusedAttempts
    from pubsub.broker.clients.client_registry import ClientRegistry
    from pubsub.broker.clients.frame_turns import FrameTurns
    from pubsub.broker.clients.sessions import SessionRegistry
    from pubsub.broker.credentials.passwords import PasswordVerifier
    from pubsub.broker.credentials.queue_keys import QueueKeys
    from pubsub.broker.credentials.tokens import TokenVerifier
    from pubsub.broker.delivery.cursors import Cursors
    from pubsub.broker.delivery.drainage import Drainage
    from pubsub.broker.figures.counters import Counters
    from pubsub.broker.figures.events import Events
    from pubsub.broker.figures.statistics import Statistics
    from pubsub.broker.memory_budget import MemoryBudget
    from pubsub.broker.publishing.rate_limits import TokenBucket
    from pubsub.broker.readiness import Readiness
    from pubsub.broker.routing.dispatcher import Dispatcher
    from pubsub.broker.routing.router import Router
    from pubsub.broker.shown_configuration import ShownConfiguration
    from pubsub.broker.slices import Slices
    from pubsub.broker.topic_space.topic_lifecycle import TopicLifecycle
    from pubsub.broker.topic_space.topic_registry import TopicRegistry
    from pubsub.broker.topic_space.unused_names import UnusedNames
    from pubsub.broker.wall_clock import WallClock
    from pubsub.interfaces import IStore

_Shared = TypeVar("_Shared")


class SharedObjects(Protocol):
    """Returns the object for a key, made by ``make`` on the first request."""

    def __call__(self, key: Hashable, make: Callable[[], _Shared]) -> _Shared: ...


class KeptObjects:
    """The ``SharedObjects`` of one broker, which keeps each object that was made."""

    def __init__(self) -> None:
        self._objects: dict[Hashable, Any] = {}

    def __call__(self, key: Hashable, make: Callable[[], _Shared]) -> _Shared:
        """See ``SharedObjects``."""
        if key not in self._objects:
            self._objects[key] = make()
        found: _Shared = self._objects[key]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerObjects:
    """Made by ``BrokerService``; each listener has these as attributes of its own.

    ``clock`` is monotonic, for everything that waits; ``wall`` has the time of messages and tokens.

    ``verifications`` limits how many unknown tokens are verified a second: one bucket for all
    connections of all protocols, because a client can open many. ``at_tick_end`` runs a call after
    the events of the current reactor tick; ``slices`` does work that takes long, and
    ``frame_turns`` the rest of a read with many frames. ``when_open`` runs a call when the store is
    open, before any client is served. ``shared`` has the state that the listeners of one protocol
    share. ``services`` is the parent for services of a protocol. ``marks`` has the marks of new
    connections. ``access_table`` has the access rules that are configured for all listeners.
    """

    clock: IReactorTime
    wall: WallClock
    store: IStore
    memory: MemoryBudget
    counters: Counters
    topics: TopicRegistry
    router: Router
    cursors: Cursors
    sessions: SessionRegistry
    clients: ClientRegistry
    dispatcher: Dispatcher
    tokens: TokenVerifier
    passwords: PasswordVerifier
    verifications: TokenBucket
    queue_keys: QueueKeys
    audit: AuditLog
    attempts: RefusedAttempts
    slices: Slices
    frame_turns: FrameTurns
    topic_lifecycle: TopicLifecycle
    unused_names: UnusedNames
    events: Events | None
    access_table: AccessTable
    marks: Iterator[int]
    statistics: Statistics
    drainage: Drainage
    readiness: Readiness
    configuration: ShownConfiguration
    services: IServiceCollection
    at_tick_end: Callable[[Callable[[], None]], object]
    when_open: Callable[[Callable[[], object]], None]
    shared: SharedObjects
