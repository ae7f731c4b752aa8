"""JetStream and its streams, which the first broker makes and the others find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nats.errors import Error as NatsError
from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

from pubsub.backplane.engine.engine_errors import is_denial
from pubsub.backplane.engine.nats_work import Unusable

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js import JetStreamContext
    from nats.js.api import StreamConfig, StreamInfo

# The numbers of errors: of a cluster most of whose servers are away, and of a new stream for which
# there are too few servers, which another broker was first to make, or whose subjects are those of
# another one.
_NO_LEADER, _NO_PEERS, _EXISTS, _OVERLAP = 10008, 10005, 10058, 10065
# In the description of an error: servers are away that would have the stream.
_OFFLINE = "offline"


class NoLeader(TimeoutError):
    """Servers of the cluster are away, such as most of them, or a new one has not started."""


@contextmanager
def permitted(last_error: Callable[[], str]) -> Iterator[None]:
    """Raise Unusable in place of TimeoutError for requests that the account may not make.

    The engine answers them with an error that is of no request: ``last_error`` returns it.
    """
    try:
        yield
    except TimeoutError:
        problem = last_error()
        if not is_denial(problem):
            raise
        raise Unusable(
            f"its account lacks permissions: {problem}; docs/scaling.md has them"
        ) from None


async def check_jetstream(client: Client, seconds: float) -> None:
    """Raise Unusable if the account has no JetStream, TimeoutError if it does not answer now."""
    try:
        await client.jetstream(timeout=seconds).account_info()
    except TimeoutError:
        raise
    except NatsError as error:
        if isinstance(error, APIError) and error.err_code == _NO_LEADER:
            raise NoLeader("most servers of its cluster are away") from None
        raise Unusable(
            "it has no JetStream for this account; enable it in the server's configuration"
        ) from None


async def make_stream(
    js: JetStreamContext, config: StreamConfig, label: str, settings: str
) -> StreamInfo:
    """Make the stream unless it is there; return what is there.

    Raises Unusable if the engine does not create it; the message names it by ``label``, and the
    ``settings`` to check. An engine that is about to start raises ServiceUnavailableError, and a
    cluster without the servers for the stream NoLeader.
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
        if error.err_code == _EXISTS:
            # With other settings, which are in force.
            return await js.stream_info(config.name)
        if error.err_code == _NO_PEERS and _OFFLINE in (error.description or ""):
            raise NoLeader(
                f"servers of its cluster are away that are to have the {label}"
            ) from None
        if error.err_code == _OVERLAP:
            raise Unusable(
                f"it does not create the {label}: another stream has its subjects; remove that "
                "stream, or give the brokers an account of their own"
            ) from None
        raise Unusable(
            f"it does not create the {label}: {error.description}; check {settings}"
        ) from None
