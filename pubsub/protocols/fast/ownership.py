"""CREATE, and the owners of exclusive topics (fast §3.1)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from pubsub.broker.topic_space.topic_names import fnv1a32
from pubsub.broker.topic_space.topic_sharing import Requirements
from pubsub.errors import IdCollision, TopicExists, TopicNotFound
from pubsub.protocols.fast.codec import DURABLE, EXCLUSIVE

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from pubsub.broker.credentials.tokens import Token
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.slices import Work
    from pubsub.broker.topic_space.topics import Topic


class TopicOwner(Protocol):
    """A connection that creates topics; ``owned`` are the exclusive topics that end with it."""

    owned: set[Topic] | None
    closing: bool

    @property
    def label(self) -> str: ...


class TopicOwnership:
    """Creates topics, and ends the exclusive ones with the connections that created them.

    The owners are those of all fast listeners of the broker.
    """

    def __init__(self, listener: Listener) -> None:
        self._topics = listener.topics
        self._keys = listener.queue_keys
        self._lifecycle = listener.topic_lifecycle
        self._slices = listener.slices
        self._owners: dict[Topic, TopicOwner] = listener.shared("fast-owners", dict)
        listener.topics.watch_removal(self._removed)

    def request(
        self, name: str, token: Token, creator: TopicOwner, flags: int
    ) -> Deferred[Any] | None:
        """Create the topic, or close one that is open, with the token's queue key.

        Returns None if that is done, or a Deferred if other brokers must agree upon it or many
        subscriptions be rechecked. Raises IdCollision, TopicExists, LimitReached or
        MemoryExhausted, as the Deferred fails with.
        """
        self._end_left(name)
        self._check(name, token, creator, flags)
        sharing = self._lifecycle.sharing
        if sharing is None:
            return self._create(name, token, creator, flags)
        required = Requirements(token.queue_key, bool(flags & DURABLE), bool(flags & EXCLUSIVE))
        apply = partial(self._create_shared, name, token, creator, flags)
        return sharing.create(name, required, apply)

    async def _create_shared(
        self, name: str, token: Token, creator: TopicOwner, flags: int
    ) -> None:
        done = self._create(name, token, creator, flags)
        if done is not None:
            await done

    def _check(self, name: str, token: Token, creator: TopicOwner, flags: int) -> None:
        """Raise IdCollision or TopicExists."""
        self._check_id(name)
        topic = self._topics.get(name)
        if topic is not None and (
            topic.upstream is not None
            or (topic in self._keys and not self._keys.matches(topic, token.queue_key))
            or not self.may_read(topic, creator)
            or (flags & EXCLUSIVE and topic not in self._owners)
        ):
            raise TopicExists(name)

    def _create(
        self, name: str, token: Token, creator: TopicOwner, flags: int
    ) -> Deferred[tuple[int, int]] | None:
        exclusive = bool(flags & EXCLUSIVE)
        self._check(name, token, creator, flags)
        if exclusive and creator.closing:
            # It has left while the other brokers agreed.
            raise TopicNotFound(name)
        topic = self._topics.create(name)
        closed = topic in self._keys
        if exclusive:
            self._own(topic, creator)
        elif topic in self._owners:
            self._disown(topic, creator)
        self._lifecycle.set_requirements(topic, bool(flags & DURABLE), exclusive)
        # Last, because it rechecks the subscriptions of an open topic.
        if closed:
            return None
        return self._keys.close(topic, token.queue_key, token.subject, creator.label)

    def may_read(self, topic: Topic, connection: TopicOwner) -> bool:
        """Return whether no other connection owns ``topic``."""
        return self._owners.get(topic, connection) is connection

    def _own(self, topic: Topic, owner: TopicOwner) -> None:
        self._owners[topic] = owner
        self._keys.exclusive.add(topic.name)
        if owner.owned is None:
            owner.owned = set()
        owner.owned.add(topic)

    def _disown(self, topic: Topic, owner: TopicOwner) -> None:
        del self._owners[topic]
        self._keys.exclusive.discard(topic.name)
        if owner.owned is not None:
            owner.owned.discard(topic)

    def end_topics(self, owner: TopicOwner) -> None:
        """End the exclusive topics of a connection that is closed."""
        if owner.owned:
            self._slices.run(self._end_all(owner))

    def _end_all(self, owner: TopicOwner) -> Work:
        while owner.owned:
            self._lifecycle.end(next(iter(owner.owned)))
            yield

    def _removed(self, topic: Topic) -> None:
        """``topic`` ends, perhaps because an operator deletes it."""
        owner = self._owners.get(topic)
        if owner is not None:
            self._disown(topic, owner)

    def _end_left(self, name: str) -> None:
        """End the topic of this name if its owner is closed and the topic's turn has not come."""
        topic = self._topics.get(name)
        owner = None if topic is None else self._owners.get(topic)
        if topic is not None and owner is not None and owner.closing:
            self._lifecycle.end(topic)

    def _check_id(self, name: str) -> None:
        try:
            other = self._topics.by_id(fnv1a32(name.encode()))
        except TopicNotFound:
            return
        if other.name != name:
            raise IdCollision(name)
