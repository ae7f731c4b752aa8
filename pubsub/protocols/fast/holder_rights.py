"""fast: the rights of the holders of the tokens that one client sends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pubsub.broker.credentials.identity import token_identity

if TYPE_CHECKING:
    from pubsub.broker.access_rules.access import AccessRules
    from pubsub.broker.credentials.tokens import Token
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.publishing.publisher import Publisher
    from pubsub.protocols.fast.message_heads import Source
    from pubsub.protocols.fast.read_proofs import Proof
    from pubsub.wire.connection import Connection


# Estimated bytes of a source that is remembered, and of all of them, for the memory budget.
_SOURCE_BYTES, _MAX_BYTES = 400, 16 * 1024 * 1024


class PermittedSources:
    """The sources of one listener whose tokens' holders may publish, by the host of the client.

    They are remembered until the rules change.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._version: object = None
        self._by_host: dict[str, set[Source]] = {}
        self._account = listener.memory.cache(_MAX_BYTES, self._by_host.clear)

    def at(self, host: str) -> set[Source] | frozenset[Source]:
        """Return the sources of clients at ``host``."""
        version = self._listener.access_version
        if version != self._version:
            self._version = version
            self._account.clear()
        return self._by_host.get(host, frozenset())

    def add(self, host: str, sources: Sequence[Source]) -> None:
        """Remember ``sources``, which are not there yet."""
        self._by_host.setdefault(host, set()).update(sources)
        self._account.charge(len(sources) * _SOURCE_BYTES)


class HolderRights:
    """The rights of holders on ``connection``: each request has an identity of its own."""

    def __init__(self, connection: Connection, permitted: PermittedSources) -> None:
        self._connection = connection
        self._permitted = permitted
        # The holder of the last messages' token, whose rights the publisher has.
        self._holder: tuple[str, str] | None = None

    def of(self, token: Token) -> AccessRules:
        """Return the rights of the holder of ``token``."""
        connection = self._connection
        return connection.listener.access_for(token_identity(token, connection.identity.host))

    def publish_with(self, publisher: Publisher, token: Token) -> None:
        """Give the connection's ``publisher`` the rights, which are looked up for a new holder."""
        if token.holder != self._holder:
            self._holder = token.holder
            publisher.access = self.of(token)

    def may_publish(self, proof: Proof, sources: Sequence[Source]) -> bool:
        """Return whether the holder of each token of ``proof`` may publish to its source's topic.

        The topics exist.
        """
        host = self._connection.identity.host
        permitted = self._permitted.at(host)
        if permitted.issuperset(sources):
            return True
        found = []
        topics = self._connection.listener.topics
        for source, token in zip(sources, proof.each, strict=True):
            if source not in permitted:
                if not self.of(token).may_publish(topics.by_id(source.topic_id).name):
                    return False
                found.append(source)
        self._permitted.add(host, found)
        return True
