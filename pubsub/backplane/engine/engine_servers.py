"""The servers of the engine, and the search for one that is with most others of its cluster.

A broker leaves a server that is cut off only for one that has shown a leader. If there is none, it
stays: messages between the brokers at its server still pass.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from nats.errors import Error as NatsError

from pubsub.backplane.engine.engine_client import EngineClient
from pubsub.backplane.engine.engine_url import EngineOptions, shown
from pubsub.backplane.engine.jetstream import check_jetstream
from pubsub.backplane.engine.nats_work import Unusable
from pubsub.errors import ConfigurationError

if TYPE_CHECKING:
    from pubsub.backplane.engine.nats_tap import TappedLoop

# Seconds to connect, for an answer, and to close.
_SECONDS = 2


class EngineServers:
    """The servers in turn, without an end."""

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._urls = deque(options.servers.urls)

    def __iter__(self) -> Iterator[str]:
        while True:
            self._urls.rotate(-1)
            yield self._urls[-1]

    async def options_of(self, url: str) -> dict[str, Any]:
        """Return the options of nats-py for a connection to ``url``."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(None, self._options.of_nats, url)
        except ConfigurationError as error:
            # A file that was damaged since the start, or is written at this moment.
            raise Unusable(str(error)) from None

    async def leave(self) -> str | None:
        """Return why the server of this turn is left for another one, which has the next turn.

        None if no other server finds a leader.
        """
        here = self._urls[-1]
        for url in list(self._urls)[:-1]:
            # Whatever another server answers, the connection in use goes on.
            with contextlib.suppress(Exception):
                await self._ask_for_leader(url)
                self._urls.rotate(-self._urls.index(url))
                return f"{shown(here)} is cut off from its cluster, and {shown(url)} is not"
        return None

    async def _ask_for_leader(self, url: str) -> None:
        """Connect to ``url`` only to ask; raise NoLeader, or why there is no answer."""
        options = await self.options_of(url)
        client = EngineClient(options["tls"] is not None)
        loop = cast("TappedLoop", asyncio.get_running_loop())
        tap = loop.tap
        try:
            await client.connect(
                shown(url),
                error_cb=_ignore,
                name="pubsub broker, looking for a leader",
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=_SECONDS,
                **options,
            )
            await check_jetstream(client, _SECONDS)
        finally:
            with contextlib.suppress(TimeoutError, NatsError, OSError):
                await asyncio.wait_for(client.close(), _SECONDS)
            # That of the connection which is in use.
            loop.tap = tap


async def _ignore(error: Exception) -> None:
    """nats-py raises it too."""
