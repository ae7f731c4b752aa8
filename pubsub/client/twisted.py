"""The client library on Twisted's reactor.

    async def chat():
        async with connect("cafe://127.0.0.1:7070", client_id="bob") as client:
            async with client.subscribe("cafe/7") as messages:
                await client.publish("cafe/7", b"hello", confirm=True)
                async for message in messages:
                    print(message.payload)

    ensureDeferred(chat())

The methods are those of ``pubsub.client``. They are coroutines for code that Twisted runs with
``ensureDeferred``, which makes a Deferred of each of them.
"""

from __future__ import annotations

from typing import Any

from pubsub.client.base_client import Client
from pubsub.client.client_options import ClientOptions, takes_options
from pubsub.client.twisted_runtime import TwistedRuntime

__all__ = ["Client", "connect"]


@takes_options
def connect(options: ClientOptions, *, reactor: Any = None) -> Client:
    """Return a client of the broker at ``url``; the options are those of ``pubsub.client``.

    ``reactor`` is Twisted's own by default. Nothing is connected yet. Raises InvalidUrl.
    """
    if reactor is None:
        from twisted.internet import reactor as installed

        reactor = installed
    return Client(TwistedRuntime(reactor), options)
