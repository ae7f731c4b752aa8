"""The rows of lists of topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pubsub.broker.credentials.queue_keys import QueueKeys
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.management.listing import Row


def topic_row(topic: Topic, keys: QueueKeys) -> Row:
    """Return the row of a topic.

    ``messages`` and ``bytes`` are those that came since the broker started; ``last_timestamp`` is
    the time of the last of them in µs, or null. ``remote`` is True if another broker hosts it.
    """
    return {
        "name": topic.name,
        "durability": topic.durability.name.lower(),
        "subscribers": topic.subscriber_count,
        "messages": topic.messages,
        "bytes": topic.nbytes,
        "last_timestamp": topic.last_timestamp or None,
        "keyed": topic in keys,
        "exclusive": topic.name in keys.exclusive,
        "remote": topic.upstream is not None,
        "used": is_used(topic),
    }


def is_used(topic: Topic) -> bool:
    """Return False for a topic that a listener offers, such as a channel, and no client has used.

    A subscription counts while it lasts, a message from then on, also after a restart.
    """
    return topic.hosted or topic.in_use
