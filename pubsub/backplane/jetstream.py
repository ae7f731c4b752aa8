"""JetStream and its streams, which the first broker makes and the others find."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nats.errors import Error as NatsError
from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

from pubsub.backplane.nats_work import Unusable

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js import JetStreamContext
    from nats.js.api import StreamConfig, StreamInfo

# The number of the error of a cluster most of whose servers are away.
_NO_LEADER = 10008


async def check_jetstream(client: Client, seconds: float) -> None:
    """Raise Unusable if the account has no JetStream, TimeoutError if it does not answer now."""
    try:
        await client.jetstream(timeout=seconds).account_info()
    except TimeoutError:
        raise
    except NatsError as error:
        if isinstance(error, APIError) and error.err_code == _NO_LEADER:
            raise TimeoutError("most servers of its cluster are away") from None
        raise Unusable(
            "it has no JetStream for this account; enable it in the server's configuration"
        ) from None


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
