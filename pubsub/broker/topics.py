"""The one topic space and its views: by name, by u32 id and by UUID.

A topic's name is canonical: UTF-8 text of 1 to 255 bytes. The ids are derived from it, so a
protocol that addresses topics by number sees the same topic as one that uses the name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING
from uuid import UUID, uuid5

from pubsub.broker.durability import Durability
from pubsub.errors import InvalidTopicName, LimitReached, TopicNotFound

if TYPE_CHECKING:
    from pubsub.broker.limits import MemoryBudget
    from pubsub.broker.router import Group
    from pubsub.interfaces import Encoding, Publishing, Upstream

MAX_NAME = 255
TOPIC_NAMESPACE = UUID("5d1c8a52-2f4e-5a0b-9b8e-0f6a4a3d7c11")
# What a topic costs with its three index entries, an estimate for the memory budget.
TOPIC_BYTES = 1024

_FNV_OFFSET = 0x811C9DC5
_FNV_PRIME = 0x01000193


def fnv1a32(data: bytes) -> int:
    """FNV-1a, 32 bits, of ``data``."""
    value = _FNV_OFFSET
    for byte in data:
        value = (value ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return value


@lru_cache(maxsize=4096)
def topic_name(raw: bytes | str) -> str:
    """The canonical name; raises InvalidTopicName if ``raw`` cannot be one."""
    try:
        text = raw.decode() if isinstance(raw, bytes) else raw
        length = len(text.encode())
    except UnicodeError:
        raise InvalidTopicName("a topic name must be UTF-8") from None
    if not 1 <= length <= MAX_NAME:
        raise InvalidTopicName(f"a topic name has 1 to {MAX_NAME} bytes, not {length}")
    return text


class Topic:
    """A topic: its name and ids, its subscribers grouped by encoding, and who waits for whom.

    ``blockers`` are subscribers too slow for it; while there is one, publishers that have just
    published wait in ``waiting`` and do not read on.

    ``upstream`` is where the topic really is, if another broker hosts it: what is published here
    goes there and no further, and what comes from there is delivered here. ``hosted`` says that
    it is this broker's; a topic that a listener merely offers is nobody's until it is used.
    ``standing`` counts the readers that have no outbox but read the history.
    """

    __slots__ = (
        "blockers",
        "durability",
        "groups",
        "hosted",
        "id",
        "name",
        "standing",
        "upstream",
        "waiting",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.id = fnv1a32(name.encode())
        self.groups: dict[Encoding, Group] = {}
        self.blockers: set[object] = set()
        self.waiting: dict[Publishing, object] = {}
        self.upstream: Upstream | None = None
        self.hosted = False
        self.standing = 0
        self.durability = Durability.ASYNC

    @property
    def wanted(self) -> bool:
        """Does anybody here read it?"""
        return bool(self.groups) or self.standing > 0

    @property
    def uuid(self) -> UUID:
        """The topic's id for protocols that speak UUIDs: version 5, of its name."""
        return uuid5(TOPIC_NAMESPACE, self.name)

    def block(self, blocker: object) -> None:
        """Publishers wait after their next batch, until ``blocker`` lets go."""
        self.blockers.add(blocker)

    def unblock(self, blocker: object) -> None:
        """``blocker`` has caught up or is gone; whom nothing else blocks goes on."""
        self.blockers.discard(blocker)
        for publisher, own in tuple(self.waiting.items()):
            if not self.blocked(own):
                del self.waiting[publisher]
                publisher.release(self)

    def blocked(self, own: object = None) -> bool:
        """Is there a blocker other than ``own``?"""
        blockers = self.blockers
        return len(blockers) > (own in blockers)

    def wait(self, publisher: Publishing, own: object = None) -> None:
        """Hold ``publisher`` until nothing blocks this topic.

        ``own`` is left out of account: for a broker that this topic's messages go to and come
        from, what it is sent must not keep what it sends from being read, or neither ever moves.
        """
        self.waiting[publisher] = own
        publisher.hold(self)


class TopicRegistry:
    """Every topic there is, at most ``limit`` of them."""

    def __init__(self, limit: int, memory: MemoryBudget) -> None:
        self._limit = limit
        self._memory = memory
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[int, Topic] = {}
        self._by_uuid: dict[UUID, Topic] = {}
        self._watchers: list[Callable[[Topic], None]] = []
        self.claim_checks: list[Callable[[str], None]] = []
        self.claimed: Callable[[Topic], None] = lambda topic: None
        """Called with every topic that becomes this broker's."""

    def watch(self, watcher: Callable[[Topic], None]) -> None:
        """Call ``watcher`` with every topic made from now on, before it is used."""
        self._watchers.append(watcher)

    def claim(self, topic: Topic) -> None:
        """``topic`` becomes this broker's, unless it is so already or another's.

        What one of ``claim_checks`` raises, given its name, keeps it from that.
        """
        if not topic.hosted and topic.upstream is None:
            self._check_claim(topic.name)
            topic.hosted = True
            self.claimed(topic)

    def _check_claim(self, name: str) -> None:
        for check in self.claim_checks:
            check(name)

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._by_name.values())

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def create(self, raw: bytes | str, hosted: bool = True) -> Topic:
        """The topic of this name, made if it is not there yet.

        Raises InvalidTopicName, LimitReached or MemoryExhausted. Two names with the same u32
        id are two topics; the id then stands for the first. ``hosted`` is False for a topic that
        is offered or known without being used: it may turn out to be another broker's. Else it
        is claimed (see ``claim``).
        """
        name = topic_name(raw)
        topic = self._by_name.get(name)
        if topic is not None:
            # The id is free again if the topic that had it has ended.
            self._by_id.setdefault(topic.id, topic)
            if hosted:
                self.claim(topic)
            return topic
        if len(self._by_name) >= self._limit:
            raise LimitReached("topics")
        if hosted:
            self._check_claim(name)
        self._memory.reserve(TOPIC_BYTES)
        topic = Topic(name)
        topic.hosted = hosted
        self._by_name[name] = topic
        self._by_id.setdefault(topic.id, topic)
        self._by_uuid[topic.uuid] = topic
        for watcher in self._watchers:
            watcher(topic)
        if hosted:
            self.claimed(topic)
        return topic

    def remove(self, topic: Topic) -> None:
        """The topic has ended; its memory is free and its ids may be another's."""
        if self._by_name.pop(topic.name, None) is None:
            return
        self._memory.free(TOPIC_BYTES)
        del self._by_uuid[topic.uuid]
        if self._by_id.get(topic.id) is topic:
            del self._by_id[topic.id]

    def named(self, name: str) -> Topic:
        """The topic of this name; raises TopicNotFound."""
        try:
            return self._by_name[name]
        except KeyError:
            raise TopicNotFound(name) from None

    def by_id(self, number: int) -> Topic:
        """The topic whose name hashes to this u32; raises TopicNotFound."""
        try:
            return self._by_id[number]
        except KeyError:
            raise TopicNotFound(f"{number:#010x}") from None

    def by_uuid(self, uuid: UUID) -> Topic:
        """The topic with this UUID; raises TopicNotFound."""
        try:
            return self._by_uuid[uuid]
        except KeyError:
            raise TopicNotFound(str(uuid)) from None
