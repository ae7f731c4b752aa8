"""A house with a large history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred

from tests.unit.web import WebHouse

BIG = bytes(600_000)
ALL = "/v1/history?start=0"


def big_house(**settings: Any) -> WebHouse:
    """Return a broker whose history has six pieces."""
    house = WebHouse(**settings)
    for _ in range(12):
        house.publish("a", BIG)
    return house


class Threads:
    """Calls that wait until the test makes them."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], Any], Deferred[Any]]] = []

    def run(self, call: Callable[[], Any]) -> Deferred[Any]:
        """See HttpApiFactory."""
        done: Deferred[Any] = Deferred()
        self.waiting.append((call, done))
        return done

    def step(self) -> None:
        """Make the next call."""
        call, done = self.waiting.pop(0)
        maybeDeferred(call).chainDeferred(done)
