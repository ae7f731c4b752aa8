"""fast: the rights of the holders of the tokens that one client sends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pubsub.broker.identity import token_identity

if TYPE_CHECKING:
    from pubsub.broker.access import AccessRules
    from pubsub.broker.publisher import Publisher
    from pubsub.broker.tokens import Token
    from pubsub.protocols.fast.message_heads import Source
    from pubsub.protocols.fast.read_proofs import Proof
    from pubsub.wire.connection import Connection


class HolderRights:
    """The rights of holders on ``connection``: each request has an identity of its own."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # The holder of the last messages' token, whose rights the publisher has.
        self._holder: tuple[str, str] | None = None
        # The last proof whose holders may publish, and the version of the rules for which that is
        # so: most gateways send their messages in the same order again.
        self._permitted: tuple[Proof, object] | None = None

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
        listener = self._connection.listener
        permitted = proof, listener.access_version
        if permitted == self._permitted:
            return True
        rights: dict[tuple[str, str], AccessRules] = {}
        for source, token in zip(sources, proof.each, strict=True):
            access = rights.get(token.holder)
            if access is None:
                access = rights[token.holder] = self.of(token)
            if not access.may_publish(listener.topics.by_id(source.topic_id).name):
                return False
        self._permitted = permitted
        return True
