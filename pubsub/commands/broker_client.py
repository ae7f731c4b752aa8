"""The client library as the commands use it: connected to a destination, with advice in errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pubsub.commands.destination import Destination
from pubsub.commands.start_position import StartPosition, offset_of
from pubsub.errors import PubSubError
from pubsub.wire.client_tls_files import check_files

if TYPE_CHECKING:
    from pubsub.client import Client, Notice, Subscription

_Result = TypeVar("_Result")
OnEvent = Callable[["Notice"], None]


class CommandError(PubSubError):
    """An error of the client library, and its remedy."""


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run ``work`` to its end, or to Ctrl-C. Raises CommandError."""
    # With Ctrl-C during the import, `work` has not begun.
    with closing(work):
        from pubsub.client import ClientError

        # Notices are reported by the commands themselves.
        _silence_log()
        try:
            return asyncio.run(work)
        except ClientError as error:
            raise CommandError(str(error)) from None


def _silence_log() -> None:
    import logging

    logging.getLogger("pubsub.client").addHandler(logging.NullHandler())


@asynccontextmanager
async def connected(where: Destination, on_event: OnEvent | None = None) -> AsyncIterator[Client]:
    """Yield a client of the broker; at the end everything is sent and confirmed.

    Raises CommandError, ClientError.
    """
    from pubsub.client import connect

    # The library would name its own options.
    check_files(*where.tls_files)
    with advice(where):
        token, file = where.token(), where.token_file
        async with connect(
            where.login_url(),
            client_id=where.client_id,
            # A file is read again for each connection.
            token=token if file is None else None,
            token_file=None if file is None else Path(file).expanduser(),
            # Empty, not None, as the client library has a default of its own.
            api=where.api or "",
            tls_ca=where.tls_ca,
            tls_cert=where.tls_cert,
            tls_key=where.tls_key,
            on_event=on_event,
        ) as client:
            yield client


@contextmanager
def advice(where: Destination) -> Iterator[None]:
    """Add the next step to the errors of a client."""
    from pubsub.client import (
        ConnectFailed,
        HistoryNeeded,
        NotPublished,
        SubscriptionRefused,
        TopicNotAddressable,
    )

    try:
        yield
    except ConnectFailed as error:
        hint = where.hint_of_refusal(str(error)) if error.refused else where.hint()
        raise CommandError(f"{error}; {hint}") from None
    except (NotPublished, SubscriptionRefused) as error:
        raise CommandError(f"{error}{where.hint_of_right(str(error))}") from None
    except TopicNotAddressable as error:
        raise CommandError(f"{error}; choose another URL with --url") from None
    except HistoryNeeded:
        where.api_url()
        raise


def subscribe(
    client: Client,
    topics: Sequence[str],
    start: int | None,
    events: bool = False,
    reader: str | None = None,
) -> Subscription[Notice]:
    """Subscribe to ``topics``; one that ends in ``*`` stands for all names with this prefix.

    Raises CommandError for a prefix with a ``start``: prefixes begin with new messages.
    """
    names = [topic for topic in topics if not topic.endswith("*")]
    prefixes = [topic[:-1] for topic in topics if topic.endswith("*")]
    if prefixes and start is not None:
        raise CommandError(
            f"{prefixes[0]}* is a prefix, and the history is read by topic only; name "
            "the topics, or subscribe without --from and --last"
        )
    return client.subscribe(*names, prefixes=prefixes, start=start, events=events, reader=reader)


def find_offset(where: Destination, start: StartPosition) -> int | None:
    """Return the offset at which a subscription begins, None for new messages only.

    Raises RequestFailed, ConfigurationError.
    """
    if start.latest:
        return None
    if start.offset is not None:
        return start.offset
    from pubsub.commands.api_client import Api

    return offset_of(start, Api(where).bounds, time.time())


def start_of_last(where: Destination, topics: Sequence[str], number: int) -> int:
    """Return the offset of the first of the last ``number`` messages of ``topics``.

    It is the end of the history if there is none. Raises RequestFailed, ConfigurationError.
    """
    from pubsub.commands.api_client import Api

    query = {"last": number, "topic": list(topics), "format": "jsonl"}
    return Api(where).start_of("/v1/history", query)
