"""The client library: publish and subscribe over any of the broker's protocols.

    async with connect("cafe://127.0.0.1:7070", client_id="bob") as client:
        async with client.subscribe("cafe/7") as messages:
            await client.publish("cafe/7", b"hello", confirm=True)
            async for message in messages:
                print(message.payload)

This package runs on asyncio; ``pubsub.client.twisted`` on Twisted's reactor, and
``pubsub.client.blocking`` without an event loop. ``docs/client.md`` is its documentation.
"""

from __future__ import annotations

from pubsub.client.asyncio_runtime import AsyncioRuntime
from pubsub.client.base_client import Client
from pubsub.client.client_errors import (
    ClientClosed,
    ClientError,
    ConnectFailed,
    HistoryNeeded,
    InvalidTopic,
    InvalidUrl,
    NotExpressible,
    NotPublished,
    NotSent,
    OutcomeUnknown,
    ReaderHeld,
    RequestRefused,
    SubscriptionRefused,
    TopicNotAddressable,
    Unconfirmable,
)
from pubsub.client.client_options import ClientOptions, takes_options
from pubsub.client.messages import Message, MessageBatch, MixedBatch
from pubsub.client.notices import (
    Disconnected,
    Ended,
    Gap,
    Notice,
    Reconnected,
    Refusal,
    Uncertain,
)
from pubsub.client.subscription import Subscription
from pubsub.wire.client_events import Level

__all__ = [
    "Client", "ClientClosed", "ClientError", "ConnectFailed", "Disconnected", "Ended", "Gap",
    "HistoryNeeded", "InvalidTopic", "InvalidUrl", "Level", "Message", "MessageBatch",
    "MixedBatch", "NotExpressible", "NotPublished", "NotSent", "Notice", "OutcomeUnknown",
    "ReaderHeld", "Reconnected", "Refusal", "RequestRefused", "Subscription",
    "SubscriptionRefused", "TopicNotAddressable", "Uncertain", "Unconfirmable", "connect",
]  # fmt: skip


@takes_options
def connect(options: ClientOptions) -> Client:
    """Return a client of the broker at ``url``, on the running asyncio loop.

    Several URLs, in a list, are those of brokers that stand for one another.
    docs/client.md lists the options. Nothing is connected yet. Raises InvalidUrl, and TypeError for
    an option of a wrong type.
    """
    return Client(AsyncioRuntime(), options)
