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

# Messages for each topic from which on the frames of all topics are made ready for a batch.
_REPEATED = 2


def collect_mixed(
    router: MessageRouter, mix: TopicMix, audiences: Sequence[MixedAudience], batch: Batch
) -> None:
    """Encode ``batch`` for ``audiences``, which receive it at the end of the tick."""
    columns, topics = batch.columns, mix.topics
    indexes = columns.words(of_indexes=True)
    encoder = None
    # So many bytes of frames stay in the processor's cache.
    if columns.count >= _REPEATED * len(topics) and columns.nbytes <= WRITE_BYTES:
        encoder = mix.common.get(len(audiences))
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
