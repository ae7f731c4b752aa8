"""BrokerService: owns the topics, the router, the sessions, the store and the limits.

It is the parent of the listeners' services, so Twisted starts and stops them with it. It
imports no transport: connections register themselves as ``Client`` and are told to leave.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from twisted.application.service import MultiService
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from pubsub.broker.audit import AuditLog
from pubsub.broker.batch import Batch, Headers
from pubsub.broker.counters import Counters
from pubsub.broker.durability import Durability, DurabilityRules
from pubsub.broker.events import PROTOCOL as EVENTS_PROTOCOL
from pubsub.broker.events import TOPIC as EVENTS_TOPIC
from pubsub.broker.events import Events
from pubsub.broker.housekeeping import Housekeeping
from pubsub.broker.limits import BrokerLimits, MemoryBudget, TokenBucket
from pubsub.broker.master_secrets import SecretRing
from pubsub.broker.message_run import MessageRun
from pubsub.broker.queue_keys import QueueKeys
from pubsub.broker.router import Router
from pubsub.broker.sessions import SessionRegistry
from pubsub.broker.token_throttle import VERIFICATIONS
from pubsub.broker.tokens import TokenVerifier
from pubsub.broker.topics import Topic, TopicRegistry
from pubsub.errors import HistoryUnavailable, Refused, StartError

if TYPE_CHECKING:
    from pubsub.broker.listener import Listener
    from pubsub.interfaces import Client, IStore

log = Logger()
TOPICS = "topics"
"""The table of the store's metadata with the topics there are, and what was demanded of them."""
_SYNC, _EXCLUSIVE = b"s", b"x"
_Shared = TypeVar("_Shared")


class BrokerService(MultiService):
    """The broker. ``clock`` is the reactor, ``draw`` gives random bits (``secrets.randbits``).

    With ``events`` it tells what happens on a topic of its own (see ``Events``), without what
    follows the patterns in ``redacted`` (see ``IWireProtocol``). ``at_tick_end`` runs a call when
    the events of the current reactor turn have been handled; a delayed call of no delay if it is
    left out.
    """

    def __init__(
        self,
        clock: IReactorTime,
        store: IStore,
        limits: BrokerLimits | None = None,
        draw: Callable[[int], int] = secrets.randbits,
        ring: SecretRing | None = None,
        audit: AuditLog | None = None,
        durability: DurabilityRules | None = None,
        events: bool = False,
        at_tick_end: Callable[[Callable[[], None]], object] | None = None,
        redacted: Sequence[bytes] = (),
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.limits = limits or BrokerLimits()
        self.clock = clock
        self.seconds = clock.seconds
        self.store = store
        self.counters = Counters()
        self.memory = MemoryBudget(self.limits.max_memory)
        self.topics = TopicRegistry(self.limits.max_topics, self.memory)
        self.topics.watch(self._made)
        self.topics.claimed = self._claimed
        self._durability = durability or DurabilityRules()
        self.at_tick_end = at_tick_end or partial(clock.callLater, 0)
        self.router = Router(self.counters, self.memory, clock.seconds, self.at_tick_end)
        self.audit = audit or AuditLog(clock.seconds)
        self.tokens = TokenVerifier(ring or SecretRing())
        # One bucket for all connections of all protocols, as a client can open many.
        self.verifications = TokenBucket(VERIFICATIONS, clock.seconds)
        self.queue_keys = QueueKeys(self.router, self.tokens, self.audit, store)
        self.sessions = SessionRegistry(
            lambda: draw(64),
            clock.seconds,
            self.limits.resume_window,
            self.limits.max_sessions,
            self.memory,
        )
        self.run_id = draw(60)
        self.events: Events | None = None
        if events:
            self.events = Events(clock.seconds, self.at_tick_end, self._tell, draw, redacted)
            self.counters.watcher = self.events.dropped
            self.audit.watcher = self.events.audited
        # A dict, as a set takes twice the memory.
        self.clients: dict[Client, None] = {}
        self.listeners: list[Listener] = []
        self._shared: dict[Hashable, Any] = {}
        self._when_open: list[Callable[[], object]] | None = []
        self._sequence = 0
        self._timestamp = 0
        self._emptied: Deferred[None] | None = None
        self._housekeeping = Housekeeping(self)

    def shared(self, key: Hashable, make: Callable[[], _Shared]) -> _Shared:
        """What the listeners of a protocol have in common beyond topics: made once, by ``make``."""
        if key not in self._shared:
            self._shared[key] = make()
        found: _Shared = self._shared[key]
        return found

    def when_open(self, call: Callable[[], object]) -> None:
        """Call ``call`` when the store is open, before anybody is served; now if it is."""
        if self._when_open is None:
            call()
        else:
            self._when_open.append(call)

    def timestamp(self) -> int:
        """Now, in µs since the Unix epoch, never less than what it was before."""
        now = int(self.seconds() * 1_000_000)
        if now > self._timestamp:
            self._timestamp = now
        return self._timestamp

    def publish(
        self,
        topic: Topic,
        run: MessageRun,
        sender: bytes,
        protocol: str,
        headers: Sequence[Headers] | None = None,
    ) -> Batch:
        """Store and route messages whose publisher has been checked (see ``Publisher``).

        Those of a topic with an ``upstream`` go there instead. A topic that is nobody's becomes
        this broker's (see ``TopicRegistry.claim``). Raises TopicUnreachable or
        HistoryUnavailable, and then has published nothing.
        """
        batch = self._batch(topic, run, sender, protocol, headers)
        if topic.upstream is None:
            if not topic.hosted:
                self.topics.claim(topic)
            self._take(topic, batch)
        else:
            topic.upstream.publish(topic, batch)
        count = len(batch.payloads)
        self._sequence += count
        self.counters.published += count
        self.counters.published_bytes += batch.nbytes
        return batch

    def relay(self, topic: Topic, run: MessageRun, sender: bytes, protocol: str) -> None:
        """Store and route here what no client of this broker has published.

        It comes from the broker that hosts ``topic``, or is this one's own. It is not counted,
        and never sent on.
        """
        batch = self._batch(topic, run, sender, protocol, None)
        self._sequence += len(batch.payloads)
        try:
            self._take(topic, batch)
        except HistoryUnavailable as unavailable:
            # Nobody is there to be told, and those who read it live lack nothing.
            self.counters.drop("history", topic.name, unavailable.reason, len(batch.payloads))
            batch.offset = self.store.next_offset
            self.router.route(topic, batch)

    def _batch(
        self,
        topic: Topic,
        run: MessageRun,
        sender: bytes,
        protocol: str,
        headers: Sequence[Headers] | None,
    ) -> Batch:
        return Batch(
            topic.name,
            run.payloads,
            run.nbytes,
            run.size,
            self.timestamp(),
            self._sequence,
            sender,
            protocol,
            headers,
        )

    def _take(self, topic: Topic, batch: Batch) -> None:
        if topic.durability:
            self.store.append(batch)
        else:
            # Where in the log it would be: a reader that goes on from here misses nothing.
            batch.offset = self.store.next_offset
        if topic.groups:
            self.router.route(topic, batch)

    def demand(self, topic: Topic, sync: bool, exclusive: bool) -> None:
        """What its creator wants of ``topic``: to be SYNC whatever the rules say, or not; and to
        end with its creator, or with this process at the latest."""
        topic.durability = Durability.SYNC if sync else self._durability.of(topic.name)
        demands = (_SYNC if sync else b"") + (_EXCLUSIVE if exclusive else b"")
        self.store.put(TOPICS, topic.name, demands)

    def end_topic(self, topic: Topic) -> None:
        """``topic`` is no more: its subscriptions end, its name is free again."""
        self.router.end(topic)
        self.queue_keys.forget(topic)
        self.topics.remove(topic)
        self._end_name(topic.name)

    def _end_name(self, name: str) -> None:
        self.queue_keys.drop(name)
        self.store.delete(TOPICS, name)
        self.store.forget(name)

    def recheck(self) -> tuple[int, int]:
        """What clients may do has changed: every live subscription is looked at again.

        Returns how many stayed and how many ended.
        """
        results = [self.router.recheck(topic) for topic in tuple(self.topics) if topic.groups]
        return sum(kept for kept, _ in results), sum(removed for _, removed in results)

    # Life

    def startService(self) -> None:
        """Open the store, start the listeners and the housekeeping; raises StartError."""
        self.store.open(self.run_id)
        if self.events is not None:
            self._own_topics()
        if self.store.durable:
            self._restore()
        calls, self._when_open = self._when_open or [], None
        for call in calls:
            call()
        super().startService()  # type: ignore[no-untyped-call]
        log.info("{summary}", summary=self.store.summary)
        self._housekeeping.start()

    def stopService(self) -> Deferred[None]:
        """Stop accepting, flush, say goodbye, close; abort what is left at the deadline."""
        self._housekeeping.stop()
        stopped: Deferred[None] = maybeDeferred(super().stopService)
        stopped.addCallback(lambda _: self._drain()).addCallback(lambda _: self._close_store())
        return stopped.addCallback(self._report)

    def _close_store(self) -> Deferred[None]:
        if self.events is not None:
            self.events.close()
        return self.store.close()

    def arrived(self, client: Client) -> None:
        """A connection has been accepted."""
        self.clients[client] = None

    def left(self, client: Client) -> None:
        """A connection is gone."""
        self.clients.pop(client, None)
        if self._emptied is not None and not self.clients:
            emptied, self._emptied = self._emptied, None
            emptied.callback(None)

    def _own_topics(self) -> None:
        """Make the broker's own topics while nobody else can; raises StartError."""
        try:
            self.topics.create(EVENTS_TOPIC)
        except Refused as refused:
            raise StartError(f"events: there is no room for {EVENTS_TOPIC}: {refused}") from None

    def _tell(self, payloads: list[bytes]) -> None:
        """Publish events."""
        run = MessageRun.of(payloads)
        self.relay(self.topics.named(EVENTS_TOPIC), run, b"", EVENTS_PROTOCOL)

    def _made(self, topic: Topic) -> None:
        """A topic is new: what the rules say of it holds."""
        topic.durability = self._durability.of(topic.name)

    def _claimed(self, topic: Topic) -> None:
        """A topic is this broker's: it is there after a restart."""
        self.store.put(TOPICS, topic.name, b"")

    def _restore(self) -> None:
        """Take up what the store kept of the run before."""
        self.queue_keys.restore()
        for name, demands in self.store.items(TOPICS):
            if _EXCLUSIVE in demands:
                self._end_name(name)
                continue
            try:
                topic = self.topics.create(name, hosted=False)
            except Refused as refused:
                log.warn("topic {name!r} is left out: {reason}", name=name, reason=refused)
            else:
                topic.hosted = True
                if _SYNC in demands:
                    topic.durability = Durability.SYNC

    def _drain(self) -> Deferred[None] | None:
        self.router.flush()
        self.sessions.stop()
        for client in tuple(self.clients):
            client.drain()
        if not self.clients:
            return None
        self._emptied = emptied = Deferred[None]()
        deadline = self.clock.callLater(self.limits.stop_seconds, self.hurry)

        def cancel(result: None) -> None:
            if deadline.active():
                deadline.cancel()

        return emptied.addCallback(cancel)

    def hurry(self) -> None:
        """Cut off every connection that is left; for a broker that is stopping."""
        log.warn("{count} connections did not close in time", count=len(self.clients))
        for client in tuple(self.clients):
            client.abort("the broker stops")

    def _report(self, result: None) -> None:
        counters = self.counters
        self.audit.close()
        log.info(
            "stopped: {published} published, {delivered} delivered, {dropped} dropped, "
            "{refused} refused, {hits} known tokens, {misses} verified",
            published=counters.published,
            delivered=counters.delivered,
            dropped=counters.dropped,
            refused=counters.refused,
            hits=self.tokens.hits,
            misses=self.tokens.misses,
        )
