"""The shells of the client library, driven alike: a scenario is a coroutine with a client.

def scenario(connect): async with connect(url) as client: ...
run("twisted", scenario)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar, cast

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.epollreactor import EPollReactor
from twisted.python.failure import Failure

from pubsub import client as asyncio_client
from pubsub.client import blocking
from pubsub.client import twisted as twisted_client

_Result = TypeVar("_Result")
Connect = Callable[..., Any]
Scenario = Callable[[Connect], Coroutine[Any, Any, _Result]]
SHELLS = ("asyncio", "twisted", "blocking")
# Of a scenario, which may start brokers, and of a publish, on a machine with much other work.
SECONDS, PUBLISH_SECONDS = 160.0, 60.0


class _Blocking:
    """The blocking client with the coroutines of the others; each blocks."""

    def __init__(self, url: str, **options: Any) -> None:
        self._client = blocking.connect(url, **options)

    async def __aenter__(self) -> _Blocking:
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._client.__exit__(*error)

    async def publish(self, *args: Any, **options: Any) -> Any:
        return self._client.publish(*args, **options)

    async def publish_many(self, *args: Any, **options: Any) -> Any:
        return self._client.publish_many(*args, **options)

    async def last(self, *args: Any, **options: Any) -> Any:
        return self._client.last(*args, **options)

    async def flush(self) -> None:
        self._client.flush()

    async def close(self) -> None:
        self._client.close()

    def subscribe(self, *topics: str, **options: Any) -> _BlockingSubscription:
        return _BlockingSubscription(self._client.subscribe(*topics, **options))


class _BlockingSubscription:
    def __init__(self, inner: blocking.Subscription[Any]) -> None:
        self._inner = inner

    async def __aenter__(self) -> _BlockingSubscription:
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._inner.close()

    def __aiter__(self) -> _BlockingSubscription:
        return self

    async def __anext__(self) -> Any:
        found = self._inner.next(SECONDS)
        if found is None:
            raise StopAsyncIteration
        return found

    async def next_item(self) -> Any:
        return self._inner.next_item(SECONDS)

    async def commit(self) -> None:
        self._inner.commit()


def run(shell: str, scenario: Scenario[_Result]) -> _Result:
    """Run ``scenario`` with the ``connect`` of a shell. Raises TimeoutError."""
    if shell == "asyncio":
        connect = partial(asyncio_client.connect, timeout=PUBLISH_SECONDS)
        return asyncio.run(asyncio.wait_for(scenario(connect), SECONDS))
    if shell == "blocking":
        return asyncio.run(scenario(partial(_Blocking, timeout=PUBLISH_SECONDS)))
    return _run_in_reactor(scenario)


def _run_in_reactor(scenario: Scenario[_Result]) -> _Result:
    """Run ``scenario`` in a reactor of its own: that of pytest-twisted calls this test."""
    reactor = EPollReactor()
    outcome: list[_Result | Failure] = []

    def begin() -> None:
        connect = partial(twisted_client.connect, reactor=reactor, timeout=PUBLISH_SECONDS)
        deferred: Deferred[_Result] = ensureDeferred(scenario(connect))
        deferred.addTimeout(SECONDS, cast(Any, reactor))
        deferred.addBoth(finish)

    def finish(result: _Result | Failure) -> None:
        outcome.append(result)
        reactor.stop()

    reactor.callWhenRunning(begin)
    reactor.run(installSignalHandlers=False)
    (found,) = outcome
    if isinstance(found, Failure):
        found.raiseException()
    return found


async def collect(subscription: Any, count: int) -> list[Any]:
    """Return the next ``count`` messages or notices."""
    return [await anext(subscription) for _ in range(count)]
