"""The topic space: every topic by name, by prefix of the name, by u32 id and by UUID."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from sortedcontainers import SortedDict

from pubsub.broker.topic_space.topic_names import topic_name
from pubsub.broker.topic_space.topics import Topic
from pubsub.errors import LimitReached, TopicNotFound

if TYPE_CHECKING:
    from pubsub.broker.memory_budget import MemoryBudget

# Estimated cost of a topic with its three index entries, for the memory budget.
TOPIC_BYTES = 1024
# Topics that one look-up in the sorted names takes.
_PAGE = 64


class TopicRegistry:
    """All topics, at most ``limit`` of them."""

    def __init__(self, limit: int, memory: MemoryBudget) -> None:
        self.limit = limit
        self.expire = False
        """True if unused topics expire, so that their use is noted."""
        self._memory = memory
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[int, Topic] = {}
        # By the bytes of the name, in their order.
        self._sorted: SortedDict[bytes, Topic] = SortedDict()
        # Topics that only groups of messages have asked for which may be refused, and how many.
        self._provisional: dict[str, int] = {}
        self.own = 0
        """Topics of the broker itself (see ``create_own``)."""
        self._watchers: list[Callable[[Topic], None]] = []
        self._removal_watchers: list[Callable[[Topic], None]] = []
        self.needs: list[Callable[[Topic], bool]] = []
        """Return whether a topic is needed, also one that ``withdraw`` would end."""
        self.claim_checks: list[Callable[[str], None]] = []
        self.claimed: Callable[[Topic], None] = lambda topic: None
        """Called with every topic that this broker begins to host."""

    def reconfigure(self, settings: Mapping[str, Any]) -> None:
        """Apply the setting ``max-topics``; topics beyond it stay."""
        self.limit = settings["max-topics"]

    def watch(self, watcher: Callable[[Topic], None]) -> None:
        """Call ``watcher`` with every topic created from now on, before it is used."""
        self._watchers.append(watcher)

    def watch_removal(self, watcher: Callable[[Topic], None]) -> None:
        """Call ``watcher`` with every topic that is about to be removed."""
        self._removal_watchers.append(watcher)

    def claim(self, topic: Topic) -> None:
        """Host ``topic`` here, unless it already is or another broker hosts it.

        Each of ``claim_checks`` is called with the topic's name and may refuse by raising.
        """
        if not topic.hosted and topic.upstream is None:
            self.check_claim(topic.name)
            topic.set_hosted(True)
            self.claimed(topic)

    def check_claim(self, name: str) -> None:
        """Raise the error of ``claim`` for a topic that is not hosted here."""
        for check in self.claim_checks:
            check(name)

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._by_name.values())

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def holds(self, topic: Topic) -> bool:
        """Return whether ``topic`` has not ended; another topic may have its name since."""
        return self._by_name.get(topic.name) is topic

    def create(self, raw: bytes | str, hosted: bool = True) -> Topic:
        """Return the topic of this name, creating it if there is none.

        Raises InvalidTopicName, LimitReached or MemoryExhausted. Two names with the same u32 id
        are two topics; the id then stands for the first. With ``hosted`` the topic is claimed
        (see ``claim``). Without it the topic is only offered or known; another broker may turn
        out to host it.
        """
        name = topic_name(raw)
        topic = self._by_name.get(name)
        if topic is not None:
            # The id is free again if the topic that had it has ended.
            self._by_id.setdefault(topic.id, topic)
            if hosted:
                self.claim(topic)
            if self._provisional:
                self.keep(name)
            return topic
        if len(self._by_name) - self.own >= self.limit:
            raise LimitReached("topics")
        if hosted:
            self.check_claim(name)
        self._memory.reserve(TOPIC_BYTES)
        topic = self._add(name, hosted)
        if hosted:
            self.claimed(topic)
        return topic

    def create_own(self, name: str) -> Topic:
        """Create a topic of the broker itself: no client's limits apply to it.

        It may exist already, as the configuration of a listener can name it.
        """
        topic = self._by_name.get(name)
        if topic is None:
            self.own += 1
            topic = self._add(name, hosted=True)
        topic.configured = True
        topic.set_hosted(True)
        return topic

    def _add(self, name: str, hosted: bool) -> Topic:
        topic = Topic(name)
        topic.set_hosted(hosted)
        self._by_name[name] = topic
        self._by_id.setdefault(topic.id, topic)
        self._sorted[name.encode()] = topic
        for watcher in self._watchers:
            watcher(topic)
        return topic

    def create_provisional(self, name: str) -> Topic:
        """Return the topic of this name, creating it without a host if there is none.

        Raises as ``create``. The caller has to call ``keep`` or ``withdraw`` later.
        """
        count = self._provisional.get(name, int(name not in self._by_name) - 1)
        topic = self.get(name) or self.create(name, hosted=False)
        if count >= 0:
            self._provisional[name] = count + 1
        return topic

    def keep(self, name: str) -> None:
        """The topic of this name stays, as it is needed."""
        self._provisional.pop(name, None)

    def withdraw(self, topic: Topic) -> bool:
        """End one ``create_provisional``; return whether the topic is not needed any more.

        Those of a topic that has ended have ended with it: another one may have its name.
        """
        name = topic.name
        count = self._provisional.get(name)
        if count is None or not self.holds(topic):
            return False
        if count > 1:
            self._provisional[name] = count - 1
            return False
        del self._provisional[name]
        return not self.is_needed(topic)

    def is_needed(self, topic: Topic) -> bool:
        """Return whether ``topic`` is needed although no request for it was granted."""
        return any(needs(topic) for needs in self.needs)

    def remove(self, topic: Topic) -> None:
        """Remove a topic that has ended; its memory and its ids are free again.

        A topic that the configuration names stays, without a host.
        """
        if self._by_name.get(topic.name) is not topic:
            return
        for watcher in self._removal_watchers:
            watcher(topic)
        self._provisional.pop(topic.name, None)
        topic.set_hosted(False)
        if topic.configured:
            return
        del self._by_name[topic.name]
        self._memory.free(TOPIC_BYTES)
        del self._sorted[topic.name.encode()]
        if self._by_id.get(topic.id) is topic:
            del self._by_id[topic.id]

    def get(self, name: str) -> Topic | None:
        """Return the topic of this name, if there is one, without a need for it."""
        return self._by_name.get(name)

    def named(self, name: str) -> Topic:
        """Return the topic of this name; raises TopicNotFound."""
        if self._provisional:
            self.keep(name)
        try:
            return self._by_name[name]
        except KeyError:
            raise TopicNotFound(name) from None

    def existing(self, name: str) -> Topic:
        """Return the topic of this name, without a need for it; raises TopicNotFound."""
        topic = self._by_name.get(name)
        if topic is None:
            raise TopicNotFound(name)
        return topic

    def with_prefix(self, prefix: bytes) -> Iterator[Topic]:
        """Yield the topics whose names begin with ``prefix``, in the order of the names' bytes.

        Topics may be created and removed meanwhile; a new one is yielded if its place is not
        passed yet.
        """
        yield from self._walk(prefix, _after(prefix), True)

    def after(self, name: bytes) -> Iterator[Topic]:
        """Yield the topics whose names come after ``name``, as ``with_prefix`` does."""
        yield from self._walk(name, None, False)

    def _walk(self, first: bytes, stop: bytes | None, start_too: bool) -> Iterator[Topic]:
        while True:
            names = self._sorted.irange(first, stop, inclusive=(start_too, False))
            page = [(name, self._sorted[name]) for name in islice(names, _PAGE)]
            for name, topic in page:
                if self._sorted.get(name) is topic:
                    yield topic
            if len(page) < _PAGE:
                return
            first, start_too = page[-1][0], False

    def has_id(self, topic: Topic) -> bool:
        """Return whether the u32 id of ``topic`` stands for it, and for no other topic."""
        return self._by_id.get(topic.id) is topic

    def by_id(self, number: int) -> Topic:
        """Return the topic whose name hashes to this u32, as ``existing`` does."""
        try:
            return self._by_id[number]
        except KeyError:
            raise TopicNotFound(f"{number:#010x}") from None


def _after(prefix: bytes) -> bytes | None:
    """Return the smallest bytes after all that begin with ``prefix``; None if there are none."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes((head[-1] + 1,)) if head else None
