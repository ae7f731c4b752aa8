"""The publishes (nsd §3.2) that clients of a listener write in the same way, and their channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pubsub.broker.publishing.address_mixes import AddressMixes
from pubsub.kernel import TextTable
from pubsub.protocols.nsd.message_heads import PublishLearner, Source
from pubsub.wire.known_heads import KnownHeads

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.topic_space.topics import Topic


class KnownPublishes:
    """The heads of publishes to the channels of ``listener``, and the mixes of these channels.

    The addresses of the columns that a scan returns are ``Source`` objects.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._learner = PublishLearner()
        self.mixes = AddressMixes(listener, self._topic_of)
        self._heads = KnownHeads(
            self._learner.learn,
            listener.memory,
            listener.frame_turns,
            listener.at_tick_end,
            self.mixes.clear,
            TextTable,
        )

    def heads(self) -> KnownHeads[TextTable]:
        """Return the heads, of which a change of ``max-body`` leaves none."""
        max_body = self._listener.settings["max-body"]
        if max_body != self._learner.max_body:
            self._learner.max_body = max_body
            self._heads.clear()
            self.mixes.clear()
        return self._heads

    def _topic_of(self, source: Source) -> Topic:
        return self._listener.topics.existing(source.identity)
