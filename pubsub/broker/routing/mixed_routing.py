"""The routing of messages of several topics to the audiences of a ``TopicMix``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pubsub.broker.routing.audience import WRITE_BYTES, Share

if TYPE_CHECKING:
    from pubsub.broker.routing.audience import Receivers
    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.routing.encoders import BatchEncoder
    from pubsub.broker.routing.message_router import MessageRouter
    from pubsub.broker.routing.mixed_audience import MixedAudience
    from pubsub.broker.routing.topic_mix import TopicMix
    from pubsub.kernel import FrameEncoder

# Messages for each topic from which on the frames of all topics are made ready for a batch.
_REPEATED = 2


class SharedFrames:
    """The frames of all messages of a batch, of which each audience gets some."""

    __slots__ = ("_batch", "_stamp", "_topics", "_writer")

    def __init__(
        self, mix: TopicMix, batch: Batch, encoder: BatchEncoder, writer: FrameEncoder
    ) -> None:
        self._batch, self._topics, self._writer = batch, mix.topics, writer
        self._stamp = encoder.stamp(batch)

    @classmethod
    def of(cls, mix: TopicMix, batch: Batch) -> SharedFrames | None:
        """Return those of ``batch``, if the present audiences of ``mix`` are served faster so."""
        columns = batch.columns
        # So many bytes of frames stay in the processor's cache.
        if (
            mix.current is None
            or columns.count < _REPEATED * len(mix.topics)
            or columns.nbytes > WRITE_BYTES
        ):
            return None
        encoder = mix.common.get(len(mix.current))
        if encoder is None or encoder.writer is None or columns.largest > encoder.limit:
            return None
        return cls(mix, batch, encoder, encoder.writer)

    def collect(
        self, router: MessageRouter, audiences: Sequence[tuple[MixedAudience, Receivers]]
    ) -> None:
        """Have the receivers get the messages of their audience at the end of the tick."""
        columns = self._batch.columns
        indexes = columns.words(of_indexes=True)
        wanted = [audience.flags for audience, _ in audiences]
        each = self._writer.encode_each(columns, self._stamp, wanted)
        for (audience, receivers), (data, count) in zip(audiences, each, strict=True):
            if count:
                share = Share(self._topics, indexes, audience.wanted)
                router.add(receivers, data, count, self._batch.offset, share)


def collect_mixed(
    router: MessageRouter,
    mix: TopicMix,
    audiences: Sequence[MixedAudience],
    batch: Batch,
    frames: SharedFrames | None,
) -> None:
    """Encode ``batch`` for ``audiences``, which receive it at the end of the tick."""
    if frames is not None:
        frames.collect(router, [(audience, audience) for audience in audiences])
        return
    indexes = batch.columns.words(of_indexes=True)
    for audience in audiences:
        router.collect(audience, batch, Share(mix.topics, indexes, audience.wanted))
