"""Subscriptions of sessions to topics, in the order of sessions and then of names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pubsub.broker.clients.connection_marks import mark_of, mark_text
from pubsub.broker.figures.connection_figures import CATCHING_UP, LIVE, PAUSED
from pubsub.management.connections import connection_of, connections_after

if TYPE_CHECKING:
    from pubsub.broker.clients.client_registry import ClientRegistry
    from pubsub.broker.delivery.outbox import Outbox
    from pubsub.broker.topic_space.topic_registry import TopicRegistry
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.management.connections import ListedConnection
    from pubsub.management.listing import Row

# Subscriptions of a session that are sorted at once; of more, the topics are walked in their order.
_SORTED = 256
_MARK_LENGTH = 16


class ListedSubscription(NamedTuple):
    """A topic that a session has subscribed to, through this outbox."""

    session: ListedConnection
    topic: Topic
    outbox: Outbox

    @property
    def key(self) -> str:
        """The place in the list."""
        return mark_text(self.session.mark) + self.topic.name


def is_key(text: str) -> bool:
    """Return whether ``text`` is a place in the list: the mark of a session and a topic."""
    return mark_of(text[:_MARK_LENGTH]) is not None and len(text) > _MARK_LENGTH


class SubscriptionList:
    """The subscriptions of a broker with these ``clients`` and ``topics``."""

    def __init__(self, clients: ClientRegistry, topics: TopicRegistry) -> None:
        self._clients = clients
        self._topics = topics

    def after(
        self, key: str, mark: str | None = None, topic: str | None = None
    ) -> Iterator[ListedSubscription | None]:
        """Yield the subscriptions behind ``key``, of one session or topic if it is given.

        None is yielded between rows, so that each step is short.
        """
        at, name = key[:_MARK_LENGTH], key[_MARK_LENGTH:]
        for session in self._sessions(at, mark):
            yield None
            if session is not None:
                behind = name if mark_text(session.mark) == at else ""
                yield from self._of_session(session, behind, topic)

    def _sessions(self, at: str, mark: str | None) -> Iterator[ListedConnection | None]:
        if mark is not None:
            if mark >= at:
                yield connection_of(self._clients, mark)
            return
        if at:
            yield connection_of(self._clients, at)
        yield from connections_after(self._clients, at)

    def _of_session(
        self, session: ListedConnection, behind: str, only: str | None
    ) -> Iterator[ListedSubscription | None]:
        """Yield the topics of ``session`` behind a name, each once, by name.

        Several clients behind a ROUTER are one session (see ``RoutedClients`` of spot).
        """
        outboxes = tuple(session.outboxes())
        if only is not None:
            topic = self._topics.get(only)
            held = [one for one in outboxes if topic is not None and _has(one, topic)]
            if topic is not None and held and only > behind:
                yield ListedSubscription(session, topic, _farthest_behind(held, topic))
        elif len(outboxes) == 1:
            (outbox,) = outboxes
            number, topics = outbox.subscription_count, outbox.topics()
            for found in self._in_order(number, topics, lambda one: _has(outbox, one), behind):
                yield None if found is None else ListedSubscription(session, found, outbox)
        else:
            yield from self._of_several(session, outboxes, behind)

    def _of_several(
        self, session: ListedConnection, outboxes: Sequence[Outbox], behind: str
    ) -> Iterator[ListedSubscription | None]:
        holders: dict[Topic, list[Outbox]] = {}
        for outbox in outboxes:
            for topic in outbox.topics():
                holders.setdefault(topic, []).append(outbox)
            yield None
        for found in self._in_order(len(holders), holders, holders.__contains__, behind):
            held = [] if found is None else [one for one in holders[found] if _has(one, found)]
            if found is None or not held:
                yield None
            else:
                yield ListedSubscription(session, found, _farthest_behind(held, found))

    def _in_order(
        self, number: int, topics: Iterable[Topic], has: Callable[[Topic], bool], behind: str
    ) -> Iterator[Topic | None]:
        """Yield those of this ``number`` of ``topics`` that are behind a name, by name."""
        start = behind.encode()
        if number <= _SORTED:
            found = [topic for topic in topics if topic.name.encode() > start]
            yield from sorted(found, key=lambda topic: topic.name.encode())
            return
        for topic in self._topics.after(start):
            yield topic if has(topic) else None


def subscription_row(subscription: ListedSubscription) -> Row:
    """Return the row of a subscription."""
    session, topic, outbox = subscription
    is_behind = outbox.is_behind(topic)
    return {
        "topic": topic.name,
        "mark": mark_text(session.mark),
        "client": session.label,
        "protocol": session.listener.event_protocol,
        "state": CATCHING_UP if is_behind else PAUSED if outbox.paused else LIVE,
        "behind": outbox.behind if is_behind else 0,
    }


def _has(outbox: Outbox, topic: Topic) -> bool:
    return topic in outbox.subscriptions or outbox.is_behind(topic)


def _farthest_behind(outboxes: Sequence[Outbox], topic: Topic) -> Outbox:
    return max(outboxes, key=lambda one: one.behind if one.is_behind(topic) else -1)
