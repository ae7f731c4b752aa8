"""The streams of the broker in JetStream: made by the first broker, and found by the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

from pubsub.backplane.nats_work import Unusable

if TYPE_CHECKING:
    from nats.js import JetStreamContext
    from nats.js.api import StreamConfig, StreamInfo


async def make_stream(
    js: JetStreamContext, config: StreamConfig, label: str, settings: str
) -> StreamInfo:
    """Make the stream unless it is there; return what is there.

    Raises Unusable if the engine does not create it; the message names it by ``label``, and the
    ``settings`` to check. An engine that is about to start raises ServiceUnavailableError.
    """
    assert config.name is not None
    try:
        return await js.stream_info(config.name)
    except NotFoundError:
        pass
    try:
        return await js.add_stream(config)
    except ServiceUnavailableError:
        raise
    except APIError as error:
        raise Unusable(
            f"it does not create the {label}: {error.description}; check {settings}"
        ) from None
