"""The end of topics and identities: unused ones expire, and an operator deletes others.

A topic expires when it has been unused for some time and holds nothing: no message in the
history and no queue key. An identity is a name under which a protocol keeps a client's state; it
expires when no request has named it for some time and its own topic has no message.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from twisted.internet.defer import ensureDeferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

if TYPE_CHECKING:
    from pubsub.broker.credentials.queue_keys import QueueKeys
    from pubsub.broker.slices import Slices, Work
    from pubsub.broker.topic_space.topic_lifecycle import TopicLifecycle
    from pubsub.broker.topic_space.topic_registry import TopicRegistry
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.interfaces import IStore

log = Logger()
# Passes over all topics and identities in the time after which they expire.
_PASSES = 4
_SHORTEST, _LONGEST = 1.0, 3600.0


def topic_seconds(expiry: float, resume_window: float) -> float:
    """Return the seconds after which unused topics expire; zero if never.

    A session that is kept names its topics, so that these are at least the seconds for which it is.
    """
    return max(expiry, resume_window) if expiry else 0


class IdentityKeeper(Protocol):
    """The identities of one protocol."""

    def expire(self, is_over: Callable[[float | None], bool], holding: Container[str]) -> Work:
        """End the identities whose time ``is_over`` and whose names are not in ``holding``.

        An identity that was used since the last call is passed with None, and any other with
        the time of the first call that found it unused.
        """

    def delete(self, name: str) -> Work | None:
        """Return the work that ends the identity ``name``; None if there is none."""


class UnusedNames:
    """Ends unused topics after ``topic_seconds`` and identities after ``identity_seconds``.

    Zero means never. ``keepers`` are the identities of each protocol that has them.
    """

    def __init__(
        self,
        clock: IReactorTime,
        slices: Slices,
        store: IStore,
        topics: TopicRegistry,
        lifecycle: TopicLifecycle,
        queue_keys: QueueKeys,
        topic_seconds: float,
        identity_seconds: float,
    ) -> None:
        self.keepers: list[IdentityKeeper] = []
        self._seconds = clock.seconds
        self._slices = slices
        self._store = store
        self._topics = topics
        self._lifecycle = lifecycle
        self._queue_keys = queue_keys
        self._topic_seconds = topic_seconds
        self._identity_seconds = identity_seconds
        topics.expire = topic_seconds > 0
        self._started = False
        # It would wait for a pass that were its result, and a reload that starts it again meanwhile
        # would then leave it with two timers.
        self._caller = LoopingCall(self._begin_pass)
        self._under_way = False
        self._caller.clock = clock

    def reconfigure(self, settings: Mapping[str, Any]) -> None:
        """Apply ``topic-expiry`` and ``identity-expiry``."""
        before = self._topic_seconds, self._identity_seconds
        self._topic_seconds = topic_seconds(settings["topic-expiry"], settings["resume-window"])
        self._identity_seconds = settings["identity-expiry"]
        self._topics.expire = self._topic_seconds > 0
        if self._started and before != (self._topic_seconds, self._identity_seconds):
            self.stop()
            self.start()

    def start(self) -> None:
        """Look for expired objects from time to time."""
        self._started = True
        times = [time for time in (self._topic_seconds, self._identity_seconds) if time]
        if times:
            interval = max(min(min(times) / _PASSES, _LONGEST), _SHORTEST)
            self._caller.start(interval, now=False)

    def stop(self) -> None:
        """End nothing any more."""
        self._started = False
        if self._caller.running:
            self._caller.stop()

    def delete_identity(self, name: str) -> Work | None:
        """Return the work that ends the identity ``name``; None if there is none."""
        for keeper in self.keepers:
            work = keeper.delete(name)
            if work is not None:
                return work
        return None

    def _begin_pass(self) -> None:
        if not self._under_way:
            self._under_way = True
            ensureDeferred(self._pass())

    async def _pass(self) -> None:
        try:
            holding = await self._store.topics_in(self._store.first_offset, self._store.committed)
            if self._identity_seconds:
                for keeper in self.keepers:
                    await self._slices.finish(
                        keeper.expire(self._is_over(self._identity_seconds), holding)
                    )
            if self._topic_seconds:
                await self._slices.finish(self._expire_topics(holding))
        except Exception:
            # A single defect must not end the passes permanently.
            log.failure("looking for unused topics failed")
        finally:
            self._under_way = False

    def _is_over(self, seconds: float) -> Callable[[float | None], bool]:
        now = self._seconds()
        return lambda since: since is not None and now - since >= seconds

    def _expire_topics(self, holding: Container[str]) -> Work:
        now, is_over, ended = self._seconds(), self._is_over(self._topic_seconds), 0
        for topic in self._topics.with_prefix(b""):
            if self._is_needed(topic) or topic.name in holding:
                topic.idle_since = None
            elif topic.idle_since is None:
                topic.idle_since = now
            elif is_over(topic.idle_since):
                ended += self._lifecycle.expire(topic)
            yield
        if ended:
            log.info("unused topics have expired: {count}", count=ended)

    def _is_needed(self, topic: Topic) -> bool:
        host = topic.upstream
        is_remote = host is not None and not host.no_longer_hosts(topic)
        return is_remote or topic.has_clients or topic.configured or topic in self._queue_keys
