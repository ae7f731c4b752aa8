"""The state that the broker keeps of a topic besides its messages, from creation to end.

The store's metadata lists the topics that this broker hosts, and for each the durability that its
creator requires of it and whether its u32 id stands for another one, so that they exist again after
a restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.logger import Logger

from pubsub.broker.topic_space.durability import Durability, DurabilityRules
from pubsub.errors import Refused

if TYPE_CHECKING:
    from pubsub.broker.credentials.queue_keys import QueueKeys
    from pubsub.broker.routing.router import Router
    from pubsub.broker.slices import Work
    from pubsub.broker.topic_space.topic_registry import TopicRegistry
    from pubsub.broker.topic_space.topic_sharing import TopicSharing
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.interfaces import IStore

log = Logger()
TOPICS = "topics"
"""The table of the store's metadata with the hosted topics and their creators' requirements."""
_SYNC, _EXCLUSIVE, _WITHOUT_ID = b"s", b"x", b"i"


class TopicLifecycle:
    """Applies the durability rules to new topics, restores topics at start, and ends them."""

    def __init__(
        self,
        topics: TopicRegistry,
        store: IStore,
        router: Router,
        queue_keys: QueueKeys,
        rules: DurabilityRules,
    ) -> None:
        self._topics = topics
        self._store = store
        self._router = router
        self._queue_keys = queue_keys
        self._rules = rules
        # Topics that are SYNC under any rules.
        self._always_sync: set[str] = set()
        # Topics that are stored as long as they are read from the history.
        self._still_read: set[Topic] = set()
        self.sharing: TopicSharing | None = None
        """Set if topics are shared with other brokers."""
        topics.watch(self._apply_rules)
        topics.claimed = self._record

    def _apply_rules(self, topic: Topic) -> None:
        topic.set_durability(self._rules.durability(topic.name))

    @property
    def rules(self) -> DurabilityRules:
        """The durability of topics."""
        return self._rules

    def reconfigure(self, rules: DurabilityRules) -> Work:
        """Return the work that applies other rules to the topics that exist.

        They are applied to new topics from now on.
        """
        self._rules = rules
        return self._change_all()

    def _change_all(self) -> Work:
        for topic in self._topics.with_prefix(b""):
            self._change(topic)
            yield

    def sweep(self) -> None:
        """Look again at the topics whose new durability had to wait; called once a second."""
        waiting, self._still_read = self._still_read, set()
        for topic in waiting:
            if self._topics.holds(topic):
                self._change(topic)

    def _change(self, topic: Topic) -> None:
        if topic.name in self._always_sync:
            return
        durability = self._rules.durability(topic.name)
        if durability is Durability.NONE and topic.behind:
            # The history has messages that these subscribers have not read yet.
            self._still_read.add(topic)
        else:
            self._set_durability(topic, durability)

    def _set_durability(self, topic: Topic, durability: Durability) -> None:
        if self._router.gathered is not None:
            # Those messages were published before, and are stored together: all of them or none.
            self._router.gathered()
        topic.set_durability(durability)

    def _record(self, topic: Topic) -> None:
        self._put(topic, b"")
        if self.sharing is not None:
            self.sharing.claimed(topic)

    def is_sync(self, name: str) -> bool:
        """Return whether the creator of the topic ``name`` requires it to be SYNC."""
        return name in self._always_sync

    def set_requirements(self, topic: Topic, sync: bool, exclusive: bool) -> None:
        """Record the requirements of the creator of ``topic``.

        With ``sync`` the topic is SYNC under any rules. An ``exclusive`` topic ends with
        its creator's connection; after a crash it is removed at the next start.
        """
        durability = Durability.SYNC if sync else self._rules.durability(topic.name)
        self._set_durability(topic, durability)
        if sync:
            self._always_sync.add(topic.name)
        else:
            self._always_sync.discard(topic.name)
        requirements = (_SYNC if sync else b"") + (_EXCLUSIVE if exclusive else b"")
        self._put(topic, requirements)

    def _put(self, topic: Topic, requirements: bytes) -> None:
        marks = requirements if self._topics.has_id(topic) else requirements + _WITHOUT_ID
        self._store.put(TOPICS, topic.name, marks)

    def delete(self, topic: Topic) -> Work:
        """End ``topic`` after its subscribers have been notified in their protocols' terms.

        No client may subscribe to it or read it meanwhile, nor publish to it if it has a key.
        """
        if not self._topics.holds(topic):
            # It has ended since that was requested. The name is free, or that of another topic.
            return
        self._queue_keys.lock(topic.name)
        self._queue_keys.exclusive.add(topic.name)
        for _ in self._router.recheck_each(topic):
            yield
        self.end(topic)

    def withdraw(self, name: str) -> None:
        """Remove a topic that was created in this tick for messages that were refused."""
        topic = self._topics.get(name)
        if topic is not None and not (topic.hosted or self._topics.is_needed(topic)):
            self._router.end(topic)
            self._topics.remove(topic)

    def end(self, topic: Topic) -> None:
        """End ``topic``: its subscriptions end, its messages and its queue key are deleted."""
        if not self._topics.holds(topic):
            return
        self._router.end(topic)
        self._topics.remove(topic)
        self._apply_rules(topic)
        self._delete(topic.name)

    def expire(self, topic: Topic) -> bool:
        """Do as ``end``, unless messages were gathered for ``topic``; return whether it ends."""
        if self._router.gathered is not None:
            self._router.gathered()
        if topic.idle_since is None:
            return False
        self.end(topic)
        return True

    def _delete(self, name: str) -> None:
        self._always_sync.discard(name)
        self._queue_keys.forget(name)
        self._store.delete(TOPICS, name)
        self._store.forget(name)

    def restore(self) -> None:
        """Create the topics of the previous run, with their queue keys."""
        self._queue_keys.restore()
        # Last, those whose ids belong to others, which were created before them.
        rows = sorted(self._store.items(TOPICS), key=lambda row: _WITHOUT_ID in row[1])
        for name, requirements in rows:
            if _EXCLUSIVE in requirements:
                self._delete(name)
                continue
            try:
                topic = self._topics.create(name, hosted=False)
            except Refused as refused:
                log.warn("topic {name!r} is not restored: {reason}", name=name, reason=refused)
            else:
                topic.set_hosted(True)
                if _SYNC in requirements:
                    topic.set_durability(Durability.SYNC)
                    self._always_sync.add(name)
