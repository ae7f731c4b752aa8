"""Copies of the topics that another broker hosts, in the history of this broker (spot §7.8).

A topic is copied once a client of this broker reads it from the history. Then its messages are read
from the history of its host, and deliveries of the host only show that there are new ones. So the
copy has every message once, in order, also after failures of the connection.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Protocol

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import Logger

from pubsub.broker.delivery.history_reads import written
from pubsub.broker.stored_rows import read_row
from pubsub.errors import HistoryUnavailable
from pubsub.kernel import Columns

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.interfaces import IStore
    from pubsub.protocols.spot.broker_commands import HistoryPage

log = Logger()
COPIES = "spot-copies"
"""The table of the store's metadata; keys are the host's endpoint and the topic as a JSON list."""


class ReadFailed(Exception):
    """The host cannot be reached, or has not replied in time."""


class PageReader(Protocol):
    """Reads pages from the host."""

    def read(self, topic: str, epoch: str, offset: int) -> Deferred[HistoryPage]:
        """Return a page; it fails with ReadFailed."""

    def delivered(self, topic: Topic) -> None:
        """Messages have been delivered here: wait for slow subscribers."""


@dataclass(slots=True)
class TopicCopy:
    """The progress of the copy of a topic, in the offsets of its host.

    Messages before ``live_from`` were published before the copy began. They are only stored, as
    subscribers have received them, or have subscribed later. If ``live_from`` is negative, the copy
    has not begun, and ``epoch`` and ``offset`` are those of a copy from an earlier host.
    """

    epoch: str
    offset: int
    live_from: int

    @property
    def has_begun(self) -> bool:
        """Whether messages of this host were copied."""
        return self.live_from >= 0


class _AllCopies:
    """The copies of the topics of all hosts, by endpoint and name, also of former peers.

    All hosts share them: to read those of the others for each would take as often as long.
    """

    def __init__(self) -> None:
        self._by_host: dict[str, dict[str, TopicCopy]] = {}
        self._are_read = False

    def of_host(self, endpoint: str) -> dict[str, TopicCopy]:
        """Return those of one host, which changes them."""
        return self._by_host.setdefault(endpoint, {})

    def read(self, store: IStore) -> None:
        """Read those of the previous run, once."""
        if self._are_read:
            return
        self._are_read = True
        for key, row in store.items(COPIES):
            endpoint, name = json.loads(key)
            self.of_host(endpoint)[name] = read_row(TopicCopy, row)

    def of_any(self, name: str) -> TopicCopy | None:
        """Return the copy of a topic from any host."""
        found = (copies[name] for copies in self._by_host.values() if name in copies)
        return next(found, None)


class TopicCopies:
    """The copies of the topics that the broker at ``endpoint`` hosts."""

    def __init__(self, listener: Listener, endpoint: str) -> None:
        self._listener = listener
        self._endpoint = endpoint
        self._all: _AllCopies = listener.shared(_AllCopies, _AllCopies)
        self._copies = self._all.of_host(endpoint)
        self._beginning: set[str] = set()
        # Topics that the host has no history of, as it said when it was asked the last time.
        self._kept: set[str] = set()
        # Those of them that are subscribed to since then: all their messages are stored here.
        self._gapless: set[str] = set()
        # Copied topics of which the host has delivered messages since its last page, and the number
        # of those that subscribers here get with the copy.
        self._delivered: dict[str, int] = {}
        # The calls that wait for the present update of a topic, and for the one after it.
        self._updates: dict[Topic, tuple[list[Deferred[bool]], list[Deferred[bool]]]] = {}
        listener.when_open(lambda: self._all.read(listener.store))

    def __contains__(self, topic: Topic) -> bool:
        return topic.name in self._copies

    def is_beginning(self, topic: Topic) -> bool:
        """Return whether the messages that arrive now are going to be copied from the host."""
        return topic.name in self._beginning

    def has_begun(self, topic: Topic) -> bool:
        """Return whether the messages that arrive are copied from the host, and not stored."""
        copy = self._copies.get(topic.name)
        return copy is not None and copy.has_begun

    def is_due(self, topic: Topic) -> bool:
        """Return whether the messages that arrive have to be copied, and the copy has not begun."""
        copy = self._copies.get(topic.name)
        return copy is not None and not copy.has_begun and topic.name not in self._kept

    def is_settled(self, topic: Topic) -> bool:
        """Return whether the messages that are stored here are not going to be copied again."""
        return topic.name in self._copies or topic.name in self._kept

    def keep(self, topic: Topic) -> None:
        """The host has no history of the topic: the messages that arrive are stored here.

        What was copied stays, also if the host stores the topic again.
        """
        copy, missed = self._copies.get(topic.name), self._delivered.pop(topic.name, 0)
        if copy is not None and copy.has_begun:
            self._copies[topic.name] = due = TopicCopy(copy.epoch, copy.offset, -1)
            self._save(topic, due)
            if missed:
                self._listener.drop(self._endpoint, topic.name, "not-copied", missed)
        self._kept.add(topic.name)
        self._gapless.add(topic.name)

    def interrupted(self, topic: Topic | None = None) -> None:
        """Messages of ``topic``, or of all, do not arrive for a while."""
        if topic is None:
            self._gapless.clear()
        else:
            self._gapless.discard(topic.name)

    def follow(self, topic: Topic, earlier: TopicCopy | None) -> None:
        """The broker hosts ``topic`` now; ``earlier`` is the copy from the one before.

        What was copied from it stays, so no message of this one is stored before its copy: those
        could not be told apart.
        """
        if topic.name in self._copies:
            return
        earlier = earlier or self._all.of_any(topic.name)
        if earlier is not None:
            self._copies[topic.name] = due = TopicCopy(earlier.epoch, earlier.offset, -1)
            self._save(topic, due)

    def drop(self, topic: Topic) -> TopicCopy | None:
        """Another broker hosts the topic, or its host does not store it; return the copy."""
        self._kept.discard(topic.name)
        self._gapless.discard(topic.name)
        self._delivered.pop(topic.name, None)
        copy = self._copies.pop(topic.name, None)
        if copy is not None:
            self._listener.store.delete(COPIES, self._key(topic.name))
        return copy

    def update(self, topic: Topic, reader: PageReader) -> Deferred[bool]:
        """Copy the present messages of the host. The Deferred fires with ``is_settled``."""
        done: Deferred[bool] = Deferred()
        present = self._updates.get(topic)
        if present is not None:
            # The present update may have read the end already.
            present[1].append(done)
        else:
            self._updates[topic] = ([done], [])
            ensureDeferred(self._run(topic, reader))
        return done

    def notify(self, topic: Topic, reader: PageReader, count: int) -> None:
        """The host has delivered messages: copy them, unless an update is about to begin.

        ``count`` of them subscribers here get with the copy.
        """
        self._delivered[topic.name] = self._delivered.get(topic.name, 0) + count
        present = self._updates.get(topic)
        if present is None or not present[1]:
            self.update(topic, reader)

    async def _run(self, topic: Topic, reader: PageReader) -> None:
        while True:
            try:
                await self._copy(topic, reader)
            except (ReadFailed, HistoryUnavailable) as error:
                log.info(
                    "topic {topic!r} of {node} cannot be read: {error}",
                    topic=topic.name,
                    node=self._endpoint,
                    error=error,
                )
            except Exception:
                log.failure("spot: cannot copy a topic")
            waiting, following = self._updates.pop(topic)
            if following:
                self._updates[topic] = (following, [])
            for done in waiting:
                done.callback(self.is_settled(topic))
            if not following:
                return

    async def _copy(self, topic: Topic, reader: PageReader) -> None:
        copy = self._copies.get(topic.name)
        if copy is None or not copy.has_begun:
            copy = await self._begin(topic, reader, copy)
        end = None
        while copy is not None and (end is None or copy.offset < end):
            page = await reader.read(topic.name, copy.epoch, copy.offset)
            if self._copies.get(topic.name) is not copy:
                # Another broker has become the host meanwhile.
                return
            if not page.epoch:
                # A host that has lost the topic delivers nothing. A copy that ended would begin
                # again later, and then hide the messages that are nowhere else.
                if topic.name in self._delivered:
                    self.keep(topic)
                return
            self._delivered.pop(topic.name, None)
            if page.next <= page.since < page.end:
                raise ReadFailed(f"its page of offset {page.since} goes no further")
            if end is None:
                end = page.end
            self._add(topic, copy, page)
            reader.delivered(topic)
            await written(self._listener.store)

    async def _begin(
        self, topic: Topic, reader: PageReader, due: TopicCopy | None
    ) -> TopicCopy | None:
        if topic.name in self._gapless:
            return await self._begin_again(topic, reader, due)
        self._beginning.add(topic.name)
        try:
            is_known = due is not None and await self._is_known(topic, reader, due)
            page = await reader.read(topic.name, "", 0)
        finally:
            self._beginning.discard(topic.name)
        if self._copies.get(topic.name) is not due:
            return None
        if not page.epoch:
            self.keep(topic)
            return None
        copy = TopicCopy(page.epoch.decode(errors="replace"), page.next, page.end)
        if due is None:
            # The messages that were stored here as they arrived are copied again.
            self._listener.store.forget(topic.name)
        elif is_known:
            copy.epoch, copy.offset = due.epoch, due.offset
        self._set(topic, copy)
        return copy

    async def _begin_again(
        self, topic: Topic, reader: PageReader, due: TopicCopy | None
    ) -> TopicCopy | None:
        """Copy what follows if the host, which has had no history of the topic, has one now.

        The messages before the end of it have arrived, and were stored here.
        """
        page = await reader.read(topic.name, "", 0)
        if self._copies.get(topic.name) is not due or topic.name not in self._gapless:
            return None
        if not page.epoch:
            self.keep(topic)
            return None
        copy = TopicCopy(page.epoch.decode(errors="replace"), page.end, page.end)
        self._set(topic, copy)
        return copy

    def _set(self, topic: Topic, copy: TopicCopy) -> None:
        self._kept.discard(topic.name)
        self._gapless.discard(topic.name)
        self._copies[topic.name] = copy
        self._save(topic, copy)

    async def _is_known(self, topic: Topic, reader: PageReader, due: TopicCopy) -> bool:
        """Return whether the earlier copy is one of this host, under another address."""
        page = await reader.read(topic.name, due.epoch, due.offset)
        return bool(page.epoch) and page.since == due.offset

    def _add(self, topic: Topic, copy: TopicCopy, page: HistoryPage) -> None:
        """Store and deliver a page; raises HistoryUnavailable."""
        if page.since != copy.offset:
            log.warn(
                "topic {topic!r} of {node}: the history was replaced; "
                "it is read from offset {offset}",
                topic=topic.name,
                node=self._endpoint,
                offset=page.since,
            )
        live_from = copy.live_from if page.since == copy.offset else page.since
        old = [p for at, p in zip(page.offsets, page.payloads, strict=True) if at < live_from]
        new = list(page.payloads[len(old) :])
        listener = self._listener
        with listener.store.together():
            for payloads, live in ((old, False), (new, True)):
                if payloads:
                    columns, sender = Columns.of(payloads), self._endpoint.encode()
                    listener.dispatcher.copy(topic, columns, sender, listener.protocol, live)
            copy.epoch, copy.live_from = page.epoch.decode(errors="replace"), live_from
            copy.offset = page.next
            self._save(topic, copy)

    def _save(self, topic: Topic, copy: TopicCopy) -> None:
        row = json.dumps(asdict(copy)).encode()
        self._listener.store.put(COPIES, self._key(topic.name), row)

    def _key(self, name: str) -> str:
        return json.dumps([self._endpoint, name])
