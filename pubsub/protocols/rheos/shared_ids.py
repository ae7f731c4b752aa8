"""rheos's client ids that other brokers can resume: see ``SessionSharing``.

An id that this broker does not know may be one of another broker. Its first request here waits for
the answer; then its subscriptions continue here, with the messages that were missed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, DeferredList

from pubsub.broker.clients.session_sharing import SessionContent, known_topics
from pubsub.errors import Refused

if TYPE_CHECKING:
    from pubsub.broker.delivery.start_positions import Position
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.slices import Work
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.protocols.rheos.client_ids import Clients
    from pubsub.protocols.rheos.message_destination import ClientId, MessageDestination

# Ids that are looked for at a time for one connection.
_TOGETHER = 64


class SharedId:
    """See ``SharedClient``."""

    __slots__ = ("_client", "_clients")

    def __init__(self, clients: Clients, client: ClientId) -> None:
        self._clients = clients
        self._client = client

    @property
    def is_lost(self) -> bool:
        """See ``SharedClient``."""
        return not self._client.destinations

    @property
    def is_movable(self) -> bool:
        """See ``SharedClient``."""
        return True

    @property
    def can_merge(self) -> bool:
        """See ``SharedClient``."""
        return True

    def merge(self, content: SessionContent) -> Work:
        """See ``SharedClient``."""
        yield from self._clients.merge(self._client, content)

    def content(self) -> SessionContent:
        """See ``SharedClient``."""
        client, live = self._client, []
        behind: dict[str, Position] = {}
        unsent: dict[MessageDestination, dict[Topic, Position]] = {}
        for topic, destination in client.topics.items():
            if destination is None or destination.closed:
                start = client.starts.get(topic)
                if start is not None:
                    behind[topic.name] = start
                    continue
            elif destination not in unsent:
                unsent[destination] = destination.unsent()
            found = unsent.get(destination, {}).get(topic) if destination is not None else None
            if found is None:
                live.append(topic.name)
            else:
                behind[topic.name] = found
        return SessionContent(live, behind)

    def lose(self) -> Work:
        """See ``SharedClient``."""
        yield from self._clients.lose(self._client)

    def forget(self) -> Work:
        """See ``SharedClient``."""
        self._client.key = ""
        yield from self._clients.lose(self._client, keep=False)


class SharedIds:
    """The part of ``clients`` that shares them through ``listener.sessions.sharing``."""

    def __init__(self, listener: Listener, clients: Clients) -> None:
        self._listener = listener
        self._clients = clients
        clients.shared = self

    @property
    def enabled(self) -> bool:
        """Whether ids are shared."""
        return self._listener.sessions.sharing is not None

    def _key(self, client_id: bytes, owner: tuple[str, str] | None) -> str:
        sharing = self._listener.sessions.sharing
        if sharing is None:
            return ""
        # An id of an identity is another one than that of others.
        return sharing.key(self._listener, client_id, *[text.encode() for text in owner or ()])

    def changed(self, client: ClientId) -> None:
        """The subscriptions of ``client`` have changed, or its connection."""
        sharing = self._listener.sessions.sharing
        if sharing is None:
            return
        if not client.topics:
            self.ended(client)
            return
        key = self._key(client.id, client.owner)
        if client.key not in ("", key):
            sharing.end(client.key)
        client.key = key
        sharing.share(key, SharedId(self._clients, client))

    def ended(self, client: ClientId) -> None:
        """``client`` has ended, or its subscriptions have."""
        sharing = self._listener.sessions.sharing
        if client.key and sharing is not None:
            sharing.end(client.key)
        client.key = ""

    def look_up(
        self, ids: Iterable[bytes], destination: MessageDestination
    ) -> Deferred[Any] | None:
        """Look for some of ``ids``, which are used at ``destination``; None if all are known.

        Fires when those of them that other brokers have are here.
        """
        if not self.enabled:
            return None
        unknown = [one for one in dict.fromkeys(ids) if one not in destination.known_ids]
        unknown = [one for one in unknown if one not in self._clients][:_TOGETHER]
        if not unknown:
            return None
        destination.known_ids.update(unknown)
        return DeferredList([self._take(one, destination.owner) for one in unknown])

    def _take(self, client_id: bytes, owner: tuple[str, str] | None) -> Deferred[None]:
        sharing = self._listener.sessions.sharing
        assert sharing is not None
        key = self._key(client_id, owner)

        def taken(content: SessionContent | None) -> None:
            if content is not None and sharing is not None:
                self._restore(client_id, owner, key, content)

        return sharing.take(key).addCallback(taken)

    def _restore(
        self, client_id: bytes, owner: tuple[str, str] | None, key: str, content: SessionContent
    ) -> None:
        """Keep a client of another broker until it is used, which is at once."""
        sharing, topics = self._listener.sessions.sharing, self._listener.topics
        assert sharing is not None
        try:
            if client_id in self._clients:
                raise Refused
            known = known_topics(content, lambda name: topics.create(name, hosted=False))
            client = self._clients.restore(client_id, owner, known)
        except Refused:
            sharing.end(key)
            return
        client.key = key
        self.changed(client)
