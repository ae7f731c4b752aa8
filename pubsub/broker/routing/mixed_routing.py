"""The routing of messages of several topics to the audiences of a ``TopicMix``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pubsub.broker.routing.audience import WRITE_BYTES, Share

if TYPE_CHECKING:
    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.routing.message_router import MessageRouter
    from pubsub.broker.routing.mixed_audience import MixedAudience
    from pubsub.broker.routing.topic_mix import TopicMix

# Audiences from which on the frames of all messages are written first, and then copied for each of
# them, if there are at least as many messages for each topic.
_SEVERAL, _REPEATED = 4, 2


def collect_mixed(
    router: MessageRouter, mix: TopicMix, audiences: Sequence[MixedAudience], batch: Batch
) -> None:
    """Encode ``batch`` for ``audiences``, which receive it at the end of the tick."""
    columns, topics = batch.columns, mix.topics
    indexes = columns.words(of_indexes=True)
    encoder = None
    if (
        len(audiences) >= _SEVERAL
        and columns.count >= _REPEATED * len(topics)
        # The frames stay in the processor's cache.
        and columns.nbytes <= WRITE_BYTES
    ):
        encoder = mix.common.get()
    if encoder is None or encoder.writer is None or columns.largest > encoder.limit:
        for audience in audiences:
            router.collect(audience, batch, Share(topics, indexes, audience.wanted))
        return
    wanted = [audience.flags for audience in audiences]
    each = encoder.writer.encode_each(columns, encoder.stamp(batch), wanted)
    for audience, (data, count) in zip(audiences, each, strict=True):
        if count:
            share = Share(topics, indexes, audience.wanted)
            router.add(audience, data, count, batch.offset, share)
