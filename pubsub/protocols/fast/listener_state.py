"""The state that the connections of one fast listener share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.logger import Logger

from pubsub.broker.publishing.address_mixes import AddressMixes
from pubsub.errors import TopicNotFound
from pubsub.kernel import HeadTable
from pubsub.protocols.fast.holder_rights import PermittedSources
from pubsub.protocols.fast.message_heads import Source, learn_publish
from pubsub.protocols.fast.ownership import TopicOwnership
from pubsub.protocols.fast.read_proofs import Proofs
from pubsub.wire.known_heads import KnownHeads

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.kernel import Head
    from pubsub.wire.connection import Connection

log = Logger()


class ListenerState:
    """The heads and tokens that are known, and the owners of exclusive topics.

    ``max_payload`` is the largest payload of a message, in bytes.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.max_payload: int = listener.settings["max-payload"]
        self.mixes = AddressMixes(listener, self._topic_of)
        self.proofs = Proofs(listener)
        self.permitted = PermittedSources(listener)
        self.heads = KnownHeads(
            self._learn,
            listener.memory,
            listener.frame_turns,
            listener.at_tick_end,
            self._heads_forgotten,
            HeadTable,
        )
        self.ownership = TopicOwnership(listener)
        self._hinted = False

    def _learn(self, data: bytes, at: int) -> tuple[Head, Source] | None:
        return learn_publish(data, at, self.max_payload)

    def _heads_forgotten(self) -> None:
        self.mixes.clear()
        self.proofs.clear()

    def _topic_of(self, source: Source) -> Topic:
        return self._listener.topics.by_id(source.topic_id)

    def topic_name(self, topic_id: int) -> str | None:
        """Return the name of the topic with this id; None if there is none."""
        try:
            return self._listener.topics.by_id(topic_id).name
        except TopicNotFound:
            return None

    def hint_errors(self, client: Connection) -> None:
        """Log, once, the setting for clients that do not know ERROR (fast §6.1)."""
        if not self._hinted:
            self._hinted = True
            log.warn(
                "fast on {endpoint}: {client!r} disconnected after an ERROR; if its program does "
                "not know this packet, set errors=off",
                endpoint=self._listener.endpoint,
                client=client.label,
                connection=client.log_fields(),
            )
