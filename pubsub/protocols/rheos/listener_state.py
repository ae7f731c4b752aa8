"""The state that the connections of one listener of rheos share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pubsub.broker.publishing.address_mixes import AddressMixes
from pubsub.broker.topic_space.topic_names import topic_name
from pubsub.kernel import HeadTable
from pubsub.protocols.rheos.client_ids import Clients
from pubsub.protocols.rheos.codec import Codec
from pubsub.protocols.rheos.layout_hints import LayoutHints
from pubsub.protocols.rheos.message_heads import Source, learn_publish, unseal
from pubsub.protocols.rheos.response_encoding import ResponseEncoding, encoding_of
from pubsub.protocols.rheos.shared_ids import SharedIds
from pubsub.wire.known_heads import KnownHeads

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.kernel import Columns, Head

PARENTS = "rheos-parents"
"""The table of the store's metadata with the client id that created each topic."""


class ListenerState:
    """The codec, the heads that are known, and the clients."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        settings = listener.settings
        self.codec = Codec(settings["layout"], settings["checksum"] == "crc32")
        self.mixes = AddressMixes(listener, self._topic_of)
        self._heads = KnownHeads(
            self._learn,
            listener.memory,
            listener.frame_turns,
            listener.at_tick_end,
            self.mixes.clear,
            HeadTable,
        )
        self.clients = Clients(listener)
        self.shared_ids = SharedIds(listener, self.clients)
        self.layout_hints = LayoutHints(listener)
        self._envelope = settings["envelope"] == "topic"
        listener.topics.watch_removal(lambda topic: listener.store.delete(PARENTS, topic.name))

    def scan(self, data: bytes, at: int) -> tuple[Columns, int]:
        """Return the messages whose requests follow one another from ``at`` on, and their end."""
        columns = self._heads.scan(data, at)
        if not self.codec.checksum:
            return columns, columns.end
        return unseal(columns, data, at, self.codec)

    def _learn(self, data: bytes, at: int) -> tuple[Head, Source] | None:
        return learn_publish(data, at, self.codec)

    def _topic_of(self, source: Source) -> Topic:
        return self._listener.topics.existing(topic_name(source.topic))

    def encoding(self, topic: Topic) -> ResponseEncoding:
        """Return the encoding of ``topic`` on this listener."""
        return encoding_of(topic, self.codec, self._envelope)
