"""nsd's responses to messages, when these are as safe as promised (nsd §3.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pubsub.protocols.nsd.codec import SUCCESS, wrap
from pubsub.protocols.nsd.refusals import UNCONFIRMED
from pubsub.wire.replies import confirmed_by_host

if TYPE_CHECKING:
    from pubsub.broker.topic_space.durability import Durability
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.wire.connection import Connection


def reply_published(connection: Connection, topic: Topic, in_base64: bool, count: int = 1) -> None:
    """Reply to ``count`` messages of ``topic``."""
    if topic.upstream is None:
        reply_when_stored(connection, topic.durability, in_base64, count)
    else:
        success, failed = _responses(in_base64, count)
        connection.reply_when(confirmed_by_host(topic), success, failed, count)


def reply_when_stored(
    connection: Connection, durability: Durability, in_base64: bool, count: int
) -> None:
    """Reply to ``count`` messages of topics that this broker hosts."""
    connection.reply_when_stored(durability, *_responses(in_base64, count), count)


def _responses(in_base64: bool, count: int) -> tuple[bytes, bytes]:
    return wrap(SUCCESS, in_base64) * count, wrap(UNCONFIRMED, in_base64) * count
