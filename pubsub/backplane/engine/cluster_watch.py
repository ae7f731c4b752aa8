"""Whether most servers of the engine's cluster are there, as the connected one sees them.

A server that is cut off from the others keeps its clients, answers their pings, and passes messages
on between them. So only the question for a leader shows that messages of other brokers are missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import TYPE_CHECKING

from pubsub.backplane.engine.jetstream import NoLeader, check_jetstream
from pubsub.backplane.engine.nats_work import Unusable

if TYPE_CHECKING:
    from nats.aio.client import Client

# Seconds between two looks at whether the connection is open, and for an answer. Looks between two
# questions, and answers without a leader before it counts: an election takes less than that.
_LOOK, _ANSWER, _LOOKS, _ANSWERS = 1.0, 2.0, 5, 2


async def watch_cluster(
    client: Client, report: Callable[[bool], object], leaves: Callable[[], Awaitable[bool]]
) -> None:
    """Report whether the server is cut off, until the connection has ended.

    While it is, ``leaves`` is called, and returns whether the connection is given up.
    """
    answers = 0
    for look in count(1):
        if client.is_closed:
            return
        await asyncio.sleep(_LOOK)
        if look % _LOOKS == 0:
            found = await _has_leader(client)
            if found is not None:
                answers = 0 if found else answers + 1
                report(answers >= _ANSWERS)
            if answers >= _ANSWERS and await leaves():
                return


async def _has_leader(client: Client) -> bool | None:
    """Return whether the cluster has a leader; None if the server does not answer."""
    try:
        await check_jetstream(client, _ANSWER)
    except NoLeader:
        return False
    except (TimeoutError, OSError):
        return None
    except Unusable:
        # So is a connection that has ended meanwhile.
        return None if client.is_closed else True
    return True
